// What viewers are told about a TCP socket.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/tcp_waiting.h"
#include "sock/stats_rows.h"
#include "sock/tcp_info.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// VMA's numbers of the TCP states are the order of RFC 9293, as tcp::State.
static_assert(unsigned(tcp::State::ESTABLISHED) == 4 && unsigned(tcp::State::TIME_WAIT) == 10);

uint64_t ring_bit(const Shard* shard) {
    const auto shards = Runtime::shards();
    const auto place = std::find(shards.begin(), shards.end(), shard) - shards.begin();
    return place < 64 && size_t(place) < shards.size() ? uint64_t(1) << place : 0;
}

// [lease]
stats::TcpNumbers detail_of(const Shard& shard, const TcpConnection& c, Instant now) {
    const tcp::Numbers n = tcp::numbers(c.tcb, now);
    stats::TcpNumbers d;
    d.here = 1;
    d.ca_state = n.ca_state;
    d.waiting = waiting_for(shard, c, n);
    d.snd_wscale = n.snd_wscale;
    d.rcv_wscale = n.rcv_wscale;
    d.backoff = n.backoff;
    d.options = uint8_t(n.timestamps | n.sack << 1 | n.scaling << 2 | n.ecn << 3);
    std::strncpy(d.congestion_control, congestion_control_name(c.tcb.cfg.cc),
                 sizeof d.congestion_control - 1);
    d.snd_cwnd = n.snd_cwnd;
    d.snd_ssthresh = n.snd_ssthresh;
    d.snd_mss = n.snd_mss;
    d.rcv_mss = n.rcv_mss;
    d.pmtu = n.pmtu;
    d.rtt = n.rtt_us;
    d.rttvar = n.rttvar_us;
    d.min_rtt = n.min_rtt_us;
    d.rto = n.rto_us;
    d.rcv_rtt = n.rcv_rtt_us;
    d.unacked = n.unacked;
    d.sacked = n.sacked;
    d.lost = n.lost;
    d.retrans = n.retrans;
    d.reordering = n.reordering;
    d.total_rto = n.total_rto;
    d.notsent_bytes = n.notsent_bytes;
    d.snd_wnd = n.snd_wnd;
    d.rcv_wnd = n.rcv_wnd;
    d.rcv_space = n.rcv_space;
    d.bytes_acked = n.bytes_acked;
    d.bytes_received = n.bytes_received;
    d.bytes_sent = n.bytes_sent;
    d.bytes_retrans = n.bytes_retrans;
    d.segs_in = n.segs_in;
    d.segs_out = n.segs_out;
    d.delivery_rate = n.delivery_rate;
    d.pacing_rate = n.pacing_rate;
    d.busy = n.busy_us;
    d.rwnd_limited = n.rwnd_limited_us;
    d.sndbuf_limited = n.sndbuf_limited_us;
    return d;
}

}  // namespace

// control_ held, or by the thread that has just changed the socket.
stats::SocketIdentity TcpSocket::identity() const {
    const Phase phase = phase_.load(std::memory_order_relaxed);
    stats::SocketIdentity id;
    id.fd = fd();
    id.domain = uint16_t(domain);
    id.type = uint16_t(type);
    id.protocol = uint16_t(protocol);
    id.path = state() == SocketState::undecided   ? stats::Path::undecided
              : state() == SocketState::offloaded ? stats::Path::offloaded
                                                  : stats::Path::kernel;
    id.reason = id.path == stats::Path::undecided && phase == Phase::kernel_listener
                    ? Reason::listener_idle
                    : reason();
    id.nonblocking = nonblocking();
    switch (phase) {
        case Phase::fresh:
            id.tcp_state = uint16_t(tcp::State::CLOSED);
            break;
        case Phase::kernel_listener:
        case Phase::listening:
            id.tcp_state = uint16_t(tcp::State::LISTEN);
            break;
        case Phase::connecting:
            id.tcp_state = uint16_t(tcp::State::SYN_SENT);
            break;
        case Phase::connected:
            id.tcp_state = uint16_t(tcp::State::ESTABLISHED);
            break;
    }
    if (id.path == stats::Path::offloaded) {
        if (shard_) id.rings |= ring_bit(shard_);
        for (unsigned i = 0; i < listeners_count_; i++) id.rings |= ring_bit(listeners_[i].shard);
    }
    id.local = stats::to_address(local_);
    id.remote = stats::to_address(remote_);
    latency.name_threads(id);
    return id;
}

void TcpSocket::publish_state() {
    stats_show_rings();
    stats::set_socket(row_, identity());
}

void TcpSocket::publish_all() {
    std::lock_guard guard(control_);
    const Shown shown = show();
    stats_show_rings();
    stats::set_socket(row_, shown.id, &shown.numbers, &shown.tcp);
}

// control_ held.
Socket::Shown TcpSocket::show() {
    Shown shown{identity(), counters.snapshot(), {}};
    const SpinGovernor::Counts waits = read_governor_.counts();
    stats::SocketNumbers& n = shown.numbers;
    n.poll_hit = waits.hits;
    n.poll_miss = waits.misses;
    if (shard_ != nullptr && connection_ != nullptr) {
        const ConnectionLease lease(shard_);
        const tcp::Tcb& t = connection_->tcb;
        shown.id.tcp_state = uint16_t(t.state);
        n.rx_queue_bytes = tcp::unread_bytes(t);
        n.tx_queue_bytes = tcp::unacked_bytes(t);
        n.tx_retransmits = t.count.retransmits;
        shown.tcp = detail_of(*shard_, *connection_, monotonic_now());
    }
    return shown;
}

}  // namespace vma::sock
