// What viewers are told about a UDP socket.
#include <algorithm>

#include "sock/stats_rows.h"
#include "sock/udp_socket.h"

namespace vma::sock {

// control_ held.
stats::SocketIdentity UdpSocket::identity() const {
    stats::SocketIdentity id;
    id.fd = fd();
    id.domain = uint16_t(domain);
    id.type = uint16_t(type);
    id.protocol = uint16_t(protocol);
    const bool handed_back = handed_back_.load(std::memory_order_relaxed);
    id.path = state() == SocketState::undecided                   ? stats::Path::undecided
              : state() == SocketState::offloaded && !handed_back ? stats::Path::offloaded
                                                                  : stats::Path::kernel;
    id.reason = reason();
    id.nonblocking = nonblocking();
    if (id.path == stats::Path::offloaded) {
        const auto shards = Runtime::shards();
        const unsigned count = presence_count_.load(std::memory_order_relaxed);
        for (unsigned i = 0; i < count; i++) {
            const auto place =
                std::find(shards.begin(), shards.end(), presences_[i].shard) - shards.begin();
            if (presences_[i].in_demux && (live_.load(std::memory_order_relaxed) & 1u << i) &&
                place < 64)
                id.rings |= uint64_t(1) << place;
        }
    }
    id.local = stats::to_address(local_);
    id.remote = stats::to_address(remote_);
    id.multicast_loop = multicast_loop_.load(std::memory_order_relaxed);
    id.multicast_interface = multicast_from_.load(std::memory_order_relaxed);
    latency.name_threads(id);
    return id;
}

// control_ held.
void UdpSocket::publish_state() {
    stats_show_rings();
    stats::set_socket(row_, identity());
}

// control_ held. How the twin sends to groups, as the program has just set it.
void UdpSocket::show_multicast(int fd) {
    int loop = 1;
    in_addr from{};
    socklen_t size = sizeof loop;
    if (sys::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, &size) == 0)
        multicast_loop_.store(loop != 0, std::memory_order_relaxed);
    size = sizeof from;
    if (sys::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, &size) == 0)
        multicast_from_.store(from.s_addr, std::memory_order_relaxed);
    publish_state();
}

void UdpSocket::publish_all() {
    std::lock_guard guard(control_);
    const Shown shown = show();
    stats_show_rings();
    stats::set_socket(row_, shown.id, &shown.numbers);
}

void UdpSocket::list_memberships(stats::Listing<stats::MembershipRow>& out) {
    std::lock_guard guard(control_);
    for (const Membership& m : memberships_) {
        if (!m.member) continue;
        stats::MembershipRow row;
        row.fd = fd();
        row.ifindex = uint32_t(m.ifindex);
        row.group = stats::to_address({m.group, 0});
        if (m.exclude) out.add(row);
        for (const uint32_t source : m.sources) {
            if (m.exclude) break;
            row.source = stats::to_address({IpAddr::v4(source), 0});
            out.add(row);
        }
    }
}

// control_ held.
Socket::Shown UdpSocket::show() {
    Shown shown{identity(), counters.snapshot(), {}};
    stats::SocketNumbers& n = shown.numbers;
    const SpinGovernor::Counts waits = governor_.counts();
    n.poll_hit = waits.hits;
    n.poll_miss = waits.misses;
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard lease(presences_[i].shard->lease());
        const UdpEndpoint& e = *presences_[i].endpoint;
        n.rx_queue_packets += e.queued();
        n.rx_queue_bytes += e.charged();
        n.rx_queue_limit += e.receive_limit();
        n.rx_queue_packets_max = std::max<uint64_t>(n.rx_queue_packets_max, e.counters.queued_max);
        n.rx_queue_bytes_max = std::max<uint64_t>(n.rx_queue_bytes_max, e.counters.charged_max);
        n.rx_dropped_full += e.counters.dropped_full;
        n.rx_dropped_bytes += e.counters.dropped_full_bytes;
    }
    return shown;
}

}  // namespace vma::sock
