// SEGMENT ARRIVES for the synchronised states, in the order of RFC 9293 section 3.10.7.4. Each check decides before it
// changes anything.
#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

// PAWS forgets TS.Recent after 24 days (RFC 7323 section 5.5).
constexpr Duration kPawsIdle = Duration::seconds(24 * 24 * 3600);

bool paws_rejects(const Tcb& t, const SegView& seg, Instant now) {
    if (!t.ts.on || !seg.opt.has_timestamps) return false;
    if (!t.ts.is_old(seg.opt.ts_val)) return false;
    return now - t.ts.recent_at < kPawsIdle;
}

// First: sequence number, with PAWS before it (RFC 7323 section 5.3 R1). As Linux, a segment is acceptable when it
// touches [Last.ACK.sent, right edge], which is wider than RFC 9293's table at the left: retransmissions of what was
// acknowledged a moment ago still bring their ACK field.
Verdict check_sequence(Tcb& t, const SegView& seg, Instant now) {
    if (paws_rejects(t, seg, now)) {
        if (seg.has(kRst)) return Verdict::drop(DropReason::tcp_paws);
        ++t.count.paws_drops;
        challenge_ack(t, now);
        return Verdict::reply(DropReason::tcp_paws);
    }
    const Seq right = Seq::max(t.rcv.adv, t.rcv.nxt);
    if (seg.end() >= t.rcv.acked && seg.seq <= right) return Verdict::go_on();
    if (seg.has(kRst)) return Verdict::drop(DropReason::tcp_sequence);
    if (seg.payload_len > 0 || seg.has(kFin)) {
        if (seg.payload_len > 0 && seg.seq < t.rcv.nxt) ++t.count.duplicates_in;
        // A retransmission: our ACK was lost. RFC 2883: tell which bytes came twice.
        if (t.loss.sack_ok && seg.seq < t.rcv.nxt && seg.payload_len > 0) {
            t.ack.dsack = true;
            t.ack.dsack_block = {seg.seq, Seq::min(seg.text_end(), t.rcv.nxt)};
        }
        t.ack.now = true;
        enter_quickack(t, t.cfg.quickack_segments);
    } else {
        // A window or keep-alive probe, or one half of an ACK loop: answered at a limited rate.
        challenge_ack(t, now);
    }
    return Verdict::reply(DropReason::tcp_sequence);
}

// Second: RST. RFC 5961 section 3.2: only the exact number counts, near misses are challenged.
Verdict check_rst(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    if (!seg.has(kRst)) return Verdict::go_on();
    if (!(seg.seq == t.rcv.nxt)) {
        if (seg.seq < t.rcv.nxt || seg.seq > Seq::max(t.rcv.adv, t.rcv.nxt))
            return Verdict::drop(DropReason::tcp_sequence);
        challenge_ack(t, now);
        return Verdict::reply(DropReason::tcp_rst_sequence);
    }
    int error = ECONNRESET;
    if (t.state == State::SYN_RECEIVED && !t.passive) error = ECONNREFUSED;
    if (t.state == State::CLOSE_WAIT) error = EPIPE;
    // CLOSING, LAST_ACK: both sides were done; the connection just ends.
    if (t.state == State::CLOSING || t.state == State::LAST_ACK) error = 0;
    enter_closed(t, error, out);
    return Verdict::drop(DropReason::tcp_reset);
}

// Fourth: SYN (third, security, is obsolete). RFC 5961 section 4.2: challenge ACK whatever the number. The one SYN that
// belongs here is the SYN-ACK of a simultaneous open.
Verdict check_syn(Tcb& t, SegView& seg, Instant now) {
    if (!seg.has(kSyn)) return Verdict::go_on();
    if (t.state == State::SYN_RECEIVED && !t.passive && seg.has(kAck) && seg.seq + 1 == t.rcv.nxt &&
        seg.ack == t.snd.nxt) {
        seg.flags &= uint8_t(~kSyn);
        seg.seq += 1;
        seg.wnd = uint16_t(seg.wnd >>
                           t.snd.wscale);  // a SYN's window is unscaled, update_window() scales
        return Verdict::go_on();
    }
    challenge_ack(t, now);
    return Verdict::reply(DropReason::tcp_syn_in_window);
}

Verdict check_ack_syn_received(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    if (seg.ack > t.snd.una && seg.ack <= t.snd.nxt) {
        connected(t, now, out);
        t.snd.wl1 = seg.seq;
        t.snd.wl2 = seg.ack;
        return Verdict::go_on();
    }
    SegmentHead rst;
    if (reset_for(seg, rst)) out.answer(rst);
    return Verdict::reply(DropReason::tcp_ack_range);
}

// The state changes that an ACK of our FIN makes.
void after_fin_acked(Tcb& t, Instant now, Actions& out) {
    if (!t.snd.fin_sent || !(t.snd.una == t.write_seq() + 1)) return;
    switch (t.state) {
        case State::FIN_WAIT_1:
            enter(t, State::FIN_WAIT_2);
            // RFC 9293 leaves FIN_WAIT_2 without end; an orphan waits tcp_fin_timeout.
            if (t.orphan) t.timers.state_at = now + t.cfg.fin_timeout;
            break;
        case State::CLOSING:
            enter_time_wait(t, now, out);
            break;
        case State::LAST_ACK:
            enter_closed(t, 0, out);
            break;
        default:
            break;
    }
}

// Fifth: ACK.
Verdict check_ack(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    if (!seg.has(kAck)) return Verdict::drop(DropReason::tcp_no_ack);
    if (t.state == State::SYN_RECEIVED) {
        const Verdict v = check_ack_syn_received(t, seg, now, out);
        if (v.kind != Verdict::Continue) return v;
    } else if (seg.ack > t.snd.nxt ||
               seg.ack < t.snd.una - (t.snd.max_wnd > 0 ? t.snd.max_wnd : 1)) {
        // RFC 5961 section 5.2.
        challenge_ack(t, now);
        return Verdict::reply(DropReason::tcp_ack_range);
    }
    // RFC 7323 section 4.3 (3): only a segment that covers what we last acknowledged moves TS.Recent.
    if (t.ts.on && seg.opt.has_timestamps && seg.seq <= t.rcv.acked &&
        !t.ts.is_old(seg.opt.ts_val)) {
        t.ts.recent = seg.opt.ts_val;
        t.ts.recent_at = now;
    }
    process_ack(t, seg, now, out);
    after_fin_acked(t, now, out);
    if (t.state == State::CLOSED) return Verdict::drop(DropReason::none);
    return Verdict::go_on();
}

// Sixth: URG. The pointer names the byte after the last urgent one (as every BSD and Linux; RFC 6093).
void check_urg(Tcb& t, const SegView& seg, Actions& out) {
    if (!seg.has(kUrg) || seg.urg == 0) return;
    if (t.rcv.fin_done || t.state > State::FIN_WAIT_2) return;
    const Seq up = seg.seq + seg.urg;
    // Old news: the byte was passed, or is known.
    if (up <= t.rcv.nxt || (t.rcv.urgent && up <= t.rcv.up)) return;
    t.rcv.urgent = true;
    t.rcv.up = up;
    out.set(kUrgent);
}

Verdict arrives_in_time_wait(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    TimeWait tw = time_wait_of(t);
    Seq hint;
    const TimeWaitVerdict v = segment_arrives(tw, seg, now, out, hint);
    if (v == TimeWaitVerdict::keep) {
        t.timers.state_at = tw.expires;
        t.ts.recent = tw.ts_recent;
        return out.has_reply ? Verdict::reply(DropReason::tcp_state)
                             : Verdict::drop(DropReason::tcp_state);
    }
    // A reusing SYN is the listener's: the caller sees CLOSED and looks the segment up again.
    enter_closed(t, 0, out);
    return Verdict::drop(v == TimeWaitVerdict::reuse ? DropReason::tcp_state
                                                     : DropReason::tcp_reset);
}

}  // namespace

bool reset_for(const SegView& seg, SegmentHead& out) {
    if (seg.has(kRst)) return false;
    out = {};
    if (seg.has(kAck)) {
        out.seq = seg.ack;
        out.flags = kRst;
    } else {
        out.ack = seg.end();
        out.flags = kRst | kAck;
    }
    return true;
}

Verdict segment_arrives_slow(Tcb& t, SegView& seg, Instant now, Actions& out) {
    switch (t.state) {
        case State::CLOSED:
        case State::LISTEN: {
            SegmentHead rst;
            if (!reset_for(seg, rst)) return Verdict::drop(DropReason::tcp_state);
            out.answer(rst);
            return Verdict::reply(DropReason::tcp_state);
        }
        case State::SYN_SENT:
            return arrives_in_syn_sent(t, seg, now, out);
        case State::TIME_WAIT:
            return arrives_in_time_wait(t, seg, now, out);
        default:
            break;
    }
    if (t.state == State::SYN_RECEIVED && t.passive && seg.seq == t.rcv.irs &&
        (seg.flags & (kSyn | kAck | kRst)) == kSyn) {
        t.syn_due = true;  // the SYN of a Fast Open again: our answer was lost
        out.set(kOutput);
        return Verdict::reply(DropReason::tcp_duplicate);
    }
    Verdict v = check_sequence(t, seg, now);
    if (v.kind == Verdict::Continue) v = check_rst(t, seg, now, out);
    if (v.kind == Verdict::Continue) v = check_syn(t, seg, now);
    if (v.kind == Verdict::Continue) v = check_ack(t, seg, now, out);
    if (v.kind == Verdict::Continue) {
        t.timers.last_rcv = now;
        t.timers.keepalives = 0;
        const Seq text_end = seg.text_end();  // take_text() cuts at the window
        check_urg(t, seg, out);
        v = take_text(t, seg, now, out);
        // A FIN counts even when the text in front of it was a duplicate.
        if (v.kind != Verdict::Reply && t.state != State::CLOSED) {
            const Verdict fin = check_fin(t, seg, text_end, now, out);
            if (v.kind == Verdict::Continue) v = fin;
        }
    }
    if (t.state != State::CLOSED || t.rst_due) out.set(kOutput);
    return v;
}

Verdict segment_arrives(Tcb& t, SegView& seg, Instant now, Actions& out) {
    const uint32_t segments =
        seg.gso_size ? (seg.payload_len + seg.gso_size - 1) / seg.gso_size : 1;
    t.count.segs_in += segments;
    if (seg.payload_len > 0) t.count.data_segs_in += segments;
    Verdict verdict;
    if (fast_path(t, seg, now, out, verdict)) return verdict;
    return segment_arrives_slow(t, seg, now, out);
}

const char* state_name(State s) {
    static constexpr const char* names[] = {
        "CLOSED",     "LISTEN",     "SYN_SENT", "SYN_RECEIVED", "ESTABLISHED", "FIN_WAIT_1",
        "FIN_WAIT_2", "CLOSE_WAIT", "CLOSING",  "LAST_ACK",     "TIME_WAIT"};
    return unsigned(s) < std::size(names) ? names[unsigned(s)] : "unknown";
}

}  // namespace vma::tcp
