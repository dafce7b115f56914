// Loss by time: RACK with its reordering window and the tail loss probe, RFC 8985. Where the RFC leaves a choice it is
// Linux's.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr unsigned kDupThresh = 3;
constexpr uint16_t kMaxReordering = 300;  // Linux's tcp_max_reordering
constexpr uint8_t kPersist = 16;          // recoveries that a widened window outlives
constexpr Duration kProbeSlack = Duration::millis(2);
constexpr Duration kProbeDelack = Duration::millis(200);  // WCDelAckT of RFC 8985 section 7.2

// Section 6.2 step 3: the window follows the duplicates that the peer reports, once per round trip.
void adapt_window(Tcb& t) {
    Rack& r = t.loss.rack;
    if (r.in_round && t.snd.una < r.window_round) r.dsack = false;
    if (r.dsack) {
        r.dsack = false;
        if (r.steps < 255) ++r.steps;
        r.in_round = true;
        r.window_round = t.snd.nxt;
        r.persist = kPersist;
    } else if (r.persist == 0) {
        r.steps = 1;
    }
}

// Section 6.2 step 4.
Duration reordering_window(const Tcb& t) {
    const Rack& r = t.loss.rack;
    if (r.reorderings == 0) {
        // Nothing ever came out of order here: once loss is likely, do not wait.
        if (t.loss.state >= Recovery::fast) return Duration{0};
        if (t.board.sacked_segments >= kDupThresh) return Duration{0};
    }
    return std::min(t.rtt.min_rtt / 4 * r.steps, t.rtt.srtt);
}

}  // namespace

void rack_delivered(Tcb& t, const AckResult& result, Instant now) {
    Rack& r = t.loss.rack;
    adapt_window(t);
    if (result.reordered) {
        const uint32_t distance = uint32_t(result.fack - result.reordered_at);
        const uint32_t segments = (distance + t.snd.mss - 1) / t.snd.mss;
        r.reordering =
            std::max(r.reordering, uint16_t(std::min<uint32_t>(segments, kMaxReordering)));
        ++r.reorderings;
    }
    if (!result.rack_valid) return;
    r.advanced = true;
    r.rtt = now - result.rack.sent;
    if (r.valid && (r.newest.sent > result.rack.sent ||
                    (r.newest.sent == result.rack.sent && r.newest.end > result.rack.end)))
        return;
    r.newest = result.rack;
    r.valid = true;
}

RackLoss rack_detect(Tcb& t, Instant now) {
    Rack& r = t.loss.rack;
    RackLoss loss;
    if (!r.valid || !r.advanced || !t.rtt.has_sample()) return loss;
    r.advanced = false;
    Duration more;
    loss.marked =
        t.board.mark_lost_by_time(r.newest, r.rtt + reordering_window(t), now, more, loss.again);
    t.count.bytes_lost += loss.marked;
    if (more.ns > 0) {
        arm(t, Rtx::reorder, now + more);
        loss.waiting = true;
    }
    return loss;
}

void rack_recovered(Tcb& t, bool undone) {
    Rack& r = t.loss.rack;
    if (undone)
        r.persist = uint8_t(std::min<unsigned>(r.persist + 1u, kPersist));
    else if (r.persist > 0)
        --r.persist;
}

Instant rto_at(const Tcb& t) {
    const TxRange* head = t.board.head;
    return (head ? head->sent : t.timers.last_snd) + t.rtt.backed_off(t.timers.backoff);
}

bool schedule_probe(Tcb& t, Instant now, bool restart) {
    const LossState& l = t.loss;
    if (!t.cfg.tail_probe || !l.sack_ok || l.state > Recovery::cwr || l.tlp.out) return false;
    if (t.board.sacked > 0 || t.board.lost > 0 || t.flight() == 0 || t.snd.wnd == 0) return false;
    if (t.state < State::ESTABLISHED || !t.rtt.has_sample() || t.timers.backoff > 0) return false;
    // Section 7.2: one segment alone may meet a delayed ACK.
    const TxRange* head = t.board.head;
    const bool alone = head != nullptr && head == t.board.tail && head->len() <= t.snd.mss;
    Instant at = now + t.rtt.srtt * 2 + (alone ? kProbeDelack : kProbeSlack);
    const Instant rto = restart ? now + t.rtt.rto : rto_at(t);
    if (rto > now) at = std::min(at, rto);
    arm(t, Rtx::tlp, at);
    return true;
}

void restart_timer(Tcb& t, Instant now) {
    if (t.flight() == 0) {
        if (t.timers.kind != Rtx::persist) disarm(t);
        return;
    }
    if (!schedule_probe(t, now, true)) rearm_rto(t, now);
}

void continue_rto(Tcb& t, Instant now) {
    if (t.flight() == 0) return disarm(t);
    arm(t, Rtx::rto, std::max(rto_at(t), now + Duration::millis(1)));
}

void probe_answered(Tcb& t, const SegView& seg, const AckNews& news, Instant now) {
    TailProbe& p = t.loss.tlp;
    if (!p.out || seg.ack < p.high) return;
    if (!p.repeated || news.dsack_of_probe) {
        p.out = false;  // new text was acknowledged, or both copies arrived: nothing was lost
    } else if (seg.ack > p.high) {
        // Section 7.4: the probe itself repaired a loss, which costs one reduction.
        p.out = false;
        if (t.loss.state != Recovery::open || t.cc.kind == CcKind::none || t.cc.kind == CcKind::bbr)
            return;
        t.cc.ssthresh = cc_algorithm(t.cc.kind).reduce(t.cc, t.snd.mss, now);
        t.cc.cwnd = std::min(t.cc.cwnd, t.cc.ssthresh);
    } else if (!news.advanced && news.result.sacked == 0 && seg.payload_len == 0) {
        p.out = false;  // a plain duplicate: the probe was superfluous
    }
}

}  // namespace vma::tcp
