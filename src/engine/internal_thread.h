// The internal thread: follows the network state, attends shards that no thread of the program attends, keeps neighbours
// fresh, sweeps the shared hook, reads the rules file again. It sleeps until one of these has work; an idle process costs a few wake-ups a second.
#pragma once

#include "base/time.h"

namespace vma {

class InternalThread {
  public:
    // Any thread; later calls only look. False: no thread could be made (a warning, once), and nothing must be offloaded: timers,
    // neighbours and requests of children would wait for the program's next call, which may never come.
    static bool start();
    static void poke();  // any thread; one write(2)
    // A deadline of TCP that is so close to the time at which the thread wakes by itself does not deserve a wake-up.
    static constexpr Duration kSlack = Duration::millis(4);
    // Something is due at `at`: pokes the thread if it would sleep longer than `slack` beyond that.
    static void wake_by(Instant at, Duration slack);
    // Has it run what(context), and waits. False: there is no thread, or it did not come to it within two seconds.
    static bool perform(void (*what)(void*), void* context);
    static int tid();    // 0: there is none, or it has only just been made
    static void stop();  // asks it to end and waits at most two seconds
    static void
    wait_for_end();  // after stop(), however long it takes: its code is about to be unmapped
    static void forget_in_child();
    static int control_fd();  // written by poke(); -1 when there is no thread
    // True on the internal thread itself.
    static bool is_current();
};

}  // namespace vma
