#include "broker/protocol.h"

#include <errno.h>
#include <netinet/in.h>

#include <cstring>

namespace vma::broker {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHighestAddress = uint64_t(1) << 47;

// A unicast IPv4 address and a port: the only tuples that are offloaded.
bool usable(const WireEndpoint& e) {
    if (e.zero != 0 || e.scope != 0 || e.port == 0) return false;
    const Endpoint out = from_wire(e);
    return out.addr.is_v4() && !out.addr.is_any() && !out.addr.is_multicast() &&
           !out.addr.is_limited_broadcast();
}

bool valid(const RepairOptions& o) {
    return o.known < 1u << RepairOptions::kCount && o.congestion[sizeof o.congestion - 1] == 0;
}

bool valid(Op op, const Repair& r) {
    if (!valid(r.image.options)) return false;
    if (op != Op::restore && op != Op::finish) {
        if (r.unacked + r.unsent + r.unread != 0) return false;
        return op == Op::cancel || op == Op::checkpoint || from_wire(r.image).ok();
    }
    const auto s = from_wire(r.image.snapshot);
    if (!s) return false;
    if (r.unacked > kMostQueueBytes || r.unsent > kMostQueueBytes || r.unread > kMostQueueBytes)
        return false;
    const Seq first = Seq::min(s->snd_una, s->snd_end);
    return r.unread == s->unread && r.unacked + r.unsent == uint32_t(s->snd_end - first) &&
           r.unacked == uint32_t(Seq::max(Seq::min(s->snd_nxt, s->snd_end), first) - first);
}

bool valid(const Watch& w) {
    if (w.arena == 0 || w.arena % kPage || w.reserve == 0 || w.reserve % kPage) return false;
    if (w.arena >= kHighestAddress || w.reserve >= kHighestAddress - w.arena) return false;
    if (w.root < w.arena || w.root % 8 || w.root - w.arena >= w.reserve) return false;
    const bool power = w.ring_bytes != 0 && (w.ring_bytes & (w.ring_bytes - 1)) == 0;
    if (w.ring_data == 0 ? w.ring_bytes != 0 : !power || w.ring_bytes > kMostRingBytes)
        return false;
    return w.ring_data % kPage == 0 && w.ring_data < kHighestAddress && w.slot != 0 &&
           w.ifindex > 0;
}

bool valid(const OpenRing& r) {
    return r.ifindex > 0 && r.bytes >= kLeastLentBytes && r.bytes <= kMostLentBytes &&
           (r.bytes & (r.bytes - 1)) == 0;
}

bool valid(const ShowRing& r) {
    return r.slot != 0 && r.slot < kSlots && r.token != 0 && r.ifindex > 0 && r.zero == 0;
}

bool valid_steer(const Steer& s) {
    if (s.protocol != IPPROTO_TCP && s.protocol != IPPROTO_UDP) return false;
    if (!usable(s.local) || (s.remote != WireEndpoint{} && !usable(s.remote))) return false;
    return s.slot != 0 && s.slot < kSlots && s.gate < kGates && s.ignore_firewall <= 1 &&
           s.zero == 0;
}

bool valid(const HeldList& list, bool with_share) {
    if (list.zero != 0) return false;
    for (uint32_t i = 0; i < list.count; i++) {
        const Held& h = list.items[i];
        if (h.connection == 0 || h.connection % 8 || !usable(h.local) || !usable(h.remote))
            return false;
        if (with_share ? h.share == 0 || h.share % 4 : h.share != 0) return false;
    }
    return true;
}

// How many descriptors a message must have: exact, but for the queues of a repair.
bool fds_fit(Op op, unsigned fds, const Body& body) {
    switch (op) {
        case Op::restore:
        case Op::finish:
            return fds == 1u + (body.repair.unacked + body.repair.unsent + body.repair.unread != 0);
        case Op::cancel:
        case Op::checkpoint:
        case Op::resume:
        case Op::release:
        case Op::watch:
        case Op::prove:
        case Op::show_ring:
        case Op::steer:
        case Op::share:
            return fds == 1;
        case Op::hold:
            return fds == body.held.count;
        case Op::reply:
            return true;
        default:
            return fds == 0;
    }
}

}  // namespace

bool can_be_asked(const Steer& s) { return valid_steer(s); }

WireEndpoint to_wire(const Endpoint& e) {
    WireEndpoint w;
    std::memcpy(w.address, e.addr.bytes.data(), 16);
    w.scope = e.addr.scope;
    w.port = e.port;
    return w;
}
Endpoint from_wire(const WireEndpoint& w) {
    Endpoint e;
    e.addr = IpAddr::v6_bytes(w.address, w.scope);
    e.port = w.port;
    return e;
}

WireSnapshot to_wire(const tcp::Snapshot& s) {
    WireSnapshot w;
    w.local = to_wire(s.local);
    w.remote = to_wire(s.remote);
    w.state = uint8_t(s.state);
    w.flags = uint8_t((s.passive ? kPassive : 0) | (s.fin_queued ? kFinQueued : 0) |
                      (s.fin_sent ? kFinSent : 0) | (s.peer_fin ? kPeerFin : 0) |
                      (s.scaling ? kScaling : 0) | (s.sack ? kSack : 0) |
                      (s.timestamps ? kTimestamps : 0));
    w.snd_wscale = s.snd_wscale;
    w.rcv_wscale = s.rcv_wscale;
    w.peer_mss = s.peer_mss;
    w.snd_una = s.snd_una.v;
    w.snd_nxt = s.snd_nxt.v;
    w.snd_end = s.snd_end.v;
    w.rcv_nxt = s.rcv_nxt.v;
    w.unread = s.unread;
    w.snd_wl1 = s.snd_wl1.v;
    w.snd_wnd = s.snd_wnd;
    w.max_window = s.max_window;
    w.rcv_wnd = s.rcv_wnd;
    w.rcv_wup = s.rcv_wup.v;
    w.ts_value = s.ts_value;
    w.ts_recent = s.ts_recent;
    w.cwnd = s.cwnd;
    w.ssthresh = s.ssthresh;
    w.srtt_ns = s.srtt.ns;
    w.rttvar_ns = s.rttvar.ns;
    return w;
}

WireImage to_wire(const RepairImage& image) {
    WireImage w;
    w.snapshot = to_wire(image.snapshot);
    w.options = image.options;
    w.to_send = image.to_send;
    w.sent = image.sent;
    w.path_mtu = image.path_mtu;
    return w;
}

Result<RepairImage> from_wire(const WireImage& w) {
    const auto s = from_wire(w.snapshot);
    if (!s || !valid(w.options) || w.path_mtu > 65535 || w.sent > w.to_send ||
        w.to_send > kMostQueueBytes)
        return Errno{EINVAL};
    RepairImage image;
    image.snapshot = *s;
    image.options = w.options;
    image.to_send = w.to_send;
    image.sent = w.sent;
    image.path_mtu = uint16_t(w.path_mtu);
    return image;
}

Result<tcp::Snapshot> from_wire(const WireSnapshot& w) {
    const auto state = tcp::State(w.state);
    if (state < tcp::State::ESTABLISHED || state >= tcp::State::TIME_WAIT) return Errno{EINVAL};
    if (!usable(w.local) || !usable(w.remote) || w.zero != 0 || w.flags > 127) return Errno{EINVAL};
    if (w.snd_wscale > 14 || w.rcv_wscale > 14 || w.peer_mss < 48) return Errno{EINVAL};
    tcp::Snapshot s;
    s.local = from_wire(w.local);
    s.remote = from_wire(w.remote);
    s.state = state;
    s.passive = w.flags & kPassive;
    s.fin_queued = w.flags & kFinQueued;
    s.fin_sent = w.flags & kFinSent;
    s.peer_fin = w.flags & kPeerFin;
    s.scaling = w.flags & kScaling;
    s.sack = w.flags & kSack;
    s.timestamps = w.flags & kTimestamps;
    s.snd_wscale = w.snd_wscale;
    s.rcv_wscale = w.rcv_wscale;
    s.peer_mss = w.peer_mss;
    s.snd_una = {w.snd_una};
    s.snd_nxt = {w.snd_nxt};
    s.snd_end = {w.snd_end};
    s.rcv_nxt = {w.rcv_nxt};
    s.unread = w.unread;
    s.snd_wl1 = {w.snd_wl1};
    s.snd_wnd = w.snd_wnd;
    s.max_window = w.max_window;
    s.rcv_wnd = w.rcv_wnd;
    s.rcv_wup = {w.rcv_wup};
    s.ts_value = w.ts_value;
    s.ts_recent = w.ts_recent;
    s.cwnd = w.cwnd;
    s.ssthresh = w.ssthresh;
    s.srtt = {w.srtt_ns};
    s.rttvar = {w.rttvar_ns};
    // Our FIN, once acknowledged, puts SND.UNA one behind the last byte.
    const bool fin_acked = s.fin_sent && s.snd_una == s.snd_end + 1;
    if ((s.snd_end < s.snd_una && !fin_acked) || s.snd_nxt < s.snd_una) return Errno{EINVAL};
    if (s.fin_sent ? !(s.snd_nxt == s.snd_end + 1) : s.snd_nxt > s.snd_end) return Errno{EINVAL};
    const Seq first = Seq::min(s.snd_una, s.snd_end);
    if (uint32_t(s.snd_end - first) > kMostQueueBytes || s.unread > kMostQueueBytes)
        return Errno{EINVAL};
    return s;
}

bool answered(Op op) {
    return (op >= Op::restore && op <= Op::release) || op == Op::watch || op == Op::prove ||
           (op >= Op::open_ring && op <= Op::steer) || op == Op::share || op == Op::publish;
}

size_t body_bytes(Op op, uint32_t count) {
    switch (op) {
        case Op::hello:
            return sizeof(Hello);
        case Op::restore:
        case Op::cancel:
        case Op::finish:
        case Op::checkpoint:
        case Op::resume:
        case Op::release:
            return sizeof(Repair);
        case Op::watch:
            return sizeof(Watch);
        case Op::hold:
        case Op::drop:
            return HeldList::bytes(count);
        case Op::open_ring:
            return sizeof(OpenRing);
        case Op::show_ring:
            return sizeof(ShowRing);
        case Op::steer:
        case Op::unsteer:
            return sizeof(Steer);
        case Op::publish:
            return sizeof(Publish);
        case Op::reply:
            return sizeof(Reply);
        default:
            return 0;
    }
}

Result<Head> decode(ByteView packet, unsigned fds, Body& body) {
    Head head;
    if (packet.size() < sizeof head || packet.size() > kMostMessage) return Errno{EPROTO};
    std::memcpy(&head, packet.data(), sizeof head);
    const ByteView rest = packet.subspan(sizeof head);
    if (head.magic != kMagic || head.version != kVersion || head.bytes != rest.size())
        return Errno{EPROTO};
    if (head.op <= Op::none || head.op >= Op::count || fds > kMostFds) return Errno{EPROTO};
    uint32_t count = 0;
    if (head.op == Op::hold || head.op == Op::drop) {
        if (rest.size() < HeldList::bytes(0)) return Errno{EPROTO};
        std::memcpy(&count, rest.data(), sizeof count);
        if (count == 0 || count > kMostFds) return Errno{EPROTO};
    }
    if (rest.size() != body_bytes(head.op, count)) return Errno{EPROTO};
    std::memset(static_cast<void*>(&body), 0, sizeof body);
    if (!rest.empty()) std::memcpy(static_cast<void*>(&body), rest.data(), rest.size());
    bool ok = true;
    switch (head.op) {
        case Op::hello:
            ok = body.hello.zero == 0 && body.hello.netns_cookie != 0;
            break;
        case Op::restore:
        case Op::cancel:
        case Op::finish:
        case Op::checkpoint:
        case Op::resume:
        case Op::release:
            ok = valid(head.op, body.repair);
            break;
        case Op::watch:
            ok = valid(body.watch);
            break;
        case Op::open_ring:
            ok = valid(body.open_ring);
            break;
        case Op::show_ring:
            ok = valid(body.show_ring);
            break;
        case Op::steer:
        case Op::unsteer:
            ok = can_be_asked(body.steer);
            break;
        case Op::publish:
            ok = usable(body.publish.local);
            break;
        case Op::hold:
        case Op::drop:
            ok = valid(body.held, head.op == Op::hold);
            break;
        default:
            break;
    }
    if (!ok) return Errno{EINVAL};
    if (!fds_fit(head.op, fds, body)) return Errno{EPROTO};
    return head;
}

}  // namespace vma::broker
