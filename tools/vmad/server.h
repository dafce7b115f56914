// The broker's loop: doors, sessions, deaths of clients, rescues under way. One thread.
#pragma once

#include <string>

namespace vmad {

// For one program: `door` is our end of it. Ends when the door is closed by everybody and nothing is left to do. The exit
// status of the process.
int serve_program(int door);
// For every process that may connect to this listening socket; each connection is a door. Nobody is believed to be privileged.
// `policy`: the file with the rules of who may have what, which is read again at SIGHUP; empty: there are none. 1 when it
// cannot be read, and what is wrong with it in the log. Ends by a signal.
int serve_host(int listener, const std::string& policy);
// For the processes of this network namespace that another process, which has the listening socket, passes by `control`
// (workers.h). Ends when that tells it to, or has ended.
int serve_namespace(int control, const std::string& policy);

}  // namespace vmad
