// The entries of the TCP machine. Sans-io: segments, time and application calls come in, segments, events and deadlines
// are values that come out. RFC 9293; see docs/RFC.md for the requirement index.
//
// One connection, in the order in which a caller uses it:
//   open            connect(), or on_syn() -> HalfOpen -> establish()
//   a segment came  segment_arrives(); send actions.reply if there is one; then pull
//   pull            while the ring has room: next_segment() -> build and send
//   time            deadline() tells when deadline_reached() must be called; then pull
//   application     write(), read(), shutdown_write(), close(), abort(); then pull
//   end             on kReleasable, or whenever the caller wants: release(), then free the Tcb
// All calls on one Tcb are made under its shard's lease. None blocks, allocates outside of TcpMemory, or calls back.
#pragma once

#include <algorithm>

#include "stack/isn.h"
#include "stack/tcp/tcb.h"

namespace vma::tcp {

// ---- open (handshake.cc, listen.cc)

struct OpenParams {
    Endpoint local, remote;
    Seq iss;                 // isn.h
    uint32_t ts_offset = 0;  // isn.h
    TcpMemory* memory = nullptr;
    const IsnSecret* secret = nullptr;  // for SYN cookies; null: none are made
    // Fast Open of a listener (null: off), and of an active open: the option is sent, and with a cookie (or `no_cookie`) up to
    // fast_open_room bytes of text.
    const FastOpenKeys* fast_open_keys = nullptr;
    bool fast_open = false, no_cookie = false;
    uint16_t fast_open_room = 0;
    Cookie cookie{};
};
// Active open of a fresh Tcb: SYN_SENT, the SYN is ready to be pulled. With Fast Open, write() comes before the pull.
void connect(Tcb& t, const OpenParams& open, const TcpConfig& cfg, Instant now);

struct ListenVerdict {
    enum Kind : uint8_t { drop, half_open, reset, cookie, established, fast_open } kind = drop;
    DropReason reason = DropReason::none;  // with drop
    HalfOpen record;  // with half_open: keep it, and send actions.reply (SYN-ACK)
    Cookie newer;     // with fast_open
    // cookie: send actions.reply, keep nothing. established: the segment returned a cookie; treat `record` as a half-open
    // one to which that segment arrives. fast_open: make a Tcb with open_fast().
};
// A segment for a listener that matches no connection, HalfOpen or TimeWait (RFC 9293 section 3.10.7.2). `reset`: send
// actions.reply. iss and ts_offset as for connect().
ListenVerdict on_syn(ListenState& listener, const TcpConfig& cfg, const SegView& seg,
                     const OpenParams& open, Instant now, Actions& out);

enum class HalfOpenVerdict : uint8_t {
    keep,    // send actions.reply if present
    remove,  // forget the record; send actions.reply if present
    establish,  // make a Tcb: establish(), then segment_arrives(Tcb&) with the same segment, then forget the record
};
HalfOpenVerdict segment_arrives(HalfOpen& h, const ListenState& listener, const TcpConfig& cfg,
                                const SegView& seg, Instant now, Actions& out);
inline Instant deadline(const HalfOpen& h) { return h.resend_at; }
// Resends the SYN-ACK (actions.reply) or gives up (remove).
HalfOpenVerdict deadline_reached(HalfOpen& h, const TcpConfig& cfg, Instant now, Actions& out);
// A fresh Tcb in SYN_RECEIVED from the record; the ACK that follows makes it ESTABLISHED.
void establish(Tcb& t, const HalfOpen& h, const TcpConfig& cfg, TcpMemory& memory, Instant now);

// The same from a SYN with a good Fast Open cookie: its text is readable, the SYN-ACK ready to be pulled, and the application
// may write. `cookie`: a newer one to give to the peer, len 0: none.
void open_fast(Tcb& t, const HalfOpen& h, const TcpConfig& cfg, TcpMemory& memory, SegView& syn,
               const Cookie& cookie, Instant now, Actions& out);

// ---- segments in (segment_arrives.cc, fast_path.cc)

// Events and an immediate reply in `out`. seg.packet is moved out when its text was kept.
Verdict segment_arrives(Tcb& t, SegView& seg, Instant now, Actions& out);
// The same without the fast path; for tests.
Verdict segment_arrives_slow(Tcb& t, SegView& seg, Instant now, Actions& out);
// Answer to a segment that belongs to no connection (RFC 9293 section 3.10.7.1). False for a RST: no answer.
bool reset_for(const SegView& seg, SegmentHead& out);

// ---- text past the segments (direct_text.cc), on a path that loses and reorders nothing

// How many bytes could leave so now; 0: none, what is written takes the usual way.
uint32_t direct_room(const Tcb& t);
// They have; n <= direct_room().
void sent_directly(Tcb& t, uint32_t n, Instant now);
// Text came so: seq, payload_len, payload_offset and packet of `seg` are set. As segment_arrives().
Verdict direct_text_arrives(Tcb& t, SegView& seg, Instant now, Actions& out);
// A segment of such a connection, before segment_arrives(): its acknowledgement may have left before text that counts as
// acknowledged was read. Its window then begins where that text ends.
void renew_ack(const Tcb& t, SegView& seg);

// ---- segments out (output.cc)

// The next segment to put on the wire, already accounted as sent (a frame that the ring then loses is a lost segment).
// False: nothing to send now.
bool next_segment(Tcb& t, Instant now, SegmentPlan& out);
// Would it find nothing and change nothing, as for who has just read? False when that takes more than a look.
inline bool at_rest(const Tcb& t) {
    return t.state == State::ESTABLISHED && t.flight() == 0 && t.write_seq() == t.snd.nxt &&
           !t.ack.now && !t.rst_due && !t.snd.fin_queued && !t.timers.probe_due &&
           !t.loss.tlp.due && t.busy.now == Busy::idle &&
           t.rate.app_limited >= std::max<uint64_t>(t.loss.delivered, 1);
}

// ---- time (timers.cc)

Instant deadline(const Tcb& t);  // never() when nothing is due
void deadline_reached(Tcb& t, Instant now, Actions& out);

// ---- application (stream.cc, close.cc)

// Takes bytes into the send buffer; returns how many (0: full, or the state does not allow sending).
size_t write(Tcb& t, const iovec* iov, size_t count, Instant now, Actions& out);
inline size_t write(Tcb& t, const void* data, size_t n, Instant now, Actions& out) {
    const iovec one{const_cast<void*>(data), n};
    return write(t, &one, 1, now, out);
}
// Marks the byte before `end` of what has been written so far as urgent (MSG_OOB sent it last).
void mark_urgent(Tcb& t);
// What has been written so far is a message (TcpConfig::messages; else nothing happens). Before output is pulled.
void end_message(Tcb& t);
// Copies unread bytes out and consumes them; 0: none there (see at_eof).
size_t read(Tcb& t, const iovec* iov, size_t count, Instant now, Actions& out);
inline size_t read(Tcb& t, void* data, size_t n, Instant now, Actions& out) {
    const iovec one{data, n};
    return read(t, &one, 1, now, out);
}
// MSG_PEEK: copies without consuming.
size_t peek(Tcb& t, const iovec* iov, size_t count, size_t skip = 0);
// Consumes n bytes without copying (MSG_TRUNC).
void consume(Tcb& t, uint32_t n, Instant now, Actions& out);
// Zero copy: the frame at the front becomes the caller's, its text described by text_of(). The window stays closed over that
// text until it is told by kept_returned(). Empty: nothing is unread.
Packet keep_front(Tcb& t);
void kept_returned(Tcb& t, uint32_t bytes, Instant now, Actions& out);  // of one frame
// True when the peer's FIN was reached and everything before it was read.
inline bool at_eof(const Tcb& t) { return t.in.bytes == 0 && t.rcv.fin_done; }

// SHUT_WR: FIN after the last byte written.
void shutdown_write(Tcb& t, Instant now, Actions& out);
// SHUT_RD: local only; later text makes no RST until close().
void shutdown_read(Tcb& t);
// The last close(): orderly unless bytes are unread, then RST (RFC 2525 section 2.17). The Tcb lives on as an orphan until
// kReleasable. SO_LINGER 0 is abort(); SO_LINGER n waits for kAllAcked.
void close(Tcb& t, Instant now, Actions& out);
// RST if the state calls for one (to be pulled), then CLOSED; `error` is what the socket will report (0: nothing).
void abort(Tcb& t, int error, Actions& out);
// After nodelay, cork, quickack, keepalive, user_timeout ... of t.cfg were changed.
void config_changed(Tcb& t, Instant now, Actions& out);
// TCP_QUICKACK was set: what is owed leaves now.
void acknowledge_owed(Tcb& t, Actions& out);
// SO_RCVBUF / SO_SNDBUF as bytes of text.
void set_buffers(Tcb& t, uint32_t send, uint32_t receive, bool fixed);
// The path takes segments of at most `mss` bytes of payload with no options counted (path MTU less 40 or 60). What is in
// flight is cut anew when it is repeated.
void path_mss_changed(Tcb& t, uint16_t mss, Actions& out);
// An ICMP error about a segment of this connection. False: the quoted number is not in flight (RFC 5927 section 4.1), and
// nothing was done. too_big: `mtu` less headers is the new segment size, what is larger goes out again at once. Else
// `error`: ends a connection that is opening, is remembered by one that is open.
bool path_too_big(Tcb& t, Seq quoted, uint32_t mtu, uint32_t headers, Actions& out);
bool path_error(Tcb& t, Seq quoted, int error, Actions& out);
// ICMP or local error already judged hard by the caller: fails a connection that is opening.
void fail(Tcb& t, int error, Actions& out);
// Gives queues and blocks back. The Tcb may then be freed or used for a new connection after reset to Tcb{}.
void release(Tcb& t);

// ---- TIME_WAIT (time_wait.cc)

// What remains when kTimeWait was reported and the socket no longer needs the Tcb.
TimeWait time_wait_of(const Tcb& t);
enum class TimeWaitVerdict : uint8_t {
    keep,    // send actions.reply if present
    remove,  // forget the record
    reuse,  // a SYN that may open the tuple again: forget the record, go on with on_syn(); ISS above iss_hint
};
TimeWaitVerdict segment_arrives(TimeWait& tw, const SegView& seg, Instant now, Actions& out,
                                Seq& iss_hint);
inline Instant deadline(const TimeWait& tw) { return tw.expires; }
// connect() from our side onto a tuple in TIME_WAIT (RFC 6191, Linux's tcp_tw_reuse): allowed with timestamps and a second
// of age; the new ISS must be above iss_hint.
bool may_reuse(const TimeWait& tw, Instant now, Seq& iss_hint);

// ---- queries

inline uint32_t unread_bytes(const Tcb& t) { return t.in.bytes; }    // SIOCINQ
inline uint32_t unacked_bytes(const Tcb& t) { return t.out.bytes; }  // SIOCOUTQ
uint32_t unsent_bytes(const Tcb& t);                                 // SIOCOUTQNSD
// May write() be told to go on? Linux's rule for readiness: a third of the buffer is free and at most half of
// TCP_NOTSENT_LOWAT waits.
bool writable(const Tcb& t);
// Numbers for TCP_INFO, in its units where it has some.
struct Numbers {
    State state;
    uint8_t retransmits, probes, backoff, snd_wscale, rcv_wscale;
    bool timestamps, sack, scaling;
    bool syn_data;           // text of our SYN was taken, or the peer's was
    uint8_t fast_open_fail;  // Linux's TFO_*, 0 unknown
    uint32_t pmtu, advmss;
    uint32_t rto_us, ato_us, snd_mss, rcv_mss, unacked, sacked, lost,
        retrans;  // counts are segments
    uint32_t last_data_sent_ms, last_data_recv_ms, last_ack_recv_ms;
    uint32_t rtt_us, rttvar_us, min_rtt_us, snd_ssthresh, snd_cwnd, rcv_ssthresh, rcv_space,
        total_retrans;
    uint32_t notsent_bytes, snd_wnd, rcv_wnd;
    uint64_t bytes_acked, bytes_received, bytes_sent, bytes_retrans;
    uint64_t segs_in, segs_out, data_segs_in, data_segs_out, delivered;
    uint32_t dsack_dups, ooo_packets;
    uint32_t reordering, reordering_seen, delivered_ce, total_rto, rto_recoveries, rto_time_ms,
        rcv_rtt_us;
    uint64_t delivery_rate;  // bytes per second, 0: no sample
    bool delivery_rate_app_limited, ecn, ecn_seen;
    uint8_t ca_state;  // Linux's TCP_CA_*: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss
    uint64_t busy_us, rwnd_limited_us, sndbuf_limited_us;
    uint64_t pacing_rate, max_pacing_rate;  // bytes per second, UINT64_MAX: none
};
Numbers numbers(const Tcb& t, Instant now);

}  // namespace vma::tcp
