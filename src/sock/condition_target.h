// Waiting for a condition of a connection, which is looked at under the lease of its shard. The condition must expect that
// the connection has gone (handed back) meanwhile.
#pragma once

#include "engine/shard.h"
#include "sock/socket.h"
#include "sock/wait.h"

namespace vma::sock {

// Waits for `done(socket)` under the lease of its shard.
template <class Done>
class ConditionTarget final : public WaitTarget {
  public:
    ConditionTarget(Socket& socket, Shard* shard, Done done)
        : socket_(socket), shard_(shard), done_(done) {}
    bool ready(bool) override {
        LeaseGuard guard(shard_->lease());
        if (done_()) return true;
        return shard_->poll() != 0 && done_();
    }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return {&shard_, 1}; }
    void progress() override {}

  private:
    Socket& socket_;
    Shard* shard_;
    Done done_;
};

}  // namespace vma::sock
