// Waiting for a condition of a connection, which is looked at under the lease of its shard. The condition must expect that
// the connection has gone (handed back) meanwhile.
#pragma once

#include "sock/moving_shard.h"
#include "sock/socket.h"
#include "sock/wait.h"

namespace vma::sock {

// Waits for `done(socket)` under the lease of its shard.
template <class Done>
class ConditionTarget final : public WaitTarget {
  public:
    ConditionTarget(Socket& socket, const MovingShard& at, Done done)
        : socket_(socket), at_(at), done_(done) {}
    bool ready(bool) override {
        const ConnectionLease lease(at_);
        if (done_()) return true;
        return lease.shard().poll() != 0 && done_();
    }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override {
        waits_at_ = at_;
        return {&waits_at_, 1};
    }
    void progress() override {}

  private:
    Socket& socket_;
    const MovingShard& at_;
    Shard* waits_at_ = nullptr;
    Done done_;
};

}  // namespace vma::sock
