// TIME_WAIT: RFC 9293 section 3.10.7.4, reuse RFC 6191, assassination RFC 1337.
#include "stack/tcp/steps.h"

namespace vma::tcp {

TimeWait time_wait_of(const Tcb& t) {
    TimeWait tw;
    tw.local = t.local;
    tw.remote = t.remote;
    tw.snd_nxt = t.snd.nxt;
    tw.rcv_nxt = t.rcv.nxt;
    tw.rcv_wnd = t.rcv.wnd();
    tw.rcv_wscale = t.rcv.wscale;
    tw.has_ts = t.ts.on;
    tw.ts_recent = t.ts.recent;
    tw.ts_recent_at = t.ts.recent_at;
    tw.ts_offset = t.ts.offset;
    tw.length = t.cfg.time_wait;
    tw.expires = t.timers.state_at;
    return tw;
}

namespace {

void answer_ack(const TimeWait& tw, Instant now, Actions& out) {
    SegmentHead ack;
    ack.seq = tw.snd_nxt;
    ack.ack = tw.rcv_nxt;
    ack.flags = kAck;
    ack.wnd = uint16_t(tw.rcv_wnd >> tw.rcv_wscale);
    if (tw.has_ts) {
        ack.opt.has_timestamps = true;
        ack.opt.ts_val = uint32_t(now.ns / 1000000) + tw.ts_offset;
        ack.opt.ts_ecr = tw.ts_recent;
    }
    out.answer(ack);
}

}  // namespace

TimeWaitVerdict segment_arrives(TimeWait& tw, const SegView& seg, Instant now, Actions& out,
                                Seq& iss_hint) {
    const bool stamped = tw.has_ts && seg.opt.has_timestamps;
    const bool paws = stamped && int32_t(seg.opt.ts_val - tw.ts_recent) < 0;
    if (seg.has(kRst)) {
        // RFC 1337 as Linux does it by default: a RST with exactly the next number ends the wait.
        return !paws && seg.seq == tw.rcv_nxt ? TimeWaitVerdict::remove : TimeWaitVerdict::keep;
    }
    if (seg.has(kSyn) && !seg.has(kAck)) {
        // RFC 6191 section 2: newer by timestamp, or by number where there is none.
        const bool newer = stamped ? int32_t(seg.opt.ts_val - tw.ts_recent) > 0 : false;
        if (!paws && (newer || seg.seq > tw.rcv_nxt)) {
            iss_hint = tw.snd_nxt + 65535 + 2;
            return TimeWaitVerdict::reuse;
        }
        answer_ack(tw, now, out);
        return TimeWaitVerdict::keep;
    }
    if (paws) {
        answer_ack(tw, now, out);
        return TimeWaitVerdict::keep;
    }
    if (stamped && seg.seq <= tw.rcv_nxt) {
        tw.ts_recent = seg.opt.ts_val;
        tw.ts_recent_at = now;
    }
    // A FIN again: our ACK was lost; acknowledge and start the wait over.
    if (seg.has(kFin)) tw.expires = now + tw.length;
    if (seg.len() > 0 || !(seg.seq == tw.rcv_nxt)) answer_ack(tw, now, out);
    return TimeWaitVerdict::keep;
}

bool may_reuse(const TimeWait& tw, Instant now, Seq& iss_hint) {
    if (!tw.has_ts || now - tw.ts_recent_at < Duration::seconds(1)) return false;
    iss_hint = tw.snd_nxt + 65535 + 2;
    return true;
}

}  // namespace vma::tcp
