// Bell: how a producer wakes a consumer that sleeps. A timerfd that the sleeper makes and lends; ringing sets its ticks.
//
// Not an eventfd, and nothing else that is written to: the neighbour shares the open file and with it O_NONBLOCK. He could
// make the file blocking, fill it, and so stop the thread that rings for ever (a pipe: hold its mutex from a page fault).
// Setting the ticks takes the timer's spin lock and nothing else, whatever the neighbour does with the file; it costs what
// the write to an eventfd costs. Nobody reads the bell: the sleeper has it edge-triggered in an epoll set, so that it needs
// no draining either. Whoever reads it (the neighbour can) delays its own pair.
//
// Source: timerfd_create(2), ioctl TFD_IOC_SET_TICKS (Linux 3.17, CONFIG_CHECKPOINT_RESTORE); without it the timer is set to
// run out at once, which is slower. No thread rules.
#pragma once

#include "base/own_fd.h"
#include "base/result.h"

namespace vma::shm {

// A new bell; the descriptor is the caller's. Errors of timerfd_create(2).
Result<int> create_bell();

// Somebody else's bell.
class BorrowedBell {
  public:
    // Takes ownership of `fd`, closed on every path. EINVAL: it is not a timer.
    Status adopt(int fd);
    void ring();
    void reset() { fd_.reset(); }
    bool valid() const { return fd_.valid(); }

  private:
    OwnFd fd_;
    bool by_time_ = false;  // this kernel does not know the ioctl
};

}  // namespace vma::shm
