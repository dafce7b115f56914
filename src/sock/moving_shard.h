// MovingShard: where a connection is, which a thread that uses it may change (tcp_move.cc), under the leases of both places. Whoever
// has the lease of the one that it names knows that it stays: ConnectionLease.
#pragma once

#include <atomic>

#include "engine/shard.h"

namespace vma::sock {

class MovingShard {
  public:
    operator Shard*() const { return at_.load(std::memory_order_acquire); }
    Shard* operator->() const { return *this; }
    MovingShard& operator=(Shard* shard) {
        at_.store(shard, std::memory_order_release);
        return *this;
    }

  private:
    std::atomic<Shard*> at_{nullptr};
};

class ConnectionLease {
  public:
    explicit ConnectionLease(const MovingShard& at) VMA_NO_THREAD_SAFETY_ANALYSIS : shard_(at) {
        for (;;) {
            shard_->lease().enter();
            Shard* const now = at;
            if (now == shard_ || now == nullptr) return;
            shard_->lease().leave();
            shard_ = now;
        }
    }
    ~ConnectionLease() VMA_NO_THREAD_SAFETY_ANALYSIS { shard_->lease().leave(); }
    ConnectionLease(const ConnectionLease&) = delete;
    ConnectionLease& operator=(const ConnectionLease&) = delete;
    Shard& shard() const { return *shard_; }

  private:
    Shard* shard_;
};

}  // namespace vma::sock
