// A spin lock in shared memory that survives the death of its holder: the word is the holder's process, and who has waited
// long looks whether that still exists. What a dead process left half done belongs to its own queues and dies with them.
#pragma once

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/backoff.h"

namespace softhca {

inline uint32_t own_pid() {
    static const uint32_t pid =
        uint32_t(getpid());  // a child of fork does not use its parent's device
    return pid;
}

class SharedLock {
  public:
    void lock() {
        const uint32_t me = own_pid();
        vma::Backoff backoff(64);
        for (uint32_t yields = 0;;) {
            uint32_t free = 0;
            if (word_.load(std::memory_order_relaxed) == 0 &&
                word_.compare_exchange_weak(free, me, std::memory_order_acquire))
                return;
            if (backoff.spin()) continue;
            sched_yield();
            if (++yields % 1024 == 0) free_after_the_dead();
        }
    }
    void unlock() { word_.store(0, std::memory_order_release); }

  private:
    void free_after_the_dead() {
        uint32_t holder = word_.load(std::memory_order_relaxed);
        const int before = errno;
        if (holder && kill(pid_t(holder), 0) < 0 && errno == ESRCH)
            word_.compare_exchange_strong(holder, 0, std::memory_order_release);
        errno = before;
    }

    std::atomic<uint32_t> word_{0};
};

class SharedLocked {
  public:
    explicit SharedLocked(SharedLock& lock) : lock_(lock) { lock_.lock(); }
    ~SharedLocked() { lock_.unlock(); }
    SharedLocked(const SharedLocked&) = delete;
    SharedLocked& operator=(const SharedLocked&) = delete;

  private:
    SharedLock& lock_;
};

}  // namespace softhca
