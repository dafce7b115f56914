// What an acknowledgement does: RFC 9293 section 3.10.7.4 (fifth, ESTABLISHED), loss detection RFC 8985 (rack.cc) or 6582, rate
// reduction RFC 6937, growth by the congestion algorithm.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

// RFC 2883 section 4: the first block repeats what was acknowledged, or lies inside the second.
bool is_dsack(const SegView& seg) {
    if (seg.opt.sack_count == 0) return false;
    const SackBlock& b = seg.opt.sack[0];
    if (b.right <= seg.ack) return true;
    return seg.opt.sack_count > 1 && b.left >= seg.opt.sack[1].left &&
           b.right <= seg.opt.sack[1].right;
}

void take_dsack(Tcb& t, const SegView& seg, AckNews& news) {
    const SackBlock b = seg.opt.sack[0];
    ++t.count.dsacks_in;
    const uint32_t n = uint32_t(b.right - b.left);
    // More than the window, or more than we ever repeated: made up, or the network's own copies.
    if (n > std::max(t.snd.max_wnd, 1u) || n > t.count.bytes_retransmitted) return;
    TailProbe& p = t.loss.tlp;
    if (p.out && p.repeated && b.right == p.high && n <= t.snd.mss)
        news.dsack_of_probe = true;
    else if (t.loss.rack.reorderings > 0)
        t.loss.rack.dsack = true;
    note_duplicate_report(t, b);
}

// Validates and applies the SACK blocks.
void apply_sack_option(Tcb& t, const SegView& seg, AckNews& news) {
    for (unsigned i = 0; i < seg.opt.sack_count; ++i) {
        SackBlock b = seg.opt.sack[i];
        if (b.right <= b.left || b.right > t.snd.nxt) {  // a lie
            ++t.count.sacks_wrong;
            continue;
        }
        if (i == 0 && is_dsack(seg)) take_dsack(t, seg, news);
        if (b.right <= t.snd.una) continue;
        b.left = Seq::max(b.left, t.snd.una);
        t.board.apply_sack(*t.memory, b, news.result);
    }
}

// By timestamps: the round trip of the segment that this ACK answers (RFC 7323 section 4.1), whichever copy of it that was.
// Zero: not known.
Duration echoed_round_trip(const Tcb& t, const SegView& seg, Instant now) {
    if (!t.ts.on || !seg.opt.has_timestamps || seg.opt.ts_ecr == 0) return Duration{0};
    const uint32_t ms = t.ts.value(now) - seg.opt.ts_ecr;
    return ms <= 600000 ? Duration::millis(std::max<uint32_t>(ms, 1))
                        : Duration{0};  // not our clock
}

void take_rtt(Tcb& t, const SegView& seg, const AckResult& result, Instant now) {
    const Duration echoed = echoed_round_trip(t, seg, now);
    if (result.rtt_valid) {
        // In recovery, text whose ACK was lost may be reported only with what a timeout repeated: the sample would be that
        // stall, and the next timeout as long again (Linux's is). The echo is rounded down by less than a millisecond.
        Duration sample = now - result.rtt_sent;
        if (t.loss.state >= Recovery::fast && echoed.ns > 0)
            sample = std::min(sample, echoed + Duration::millis(1));
        t.rtt.sample(sample, now);
    } else if (result.acked > 0 && echoed.ns > 0) {
        t.rtt.sample(echoed, now);  // only retransmitted ranges: the echo tells which copy
    }
}

// A reduction of the congestion window that PRR spreads over the round trip.
void begin_reduction(Tcb& t, Recovery state, Instant now) {
    LossState& l = t.loss;
    if (l.state != Recovery::cwr) {
        l.recover_fs = std::max(t.flight(), t.snd.mss + 0u);
        l.prr_delivered = l.prr_out = 0;
        t.cc.ssthresh = cc_algorithm(t.cc.kind).reduce(t.cc, t.snd.mss, now);
        t.ecn.cwr_due = t.ecn.on;
    }
    l.state = state;
    l.recover = t.snd.nxt;
}

void leave_recovery(Tcb& t) {
    if ((t.loss.state == Recovery::fast || t.loss.state == Recovery::cwr) &&
        t.cc.kind != CcKind::none && t.cc.kind != CcKind::bbr)
        t.cc.cwnd = std::max(t.cc.ssthresh, 2u * t.snd.mss);
    t.loss.state = Recovery::open;
    t.loss.frto = t.loss.new_first = false;
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

// RFC 6582, without SACK: three duplicates, then a hole per partial ACK.
uint32_t detect_without_sack(Tcb& t, bool advanced) {
    LossState& l = t.loss;
    // Section 3.2 step 2: duplicates for what was recovered already do not count.
    const bool three = l.state <= Recovery::cwr && l.dup_acks >= 3 && t.snd.una > l.recover;
    const bool partial = l.state == Recovery::fast && advanced;
    const uint32_t marked = three || partial ? t.board.mark_head_lost(*t.memory, t.snd.mss) : 0;
    t.count.bytes_lost += marked;
    return marked;
}

// F-RTO, RFC 5682 section 3.1 with Linux's SACK enhancement.
void answer_after_timeout(Tcb& t, const AckNews& news) {
    LossState& l = t.loss;
    l.new_first = false;
    if (!l.frto) return;
    if (t.snd.nxt > l.recover) {
        if (news.result.sacked > 0 || news.duplicate) l.frto = false;  // step 3a: the loss was real
        return;
    }
    if (!news.advanced || t.snd.una >= l.recover) return;
    // Step 2b: new text now, and judge by its answer. Without any the usual recovery goes on.
    l.recover = t.snd.nxt;
    l.frto = unsent_bytes(t) > 0 && t.snd.una + t.snd.wnd > t.snd.nxt;
    l.new_first = l.frto;
}

// The state that an ACK leads to. Order as in Linux: leave, undo, detect, enter.
void judge(Tcb& t, const SegView& seg, AckNews& news, Instant now) {
    LossState& l = t.loss;
    if (l.state == Recovery::timeout) {
        // Without SACK an original may have arrived long before: only the answer to new text (step 3b) counts.
        const bool original =
            l.frto && news.result.original_acked && (l.sack_ok || t.snd.nxt > l.recover);
        if (!(news.advanced || original) || !undo_timeout(t, seg, original, now))
            answer_after_timeout(t, news);
    }
    if (t.search.size != 0) probe_arrived(t);
    // A reduction for ECN ends when something sent after it is acknowledged: CWR reached the peer.
    const bool over = l.state == Recovery::cwr ? t.snd.una > l.recover : t.snd.una >= l.recover;
    if (l.state != Recovery::open && over) {
        const bool undone = undo_at_end(t, seg);
        rack_recovered(t, undone);
        if (undone) l.state = Recovery::open;  // keeps the window that was given back
        leave_recovery(t);
    } else if (l.state == Recovery::fast) {
        if (news.advanced && undo_partial(t, seg)) return;
        undo_by_duplicates(t);
    } else if (l.state <= Recovery::cwr && seg.opt.sack_count > 0) {
        undo_by_duplicates(t);  // the report came after the end
    }
    uint32_t again = 0;
    if (l.sack_ok) {
        const RackLoss loss = rack_detect(t, now);
        news.lost = loss.marked;
        news.timer_set = loss.waiting;
        again = loss.again;
    } else {
        news.lost = detect_without_sack(t, news.advanced);
    }
    if (t.board.lost == 0 || l.state == Recovery::fast) return;
    if (probe_lost(t)) return;
    if (l.state == Recovery::timeout && again == 0) return;
    enter_fast_recovery(t, now);
}

void grow(Tcb& t, uint32_t acked, uint32_t flight_before, bool fresh_rtt, Instant now) {
    if (acked == 0) return;
    CcAck a;
    a.now = now;
    a.srtt = t.rtt.srtt;
    a.min_rtt = t.rtt.min_rtt;
    a.acked = acked;
    if (fresh_rtt) a.rtt = t.rtt.latest;
    a.una = t.snd.una;
    a.nxt = t.snd.nxt;
    a.mss = t.snd.mss;
    // In slow start half a window in use is enough reason to probe further (Linux's rule).
    a.cwnd_limited = t.loss.limited || t.loss.state == Recovery::timeout ||
                     (t.cc.in_slow_start() && t.cc.cwnd < 2 * flight_before);
    cc_algorithm(t.cc.kind).grow(t.cc, a);
    if (t.snd.una > t.loss.limited_at) t.loss.limited = false;
}

CcSample sample_of(const Tcb& t, const AckNews& news, uint32_t delivered, Instant now) {
    CcSample s;
    s.now = now;
    s.srtt = t.rtt.srtt;
    if (news.result.rtt_valid) s.rtt = t.rtt.latest;
    s.valid = news.rate_sampled;
    s.bytes = t.rate.latest_bytes;
    s.interval = t.rate.latest_interval;
    s.prior_delivered = news.result.rate_delivered;
    s.app_limited = news.result.rate_limited;
    s.delivered = t.loss.delivered;
    s.lost_ever = t.count.bytes_lost;
    s.acked = delivered;
    s.lost = news.lost;
    s.pipe = t.board.pipe(t.snd.una, t.snd.nxt);
    s.mss = t.snd.mss;
    s.recovering = t.loss.state >= Recovery::fast;
    return s;
}

void advance(Tcb& t, const SegView& seg, AckResult& result, Actions& out) {
    const bool all_before = t.out.bytes == 0 && (!t.snd.fin_queued || t.snd.una > t.write_seq());
    t.board.acknowledge(*t.memory, seg.ack, result);
    t.out.acknowledge(*t.memory, Seq::min(seg.ack, t.write_seq()));
    t.snd.una = seg.ack;
    if (t.snd.urgent && t.snd.una >= t.snd.up) t.snd.urgent = false;
    t.count.bytes_acked += result.acked;
    end_series(t, result.now);
    t.timers.stalled_since = {};
    t.soft_error = 0;
    t.loss.dup_acks = 0;
    if (!t.loss.sack_ok && t.board.reno_sacked > 0)
        t.board.reno_sacked -=
            std::min(t.board.reno_sacked, result.acked > t.snd.mss ? result.acked - t.snd.mss : 0u);
    out.set(kWritable);
    if (!all_before && t.out.bytes == 0 && (!t.snd.fin_queued || t.snd.una > t.write_seq()))
        out.set(kAllAcked);
}

// The persist timer runs. If the peer takes text again, output decides anew whether a probe is needed.
void window_opened(Tcb& t) {
    if (t.snd.wnd == 0) return;
    t.timers.backoff = 0;
    t.timers.probe_due = false;
    disarm(t);
}

}  // namespace

void update_window(Tcb& t, const SegView& seg) {
    const uint32_t wnd = uint32_t(seg.wnd) << t.snd.wscale;
    // RFC 9293: SND.WL1 < SEG.SEQ, or equal and SND.WL2 =< SEG.ACK.
    if (!(t.snd.wl1 < seg.seq || (t.snd.wl1 == seg.seq && t.snd.wl2 <= seg.ack))) return;
    // A window that is given in units may seem to move left by less than one.
    const Seq edge = t.snd.una + t.snd.wnd;
    if (seg.ack + wnd + (1u << t.snd.wscale) <= edge) ++t.count.windows_shrunk;
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

// RFC 6937 section 3. The bound is slow start only while an ACK brings progress and no new loss (RFC 6937bis, Linux).
void reduce_by_prr(Tcb& t, uint32_t delivered, bool good) {
    LossState& l = t.loss;
    if (t.cc.kind == CcKind::none || t.cc.kind == CcKind::bbr) return;
    l.prr_delivered += delivered;
    const uint32_t pipe = t.board.pipe(t.snd.una, t.snd.nxt);
    int64_t count;
    if (pipe > t.cc.ssthresh) {
        const uint64_t target = uint64_t(l.prr_delivered) * t.cc.ssthresh;
        count = int64_t((target + l.recover_fs - 1) / l.recover_fs) - l.prr_out;
    } else {
        const int64_t limit = std::max<int64_t>(int64_t(l.prr_delivered) - l.prr_out, delivered);
        count = std::min<int64_t>(t.cc.ssthresh - pipe, limit + (good ? t.snd.mss : 0));
    }
    // The first retransmission always goes out.
    if (l.prr_out == 0 && l.state == Recovery::fast) count = std::max<int64_t>(count, t.snd.mss);
    t.cc.cwnd = std::max<uint32_t>(pipe + uint32_t(std::max<int64_t>(count, 0)), t.snd.mss);
}

void enter_fast_recovery(Tcb& t, Instant now) {
    remember_for_undo(t);
    begin_reduction(t, Recovery::fast, now);
    t.loss.frto = t.loss.new_first = false;
    ++t.count.fast_recoveries;
}

void enter_cwr(Tcb& t, Instant now) {
    if (t.loss.state != Recovery::open) return;
    t.loss.undo.armed = false;
    begin_reduction(t, Recovery::cwr, now);
}

void process_ack(Tcb& t, const SegView& seg, Instant now, Actions& out) {
    // Nothing is in flight, as when text comes to one who only reads: the window is all that can be new.
    if (seg.ack == t.snd.una && t.flight() == 0 && !t.loss.tlp.out && seg.opt.sack_count == 0 &&
        !seg.has(kEce)) {
        update_window(t, seg);
        t.timers.probes = 0;
        if (t.timers.kind == Rtx::persist)
            window_opened(t);
        else if (t.timers.kind != Rtx::none)
            disarm(t);
        return;
    }
    const uint32_t old_wnd = t.snd.wnd, reno_sacked = t.board.reno_sacked;
    AckNews news;
    AckResult& result = news.result;
    news.advanced = seg.ack > t.snd.una;
    news.flight_before = t.flight();
    result.now = now;
    if (t.rtt.has_sample()) result.min_rtt = t.rtt.min_rtt;
    result.fack = t.board.sacked > 0 ? Seq::max(t.board.highest_sacked, t.snd.una) : t.snd.una;
    result.recover = t.loss.recover;
    // An old ACK still carries SACK news (RFC 2018), but no window: WL2 sees to that.
    update_window(t, seg);
    t.timers.probes = 0;
    if (news.advanced) advance(t, seg, result, out);
    if (t.loss.sack_ok && seg.opt.sack_count > 0) apply_sack_option(t, seg, news);
    news.duplicate = !news.advanced && news.flight_before > 0 && is_duplicate(t, seg, old_wnd);
    if (news.duplicate) count_duplicate(t);
    if (news.advanced || result.sacked > 0) take_rtt(t, seg, result, now);
    uint32_t delivered = result.delivered;
    // Without SACK the duplicates were counted already.
    if (news.advanced && reno_sacked > 0)
        delivered = std::max(delivered - std::min(delivered, reno_sacked),
                             std::min<uint32_t>(delivered, t.snd.mss));
    if (delivered > 0) news.rate_sampled = sample_rate(t, result, delivered, now);

    if (t.loss.sack_ok) rack_delivered(t, result, now);
    if (t.loss.tlp.out) probe_answered(t, seg, news, now);
    if (news.flight_before > 0 || seg.opt.sack_count > 0) judge(t, seg, news, now);
    if (t.ecn.on && seg.has(kEce) && !seg.has(kSyn)) {
        ++t.count.ece_in;
        enter_cwr(t, now);  // RFC 3168 section 6.1.2: once per window
    }
    if (const auto control = cc_algorithm(t.cc.kind).control) {
        control(t.cc, sample_of(t, news, delivered, now));
    } else if (t.loss.state == Recovery::fast || t.loss.state == Recovery::cwr) {
        const bool reno_left = !t.loss.sack_ok && !news.advanced;
        reduce_by_prr(t, delivered ? delivered : (reno_left ? t.snd.mss : 0),
                      news.advanced && news.lost == 0);
    } else {
        grow(t, result.acked, news.flight_before, result.rtt_valid, now);
    }
    if (t.timers.kind == Rtx::persist) window_opened(t);
    // A sacked segment restarts the timer only if it left before the head did: else the head would never time out.
    const bool sacked_early = result.sacked > 0 && result.rtt_valid && t.board.head != nullptr &&
                              result.rtt_sent < t.board.head->sent;
    if ((news.advanced || sacked_early) && !news.timer_set) restart_timer(t, now);
    if (t.flight() == 0 && t.timers.kind != Rtx::persist) disarm(t);
    // Send-buffer autotuning, as Linux: two windows, so that one can wait while the other is in flight.
    if (news.advanced && t.out.limit < t.cfg.send_buffer_max && !t.memory->pressure())
        t.out.limit = std::max(
            t.out.limit, uint32_t(std::min<uint64_t>(2ull * t.cc.cwnd, t.cfg.send_buffer_max)));
}

void enter_timeout_recovery(Tcb& t, Instant now) {
    LossState& l = t.loss;
    const bool fresh = l.state <= Recovery::cwr;
    // One reduction per window: not again while the same losses are being repaired.
    const bool again = l.state == Recovery::timeout && t.timers.retries > 1;
    if (fresh || t.snd.una >= l.recover || (l.state == Recovery::timeout && !again)) {
        remember_for_undo(t);
        t.cc.ssthresh = cc_algorithm(t.cc.kind).reduce(t.cc, t.snd.mss, now);
        t.ecn.cwr_due = t.ecn.on;
    }
    l.frto = t.cfg.frto && (fresh || t.timers.retries > 1);
    l.new_first = false;
    l.state = Recovery::timeout;
    l.recover = t.snd.nxt;
    l.dup_acks = 0;
    l.tlp = {};
    // RFC 2018 section 8: a receiver whose first hole is "sacked" has discarded what it reported.
    const bool reneged = t.board.head != nullptr && t.board.head->sacked;
    const bool timed = l.sack_ok && !reneged && l.rack.valid;
    const uint32_t waiting = t.board.waiting;
    t.board.mark_lost_by_timeout(reneged, timed ? now - l.rack.rtt : now);
    t.count.bytes_lost += t.board.waiting - waiting;
    if (t.cc.kind != CcKind::none) t.cc.cwnd = t.board.pipe(t.snd.una, t.snd.nxt) + t.snd.mss;
    l.rto_head = true;
    l.limited = false;
    ++t.count.timeouts;
}

}  // namespace vma::tcp
