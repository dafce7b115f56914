// A UDP socket moves to the rings of the thread or CPU that uses it (VMA_RING_MIGRATION_RATIO_*,
// docs/decisions/0023-rings-of-an-interface.md): its flows are steered to the other lane's rings one by one, each at once. Its
// endpoints on the rings before stay where they are: what those had caught is read first, and what should still come there
// is not lost.
#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// For so long the rings before are looked at, too: a program on the interface that had read the old flow may still be at work.
constexpr Duration kSettles = Duration::millis(20);

}  // namespace

void UdpSocket::follow_user(SocketRings::Direction d) {
    if (!rings.access(d)) return;
    const std::unique_lock guard(control_, std::try_to_lock);
    const SocketRings::Move move = rings.begin(d);
    if (!guard.owns_lock() || state() != SocketState::offloaded ||
        handed_back_.load(std::memory_order_relaxed) || is_settling())
        return rings.drop(move);
    if (!move.elsewhere) return rings.keep(move);
    if (!may_move(d) || (d == SocketRings::kReceive && !move_flows(move.use.lane()))) {
        SocketCounters::add(counters.migrations_refused, 1);
        return rings.drop(move, true);
    }
    rings.keep(move);
    vma_log(debug, "sock", "fd {}: {} by lane {} from now on", fd(),
            d == SocketRings::kReceive ? "received" : "sent", move.use.lane());
    SocketCounters::add(
        d == SocketRings::kReceive ? counters.rx_migrations : counters.tx_migrations, 1);
    // Every destination is looked up anew.
    options_generation_.fetch_add(1, std::memory_order_release);
    publish_state();
    watch.notify(0);  // who sleeps on the rings before
}

// control_ held. What is copied or ordered by ring stays there: groups and fragments, which the kernel would deliver meanwhile;
// packets that wait for a callback or a poll of their ring; frames that wait for their time.
bool UdpSocket::may_move(SocketRings::Direction d) const {
    if (pacing_rate_.load(std::memory_order_relaxed) != 0) return false;
    return d == SocketRings::kSend ||
           (memberships_.empty() && fragments_.empty() && !screening.on() && !Xtreme::on());
}

// control_ held. False: some flow stays where it is, and so does the lane.
bool UdpSocket::move_flows(unsigned lane) {
    bool all = true;
    uint32_t left = 0;  // presences that flows were taken from
    for (Steered& s : std::span(steered_).first(steered_count_)) {
        Reason why = Reason::none;
        Shard* const to = space_->shard(s.shard->ifindex(), lane, &why);
        if (to == s.shard) continue;
        Presence* const from = present_in(*s.shard);
        if (to == nullptr || from == nullptr || !appear_in(*to) || !take_flow(s, *to)) {
            all = false;
            break;
        }
        left |= bit_of(*from);
    }
    for (const Steered& s : std::span(steered_).first(steered_count_))
        if (const Presence* const p = present_in(*s.shard)) left &= ~bit_of(*p);
    if (left != 0) settle_from(left);
    return all;
}

// control_ held. The endpoint there takes what comes for the socket.
bool UdpSocket::appear_in(Shard& shard) {
    LeaseGuard lease(shard.lease());
    Presence* const p = presence_in(shard);
    if (p == nullptr) return false;
    if (p->in_demux) return true;
    p->endpoint->local = local_;
    p->endpoint->remote = remote_;
    p->in_demux = shard.udp().demux.insert(p->endpoint->tuple(), *p->endpoint).ok();
    return p->in_demux;
}

bool UdpSocket::take_flow(Steered& s, Shard& to) {
    TwoLeases leases(to.lease(), s.shard->lease());
    if (!to.take_flow(s.key, *s.shard)) return false;
    s.shard = &to;
    return true;
}

// control_ held. These presences have no flow any more: what has come is queued in them, what is on its way is looked for.
void UdpSocket::settle_from(uint32_t presences) {
    live_.fetch_and(~presences, std::memory_order_release);
    settled_at_.store((monotonic_now() + kSettles).ns, std::memory_order_release);
    for (uint32_t left = presences; left != 0; left &= left - 1) {
        Shard& shard = *presences_[std::countr_zero(left)].shard;
        LeaseGuard lease(shard.lease());
        shard.drain();
    }
}

// Are the rings before a move still looked at? Ends it when it is time and they have nothing: whatever may still come to their
// endpoints tells of itself by ring_ready_.
bool UdpSocket::is_settling() {
    const uint32_t before =
        present_.load(std::memory_order_acquire) & ~live_.load(std::memory_order_acquire);
    if (before == 0) return false;
    if (monotonic_now().ns < settled_at_.load(std::memory_order_acquire) ||
        (ring_ready_.load(std::memory_order_acquire) & before) != 0)
        return true;
    present_.fetch_and(~before, std::memory_order_release);
    return false;
}

// control_ held. The names or the network changed: endpoints that no flow leads to take nothing under the old ones.
void UdpSocket::leave_settled() {
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        Presence& p = presences_[i];
        if (!p.in_demux || (live_.load(std::memory_order_relaxed) & bit_of(p)) != 0) continue;
        LeaseGuard lease(p.shard->lease());
        p.shard->drain();
        p.shard->udp().demux.remove(p.endpoint->tuple());
        p.in_demux = false;
    }
}

}  // namespace vma::sock
