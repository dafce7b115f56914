// What a wait on an epoll set waits for: events of members here and of those in the kernel set.
#pragma once

#include "sock/context.h"
#include "sock/epoll.h"

namespace vma::sock {

class EpollTarget : public WaitTarget {
  public:
    EpollTarget(Epoll& epoll, int epfd, epoll_event* out, int max)
        : epoll_(epoll), out_(out), max_(max), kernel_{epfd, POLLIN, 0} {}

    bool ready(bool slept) override;
    void watch(Sleeper& sleeper) override { epoll_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { epoll_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return shards_.of(epoll_.lanes()); }
    std::span<pollfd> kernel_fds() override {
        // Always: a member may turn into a kernel one while we sleep.
        return {&kernel_, 1};
    }
    Outcome answer(ReadyCounts& counts) const;

  protected:
    ~EpollTarget() = default;
    // Events of members here: how many, or a negative errno.
    virtual int collect() { return epoll_.collect(out_, max_); }

    Epoll& epoll_;
    epoll_event* out_;
    int max_;

  private:
    static constexpr unsigned kKernelEvery = 32;
    int count_ = 0;  // of events; or a negative errno
    int ours_ = 0;   // of these, of members here
    LaneShards shards_;
    pollfd kernel_;
    bool looked_ = false;
    unsigned turn_ = 1;
};

}  // namespace vma::sock
