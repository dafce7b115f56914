#include "stats/fields.h"

namespace vma::stats {
namespace {

constexpr Field<SocketNumbers> kSocket[] = {
    {"rx_packets", &SocketNumbers::rx_packets, true, "receive calls served by a ring"},
    {"rx_bytes", &SocketNumbers::rx_bytes, true, "bytes they returned"},
    {"rx_eagain", &SocketNumbers::rx_eagain, true, "receive calls that found nothing"},
    {"rx_errors", &SocketNumbers::rx_errors, true, "receive calls that failed"},
    {"rx_os_packets", &SocketNumbers::rx_os_packets, true, "datagrams received by the kernel"},
    {"rx_os_bytes", &SocketNumbers::rx_os_bytes, true, "bytes of them"},
    {"tx_packets", &SocketNumbers::tx_packets, true, "send calls served by a ring"},
    {"tx_bytes", &SocketNumbers::tx_bytes, true, "bytes they took"},
    {"tx_eagain", &SocketNumbers::tx_eagain, true, "send calls that found no room"},
    {"tx_errors", &SocketNumbers::tx_errors, true, "send calls that failed"},
    {"tx_os_packets", &SocketNumbers::tx_os_packets, true, "datagrams sent by the kernel"},
    {"tx_os_bytes", &SocketNumbers::tx_os_bytes, true, "bytes of them"},
    {"poll_hit", &SocketNumbers::poll_hit, true, "waits for data that polling ended"},
    {"poll_miss", &SocketNumbers::poll_miss, true, "waits that gave up polling and slept"},
    {"rx_queue_packets", &SocketNumbers::rx_queue_packets, false, "datagrams that wait to be read"},
    {"rx_queue_bytes", &SocketNumbers::rx_queue_bytes, false, "bytes that wait to be read"},
    {"rx_queue_limit", &SocketNumbers::rx_queue_limit, false, "most bytes that may wait"},
    {"rx_queue_packets_max", &SocketNumbers::rx_queue_packets_max, false,
     "most datagrams that ever waited"},
    {"rx_queue_bytes_max", &SocketNumbers::rx_queue_bytes_max, false,
     "most bytes that ever waited"},
    {"rx_dropped_bytes", &SocketNumbers::rx_dropped_bytes, true,
     "payload of datagrams dropped because the receive buffer was full"},
    {"rx_dropped_full", &SocketNumbers::rx_dropped_full, true,
     "datagrams dropped because the receive buffer was full"},
    {"tx_queue_bytes", &SocketNumbers::tx_queue_bytes, false, "bytes written and not acknowledged"},
    {"tx_retransmits", &SocketNumbers::tx_retransmits, true, "segments sent again"},
    {"rx_zcopy", &SocketNumbers::rx_zcopy, true, "packets given out without a copy (extra API)"},
    {"rx_kept", &SocketNumbers::rx_kept, false, "of these, packets that the program has now"},
    {"rx_callback", &SocketNumbers::rx_callback, true, "packets shown to a receive callback"},
    {"tx_dummy", &SocketNumbers::tx_dummy, true, "sends that stopped in front of the ring"},
    {"rx_migrations", &SocketNumbers::rx_migrations, true,
     "moves to the rings of another thread or CPU"},
    {"tx_migrations", &SocketNumbers::tx_migrations, true, "the same for sending alone"},
    {"migrations_refused", &SocketNumbers::migrations_refused, true,
     "such moves that were due and not possible"},
};

constexpr Field<RingNumbers> kRing[] = {
    {"rx_frames", &RingNumbers::rx_frames, true, "frames received"},
    {"rx_bytes", &RingNumbers::rx_bytes, true, "bytes of them"},
    {"tx_frames", &RingNumbers::tx_frames, true, "frames sent"},
    {"tx_bytes", &RingNumbers::tx_bytes, true, "bytes of them"},
    {"rx_dropped", &RingNumbers::rx_dropped, true, "frames dropped by the ring"},
    {"tx_refused", &RingNumbers::tx_refused, true, "frames that the device did not take"},
    {"wakeups", &RingNumbers::wakeups, true, "times that the ring woke a sleeper"},
    {"tcp_memory", &RingNumbers::tcp_memory, false, "bytes that TCP connections hold"},
    {"tcp_refused", &RingNumbers::tcp_refused, true, "writes and texts refused for want of memory"},
    {"tcp_pressed", &RingNumbers::tcp_pressed, true, "times under memory pressure"},
    {"polls", &RingNumbers::polls, true, "looks at the ring that found frames"},
    {"empty_polls", &RingNumbers::empty_polls, true, "looks that found none"},
    {"drained_max", &RingNumbers::drained_max, false, "most frames found by one look"},
    {"backlog", &RingNumbers::backlog, false, "arrived and not looked at yet"},
    {"pool_in_use", &RingNumbers::pool_in_use, false, "packet buffers in use"},
    {"pool_free", &RingNumbers::pool_free, false, "packet buffers free"},
    {"pool_bytes", &RingNumbers::pool_bytes, false, "bytes of buffers in use"},
    {"pool_high_water", &RingNumbers::pool_high_water, false, "most buffers ever in use"},
    {"pool_refused", &RingNumbers::pool_refused, true, "buffers asked for and not there"},
    {"arena_bytes", &RingNumbers::arena_bytes, false, "memory of the ring's shard in use"},
    {"arena_limit", &RingNumbers::arena_limit, false, "what it may become"},
    {"tcp_segments_in", &RingNumbers::tcp_segments_in, true, "TCP segments received"},
    {"tcp_segments_out", &RingNumbers::tcp_segments_out, true, "TCP segments sent"},
    {"tcp_resets", &RingNumbers::tcp_resets, true, "resets sent"},
    {"tcp_frames_refused", &RingNumbers::tcp_frames_refused, true,
     "TCP frames that the ring refused"},
    {"tcp_connections", &RingNumbers::tcp_connections, false, "TCP connections"},
    {"tcp_half_open", &RingNumbers::tcp_half_open, false, "half-open TCP connections"},
    {"tcp_time_wait", &RingNumbers::tcp_time_wait, false, "connections in TIME_WAIT"},
    {"tcp_listeners", &RingNumbers::tcp_listeners, false, "TCP listeners"},
    {"kept", &RingNumbers::kept, false, "packets that programs have without a copy"},
    {"kept_reclaimed", &RingNumbers::kept_reclaimed, true,
     "packets not given back before their socket was closed"},
};

constexpr Field<WaitNumbers> kWait[] = {
    {"poll_hit", &WaitNumbers::poll_hit, true, "waits that polling ended"},
    {"poll_miss", &WaitNumbers::poll_miss, true, "waits that gave up polling and slept"},
    {"timeouts", &WaitNumbers::timeouts, true, "waits that ended by their timeout"},
    {"errors", &WaitNumbers::errors, true, "waits that failed or were interrupted"},
    {"ready", &WaitNumbers::ready, true, "offloaded descriptors found ready"},
    {"os_ready", &WaitNumbers::os_ready, true, "kernel descriptors found ready"},
    {"polling_ns", &WaitNumbers::polling_ns, true, "nanoseconds spent polling"},
};

#define TCP(name, help)                                                   \
    TcpField {                                                            \
#name, [](const TcpNumbers& n) { return uint64_t(n.name); }, help \
    }
constexpr TcpField kTcp[] = {
    TCP(snd_cwnd, "congestion window, segments"),
    TCP(snd_ssthresh, "slow start threshold, segments"),
    TCP(snd_mss, "payload of a full segment, bytes"),
    TCP(rcv_mss, "the peer's usual segment, bytes"),
    TCP(pmtu, "path MTU, bytes"),
    TCP(rtt, "smoothed round trip, microseconds"),
    TCP(rttvar, "its variation, microseconds"),
    TCP(min_rtt, "least round trip, microseconds"),
    TCP(rto, "retransmission timeout, microseconds"),
    TCP(rcv_rtt, "round trip as the receiver sees it, microseconds"),
    TCP(unacked, "segments in flight"),
    TCP(sacked, "of these, reported as received"),
    TCP(lost, "of these, taken for lost"),
    TCP(retrans, "of these, sent again"),
    TCP(reordering, "reordering seen, segments"),
    TCP(total_rto, "retransmission timeouts"),
    TCP(backoff, "timeouts in a row"),
    TCP(notsent_bytes, "bytes written and not sent"),
    TCP(snd_wnd, "window that the peer offers, bytes"),
    TCP(rcv_wnd, "window that we offer, bytes"),
    TCP(rcv_space, "receive buffer target, bytes"),
    TCP(bytes_acked, "bytes acknowledged by the peer"),
    TCP(bytes_received, "bytes received"),
    TCP(bytes_sent, "bytes sent, repeated ones included"),
    TCP(bytes_retrans, "bytes sent again"),
    TCP(segs_in, "segments received"),
    TCP(segs_out, "segments sent"),
    TCP(delivery_rate, "bytes a second that arrive at the peer"),
    TCP(busy, "time with data to send, microseconds"),
    TCP(rwnd_limited, "of this, held up by the peer's window, microseconds"),
    TCP(sndbuf_limited, "of this, held up by a full send buffer, microseconds"),
};
#undef TCP

}  // namespace

std::span<const Field<SocketNumbers>> socket_fields() { return kSocket; }
std::span<const Field<RingNumbers>> ring_fields() { return kRing; }
std::span<const Field<WaitNumbers>> wait_fields() { return kWait; }
std::span<const TcpField> tcp_fields() { return kTcp; }

}  // namespace vma::stats
