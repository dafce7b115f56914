// The broker's loop: doors, sessions, deaths of clients, rescues under way. One thread.
#pragma once

namespace vmad {

// For one program: `door` is our end of it. Ends when the door is closed by everybody and nothing is left to do. The exit
// status of the process.
int serve_program(int door);
// For every process that may connect to this listening socket; each connection is a door. Nobody is believed to be privileged.
// Ends by a signal.
int serve_host(int listener);

}  // namespace vmad
