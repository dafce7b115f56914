#include "sock/tcp_info.h"

#include <netinet/tcp.h>

#include <algorithm>

namespace vma::sock {
namespace {

// State numbers of include/net/tcp_states.h.
uint8_t linux_state(tcp::State state) {
    switch (state) {
        case tcp::State::ESTABLISHED:
            return TCP_ESTABLISHED;
        case tcp::State::SYN_SENT:
            return TCP_SYN_SENT;
        case tcp::State::SYN_RECEIVED:
            return TCP_SYN_RECV;
        case tcp::State::FIN_WAIT_1:
            return TCP_FIN_WAIT1;
        case tcp::State::FIN_WAIT_2:
            return TCP_FIN_WAIT2;
        case tcp::State::CLOSE_WAIT:
            return TCP_CLOSE_WAIT;
        case tcp::State::LAST_ACK:
            return TCP_LAST_ACK;
        case tcp::State::LISTEN:
            return TCP_LISTEN;
        case tcp::State::CLOSING:
            return TCP_CLOSING;
        case tcp::State::TIME_WAIT:  // Linux's socket has left it to a record without one
        case tcp::State::CLOSED:
            break;
    }
    return TCP_CLOSE;
}

constexpr uint8_t kOptTimestamps = 1, kOptSack = 2, kOptScale = 4, kOptEcn = 8, kOptEcnSeen = 16,
                  kOptSynData = 32;

uint16_t to_u16(uint32_t n) { return uint16_t(std::min<uint32_t>(n, 65535)); }

}  // namespace

const char* congestion_control_name(tcp::CcKind kind) {
    switch (kind) {
        case tcp::CcKind::newreno:
            return "reno";
        case tcp::CcKind::cubic:
            return "cubic";
        case tcp::CcKind::bbr:
            return "bbr";
        case tcp::CcKind::none:
            break;
    }
    return "none";
}

LinuxTcpInfo tcp_info_of(const tcp::Tcb& t, Instant now) {
    const tcp::Numbers n = tcp::numbers(t, now);
    LinuxTcpInfo i{};
    i.state = linux_state(n.state);
    i.ca_state = n.ca_state;
    i.retransmits = n.retransmits;
    i.probes = n.probes;
    i.backoff = n.backoff;
    i.options = uint8_t((n.timestamps ? kOptTimestamps : 0) | (n.sack ? kOptSack : 0) |
                        (n.scaling ? kOptScale : 0) | (n.ecn ? kOptEcn : 0) |
                        (n.ecn_seen ? kOptEcnSeen : 0) | (n.syn_data ? kOptSynData : 0));
    i.wscales = uint8_t((n.snd_wscale & 15) | n.rcv_wscale << 4);
    i.flags = uint8_t((n.delivery_rate_app_limited ? 1 : 0) | n.fast_open_fail << 1);
    i.rto = n.rto_us;
    i.ato = n.ato_us;
    i.snd_mss = n.snd_mss;
    i.rcv_mss = n.rcv_mss;
    i.unacked = n.unacked;
    i.sacked = n.sacked;
    i.lost = n.lost;
    i.retrans = n.retrans;
    i.last_data_sent_ms = n.last_data_sent_ms;
    i.last_data_recv_ms = n.last_data_recv_ms;
    i.last_ack_recv_ms = n.last_ack_recv_ms;
    i.pmtu = n.pmtu;
    i.rcv_ssthresh = n.rcv_ssthresh;
    i.rtt = n.rtt_us;
    i.rttvar = n.rttvar_us;
    i.snd_ssthresh = n.snd_ssthresh;
    i.snd_cwnd = n.snd_cwnd;
    i.advmss = n.advmss;
    i.reordering = n.reordering;
    i.rcv_rtt = n.rcv_rtt_us;
    i.rcv_space = n.rcv_space;
    i.total_retrans = n.total_retrans;
    i.pacing_rate = n.pacing_rate;
    i.max_pacing_rate = n.max_pacing_rate;
    i.bytes_acked = n.bytes_acked;
    i.bytes_received = n.bytes_received;
    i.segs_out = uint32_t(n.segs_out);
    i.segs_in = uint32_t(n.segs_in);
    i.notsent_bytes = n.notsent_bytes;
    i.min_rtt = n.min_rtt_us;
    i.data_segs_in = uint32_t(n.data_segs_in);
    i.data_segs_out = uint32_t(n.data_segs_out);
    i.delivery_rate = n.delivery_rate;
    i.busy_time = n.busy_us;
    i.rwnd_limited = n.rwnd_limited_us;
    i.sndbuf_limited = n.sndbuf_limited_us;
    i.delivered = uint32_t(n.delivered);
    i.delivered_ce = n.delivered_ce;
    i.bytes_sent = n.bytes_sent;
    i.bytes_retrans = n.bytes_retrans;
    i.dsack_dups = n.dsack_dups;
    i.reord_seen = n.reordering_seen;
    i.rcv_ooopack = n.ooo_packets;
    i.snd_wnd = n.snd_wnd;
    i.rcv_wnd = n.rcv_wnd;
    i.total_rto = to_u16(n.total_rto);
    i.total_rto_recoveries = to_u16(n.rto_recoveries);
    i.total_rto_time_ms = n.rto_time_ms;
    return i;
}

size_t tcp_cc_info_of(const tcp::Tcb& t, LinuxBbrInfo& out) {
    if (t.cc.kind != tcp::CcKind::bbr) return 0;
    const tcp::BbrView b = tcp::bbr_view(t.cc);
    out.bandwidth_low = uint32_t(b.bytes_per_second);
    out.bandwidth_high = uint32_t(b.bytes_per_second >> 32);
    out.min_rtt = b.min_rtt == Duration::max() ? UINT32_MAX : uint32_t(b.min_rtt.to_micros());
    out.pacing_gain = uint32_t(b.pacing_gain * 256);
    out.window_gain = uint32_t(b.window_gain * 256);
    return sizeof out;
}

}  // namespace vma::sock
