// TCP_INFO and TCP_CC_INFO as Linux lays them out: include/uapi/linux/tcp.h of 6.8 and inet_diag.h, of which libc's headers
// know only the beginning. Host byte order; times in microseconds unless the name says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/tcp/tcp.h"

namespace vma::sock {

struct LinuxTcpInfo {
    uint8_t state, ca_state, retransmits, probes, backoff, options;
    uint8_t wscales;  // low four bits: the peer's
    uint8_t flags;    // bit 0: delivery rate limited by the application, bits 1-2: Fast Open
    uint32_t rto, ato, snd_mss, rcv_mss;
    uint32_t unacked, sacked, lost, retrans, fackets;
    uint32_t last_data_sent_ms, last_ack_sent_ms, last_data_recv_ms, last_ack_recv_ms;
    uint32_t pmtu, rcv_ssthresh, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss, reordering;
    uint32_t rcv_rtt, rcv_space, total_retrans;
    uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
    uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
    uint32_t delivered, delivered_ce;
    uint64_t bytes_sent, bytes_retrans;
    uint32_t dsack_dups, reord_seen, rcv_ooopack, snd_wnd;
    uint32_t rcv_wnd, rehash;  // since 6.2
    uint16_t total_rto, total_rto_recoveries;
    uint32_t total_rto_time_ms;  // since 6.7
};
static_assert(offsetof(LinuxTcpInfo, total_retrans) == 100 &&
              offsetof(LinuxTcpInfo, delivery_rate) == 160 &&
              offsetof(LinuxTcpInfo, snd_wnd) == 228 && sizeof(LinuxTcpInfo) == 248);

const char* congestion_control_name(
    tcp::CcKind kind);  // as TCP_CONGESTION has it: "reno", "cubic" ...

LinuxTcpInfo tcp_info_of(const tcp::Tcb& t, Instant now);

// struct tcp_bbr_info; Linux has none for cubic and reno.
struct LinuxBbrInfo {
    uint32_t bandwidth_low, bandwidth_high;  // bytes per second
    uint32_t min_rtt;
    uint32_t pacing_gain, window_gain;  // times 256
};
// Bytes written to `out`: 0 when the algorithm has nothing to tell.
size_t tcp_cc_info_of(const tcp::Tcb& t, LinuxBbrInfo& out);

}  // namespace vma::sock
