// Reductions taken back when nothing was lost: Eifel detection by timestamps (RFC 3522, response RFC 4015), D-SACK
// (RFC 3708) and F-RTO (RFC 5682), in the form of Linux.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {

void remember_for_undo(Tcb& t) {
    Undo& u = t.loss.undo;
    u = {};
    u.armed = true;
    u.marker = t.snd.una;
    u.cwnd = t.cc.cwnd;
    u.ssthresh = t.cc.ssthresh;
    u.cubic = t.cc.cubic;
    u.repeated = t.board.retransmitted;
    u.any = u.repeated > 0;
}

void note_repeated(Tcb& t, uint32_t n, Instant now) {
    Undo& u = t.loss.undo;
    if (!u.armed) return;
    u.any = true;
    u.repeated += n;
    if (u.stamped || !t.ts.on) return;
    u.stamped = true;
    u.stamp = t.ts.value(now);
}

void note_duplicate_report(Tcb& t, SackBlock block) {
    Undo& u = t.loss.undo;
    if (!u.armed || block.right <= u.marker || block.right > t.snd.nxt) return;
    const uint32_t n = uint32_t(block.right - Seq::max(block.left, u.marker));
    u.repeated -= std::min(u.repeated, n);
}

namespace {

// The peer echoes a stamp older than the first repeated segment: it had the original (RFC 3522 section 3.2).
bool original_echoed(const Tcb& t, const SegView& seg) {
    const Undo& u = t.loss.undo;
    return t.ts.on && u.stamped && seg.opt.has_timestamps && seg.opt.ts_ecr != 0 &&
           int32_t(seg.opt.ts_ecr - u.stamp) < 0;
}

bool all_were_duplicates(const Tcb& t) {
    const Undo& u = t.loss.undo;
    return u.armed && u.any && u.repeated == 0;
}

void take_back(Tcb& t) {
    Undo& u = t.loss.undo;
    if (t.cc.kind != CcKind::none) {
        t.cc.cwnd = std::max(t.cc.cwnd, u.cwnd);
        if (u.ssthresh > t.cc.ssthresh) t.cc.ssthresh = u.ssthresh;
        t.cc.cubic = u.cubic;
    }
    u.armed = false;
    t.ecn.cwr_due = false;
    ++t.count.undos;
}

void reopen(Tcb& t) {
    t.loss.state = Recovery::open;
    t.loss.frto = t.loss.new_first = false;
    t.loss.dup_acks = 0;
    t.board.reno_sacked = 0;
}

}  // namespace

bool undo_at_end(Tcb& t, const SegView& seg) {
    const bool spurious = t.loss.undo.armed && (all_were_duplicates(t) || original_echoed(t, seg));
    if (spurious) {
        if (t.loss.state == Recovery::timeout) ++t.count.spurious_timeouts;
        take_back(t);
    }
    return spurious;
}

bool undo_partial(Tcb& t, const SegView& seg) {
    if (!t.loss.undo.armed || !original_echoed(t, seg)) return false;
    // The hole was filled by a late original: what is marked behind it is only late too.
    ++t.loss.rack.reorderings;
    if (t.board.retransmitted > 0) return true;
    take_back(t);
    t.board.unmark_lost();
    reopen(t);
    return true;
}

bool undo_by_duplicates(Tcb& t) {
    if (!all_were_duplicates(t)) return false;
    rack_recovered(t, true);
    take_back(t);
    if (t.loss.state == Recovery::fast) reopen(t);
    return true;
}

bool undo_timeout(Tcb& t, const SegView& seg, bool proven, Instant now) {
    if (!proven && !(t.loss.undo.armed && (all_were_duplicates(t) || original_echoed(t, seg))))
        return false;
    ++t.count.spurious_timeouts;
    if (t.loss.undo.armed) take_back(t);
    t.board.unmark_lost();
    end_series(t, now);
    reopen(t);
    return true;
}

}  // namespace vma::tcp
