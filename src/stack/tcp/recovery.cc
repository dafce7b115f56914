// What an acknowledgement does: RFC 9293 section 3.10.7.4 (fifth, ESTABLISHED), loss detection RFC 6675 or 6582, rate
// reduction RFC 6937, growth by the congestion algorithm.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

// Validates and applies the SACK blocks; recognises D-SACK (RFC 2883 section 4).
void apply_sack_option(Tcb& t, const SegView& seg, AckResult& result) {
    for (unsigned i = 0; i < seg.opt.sack_count; ++i) {
        SackBlock b = seg.opt.sack[i];
        if (b.right <= b.left || b.right > t.snd.nxt) continue;  // a lie
        const bool below = b.right <= seg.ack;
        const bool inside = i == 0 && seg.opt.sack_count > 1 && b.left >= seg.opt.sack[1].left &&
                            b.right <= seg.opt.sack[1].right;
        if (i == 0 && (below || inside)) ++t.count.dsacks_in;
        if (b.right <= t.snd.una) continue;
        b.left = Seq::max(b.left, t.snd.una);
        t.board.apply_sack(*t.memory, b, t.snd.mss, result);
    }
}

void take_rtt(Tcb& t, const SegView& seg, const AckResult& result, Instant now) {
    if (result.rtt_valid) {
        t.rtt.sample(now - result.rtt_sent, now);
        return;
    }
    // Only retransmitted ranges: the echoed timestamp tells which copy (RFC 7323 section 4.1).
    if (result.acked == 0 || !t.ts.on || !seg.opt.has_timestamps || seg.opt.ts_ecr == 0) return;
    const uint32_t ms = t.ts.value(now) - seg.opt.ts_ecr;
    if (ms > 600000) return;  // not our clock
    t.rtt.sample(Duration::millis(std::max<uint32_t>(ms, 1)), now);
}

// FlightSize for the reduction: what limited transmit added does not count (RFC 5681 section 3.2 step 2).
uint32_t counted_flight(const Tcb& t) { return std::min(t.flight(), t.cc.cwnd); }

void enter_fast_recovery(Tcb& t, Instant now) {
    LossState& l = t.loss;
    l.state = Recovery::fast;
    l.recover = t.snd.nxt;
    l.recover_fs = std::max(t.flight(), t.snd.mss + 0u);
    l.prr_delivered = l.prr_out = 0;
    t.cc.ssthresh = cc_algorithm(t.cc.kind).reduce(t.cc, counted_flight(t), t.snd.mss, now);
    ++t.count.fast_recoveries;
}

// RFC 6937 section 3, the reduction bound PRR-SSRB.
void reduce_by_prr(Tcb& t, uint32_t delivered) {
    LossState& l = t.loss;
    if (t.cc.kind == CcKind::none) return;
    l.prr_delivered += delivered;
    const uint32_t pipe = t.board.pipe(t.snd.una, t.snd.nxt);
    int64_t count;
    if (pipe > t.cc.ssthresh) {
        const uint64_t target = uint64_t(l.prr_delivered) * t.cc.ssthresh;
        count = int64_t((target + l.recover_fs - 1) / l.recover_fs) - l.prr_out;
    } else {
        const int64_t limit = std::max<int64_t>(int64_t(l.prr_delivered) - l.prr_out, delivered);
        count = std::min<int64_t>(t.cc.ssthresh - pipe, limit + t.snd.mss);
    }
    // The first retransmission always goes out.
    if (l.prr_out == 0) count = std::max<int64_t>(count, t.snd.mss);
    t.cc.cwnd = std::max<uint32_t>(pipe + uint32_t(std::max<int64_t>(count, 0)), t.snd.mss);
}

void leave_recovery(Tcb& t) {
    if (t.loss.state == Recovery::fast && t.cc.kind != CcKind::none)
        t.cc.cwnd = std::max(t.cc.ssthresh, 2u * t.snd.mss);
    t.loss.state = Recovery::open;
    t.loss.dup_acks = 0;
    t.board.reno_sacked = 0;
}

// A duplicate ACK by RFC 5681 section 2.
bool is_duplicate(const Tcb& t, const SegView& seg, uint32_t old_wnd) {
    return seg.ack == t.snd.una && seg.payload_len == 0 && !seg.has(kFin) && t.flight() > 0 &&
           (t.snd.wnd == old_wnd || seg.opt.sack_count > 0);
}

void count_duplicate(Tcb& t) {
    ++t.count.dup_acks_in;
    if (t.loss.dup_acks < 0xffff) ++t.loss.dup_acks;
    // Without SACK each duplicate means that one segment left the network.
    if (!t.loss.sack_ok) {
        const uint32_t most = t.flight() > t.snd.mss ? t.flight() - t.snd.mss : 0;
        t.board.reno_sacked = std::min(t.board.reno_sacked + t.snd.mss, most);
    }
}

void detect_loss(Tcb& t, const AckResult& result, bool advanced, Instant now) {
    LossState& l = t.loss;
    if (l.sack_ok) {
        // A retransmission is overtaken by new text sent a quarter of a round trip after it: it is lost, and waiting for
        // the RTO would stall. Like Linux, without a second reduction.
        if (l.state != Recovery::open && result.rtt_valid && t.rtt.has_sample())
            t.board.mark_retransmissions_lost(result.rtt_sent - t.rtt.min_rtt / 4);
        if (t.board.sacked > 0 && (result.sacked > 0 || advanced)) t.board.mark_lost(t.snd.mss);
        // The head alone in front of three duplicate ACKs whose blocks were split away.
        if (l.state == Recovery::open && l.dup_acks >= 3 && t.board.lost == 0 && t.board.sacked > 0)
            t.board.mark_head_lost(*t.memory, t.snd.mss);
        if (l.state == Recovery::open && t.board.lost > 0) enter_fast_recovery(t, now);
        return;
    }
    if (l.state == Recovery::open) {
        // RFC 6582 section 3.2 step 2: duplicates for what was recovered already do not count.
        if (l.dup_acks >= 3 && t.snd.una > l.recover) {
            t.board.mark_head_lost(*t.memory, t.snd.mss);
            enter_fast_recovery(t, now);
        }
    } else if (l.state == Recovery::fast && advanced) {
        t.board.mark_head_lost(*t.memory, t.snd.mss);  // partial ACK: the next hole
    }
}

void grow(Tcb& t, uint32_t acked, uint32_t flight_before, Instant now) {
    if (acked == 0 || t.loss.state == Recovery::fast) return;
    CcAck a;
    a.now = now;
    a.srtt = t.rtt.srtt;
    a.min_rtt = t.rtt.min_rtt;
    a.acked = acked;
    a.mss = t.snd.mss;
    // In slow start half a window in use is enough reason to probe further (Linux's rule).
    a.cwnd_limited = t.loss.limited || t.loss.state == Recovery::timeout ||
                     (t.cc.in_slow_start() && t.cc.cwnd < 2 * flight_before);
    cc_algorithm(t.cc.kind).grow(t.cc, a);
    if (t.snd.una > t.loss.limited_at) t.loss.limited = false;
}

void advance(Tcb& t, const SegView& seg, AckResult& result, Actions& out) {
    const bool all_before = t.out.bytes == 0 && (!t.snd.fin_queued || t.snd.una > t.write_seq());
    t.board.acknowledge(*t.memory, seg.ack, result);
    t.out.acknowledge(*t.memory, Seq::min(seg.ack, t.write_seq()));
    t.snd.una = seg.ack;
    if (t.snd.urgent && t.snd.una >= t.snd.up) t.snd.urgent = false;
    t.count.bytes_acked += result.acked;
    t.timers.retries = t.timers.backoff = 0;
    t.timers.stalled_since = {};
    t.loss.dup_acks = 0;
    if (!t.loss.sack_ok && t.board.reno_sacked > 0)
        t.board.reno_sacked -=
            std::min(t.board.reno_sacked, result.acked > t.snd.mss ? result.acked - t.snd.mss : 0u);
    out.set(kWritable);
    if (!all_before && t.out.bytes == 0 && (!t.snd.fin_queued || t.snd.una > t.write_seq()))
        out.set(kAllAcked);
}

}  // namespace

void update_window(Tcb& t, const SegView& seg) {
    const uint32_t wnd = uint32_t(seg.wnd) << t.snd.wscale;
    // RFC 9293: SND.WL1 < SEG.SEQ, or equal and SND.WL2 =< SEG.ACK.
    if (!(t.snd.wl1 < seg.seq || (t.snd.wl1 == seg.seq && t.snd.wl2 <= seg.ack))) return;
    t.snd.wnd = wnd;
    t.snd.wl1 = seg.seq;
    t.snd.wl2 = seg.ack;
    t.snd.max_wnd = std::max(t.snd.max_wnd, wnd);
}

void rearm_rto(Tcb& t, Instant now) {
    if (t.flight() == 0) {
        if (t.timers.kind == Rtx::rto) disarm(t);
        return;
    }
    arm(t, Rtx::rto, now + t.rtt.backed_off(t.timers.backoff));
}

void process_ack(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    const bool advanced = seg.ack > t.snd.una;
    const uint32_t flight_before = t.flight();
    const uint32_t old_wnd = t.snd.wnd;
    // An old ACK still carries SACK news (RFC 2018), but no window: WL2 sees to that.
    update_window(t, seg);
    t.timers.probes = 0;
    AckResult result;
    if (advanced) advance(t, seg, result, out);
    if (t.loss.sack_ok && seg.opt.sack_count > 0) apply_sack_option(t, seg, result);
    if (!advanced && flight_before > 0 && is_duplicate(t, seg, old_wnd)) count_duplicate(t);
    if (advanced || result.sacked > 0) take_rtt(t, seg, result, now);
    const uint32_t delivered = result.acked + result.sacked;
    t.loss.delivered += delivered;

    if (t.loss.state != Recovery::open && t.snd.una >= t.loss.recover) leave_recovery(t);
    if (flight_before > 0) detect_loss(t, result, advanced, now);
    if (t.loss.state == Recovery::fast) {
        const bool reno_left = !t.loss.sack_ok && !advanced;
        reduce_by_prr(t, delivered ? delivered : (reno_left ? t.snd.mss : 0));
    } else {
        grow(t, result.acked, flight_before, now);
    }
    if (advanced) {
        rearm_rto(t, now);
    } else if (t.timers.kind == Rtx::persist && t.snd.wnd > 0) {
        // The window opened: output decides anew whether a probe is needed.
        t.timers.backoff = 0;
        t.timers.probe_due = false;
        disarm(t);
    }
    if (t.timers.kind == Rtx::rto && t.flight() == 0) disarm(t);
}

void enter_timeout_recovery(Tcb& t, Instant now) {
    LossState& l = t.loss;
    // One reduction per window: not again while the same losses are being repaired.
    const bool again = l.state == Recovery::timeout && t.timers.retries > 1;
    if (l.state == Recovery::open || (l.state == Recovery::timeout && !again))
        t.cc.ssthresh = cc_algorithm(t.cc.kind).reduce(t.cc, counted_flight(t), t.snd.mss, now);
    l.state = Recovery::timeout;
    l.recover = t.snd.nxt;
    l.dup_acks = 0;
    // RFC 2018 section 8: a receiver whose first hole is "sacked" has discarded what it reported.
    t.board.mark_all_lost(t.board.head != nullptr && t.board.head->sacked);
    if (t.cc.kind != CcKind::none) t.cc.cwnd = t.snd.mss;
    l.rto_head = true;
    l.limited = false;
    ++t.count.timeouts;
}

}  // namespace vma::tcp
