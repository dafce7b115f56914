#include "sock/xtreme.h"

#include <errno.h>

#include <array>

#include "base/clock.h"
#include "engine/runtime.h"
#include "sock/screen.h"
#include "sock/socket.h"
#include "sock/wait.h"

namespace vma::sock {

// Sockets that have something to tell at one ring.
struct XtremeQueue {
    SpinLock lock;
    List<XtremeTurn, &XtremeTurn::hook> waiting;
    std::atomic<uint32_t> count{0};
    std::atomic<bool> others{false};  // some of them have more rings than this one
};

namespace {

constexpr unsigned kMostRings = 256;  // as many as Runtime has shards
constinit std::array<XtremeQueue, kMostRings> g_queues;
// What a program is told besides packets and connections.
constexpr uint32_t kTold = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP;
// Told anew with each change of state of a socket of datagrams, whose twin may have more of it.
constexpr uint32_t kMore = EPOLLIN | EPOLLPRI | EPOLLERR;

// -1: none. `is` decides.
template <class Is>
int find_ring(const Is& is) {
    const auto shards = Runtime::shards();
    for (unsigned i = 0; i < shards.size() && i < kMostRings; i++)
        if (is(*shards[i])) return int(i);
    return -1;
}

void add(XtremeQueue& queue, XtremeTurn& turn) {
    SpinGuard guard(queue.lock);
    if (turn.hook.linked()) return;
    queue.waiting.push_back(turn);
    queue.count.fetch_add(1, std::memory_order_release);
}

}  // namespace

bool Xtreme::on() { return Runtime::started() && Runtime::options().socketxtreme; }

void XtremeTurn::changed(uint32_t events) {
    XtremeQueue* const queue = queue_.load(std::memory_order_acquire);
    if (queue == nullptr) return;
    changed_.fetch_or(events == Watch::kAny ? kState : events & ~kState, std::memory_order_acq_rel);
    add(*queue, *this);
}

void Xtreme::settle(Socket& socket, Shard& shard, bool more) {
    if (!on()) return;
    XtremeTurn& turn = socket.xtreme;
    XtremeQueue* queue = turn.queue_.load(std::memory_order_acquire);
    if (queue == nullptr) {
        const int ring = find_ring([&](Shard& s) { return &s == &shard; });
        if (ring < 0) return;
        queue = &g_queues[size_t(ring)];
        turn.queue_.store(queue, std::memory_order_release);
    }
    if (more) queue->others.store(true, std::memory_order_relaxed);
    // That it can be written to is no news, but for who waits to be connected.
    turn.level_.store(socket.poll_events() & EPOLLOUT, std::memory_order_relaxed);
    turn.changed(kTold & ~EPOLLOUT);
}

void Xtreme::remove(Socket& socket) {
    XtremeQueue* const queue = socket.xtreme.queue_.load(std::memory_order_acquire);
    if (queue == nullptr) return;
    SpinGuard guard(queue->lock);
    socket.xtreme.queue_.store(nullptr, std::memory_order_release);
    if (!socket.xtreme.hook.linked()) return;
    socket.xtreme.hook.unlink();
    queue->count.fetch_sub(1, std::memory_order_release);
}

namespace {

// Passes results on, and knows whether there were any.
class Noticing final : public Completions {
  public:
    explicit Noticing(Completions& out) : out_(out) {}
    bool any() const { return any_; }
    bool room() const override { return out_.room(); }
    void put(const Socket& socket, const Completion& completion) override {
        any_ = true;
        out_.put(socket, completion);
    }

  private:
    Completions& out_;
    bool any_ = false;
};

}  // namespace

// False: there is more, and no room or no memory for it now.
bool Xtreme::tell(Socket& socket, Completions& out) {
    XtremeTurn& turn = socket.xtreme;
    const uint32_t changed = turn.changed_.exchange(0, std::memory_order_acq_rel);
    const auto later = [&] {
        turn.changed_.fetch_or(changed, std::memory_order_acq_rel);
        return false;
    };
    if (!socket.complete(out) || !out.room()) return later();
    const uint32_t now = socket.poll_events() & kTold;
    // Readable may be for a packet that came after the last one was taken, and the end of a stream may have come behind it.
    if (now & EPOLLIN) {
        Noticing behind(out);
        if (!socket.complete(behind) || behind.any()) return later();
    }
    Completion news;
    const uint32_t before = turn.level_.exchange(now, std::memory_order_relaxed);
    news.events = now & changed;
    const uint32_t again = socket.kind == ObjectKind::udp ? kMore : 0;
    if (changed & XtremeTurn::kState) news.events |= now & (~before | again);
    if (news.events != 0) out.put(socket, news);
    return true;
}

void Xtreme::serve(XtremeQueue& queue, Completions& out) {
    for (uint32_t left = queue.count.load(std::memory_order_acquire); left > 0 && out.room();
         left--) {
        Socket* socket;
        {
            SpinGuard guard(queue.lock);
            XtremeTurn* const first = queue.waiting.pop_front();
            if (first == nullptr) return;
            queue.count.fetch_sub(1, std::memory_order_release);
            socket = first->socket;
            // The last reference may be gone already; its destruction has to take the lock first, and finds nothing to do.
            if (!try_reference(*socket)) continue;
        }
        if (socket->is_open() && !tell(*socket, out)) add(queue, socket->xtreme);
        release_object(socket);
    }
}

bool Xtreme::poll(int ring_fd, Completions& out) {
    const int ring = find_ring([&](Shard& s) { return s.wake_fd() == ring_fd; });
    if (ring < 0) return false;
    XtremeQueue& queue = g_queues[size_t(ring)];
    serve(queue, out);
    if (!out.room()) return true;
    const auto shards = Runtime::shards();
    shards[size_t(ring)]->progress();
    if (queue.others.load(std::memory_order_relaxed))
        for (Shard* shard : shards) shard->progress();
    if (TwinEvents::is_due(monotonic_now())) TwinEvents::drain();
    Screens::run();
    serve(queue, out);
    return true;
}

void Xtreme::forget_in_child() { new (&g_queues) std::array<XtremeQueue, kMostRings>; }

namespace {

template <class Act>
int with_piece(const PacketPiece* piece, const Act& act) {
    const void* const id = KeptPackets::id_of(piece);
    for (Shard* shard : Runtime::shards()) {
        LeaseGuard lease(shard->lease());
        if (PacketBuf* const buf = shard->lent().find(id)) return act(*shard, *buf);
    }
    return -ENOENT;
}

}  // namespace

int hold_piece(const PacketPiece* piece) {
    return with_piece(piece, [](Shard&, PacketBuf& buf) { return int(++buf.as<Kept>().holds); });
}

int give_piece_back(const PacketPiece* piece, const PacketPiece** next) {
    return with_piece(piece, [next](Shard& shard, PacketBuf& buf) {
        Kept& kept = buf.as<Kept>();
        if (next != nullptr) *next = kept.piece.next;
        if (--kept.holds != 0) return int(kept.holds);
        const Packet packet = shard.lent().take_out(buf);
        if (kept.owner != nullptr) static_cast<Socket*>(kept.owner)->piece_returned(shard, kept);
        return 0;
    });
}

}  // namespace vma::sock
