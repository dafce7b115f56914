// epoll_wait() in the order of arrival.
#include <algorithm>

#include "extra/boundary.h"
#include "extra/functions.h"
#include "sock/epoll_order.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

class IntoArray final : public sock::OrderSink {
  public:
    explicit IntoArray(vma_ordered_event_t* order) : order_(order) {}
    void run(int event, const sock::OrderedRun& run) override {
        order_[event] = {to_timespec(run.first.at), to_timespec(run.first.hw), run.bytes,
                         run.datagrams};
    }

  private:
    vma_ordered_event_t* order_;
};

}  // namespace

int ordered_epoll_wait(int epfd, epoll_event* events, vma_ordered_event_t* order, int max,
                       int timeout) {
    if (inside_library()) {
        errno = EDEADLK;
        return -1;
    }
    if (max > 0 && (order == nullptr || events == nullptr)) {
        errno = EFAULT;
        return -1;
    }
    for (int i = 0; i < max; i++) order[i] = {};
    return sock::cancellable<int>(
        [=] {
            const sock::Using set{epfd};
            sock::Epoll* const epoll = set.epoll();
            if (epoll == nullptr) return sock::Outcome::kernel();
            IntoArray sink(order);
            const timespec limit{timeout / 1000, timeout % 1000 * 1000000};
            return epoll->wait_in_order(epfd, events, max, timeout < 0 ? nullptr : &limit, sink);
        },
        [=] { return ::epoll_wait(epfd, events, max, timeout); });
}

}  // namespace vma::extra
