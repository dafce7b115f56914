// SpinLock: for a few instructions of control-path work. Bounded spinning, then sched_yield: a holder that was preempted on
// the same core must get to run. Not recursive, not for anything that blocks.
#pragma once

#include <sys/syscall.h>

#include <atomic>

#include "base/sys.h"

namespace vma {

class SpinLock {
  public:
    void lock() {
        for (unsigned spins = 0; flag_.exchange(true, std::memory_order_acquire);) {
            while (flag_.load(std::memory_order_relaxed))
                if (++spins % 64 == 0) sys::raw(SYS_sched_yield);
        }
    }
    bool try_lock() { return !flag_.exchange(true, std::memory_order_acquire); }
    void unlock() { flag_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> flag_{false};
};

class SpinGuard {
  public:
    explicit SpinGuard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
    ~SpinGuard() { lock_.unlock(); }
    SpinGuard(const SpinGuard&) = delete;
    SpinGuard& operator=(const SpinGuard&) = delete;

  private:
    SpinLock& lock_;
};

}  // namespace vma
