#include "sock/epoll_order.h"

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "sock/socket.h"

namespace vma::sock {
namespace {

constexpr uint32_t kReadable = EPOLLIN | EPOLLRDNORM;

class OrderedTarget final : public EpollTarget {
  public:
    OrderedTarget(Epoll& epoll, int epfd, epoll_event* out, int max, OrderMemory& memory,
                  OrderSink& sink)
        : EpollTarget(epoll, epfd, out, max), memory_(memory), sink_(sink) {}
    ~OrderedTarget() { let_go(); }
    OrderedTarget(const OrderedTarget&) = delete;
    OrderedTarget& operator=(const OrderedTarget&) = delete;

  private:
    int collect() override;
    void let_go() {
        for (const ReadyMember& r : memory_.ready) release_object(r.member);
        memory_.ready.clear();
    }
    OrderMemory& memory_;
    OrderSink& sink_;
};

// One ring is looked at after the other. What has a stamp from before the first look is ordered by it; what is younger may have
// something older behind it in a ring that was looked at before, and waits for the next round.
int OrderedTarget::collect() {
    constexpr int kRounds = 3;  // the last one for stamps of a clock that was set back meanwhile
    for (int round = 1;; round++) {
        int64_t horizon = round < kRounds ? realtime_ns() : INT64_MAX;
        for (Shard* shard : shards()) {
            LeaseGuard lease(shard->lease());
            shard->stamp_all();
            shard->drain();
        }
        TwinEvents::drain();
        let_go();
        if (const int error = epoll_.list_ready(memory_.ready)) return error;
        for (ReadyMember& r : memory_.ready)
            if (r.member->is_socket() && (r.events & EPOLLIN))
                static_cast<Socket*>(r.member)->list_unread(r.unread);
        bool some = false;
        const int64_t now = realtime_ns();
        for (ReadyMember& r : memory_.ready) {
            r.unread.sort(now);
            horizon = std::min(horizon, r.unread.known_until());
            some |= !r.unread.empty();
        }
        const int n = list_in_order(memory_, horizon, out_, max_, sink_);
        if (n != 0 || !some || round == kRounds) return n;
    }
}

}  // namespace

bool Unread::Path::add(UnreadPiece piece) {
    piece.at = latest_ = std::max(latest_, piece.at);
    if (left_ == 0 || of_.count_ == kMost) {
        of_.ends_at(latest_);
        return false;
    }
    left_--;
    of_.pieces_[of_.count_++] = piece;
    return true;
}

void Unread::sort(int64_t now) {
    const auto order = [now](int64_t at) {
        return at > now && at != INT64_MAX ? at - INT64_MAX : at;
    };
    known_until_ = order(known_until_);
    for (unsigned i = 0; i < count_; i++) pieces_[i].order = order(pieces_[i].at);
    std::stable_sort(pieces_.begin(), pieces_.begin() + count_,
                     [](const UnreadPiece& a, const UnreadPiece& b) { return a.order < b.order; });
}

int list_in_order(OrderMemory& memory, int64_t horizon, epoll_event* out, int max,
                  OrderSink& sink) {
    auto& heap = memory.heap;
    const auto later = [](const ReadyMember* a, const ReadyMember* b) {
        return a->unread.first().order > b->unread.first().order;
    };
    heap.clear();
    for (ReadyMember& r : memory.ready)
        if (!r.unread.empty()) heap.push_back(&r);
    std::make_heap(heap.begin(), heap.end(), later);
    int n = 0;
    while (n < max && !heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        ReadyMember& r = *heap.back();
        heap.pop_back();
        if (r.listed || r.unread.first().order > horizon) break;
        const int64_t until =
            heap.empty() ? horizon : std::min(horizon, heap.front()->unread.first().order);
        OrderedRun run;
        run.first = r.unread.first();
        for (; !r.unread.empty() && r.unread.first().order <= until; r.unread.advance()) {
            run.bytes += r.unread.first().bytes;
            run.datagrams += r.unread.first().datagrams;
        }
        r.listed = true;
        sink.run(n, run);
        out[n].events = r.events;
        out[n++].data.u64 = r.data;
        if (r.unread.empty()) continue;
        heap.push_back(&r);
        std::push_heap(heap.begin(), heap.end(), later);
    }
    // Then what has no place in the order: connections to accept, room to write, ends, errors.
    for (const ReadyMember& r : memory.ready) {
        const uint32_t events = r.unread.empty() ? r.events : r.events & ~kReadable;
        if (n == max) break;
        if (r.listed || events == 0) continue;
        out[n].events = events;
        out[n++].data.u64 = r.data;
    }
    return n;
}

Outcome Epoll::wait_in_order(int epfd, epoll_event* out, int max, const timespec* timeout,
                             OrderSink& sink) {
    if (Outcome kernel; !may_wait_here(max, &kernel)) return kernel;
    if (!in_order_.exchange(true, std::memory_order_seq_cst))
        for_each_member([](Pollable& member) {
            if (member.is_socket()) static_cast<Socket&>(member).keep_order();
        });
    // Another thread that waits on the set in order has the memory of the last wait.
    std::unique_ptr<OrderMemory> memory(order_memory_.exchange(nullptr, std::memory_order_acq_rel));
    if (memory == nullptr) memory.reset(new (std::nothrow) OrderMemory);
    if (memory == nullptr) return Outcome::error(ENOMEM);
    Outcome outcome;
    {
        OrderedTarget target(*this, epfd, out, max, *memory, sink);
        outcome = wait_for(target, timeout, nullptr);
    }
    memory.reset(order_memory_.exchange(memory.release(), std::memory_order_acq_rel));
    return outcome;
}

}  // namespace vma::sock
