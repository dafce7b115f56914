// The records of the TCP machine: Tcb (SYN_SENT and every synchronised state), HalfOpen (a listener's embryo),
// TimeWait (what remains of a closed connection), ListenState (the numbers a listener decides by).
// Source: RFC 9293 section 3.3.1 for names. All are plain data for the shard arena: no vtable, no std container; pointers
// only into the same arena. Whoever allocates a Tcb must call release() before freeing it.
// Used under the shard lease.
#pragma once

#include <cstdint>

#include "base/ip_addr.h"
#include "base/probe.h"
#include "stack/tcp/actions.h"
#include "stack/tcp/cc.h"
#include "stack/tcp/fast_open.h"
#include "stack/tcp/messages.h"
#include "stack/tcp/receive_queue.h"
#include "stack/tcp/reorder.h"
#include "stack/tcp/rtt.h"
#include "stack/tcp/sack.h"
#include "stack/tcp/segment.h"
#include "stack/tcp/send_buffer.h"

namespace vma::tcp {

// RFC 9293 section 3.3.2, in its order. The numbers are not Linux's TCP_* codes.
enum class State : uint8_t {
    CLOSED,
    LISTEN,
    SYN_SENT,
    SYN_RECEIVED,
    ESTABLISHED,
    FIN_WAIT_1,
    FIN_WAIT_2,
    CLOSE_WAIT,
    CLOSING,
    LAST_ACK,
    TIME_WAIT,
};
const char* state_name(State);

// Linux's defaults of 6.x where a sysctl exists; the socket layer fills it from sysctls and socket options.
struct TcpConfig {
    uint16_t mss = 1460;              // ours: MTU less 40 (or 60 for IPv6), what the SYN announces
    uint16_t max_seg = 0;             // TCP_MAXSEG, 0: none
    uint32_t max_gso_bytes = 0;       // largest payload of one plan; 0: one segment
    uint32_t send_buffer = 87040;     // bytes accepted before writes stop
    uint32_t send_buffer_max = 0;     // autotuning's limit; not above send_buffer: fixed
    uint32_t receive_buffer = 65535;  // bytes of window offered at first
    uint32_t receive_buffer_max =
        3145728;  // autotuning's limit; equal to receive_buffer: fixed by SO_RCVBUF
    uint32_t window_clamp = 0x3fffc000;  // largest window ever offered
    CcKind cc = CcKind::cubic;
    bool timestamps = true, window_scaling = true, sack = true;
    bool nodelay = false, cork = false;
    bool messages = false;         // one message, one segment: messages.h
    bool quickack = true;          // TCP_QUICKACK as set last
    bool quickack_always = false;  // VMA_TCP_QUICKACK: no ACK is ever delayed
    uint32_t quickack_bytes = 0;   // larger texts are not acknowledged at once for it, 0: all are
    bool keepalive = false;
    bool slow_start_after_idle = true;
    bool tail_probe = true;    // tcp_early_retrans 3
    bool frto = true;          // tcp_frto
    uint8_t ecn = 2;           // tcp_ecn: 0 off, 1 asked for and accepted, 2 accepted
    bool syn_cookies = true;   // tcp_syncookies
    uint32_t fast_open = 1;    // tcp_fastopen, bits of namespace fast_open
    uint8_t defer_accept = 0;  // TCP_DEFER_ACCEPT, as repetitions of the SYN-ACK
    // tcp_mtu_probing: 1 looks for the path's segment size once it has swallowed large ones, 2 from the start.
    uint8_t mtu_probing = 0;
    uint16_t base_mss = 1024;                          // tcp_base_mss, where that search begins
    uint16_t probe_floor = 48;                         // tcp_mtu_probe_floor
    uint16_t probe_threshold = 8;                      // tcp_probe_threshold: it ends that near
    Duration probe_interval = Duration::seconds(600);  // tcp_probe_interval: and begins anew
    uint8_t syn_retries = 6, synack_retries = 5, retries1 = 3, retries2 = 15, orphan_retries = 8;
    uint8_t keepalive_probes = 9;
    uint16_t quickack_segments = 16;      // of the quick-ACK phase
    uint32_t notsent_lowat = UINT32_MAX;  // TCP_NOTSENT_LOWAT: bytes written ahead of SND.NXT
    Duration keepalive_idle = Duration::seconds(7200), keepalive_interval = Duration::seconds(75);
    Duration user_timeout{0};                      // TCP_USER_TIMEOUT, zero: off
    Duration fin_timeout = Duration::seconds(60);  // of an orphan in FIN_WAIT_2
    Duration time_wait = Duration::seconds(60);    // Linux's TCP_TIMEWAIT_LEN
    uint64_t pacing_rate = 0;                      // bytes per second, 0: not paced
};

struct Snd {
    Seq una;       // oldest unacknowledged
    Seq nxt;       // next to send; never moves back
    Seq wl1, wl2;  // SEG.SEQ and SEG.ACK of the last window update
    Seq iss;
    Seq up;                // urgent pointer, valid with urgent
    Seq sml;               // end of the last short segment sent (Nagle as Minshall)
    Seq pushed;            // end of the last segment with PSH
    uint32_t wnd = 0;      // bytes from una
    uint32_t max_wnd = 0;  // largest ever seen
    uint16_t mss = 536;    // payload of a full segment, options of every segment subtracted
    uint16_t peer_mss = 536;
    uint8_t wscale = 0;
    bool scaling = false;  // both SYNs had the option
    bool urgent = false;
    bool fin_queued = false;  // the application is done: FIN follows the last byte
    bool fin_sent = false;
};

//   read          nxt           adv
//    |-- queue ---|-- window ---|        adv never moves left
struct Rcv {
    Seq nxt;
    Seq irs;
    Seq adv;              // right edge of the window that the peer may count on
    Seq acked;            // RCV.NXT as last sent (Last.ACK.sent of RFC 7323)
    Seq up;               // urgent pointer, valid with urgent
    Seq fin;              // sequence number of the peer's FIN, valid with fin_seen
    uint32_t buffer = 0;  // bytes of unread data we are ready to hold
    uint8_t wscale = 0;
    bool urgent = false;
    bool fin_seen = false;  // its number is known
    bool fin_done = false;  // RCV.NXT passed it
    uint32_t wnd() const { return adv > nxt ? uint32_t(adv - nxt) : 0; }
};

// RFC 7323 timestamps; one tick is a millisecond.
struct Timestamps {
    bool on = false;
    uint32_t recent =
        0;  // TS.Recent; 0: not known (adopted), any value of the peer is new, as in Linux
    Instant recent_at;
    uint32_t offset = 0;  // added to the clock, random per connection
    uint32_t value(Instant now) const { return uint32_t(now.ns / 1000000) + offset; }
    bool is_old(uint32_t ts_val) const { return recent != 0 && int32_t(ts_val - recent) < 0; }
};

// RFC 6675/6582 and RFC 5681 section 3.1; cwr: a reduction without loss (ECN), paced by PRR.
enum class Recovery : uint8_t { open, cwr, fast, timeout };

// RFC 8985 section 5.
struct Rack {
    Delivered newest;
    Duration rtt{0};           // of `newest`
    bool valid = false;        // `newest` is set
    bool advanced = false;     // something was delivered since the last detection
    bool dsack = false;        // a duplicate was reported: the reordering window was too small
    bool in_round = false;     // window_round is set
    uint8_t steps = 1;         // reordering window in quarters of the least round trip
    uint8_t persist = 0;       // recoveries for which a widened window still stands
    Seq window_round;          // SND.NXT when the window was widened: once per round trip
    uint16_t reordering = 3;   // segments, the largest seen
    uint32_t reorderings = 0;  // times seen
};

// Tail loss probe, RFC 8985 section 7.
struct TailProbe {
    bool due = false;       // the next plan is one
    bool out = false;       // one is in flight
    bool repeated = false;  // it repeated old text
    Seq high;               // SND.NXT when it left
};

// What a reduction that turns out to be unnecessary takes back (RFC 4015, RFC 3708, as Linux).
struct Undo {
    bool armed = false;
    bool any = false;      // something was repeated
    bool stamped = false;  // `stamp` is set
    Seq marker;            // SND.UNA when the reduction was made
    uint32_t cwnd = 0, ssthresh = 0;
    uint32_t repeated = 0;  // bytes repeated and not reported as duplicates
    uint32_t stamp = 0;     // timestamp of the first repeated segment
    CubicState cubic;
};

struct LossState {
    Recovery state = Recovery::open;
    Seq recover;  // RecoveryPoint: SND.NXT when it began
    uint16_t dup_acks = 0;
    uint32_t recover_fs = 0, prr_delivered = 0, prr_out = 0;  // RFC 6937, bytes
    uint64_t delivered = 0;                                   // bytes acknowledged or sacked, ever
    bool limited = false;   // sending stopped at cwnd since the last growth
    Seq limited_at;         // SND.NXT at that moment
    bool rto_head = false;  // the segment at SND.UNA may go out whatever the window says
    bool sack_ok = false;
    bool frto = false;       // F-RTO (RFC 5682): whether the timeout was spurious is still open
    bool new_first = false;  // F-RTO step 2b: new text before repeated text
    Rack rack;
    TailProbe tlp;
    Undo undo;
};

// The search for the path's segment size, RFC 4821 and RFC 8899 as Linux does it: sizes without options counted.
struct SizeSearch {
    bool on = false;
    uint16_t low = 0, high = 0;  // passes; may pass
    uint16_t ceiling = 0;        // what the interface takes
    uint16_t size = 0;           // of the probe that is out, 0: none
    Seq start, end;              // its text
    Instant since;               // of this search
};

// RFC 3168 section 6.1.
struct Ecn {
    bool on = false;       // both sides agreed
    bool echo = false;     // CE seen: ECE on every ACK until the peer's CWR
    bool cwr_due = false;  // the next new text tells of the reduction
};

// Acknowledgement policy, after Linux's inet_connection_sock.
struct AckState {
    bool now = false;      // an ACK is owed at once
    bool pending = false;  // an ACK is owed when the delayed-ACK timer ends
    uint8_t challenges = 0;
    bool pingpong = false;   // the application answers: let the answer carry the ACK
    uint16_t quick = 0;      // segments still to be acknowledged at once
    uint16_t rcv_mss = 536;  // estimate of the peer's segment size
    uint32_t held = 0;       // bytes of text that came since the last ACK left
    uint8_t duplicates = 0;  // out of order since RCV.NXT moved, up to 3
    Duration ato{0};
    Instant last_data;   // arrival of text
    bool dsack = false;  // the next ACK reports `dsack_block` (RFC 2883)
    SackBlock dsack_block;
    Instant challenge_window;  // RFC 5961 section 7 rate limit
};

// At most one of these runs at a time: one slot.
enum class Rtx : uint8_t { none, rto, persist, tlp, reorder };

struct Timers {
    Rtx kind = Rtx::none;
    Instant rtx_at = Instant::never();
    Instant delack_at = Instant::never();
    Instant keepalive_at = Instant::never();
    Instant state_at = Instant::never();  // end of FIN_WAIT_2 (orphan), TIME_WAIT
    Instant pace_at;                      // nothing new leaves before
    uint8_t backoff = 0;
    uint8_t retries = 0;     // RTO expiries without progress
    uint8_t probes = 0;      // window probes unanswered
    uint8_t keepalives = 0;  // keep-alive probes unanswered
    bool probe_due = false;  // the next plan is a window probe or keep-alive
    bool pace_wait = false;  // output is waiting for pace_at
    Instant stalled_since;   // first expiry of the current series
    Instant last_rcv;        // any acceptable segment
    Instant last_snd;        // data
};

// What keeps the sender busy, and for how long (Linux's chronographs).
enum class Busy : uint8_t { idle, sending, peer_window, send_buffer };
struct BusyTimes {
    Busy now = Busy::idle;
    bool write_cut = false;  // the last write found the send buffer full
    Instant since;
    Duration total[4] = {};
};

// Delivery rate (draft-cheng-iccrg-delivery-rate-estimation).
struct DeliveryRate {
    Instant delivered_at;      // of the last delivery
    Instant first_sent;        // start of the current sending interval
    uint64_t app_limited = 0;  // `delivered` at which a lack of text ends to show; 0: none
    uint64_t bytes = 0;        // last sample worth showing
    Duration interval{0};
    uint64_t latest_bytes = 0;  // last sample
    Duration latest_interval{0};
    bool sample_limited = false;
};

struct Counters {
    uint64_t bytes_sent = 0, bytes_acked = 0, bytes_received = 0, bytes_retransmitted = 0;
    uint64_t segs_in = 0, segs_out = 0, data_segs_in = 0, data_segs_out = 0;
    uint32_t retransmits = 0, timeouts = 0, fast_recoveries = 0, dup_acks_in = 0;
    uint32_t challenge_acks = 0, paws_drops = 0, dsacks_in = 0, ooo_in = 0;
    uint32_t undos = 0, tail_probes = 0, spurious_timeouts = 0, ce_in = 0, ece_in = 0;
    uint64_t bytes_lost = 0;  // marked lost, ever
    uint32_t black_holes = 0;
    // What a peer should not do: texts that came again, right edges that moved left, SACK blocks of nothing in flight.
    uint32_t duplicates_in = 0, windows_shrunk = 0, sacks_wrong = 0;
    uint32_t size_probes = 0, size_probes_lost = 0;
    uint32_t timeout_series = 0;  // RTO expiries in a row count as one
    Duration timeout_time{0};     // in such series, ended ones
};

struct Tcb {
    State state = State::CLOSED;
    // Facts of the fd's life that change what a segment may do.
    bool orphan = false;         // close() was called: nobody reads any more
    bool read_shutdown = false;  // SHUT_RD
    bool passive = false;        // came from a listener
    bool rst_due = false;        // abort: next_segment() emits the RST
    bool syn_due = false;        // SYN or SYN-ACK to (re)send
    int error = 0;               // errno value that ended the connection
    int soft_error =
        0;  // ICMP's, reported if the connection dies of silence (RFC 1122 section 4.2.3.9)
    Endpoint local, remote;
    TcpMemory* memory = nullptr;
    Snd snd;
    Rcv rcv;
    Timestamps ts;
    AckState ack;
    RttEstimator rtt;
    Cc cc;
    LossState loss;
    Ecn ecn;
    SizeSearch search;
    FastOpen fast_open;
    Timers timers;
    Scoreboard board;
    SendBuffer out;
    MessageMarks* marks = nullptr;  // cfg.messages
    ReceiveQueue in;
    KeptText kept;
    Reorder ooo;
    uint32_t charged = 0;  // of `in`, `kept` and `ooo`, as told to `memory`
    TcpConfig cfg;
    Counters count;
    BusyTimes busy;
    DeliveryRate rate;
    // Receive autotuning (dynamic right sizing): bytes read since `at`, over one round trip.
    struct {
        Instant at;
        Instant rtt_at;
        Seq rtt_seq;
        Duration rtt{0};
        uint32_t copied = 0, space = 0;
        uint32_t echo = 0;  // of the last round trip taken from timestamps
    } autotune;

    bool synchronised() const { return state >= State::SYN_RECEIVED; }
    // What frames of received text cost, out of order ones aside.
    uint32_t text_charge() const { return in.charge() + kept.charge(); }
    // States in which the application may still send (RFC 9293 section 3.10.2).
    bool can_send() const {
        return (state == State::ESTABLISHED || state == State::CLOSE_WAIT ||
                (state == State::SYN_RECEIVED && fast_open.server)) &&
               !snd.fin_queued;
    }
    uint32_t flight() const { return uint32_t(snd.nxt - snd.una); }
    // First sequence number after the data written: where a FIN goes.
    Seq write_seq() const { return out.end(); }
};

// The connection is in another state from now on; probe tcp_state.
inline void enter(Tcb& t, State state) {
    VMA_PROBE3(tcp_state, &t, unsigned(t.state), unsigned(state));
    t.state = state;
}

// A connection request that was answered with SYN-ACK; RFC 4987 section 3: as little as can be kept.
struct HalfOpen {
    Endpoint local, remote;
    Seq irs, iss;
    uint32_t ts_recent = 0;
    uint32_t ts_offset = 0;
    uint16_t mss = 536;  // the peer's option
    uint16_t wnd = 0;    // the SYN's
    uint8_t wscale = kNoScale;
    uint8_t retries = 0;
    bool has_ts = false, sack_ok = false;
    bool ecn = false;  // RFC 3168, asked for by the SYN
    bool acked =
        false;  // final ACK seen, but not taken: the accept queue was full, or text is waited for
    Instant sent_at;  // of the first SYN-ACK: RTT sample
    Instant resend_at;
};

static_assert(sizeof(HalfOpen) <= 96);

// TIME_WAIT: RFC 9293 section 3.6.1; reuse RFC 6191.
struct TimeWait {
    Endpoint local, remote;
    Seq snd_nxt, rcv_nxt;
    uint32_t rcv_wnd = 0;
    uint32_t ts_recent = 0;
    uint32_t ts_offset = 0;
    uint8_t rcv_wscale = 0;
    bool has_ts = false;
    Instant ts_recent_at;
    Instant expires;
    Duration length;
};

// What the caller counts for one listener.
struct ListenState {
    uint32_t half_open = 0;     // HalfOpen records
    uint32_t accept_queue = 0;  // established, not accepted
    uint32_t backlog = 0;       // listen(2) argument, clamped
    uint32_t max_half_open =
        1024;               // tcp_max_syn_backlog: without cookies a quarter of it stays free
    Instant cookies_until;  // cookies were sent until two minutes before this
    uint64_t cookies_sent = 0, cookies_taken = 0, cookies_wrong = 0;
    // TCP_FASTOPEN: connections opened by a SYN whose handshake is not over, and how many there may be; 0: off.
    uint32_t fast_open = 0, fast_open_limit = 0;
    uint64_t fast_opens = 0, fast_open_wrong = 0, fast_open_full = 0;
    bool full() const { return accept_queue > backlog; }         // Linux's sk_acceptq_is_full
    bool half_open_full() const { return half_open > backlog; }  // and inet_csk_reqsk_queue_is_full
};

}  // namespace vma::tcp
