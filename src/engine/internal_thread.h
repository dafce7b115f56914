// The internal thread: follows the network state, attends shards that no thread of the program attends, keeps neighbours
// fresh, sweeps the shared hook, reads the rules file again. It sleeps until one of these has work; an idle process costs a few wake-ups a second.
#pragma once

#include "base/time.h"

namespace vma {

class InternalThread {
  public:
    static bool start();  // false: no thread could be made
    static void poke();   // any thread; one write(2)
    // Something is due at `at`: pokes the thread if it would sleep (much) longer than that.
    static void wake_by(Instant at);
    static void stop();  // asks it to end and waits at most two seconds
    static void forget_in_child();
    static int control_fd();  // written by poke(); -1 when there is no thread
    // True on the internal thread itself.
    static bool is_current();
};

}  // namespace vma
