// The broker's loop: the door, the sessions, the deaths of clients, the rescues under way. One thread. Ends when the door is
// closed by everybody and nothing is left to do.
#pragma once

namespace vmad {

// `door`: our end. The exit status of the process.
int serve(int door);

}  // namespace vmad
