// OwnFd: a descriptor of the library's own inside the program's table (process-model.md §2): CLOEXEC, moved above the top
// quarter of the soft RLIMIT_NOFILE, refused to the program (EBADF), relocated when the program dup2s onto its number.
// Thread rules: open/close under no lock of the caller; fd() from any thread. At most kMaxOwnFds at a time. The object
// lives in memory private to the process, never in an arena: parent and child have different descriptors.
#pragma once

#include <atomic>

#include "base/result.h"

namespace vma {

inline constexpr int kMaxOwnFds = 1024;

class OwnFd {
  public:
    OwnFd() = default;
    ~OwnFd() { reset(); }
    OwnFd(const OwnFd&) = delete;
    OwnFd& operator=(const OwnFd&) = delete;

    // Takes ownership of `fd` (closed on every path): moves it high, sets CLOEXEC, registers it. EMFILE when full.
    Status adopt(int fd);
    void reset();  // closes and unregisters; no-op when empty
    int fd() const { return fd_.load(std::memory_order_relaxed); }
    bool valid() const { return fd() >= 0; }

  private:
    friend bool own_fd_relocate(int fd);
    friend void own_fds_close_in_child();
    std::atomic<int> fd_{-1};
    int slot_ = -1;
};

// True when `fd` is one of ours; lock free, no system call: called by every close/dup2 hook.
bool is_own_fd(int fd);
// The lowest of ours at or above `fd`, or -1: close_range and closefrom go around it. Lock free.
int own_fd_at_or_above(int fd);
// Moves our fd away from this number so that the program can have it; false if it is not ours or could not move. The
// caller excludes users of the descriptor that have read fd() but not yet made their call. An epoll registration of ours
// stays under the old number: re-register it.
bool own_fd_relocate(int fd);
// Closes every own fd without unregistering side effects on the parent: first act of a forked child. Not for a vfork
// child, whose memory is the parent's.
void own_fds_close_in_child();

}  // namespace vma
