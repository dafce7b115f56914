// A connection moves to the ring of the thread or CPU that uses it (VMA_RING_MIGRATION_RATIO_*,
// docs/decisions/0023-rings-of-an-interface.md): under the leases of both rings, so that nobody sees it in between.
#include "base/clock.h"
#include "sock/broker_link.h"
#include "sock/carried.h"
#include "sock/epoll.h"
#include "sock/fork.h"
#include "sock/tcp_socket.h"

namespace vma::sock {

void TcpSocket::follow_user(SocketRings::Direction d) {
    if (!rings.access(d)) return;
    const std::unique_lock guard(control_, std::try_to_lock);
    const SocketRings::Move move = rings.begin(d, true);
    if (!guard.owns_lock() || state() != SocketState::offloaded || connection_ == nullptr ||
        phase_.load(std::memory_order_relaxed) != Phase::connected)
        return rings.drop(move);
    if (!move.elsewhere) return rings.keep(move);
    Reason why = Reason::none;
    Shard* const to =
        may_move() ? space_->shard(shard_->ifindex(), move.use.lane(), &why) : nullptr;
    if (to == static_cast<Shard*>(shard_)) return rings.keep(move);
    const Moved moved = to ? move_to(*to) : Moved::refused;
    if (moved != Moved::yes) {
        if (moved == Moved::refused) SocketCounters::add(counters.migrations_refused, 1);
        return rings.drop(move, moved == Moved::refused);
    }
    // Its words for forked children lie beside the connection: there the broker looks for them.
    if (share()) {
        give_share();
        LeaseGuard lease(to->lease());
        take_share(*to);
    }
    rings.keep(move);
    SocketCounters::add(
        d == SocketRings::kReceive ? counters.rx_migrations : counters.tx_migrations, 1);
    vma_log(debug, "sock", "fd {}: by lane {} from now on", fd(), move.use.lane());
    Epoll::follow_lanes(*this);
    publish_state();
    watch.notify(0);  // who sleeps on the ring before
}

// control_ held. What others find by its ring or by its address stays there: packets that a callback, a poll of SocketXtreme or the
// program has, a connection that forked children may ask for, one in shared memory.
bool TcpSocket::may_move() const {
    const ShareRecord* const record = share();
    if (record != nullptr && record->forks != forks_so_far()) return false;
    return !screening.on() && !Xtreme::on() && !in_custody_ && !connection_->neighbor &&
           counters.rx_kept.load(std::memory_order_relaxed) == 0;
}

TcpSocket::Moved TcpSocket::move_to(Shard& to) {
    broker_watch(to);
    Shard& from = *shard_;
    const TwoLeases leases(from.lease(), to.lease());
    TcpConnection& c = *connection_;
    from.drain();
    if (!TcpEngine::may_move(c)) return Moved::not_now;
    if (!to.tcp().take_flow_of(c, from)) return Moved::refused;
    // What the ring caught before; after that nothing comes to it.
    from.drain();
    const Instant now = monotonic_now();
    TcpConnection* const there = TcpEngine::may_move(c) ? copy_to(to, c, now) : nullptr;
    if (there == nullptr) {
        to.tcp().return_flow_of(c, from, now);
        return Moved::not_now;
    }
    TcpEngine::moved_in(*there, c);
    connection_ = there;
    shard_ = &to;
    from.tcp().moved_out(c, now);
    screen_connection();
    update_ready();
    to.tcp().pull(*there, now);
    to.tcp().flush(now);
    return Moved::yes;
}

// [both leases] Null: no memory, or the tuple is in use there.
TcpConnection* TcpSocket::copy_to(Shard& to, TcpConnection& c, Instant now) {
    tcp::Tcb& t = c.tcb;
    const auto snapshot = tcp::export_snapshot(t, now);
    if (!snapshot) return nullptr;
    const tcp::Snapshot& s = *snapshot;
    const auto to_send = uint32_t(s.snd_end - s.snd_una);
    Carried send(to_send), unread(s.unread);
    if (!send.ok() || !unread.ok()) return nullptr;
    if (to_send) tcp::export_unacked(t, s.snd_una, send.data(), to_send);
    if (s.unread) tcp::export_unread(t, 0, unread.data(), s.unread);
    tcp::TcpConfig config = t.cfg;
    config.send_buffer = t.out.limit;
    config.receive_buffer = t.rcv.buffer;
    const auto made = to.tcp().adopt(c.tuple, s, send.view(0, to_send), unread.view(0, s.unread),
                                     config, c.path, space_->monitor(), this, now);
    return made ? *made : nullptr;
}

}  // namespace vma::sock
