// The application's side: bytes in, bytes out, and the numbers it may ask for.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {

size_t write(Tcb& t, const iovec* iov, size_t count, Instant now, Actions& out) {
    (void)now;
    if (!t.can_send() &&
        !((t.state == State::SYN_SENT || t.state == State::SYN_RECEIVED) && !t.snd.fin_queued))
        return 0;
    if (t.cfg.messages && !has_message_room(t)) return 0;
    // As Linux, a write passes the mark by what one frame holds: it is looked at per frame, not per byte.
    const uint32_t unsent = unsent_bytes(t);
    if (unsent >= t.cfg.notsent_lowat) return 0;
    const uint32_t frame = std::max<uint32_t>(t.cfg.max_gso_bytes, t.snd.mss);
    const uint32_t limit = t.out.limit;
    const uint64_t mark = uint64_t(t.out.bytes) + std::max(t.cfg.notsent_lowat - unsent, frame);
    t.out.limit = uint32_t(std::min<uint64_t>(limit, mark));
    const size_t n = t.out.append(*t.memory, iov, count);
    t.out.limit = limit;
    t.busy.write_cut = t.out.room() == 0;
    if (n > 0) out.set(kOutput);
    return n;
}

void mark_urgent(Tcb& t) {
    t.snd.urgent = true;
    t.snd.up = t.write_seq();
}

size_t peek(Tcb& t, const iovec* iov, size_t count, size_t skip) {
    return t.in.peek(iov, count, skip);
}

size_t read(Tcb& t, const iovec* iov, size_t count, Instant now, Actions& out) {
    const size_t n = t.in.peek(iov, count, 0);
    if (n > 0) consume(t, uint32_t(n), now, out);
    return n;
}

void consume(Tcb& t, uint32_t n, Instant now, Actions& out) {
    n = std::min(n, t.in.bytes);
    t.in.consume(n);
    after_read(t, n, now, out);
}

Packet keep_front(Tcb& t) {
    const uint32_t before = t.in.bytes;
    Packet p = t.in.take_front();
    if (!p) return p;
    t.kept.bytes += before - t.in.bytes;
    t.kept.frames++;
    return p;
}

void kept_returned(Tcb& t, uint32_t bytes, Instant now, Actions& out) {
    t.kept.bytes -= bytes;
    t.kept.frames--;
    after_read(t, bytes, now, out);
}

namespace {

// TCP_CONGESTION on a live connection: the window stays, what the old algorithm knew does not.
void change_algorithm(Tcb& t) {
    const bool unlimited = t.cc.kind == CcKind::none;
    const uint32_t cwnd = t.cc.cwnd;
    t.cc = {};
    t.cc.kind = t.cfg.cc;
    t.cc.cwnd = t.cfg.cc == CcKind::none ? kMaxCwnd : unlimited ? initial_window(t.snd.mss) : cwnd;
    t.loss.undo.armed = false;
}

}  // namespace

void config_changed(Tcb& t, Instant now, Actions& out) {
    if (t.memory != nullptr && t.state != State::CLOSED) follow_messages(t);
    if (t.synchronised() && t.state != State::TIME_WAIT) {
        if (!t.cfg.keepalive)
            t.timers.keepalive_at = Instant::never();
        else
            t.timers.keepalive_at = std::max(now, t.timers.last_rcv + t.cfg.keepalive_idle);
        if (t.cc.kind != t.cfg.cc) change_algorithm(t);
    }
    out.set(kOutput);
}

void acknowledge_owed(Tcb& t, Actions& out) {
    if (!t.ack.pending || !t.synchronised() || t.state == State::TIME_WAIT) return;
    t.ack.now = true;
    out.set(kOutput);
}

void set_buffers(Tcb& t, uint32_t send, uint32_t receive, bool fixed) {
    // A size of the application's own is not tuned any more.
    if (send != t.out.limit) t.cfg.send_buffer_max = send;
    t.out.limit = send;
    t.cfg.send_buffer = send;
    // The window in the peer's hands stays valid: offers never retreat, whatever the buffer.
    t.rcv.buffer = receive;
    t.cfg.receive_buffer = receive;
    if (fixed) t.cfg.receive_buffer_max = receive;
}

uint32_t unsent_bytes(const Tcb& t) {
    const Seq end = t.write_seq();
    return t.snd.nxt < end ? uint32_t(end - t.snd.nxt) : 0;
}

bool writable(const Tcb& t) {
    return uint64_t(t.out.room()) * 3 >= t.out.limit &&
           (t.marks == nullptr || t.marks->count < MessageMarks::kMost) &&
           uint64_t(unsent_bytes(t)) * 2 < t.cfg.notsent_lowat;
}

Numbers numbers(const Tcb& t, Instant now) {
    Numbers n{};
    const uint32_t mss = std::max<uint32_t>(t.snd.mss, 1);
    auto segments = [mss](uint32_t bytes) { return (bytes + mss - 1) / mss; };
    auto ago = [now](Instant at) { return at.ns ? uint32_t((now - at).to_millis()) : 0u; };
    n.state = t.state;
    n.retransmits = t.timers.retries;
    n.probes = uint8_t(t.timers.probes + t.timers.keepalives);
    n.backoff = t.timers.backoff;
    n.snd_wscale = t.snd.wscale;
    n.rcv_wscale = t.rcv.wscale;
    n.timestamps = t.ts.on;
    n.sack = t.loss.sack_ok;
    n.scaling = t.snd.scaling;
    n.pmtu = t.cfg.mss + (t.remote.addr.is_v4() ? 40u : 60u);
    n.advmss =
        (t.cfg.max_seg ? std::min(t.cfg.mss, t.cfg.max_seg) : t.cfg.mss) - (t.ts.on ? 12u : 0u);
    n.syn_data = t.fast_open.taken;
    n.fast_open_fail = t.fast_open.failure;
    n.rto_us = uint32_t(t.rtt.backed_off(t.timers.backoff).to_micros());
    n.ato_us = uint32_t(t.ack.ato.to_micros());
    n.snd_mss = t.snd.mss;
    n.rcv_mss = t.ack.rcv_mss;
    n.unacked = segments(t.flight());
    n.sacked = segments(t.board.sacked + t.board.reno_sacked);
    n.lost = segments(t.board.lost);
    n.retrans = segments(t.board.retransmitted);
    n.last_data_sent_ms = ago(t.timers.last_snd);
    n.last_data_recv_ms = ago(t.ack.last_data);
    n.last_ack_recv_ms = ago(t.timers.last_rcv);
    n.rtt_us = uint32_t(t.rtt.srtt.to_micros());
    n.rttvar_us = uint32_t(t.rtt.rttvar.to_micros());
    n.min_rtt_us = t.rtt.has_sample() ? uint32_t(t.rtt.min_rtt.to_micros()) : 0;
    n.snd_ssthresh =
        t.cc.ssthresh >= kInfiniteSsthresh ? kInfiniteSsthresh : segments(t.cc.ssthresh);
    n.snd_cwnd = segments(t.cc.cwnd);
    n.rcv_ssthresh = t.rcv.buffer;
    n.rcv_space = t.autotune.space ? t.autotune.space : t.rcv.buffer;
    n.total_retrans = t.count.retransmits;
    n.notsent_bytes = unsent_bytes(t);
    n.snd_wnd = t.snd.wnd;
    n.rcv_wnd = t.rcv.wnd();
    n.bytes_acked = t.count.bytes_acked;
    n.bytes_received = t.count.bytes_received;
    n.bytes_sent = t.count.bytes_sent + t.count.bytes_retransmitted;
    n.bytes_retrans = t.count.bytes_retransmitted;
    n.segs_in = t.count.segs_in;
    n.segs_out = t.count.segs_out;
    n.data_segs_in = t.count.data_segs_in;
    n.data_segs_out = t.count.data_segs_out;
    n.delivered = segments(uint32_t(std::min<uint64_t>(t.loss.delivered, 0xffffffff)));
    n.dsack_dups = t.count.dsacks_in;
    n.ooo_packets = t.count.ooo_in;
    n.reordering = t.loss.rack.reordering;
    n.reordering_seen = t.loss.rack.reorderings;
    n.delivered_ce = t.count.ece_in;
    n.total_rto = t.count.timeouts;
    n.rto_recoveries = t.count.timeout_series;
    Duration stalled = t.count.timeout_time;
    if (t.timers.retries > 0) stalled = stalled + (now - t.timers.stalled_since);
    n.rto_time_ms = uint32_t(stalled.to_millis());
    n.rcv_rtt_us = uint32_t(t.autotune.rtt.to_micros());
    if (t.rate.interval.ns > 0)
        n.delivery_rate = uint64_t(double(t.rate.bytes) * 1e9 / double(t.rate.interval.ns));
    n.delivery_rate_app_limited = t.rate.sample_limited;
    n.ecn = t.ecn.on;
    n.ecn_seen = t.count.ce_in > 0;
    switch (t.loss.state) {
        case Recovery::open:
            n.ca_state = t.board.sacked > 0 || t.loss.dup_acks > 0 ? 1 : 0;
            break;
        case Recovery::cwr:
            n.ca_state = 2;
            break;
        case Recovery::fast:
            n.ca_state = 3;
            break;
        case Recovery::timeout:
            n.ca_state = 4;
            break;
    }
    auto spent = [&](Busy what) {
        Duration d = t.busy.total[unsigned(what)];
        if (t.busy.now == what) d = d + (now - t.busy.since);
        return uint64_t(d.to_micros());
    };
    n.rwnd_limited_us = spent(Busy::peer_window);
    n.sndbuf_limited_us = spent(Busy::send_buffer);
    n.busy_us = spent(Busy::sending) + n.rwnd_limited_us + n.sndbuf_limited_us;
    n.max_pacing_rate = t.cfg.pacing_rate ? t.cfg.pacing_rate : UINT64_MAX;
    n.pacing_rate = n.max_pacing_rate;
    if (t.cc.kind == CcKind::bbr && t.cc.pacing_rate != 0)
        n.pacing_rate = std::min(n.pacing_rate, t.cc.pacing_rate);
    return n;
}

}  // namespace vma::tcp
