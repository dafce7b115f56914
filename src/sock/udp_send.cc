// What a UDP socket's program sends: by the ring of the route, or by the twin.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/tcp_defaults.h"
#include "sock/message.h"
#include "sock/option_rows.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// Flags that only the kernel's send path understands.
constexpr int kTwinSendFlags = MSG_MORE | MSG_OOB | MSG_DONTROUTE | MSG_ZEROCOPY;

}  // namespace

int UdpSocket::take_twin_error(int fd) {
    if (const int untold = untold_error_.exchange(0, std::memory_order_relaxed)) return untold;
    int error = 0;
    socklen_t len = sizeof error;
    sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

UdpSocket::Destination UdpSocket::resolve(int fd, const Endpoint& to) {
    Destination d;
    d.to = to;
    d.options = options_generation_.load(std::memory_order_acquire);
    d.generation = space_->generation();
    d.neighbor_generation = space_->monitor().neighbor_generation();
    const auto view = space_->monitor().view();
    if (!decided_by().decide(Role::udp_sender, to).offload) {
        d.why = Reason::rule;
        return d;
    }
    const bool group = to.addr.is_multicast();
    if (to.addr.is_any() || to.port == 0) {
        d.why = Reason::no_route;
        return d;
    }
    RouteQuery query;
    query.dst = to.addr;
    query.src = local_.addr;
    query.protocol = IPPROTO_UDP;
    query.sport = local_.port;
    query.dport = to.port;
    query.tos = uint8_t(int_option(fd, IPPROTO_IP, IP_TOS, 0));
    query.mark = uint32_t(int_option(fd, SOL_SOCKET, SO_MARK, 0));
    query.oif = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX, 0);
    if (group) {
        if (query.oif == 0) query.oif = multicast_if_.load(std::memory_order_relaxed);
        in_addr from{};
        socklen_t size = sizeof from;
        if (query.src.is_any() &&
            sys::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, &size) == 0)
            query.src = IpAddr::v4_bytes(&from);
    }
    const auto route = view->route(query);
    if (!route || route->type != (group ? RouteType::multicast : RouteType::unicast)) {
        d.why = !route                                ? Reason::no_route
                : route->type == RouteType::local     ? Reason::loopback
                : route->type == RouteType::broadcast ? Reason::broadcast
                                                      : Reason::multicast;
        return d;
    }
    if (space_->policy()) {
        FlowQuery flow;
        flow.protocol = IPPROTO_UDP;
        flow.local = {route->source, local_.port};
        flow.remote = to;
        flow.ifindex = route->oif;
        flow.mark = query.mark;
        d.why = space_->policy()->check(flow, *view);
        if (d.why != Reason::none) return d;
    }
    Shard* shard = space_->shard(route->oif, rings.send(fd, route->source), &d.why);
    if (shard == nullptr) return d;
    d.ifindex = route->oif;
    d.next_hop = route->next_hop;
    const int ttl = group ? int_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 1)
                          : int_option(fd, IPPROTO_IP, IP_TTL, 64);
    MacAddr next_mac = MacAddr::v4_multicast(to.addr.v4_host());
    if (!group) {
        const Neighbor neighbor = space_->monitor().neighbor(route->oif, route->next_hop);
        if (!neighbor.sendable()) {
            // The kernel resolves it with the datagram that we give it; the answer bumps neighbor_generation.
            d.why = Reason::undecided;
            return d;
        }
        next_mac = neighbor.mac;
    } else if (ttl == 0) {
        d.why = Reason::multicast;  // does not leave the host
        return d;
    }
    d.loops = group && int_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1) != 0;
    const int mtu_discover = int_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    UdpTemplateParams params;
    params.dst_mac = next_mac;
    params.src_mac = shard->mac();
    params.src = route->source.v4_host();
    params.dst = to.addr.v4_host();
    params.src_port = local_.port;
    params.dst_port = to.port;
    params.ttl = uint8_t(ttl);
    params.tos = query.tos;
    params.dont_fragment = mtu_discover == IP_PMTUDISC_WANT || mtu_discover == IP_PMTUDISC_DO ||
                           mtu_discover == IP_PMTUDISC_PROBE;
    params.no_checksum = int_option(fd, SOL_SOCKET, SO_NO_CHECK, 0) != 0;
    d.df_strict = mtu_discover == IP_PMTUDISC_DO || mtu_discover == IP_PMTUDISC_PROBE;
    d.may_fragment = mtu_discover == IP_PMTUDISC_DONT || mtu_discover == IP_PMTUDISC_WANT ||
                     mtu_discover == IP_PMTUDISC_OMIT;
    d.head = UdpTemplate(params);
    d.max_payload = std::min({route->mtu, shard->caps().mtu, sent_mtu(Runtime::options())}) - 28;
    d.shard = shard;
    return d;
}

UdpSocket::Destination UdpSocket::destination(int fd, const Endpoint& to) {
    const uint64_t now_generation = space_->generation();
    const uint64_t neighbors = space_->monitor().neighbor_generation();
    const uint64_t options = options_generation_.load(std::memory_order_acquire);
    const uint32_t hash = (to.addr.v4_host() * 0x9e3779b1u >> 16) + to.port;
    const std::span set(&destinations_[hash % (kDestinations / kWays) * kWays], kWays);
    {
        SpinGuard guard(destinations_lock_);
        for (Destination& d : set) {
            if (d.generation == now_generation && d.neighbor_generation == neighbors &&
                d.options == options && d.to == to) {
                d.used = true;
                return d;
            }
        }
    }
    Destination fresh = resolve(fd, to);
    SpinGuard guard(destinations_lock_);
    Destination* place = &set[next_destination_++ % kWays];
    for (Destination& d : set)
        if (d.to == to) place = &d;
    *place = fresh;
    return fresh;
}

Outcome UdpSocket::send_by_twin(int fd, const msghdr* msg, int flags) {
    if (flags & kSendDummy) return Outcome::error(EINVAL);  // the kernel would send it
    const bool is_more_of_one = corked_;
    corked_ = flags & MSG_MORE || cork_.load(std::memory_order_relaxed);
    SocketCounters::add(counters.tx_os_packets, 1);
    TxStamping* const stamping = stamping_.load(std::memory_order_acquire);
    if (stamping && !is_more_of_one) [[unlikely]]
        return send_stamped_by_twin(*stamping, fd, *msg, flags);
    // Blocking and non-blocking, EINTR and SIGPIPE are the kernel's: libc makes the call.
    return Outcome::kernel();
}

Outcome UdpSocket::send_by_ring(const Destination& to, const msghdr* msg, size_t length,
                                uint16_t segment, const SendControls& controls, bool dummy) {
    Shard& shard = *to.shard;
    uint8_t head[kUdpMaxHead];
    LeaseGuard guard(shard.lease());
    const bool paced = pacing_rate_.load(std::memory_order_relaxed) != 0;
    TxStamping* const stamping = stamping_.load(std::memory_order_acquire);
    Presence* const presence =
        remote_.port != 0 || paced || stamping ? presence_in(shard, false) : nullptr;
    UdpEndpoint* const endpoint = remote_.port != 0 && presence ? presence->endpoint : nullptr;
    if ((paced || stamping) && presence == nullptr) return Outcome::error(ENOMEM);
    Leaving leaving(shard);
    if (paced && (leaving.flow = paced_flow(*presence)) == nullptr) return Outcome::error(ENOMEM);
    const uint16_t id = choose_ip_id(endpoint ? &endpoint->ip_id : nullptr, to.df_strict,
                                     shard.ip_ids(), to.head.src(), to.head.dst(), IPPROTO_UDP,
                                     endpoint ? Instant{} : monotonic_now());
    const std::span<const iovec> payload{msg->msg_iov, msg->msg_iovlen};
    TxStampRequest stamps;
    if (stamping && !dummy) [[unlikely]] {
        stamps = leaving.stamps = stamping->take(controls);
        leaving.endpoint = presence->endpoint;
    }
    const auto answer = [&](int error) {
        if (error == 0) return Outcome::value(long(length));
        if (stamping) stamping->give_back(stamps, controls);
        return Outcome::error(error);
    };
    if (segment == 0 && length > to.max_payload) {
        if (dummy) return Outcome::error(EMSGSIZE);
        return answer(send_fragments(to, payload, uint32_t(length), id, leaving));
    }
    if (segment != 0 && paced && !dummy)
        return answer(send_apart(to, payload, uint32_t(length), segment, id, leaving));
    const bool offload = shard.caps().tx_checksum && !to.head.no_checksum();
    const auto built =
        emit_udp_datagram(to.head, offload ? UdpChecksum::offload : UdpChecksum::complete, payload,
                          uint32_t(length), id, head);
    if (!built) return answer(built.error());
    TxFrame frame;
    frame.head = {head, built->size};
    frame.payload = msg->msg_iov;
    frame.payload_count = uint16_t(msg->msg_iovlen);
    frame.payload_len = uint32_t(length);
    frame.csum_start = built->csum_start;
    frame.csum_offset = built->csum_offset;
    if (segment != 0) {
        frame.gso = Gso::udp_l4;
        frame.gso_size = segment;
    }
    return answer(dummy ? 0 : send_frame(leaving, frame));
}

// Under the lease of to.shard. 0, or the errno of the fragment that was refused: the others are of no use then, and age.
int UdpSocket::send_fragments(const Destination& to, std::span<const iovec> payload,
                              uint32_t length, uint16_t id, Leaving& leaving) {
    UdpFragmenter fragments(to.head, payload, length, to.max_payload + kIpv4Size + kUdpSize, id);
    uint8_t head[kUdpMaxHead];
    iovec pieces[kMostPieces];
    while (const auto fragment = fragments.next(head, pieces)) {
        TxFrame frame;
        frame.head = {head, fragment->head_size};
        frame.payload = pieces;
        frame.payload_count = uint16_t(fragment->piece_count);
        frame.payload_len = fragment->payload_len;
        if (const int error = send_frame(leaving, frame)) return error;
    }
    return 0;
}

// Can the ring cut a send of `length` bytes into datagrams of `segment`? Each has to fit the path whole.
bool UdpSocket::can_cut(const Destination& to, size_t length, uint16_t segment) {
    const RingCaps& caps = to.shard->caps();
    return segment <= to.max_payload && length <= kUdpMaxPayload4 &&
           length <= segment * kMostSegments && caps.udp_gso && caps.tx_checksum &&
           !to.head.no_checksum() && length + kUdpSize + kIpv4Size <= caps.max_gso_bytes &&
           (caps.max_gso_segments == 0 || length <= size_t(segment) * caps.max_gso_segments);
}

Outcome UdpSocket::send(int fd, const msghdr* msg, int flags, SendCall) {
    const bool dummy = flags & kSendDummy;
    if (state() == SocketState::kernel) return dummy ? Outcome::error(EINVAL) : Outcome::kernel();
    if (state() == SocketState::undecided && !settle(fd, true)) return send_by_twin(fd, msg, flags);
    if (rings.follows(SocketRings::kSend)) [[unlikely]]
        follow_user(SocketRings::kSend);
    if (kernel_send_.load(std::memory_order_relaxed) || corked_ || (flags & kTwinSendFlags) ||
        cork_.load(std::memory_order_relaxed) || msg->msg_iovlen > UINT16_MAX)
        return send_by_twin(fd, msg, flags);
    uint16_t segment = segment_.load(std::memory_order_relaxed);
    SendControls controls;
    if (msg->msg_controllen != 0) {
        controls = read_send_controls(*msg);
        segment = controls.segment.value_or(segment);
        if (controls.others || !can_stamp(controls)) return send_by_twin(fd, msg, flags);
    }
    Endpoint to;
    if (msg->msg_name) {
        if (!Endpoint::from_sockaddr(static_cast<const sockaddr*>(msg->msg_name), msg->msg_namelen,
                                     to) ||
            !to.addr.is_v4())
            return send_by_twin(fd, msg, flags);
    } else {
        to = remote_;
        if (to.port == 0) return send_by_twin(fd, msg, flags);
    }
    if (kernel_news_.load(std::memory_order_acquire)) {
        if (const int error = take_twin_error(fd)) {
            SocketCounters::add(counters.tx_errors, 1);
            return Outcome::error(error);
        }
    }
    size_t length;
    if (!total_length(*msg, length)) return Outcome::error(EINVAL);
    LatencyProbe* const probe = latency.probe();
    const Instant called = probe ? monotonic_now() : Instant{};
    const Destination d = destination(fd, to);
    if (d.shard == nullptr) return send_by_twin(fd, msg, flags);
    // Copies for members on this host are the kernel's to make: it knows them all.
    if (d.loops && space_->local_members().possible(d.ifindex, to.addr.v4_host()))
        return send_by_twin(fd, msg, flags);
    // Not to be cut, or not where and how it is asked for: then the kernel says so, or does it.
    if (length <= segment && segment <= d.max_payload && !d.head.no_checksum()) segment = 0;
    if (segment != 0 && (!can_cut(d, length, segment) || msg->msg_iovlen > kMostPieces))
        return send_by_twin(fd, msg, flags);
    // In fragments, unless the program forbids it or there is too much: then the kernel says so.
    if (segment == 0 && length > d.max_payload &&
        (!d.may_fragment || length > kUdpMaxPayload4 || msg->msg_iovlen > kMostPieces))
        return send_by_twin(fd, msg, flags);
    if (Outcome refused; pacing_rate_.load(std::memory_order_relaxed) != 0 && !dummy &&
                         !wait_for_room(fd, *d.shard, length, flags, &refused)) [[unlikely]]
        return refused;
    const Outcome sent = send_by_ring(d, msg, length, segment, controls, dummy);
    if (dummy) {
        if (sent.kind == Outcome::Kind::value) SocketCounters::add(counters.tx_dummy, 1);
        return sent;
    }
    if (sent.kind == Outcome::Kind::error) {
        // The device did not take it (queue full, link down, MTU changed under us): the kernel's own path decides, and
        // waits if the socket may wait, unless the user has said what a full queue is.
        if (Outcome answer; (sent.v == EAGAIN || sent.v == ENOBUFS) &&
                            Runtime::options().is_set(Opt::tx_nonblocked_eagains) &&
                            told_no_room(flags, length, &answer))
            return answer;
        return send_by_twin(fd, msg, flags);
    }
    SocketCounters::add(counters.tx_packets, segment ? (length + segment - 1) / segment : 1);
    SocketCounters::add(counters.tx_bytes, length);
    if (probe) [[unlikely]]
        probe->sent(called);
    return sent;
}

}  // namespace vma::sock
