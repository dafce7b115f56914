// Opening: RFC 9293 sections 3.5 and 3.10.7.3, options RFC 7323 and RFC 2018, initial window RFC 6928.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {

SegmentHead syn_head(const Tcb& t, bool with_ack, Instant now) {
    SegmentHead h;
    h.seq = t.snd.iss;
    h.flags = kSyn;
    h.wnd = uint16_t(std::min<uint32_t>(t.rcv.buffer, 65535));  // never scaled in a SYN
    h.opt.has_mss = true;
    h.opt.mss = t.cfg.max_seg ? std::min(t.cfg.mss, t.cfg.max_seg) : t.cfg.mss;
    // An answer offers only what was offered to us.
    h.opt.sack_permitted = with_ack ? t.loss.sack_ok : t.cfg.sack;
    h.opt.has_timestamps = with_ack ? t.ts.on : t.cfg.timestamps;
    if (h.opt.has_timestamps) {
        h.opt.ts_val = t.ts.value(now);
        h.opt.ts_ecr = with_ack ? t.ts.recent : 0;
    }
    // RFC 3168 section 6.1.1; a SYN that has to be repeated asks no more (section 6.1.1.1, Linux's tcp_ecn_fallback).
    if (with_ack && t.ecn.on) h.flags |= kEce;
    if (!with_ack && t.cfg.ecn == 1 && t.timers.retries == 0) h.flags |= kEce | kCwr;
    const bool scaling = with_ack ? t.snd.scaling : t.cfg.window_scaling;
    if (scaling) {
        h.opt.has_wscale = true;
        h.opt.wscale = t.rcv.wscale;
    }
    if (with_ack) {
        h.flags |= kAck;
        h.ack = t.rcv.nxt;
    }
    // RFC 7413 section 4.2.1: a cookie, or the wish for one; not in a repeated SYN, which may have met something that
    // drops it (Linux).
    const bool fast =
        with_ack ? t.fast_open.server && t.fast_open.cookie.len > 0 : t.fast_open.client;
    if (fast && t.timers.retries == 0) {
        h.opt.has_fast_open = true;
        h.opt.fast_open_len = t.fast_open.cookie.len;
        h.opt.fast_open = t.fast_open.cookie.bytes;
    }
    return h;
}

namespace {

void start(Tcb& t, const TcpConfig& cfg, Endpoint local, Endpoint remote, TcpMemory& memory,
           Instant now) {
    t.cfg = cfg;
    t.local = local;
    t.remote = remote;
    t.memory = &memory;
    t.out.limit = cfg.send_buffer;
    t.rcv.buffer = cfg.receive_buffer;
    const uint32_t most = std::max(cfg.receive_buffer, cfg.receive_buffer_max);
    t.rcv.wscale = cfg.window_scaling ? scale_for(std::min(most, cfg.window_clamp)) : uint8_t(0);
    t.cc.kind = cfg.cc;
    t.search.ceiling = cfg.mss;
    t.timers.last_rcv = now;
}

// What the peer's SYN said.
void take_syn_options(Tcb& t, const TcpOptions& o, Instant now) {
    t.ts.on = t.cfg.timestamps && o.has_timestamps;
    if (t.ts.on) {
        t.ts.recent = o.ts_val;
        t.ts.recent_at = now;
    }
    t.loss.sack_ok = t.cfg.sack && o.sack_permitted;
    t.snd.scaling = t.cfg.window_scaling && o.has_wscale;
    if (t.snd.scaling) t.snd.wscale = std::min<uint8_t>(o.wscale, 14);
}

}  // namespace

namespace {

// RFC 9293 section 3.7.1, MUST-16, with the options of every segment taken off. The floor of 48 (Linux's tcp_min_snd_mss)
// is against a peer that says 1.
uint16_t effective_mss(const Tcb& t) {
    uint32_t mss = std::min<uint32_t>(t.snd.peer_mss, t.cfg.mss);
    if (t.cfg.max_seg) mss = std::min<uint32_t>(mss, t.cfg.max_seg);
    if (t.ts.on) mss = mss > 60 ? mss - 12 : 48;
    return uint16_t(std::max<uint32_t>(mss, 48));
}

}  // namespace

void path_mss_changed(Tcb& t, uint16_t mss, Actions& out) {
    t.cfg.mss = mss;
    if (!t.synchronised()) return;  // negotiated() will look
    t.snd.mss = effective_mss(t);
    t.cc.cwnd = std::max<uint32_t>(t.cc.cwnd, t.snd.mss);
    out.set(kOutput);
}

void negotiated(Tcb& t, uint16_t peer_mss) {
    if (!t.snd.scaling) t.snd.wscale = t.rcv.wscale = 0;
    t.snd.peer_mss = peer_mss;
    t.snd.mss = effective_mss(t);
    t.ack.rcv_mss = uint16_t(std::clamp<uint32_t>(
        std::min<uint32_t>({t.cfg.mss, peer_mss, t.rcv.buffer / 2u}), 88, 536));
    t.cc.cwnd = t.cc.kind == CcKind::none ? kMaxCwnd : initial_window(t.snd.mss);
    t.out.start = t.snd.iss + 1;
    t.snd.sml = t.snd.iss;  // nothing short is out, the SYN is none
    t.snd.pushed = t.snd.iss + 1;
    t.loss.recover = t.loss.limited_at = t.snd.iss;
}

void connected(Tcb& t, Instant now, Actions& out) {
    enter(t, t.snd.fin_queued ? State::FIN_WAIT_1 : State::ESTABLISHED);
    end_series(t, now);
    t.timers.stalled_since = {};
    // RFC 6298 section 5.7: a SYN that had to be repeated starts the data with 3 s only where no sample exists; the
    // estimator's initial second stands, as in Linux.
    start_size_search(t, now);
    start_keepalive(t, now);
    out.set(kConnected | kWritable | kOutput);
}

void connect(Tcb& t, const OpenParams& open, const TcpConfig& cfg, Instant now) {
    start(t, cfg, open.local, open.remote, *open.memory, now);
    t.snd.iss = t.snd.una = open.iss;
    t.snd.nxt = open.iss + 1;
    t.out.start = open.iss + 1;
    t.ts.offset = open.ts_offset;
    t.fast_open.client = open.fast_open;
    if (open.fast_open) {
        t.fast_open.cookie = open.cookie;
        const bool may = open.cookie.len > 0 || open.no_cookie;
        if (!may) t.fast_open.failure = 1;
        if (may) t.fast_open.room = open.fast_open_room;
        // Without a cookie to send there is none to ask for either.
        if (open.no_cookie && open.cookie.len == 0) t.fast_open.client = false;
    }
    enter(t, State::SYN_SENT);
    t.syn_due = true;
}

void establish(Tcb& t, const HalfOpen& h, const TcpConfig& cfg, TcpMemory& memory, Instant now) {
    start(t, cfg, h.local, h.remote, memory, now);
    t.passive = true;
    enter(t, State::SYN_RECEIVED);
    t.snd.iss = t.snd.una = h.iss;
    t.snd.nxt = h.iss + 1;
    t.rcv.irs = h.irs;
    t.rcv.nxt = t.rcv.acked = h.irs + 1;
    t.rcv.adv = t.rcv.nxt + std::min<uint32_t>(t.rcv.buffer, 65535);
    t.ecn.on = h.ecn;
    t.ts.on = h.has_ts;
    t.ts.offset = h.ts_offset;
    t.ts.recent = h.ts_recent;
    t.ts.recent_at = h.sent_at;
    t.loss.sack_ok = h.sack_ok;
    t.snd.scaling = h.wscale != kNoScale;
    t.snd.wscale = t.snd.scaling ? h.wscale : uint8_t(0);
    t.snd.wnd = t.snd.max_wnd = h.wnd;
    t.snd.wl1 = h.irs;
    t.snd.wl2 = h.iss;
    negotiated(t, h.mss);
    // The SYN-ACK is what the first ACK acknowledges: a range of it gives the first RTT sample. Without memory the
    // connection lives, only the sample is lost.
    if (t.board.sent(memory, h.iss, h.iss + 1, h.sent_at, 0, 1) && h.retries > 0)
        t.board.head->ever_retransmitted = true;
}

void open_fast(Tcb& t, const HalfOpen& h, const TcpConfig& cfg, TcpMemory& memory, SegView& syn,
               const Cookie& cookie, Instant now, Actions& out) {
    establish(t, h, cfg, memory, now);
    t.fast_open.server = true;
    t.fast_open.cookie = cookie;
    t.syn_due = true;
    out.set(kOutput);
    if (syn.payload_len == 0) return;
    t.fast_open.taken = true;
    syn.seq += 1;  // its text, as a segment of its own
    syn.flags &= uint8_t(~kSyn);
    (void)take_in_order(t, syn, now, out);
    t.ack.now = t.ack.pending = false;  // the SYN-ACK acknowledges it
    t.timers.delack_at = Instant::never();
}

namespace {

// RFC 7413 section 4.2.2: what the SYN-ACK says about our Fast Open.
void fast_open_answered(Tcb& t, const SegView& seg) {
    FastOpen& f = t.fast_open;
    if (seg.opt.has_fast_open && seg.opt.fast_open_len >= 4) {
        f.news = true;
        f.cookie.len = seg.opt.fast_open_len;
        f.cookie.bytes = seg.opt.fast_open;
    }
    if (!(t.snd.nxt > t.snd.iss + 1)) return;
    f.taken = seg.ack == t.snd.nxt;
    if (f.taken) return;
    f.refused = true;
    f.failure = t.timers.retries > 0 ? 3 : 2;
}

}  // namespace

// Whoever answers our SYN with an acknowledgement of something else holds an older connection of this tuple (in TIME-WAIT,
// where our timestamp did not pass PAWS). Our RST ends it, and the SYN follows on its heels, not only after a second; once more
// after 8 ms, should they have changed places. Linux waits these two ticks (TCP_TIMEOUT_MIN) in any case.
void repeat_syn_soon(Tcb& t, Instant now, Actions& out) {
    constexpr Duration kSoon = Duration::millis(8);
    if (t.timers.retries > 0 || t.timers.kind != Rtx::rto || t.timers.rtx_at <= now + kSoon) return;
    t.timers.stalled_since = t.timers.rtx_at - t.rtt.rto;
    arm(t, Rtx::rto, now + kSoon);
    t.syn_due = true;
    ++t.count.retransmits;
    out.set(kOutput);
}

// RFC 9293 section 3.10.7.3.
Verdict arrives_in_syn_sent(Tcb& t, SegView& seg, Instant now, Actions& out) {
    // First: ACK.
    if (seg.has(kAck) && (seg.ack <= t.snd.iss || seg.ack > t.snd.nxt)) {
        SegmentHead rst;
        if (!reset_for(seg, rst)) return Verdict::drop(DropReason::tcp_ack_range);
        out.answer(rst);
        repeat_syn_soon(t, now, out);
        return Verdict::reply(DropReason::tcp_ack_range);
    }
    // Our echo must be from our clock (Linux: RST when it is not).
    if (seg.has(kAck) && t.cfg.timestamps && seg.opt.has_timestamps && seg.opt.ts_ecr != 0 &&
        int32_t(t.ts.value(now) - seg.opt.ts_ecr) < 0) {
        SegmentHead rst;
        if (!reset_for(seg, rst)) return Verdict::drop(DropReason::tcp_paws);
        out.answer(rst);
        return Verdict::reply(DropReason::tcp_paws);
    }
    // Second: RST; believed only with an acceptable ACK.
    if (seg.has(kRst)) {
        if (!seg.has(kAck)) return Verdict::drop(DropReason::tcp_no_ack);
        enter_closed(t, ECONNREFUSED, out);
        return Verdict::drop(DropReason::tcp_reset);
    }
    // Fourth: SYN.
    if (!seg.has(kSyn)) return Verdict::drop(DropReason::tcp_state);
    take_syn_options(t, seg.opt, now);
    t.rcv.irs = seg.seq;
    t.rcv.nxt = t.rcv.acked = seg.seq + 1;
    t.rcv.adv = t.rcv.nxt + std::min<uint32_t>(t.rcv.buffer, 65535);
    const uint16_t peer_mss = seg.opt.has_mss && seg.opt.mss ? seg.opt.mss : uint16_t(536);
    t.timers.last_rcv = now;
    out.set(kOutput);
    if (!seg.has(kAck)) {
        t.ecn.on = t.cfg.ecn != 0 && seg.has(kEce | kCwr);
        // Simultaneous open: our SYN goes out again with an ACK. Text on it is ignored, the peer repeats it.
        enter(t, State::SYN_RECEIVED);
        t.syn_due = true;
        t.snd.wnd = t.snd.max_wnd = seg.wnd;
        t.snd.wl1 = seg.seq;
        t.snd.wl2 = t.snd.iss;
        negotiated(t, peer_mss);
        return Verdict::go_on();
    }
    // A peer that reflects both bits only echoes what it does not know.
    t.ecn.on = t.cfg.ecn == 1 && (seg.flags & (kEce | kCwr)) == kEce;
    negotiated(t, peer_mss);
    AckResult result;
    result.now = now;
    t.board.acknowledge(*t.memory, seg.ack, result);
    if (result.rtt_valid) t.rtt.sample(now - result.rtt_sent, now);
    t.snd.una = seg.ack;
    t.snd.wnd = t.snd.max_wnd = seg.wnd;
    t.snd.wl1 = seg.seq;
    t.snd.wl2 = seg.ack;
    disarm(t);
    fast_open_answered(t, seg);
    if (t.flight() > 0 || t.fast_open.taken) {
        t.out.acknowledge(*t.memory, Seq::min(seg.ack, t.write_seq()));
        t.count.bytes_acked += uint32_t(seg.ack - t.snd.iss) - 1;
        // Text that was not taken goes out again at once: it met no congestion.
        t.count.bytes_lost += t.board.mark_head_lost(*t.memory, t.flight());
        if (t.flight() > 0) {
            repeat_without_blame(t);
            rearm_rto(t, now);  // a closed window may keep it here
        }
    }
    if (t.cfg.defer_accept > 0) {
        // Linux: the side that set TCP_DEFER_ACCEPT expects to speak first; its text carries the ACK.
        t.ack.pending = true;
        t.ack.ato = Duration::millis(40);
        t.timers.delack_at = now + Duration::millis(200);
    } else {
        t.ack.now = true;
    }
    connected(t, now, out);
    return Verdict::go_on();
}

}  // namespace vma::tcp
