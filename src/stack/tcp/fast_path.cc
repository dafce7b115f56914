// Header prediction: the next expected segment of an undisturbed connection. Leaves out the checks that cannot fail then;
// what it does is the ladder's own steps, and a property test compares the results.
#include "stack/tcp/steps.h"

namespace vma::tcp {

bool fast_path(Tcb& t, SegView& seg, Instant now, Actions& out, Verdict& verdict) {
    if (t.state != State::ESTABLISHED || (seg.flags & uint8_t(~kPsh)) != kAck) return false;
    if (!(seg.seq == t.rcv.nxt) || seg.ack < t.snd.una || seg.ack > t.snd.nxt) return false;
    if (seg.payload_len > t.rcv.wnd() || t.rcv.fin_seen || !t.ooo.empty() || t.orphan) return false;
    if (seg.opt.sack_count > 0 || seg.ecn == kEcnCe) return false;
    if (t.ts.on && seg.opt.has_timestamps) {
        if (t.ts.is_old(seg.opt.ts_val)) return false;
        if (seg.seq <= t.rcv.acked) {
            t.ts.recent = seg.opt.ts_val;
            t.ts.recent_at = now;
        }
    }
    process_ack(t, seg, now, out);
    t.timers.last_rcv = now;
    t.timers.keepalives = 0;
    verdict = seg.payload_len > 0 ? take_in_order(t, seg, now, out) : Verdict::go_on();
    out.set(kOutput);
    return true;
}

}  // namespace vma::tcp
