// Text that goes past the segments, by a lane that brings all it takes and in order (dev/text_lane.h): what has left counts as
// acknowledged, and nobody has to be told that it arrived. Windows are told by segments as ever, and so is all that is not plain
// text of an undisturbed connection.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

// Numbers that are compared with those of the stream must not be left more than half the space behind it, and segments,
// which keep them up, may not come for long. Nothing is in flight.
void follow_sent(Tcb& t) {
    const Seq at = t.snd.nxt;
    t.snd.sml = t.snd.pushed = at;
    if (!t.snd.urgent) t.snd.up = at;
    t.loss.recover = t.loss.limited_at = t.loss.tlp.high = t.loss.undo.marker = at;
    t.loss.rack.window_round = t.loss.rack.newest.end = at;
}

void follow_received(Tcb& t) {
    if (!t.rcv.urgent) t.rcv.up = t.rcv.nxt;
    t.autotune.rtt_seq = t.rcv.adv;
}

// Did the step to `at` cross into another quarter of the number space?
bool new_quarter(Seq at, uint32_t n) { return ((at.v ^ (at - n).v) & 0xc0000000u) != 0; }

}  // namespace

uint32_t direct_room(const Tcb& t) {
    if (!t.can_send() || t.out.bytes != 0 || t.flight() != 0 || t.snd.urgent || t.cfg.cork ||
        t.cfg.messages || t.cfg.pacing_rate != 0 || t.timers.kind != Rtx::none ||
        t.loss.state != Recovery::open)
        return 0;
    return t.snd.wnd;
}

void sent_directly(Tcb& t, uint32_t n, Instant now) {
    t.snd.nxt += n;
    t.snd.una = t.snd.wl2 = t.out.start = t.snd.nxt;
    t.snd.wnd -= n;
    t.timers.last_snd = now;
    t.count.bytes_sent += n;
    t.count.bytes_acked += n;
    ++t.count.segs_out;
    ++t.count.data_segs_out;
    if (new_quarter(t.snd.nxt, n)) follow_sent(t);
}

void renew_ack(const Tcb& t, SegView& seg) {
    if (!seg.has(kAck) || seg.ack >= t.snd.una) return;
    const uint32_t behind = uint32_t(t.snd.una - seg.ack);
    const uint32_t window = uint32_t(seg.wnd) << t.snd.wscale;
    if (behind > t.snd.max_wnd) return;  // none that this side could have waited for
    seg.ack = t.snd.una;
    seg.wnd = uint16_t((window - std::min(window, behind)) >> t.snd.wscale);
}

Verdict direct_text_arrives(Tcb& t, SegView& seg, Instant now, Actions& out) {
    const uint32_t n = seg.payload_len;
    if (t.state != State::ESTABLISHED || !(seg.seq == t.rcv.nxt) || n > t.rcv.wnd() ||
        t.rcv.fin_seen || t.orphan || !t.ooo.empty() || t.memory->exhausted()) {
        // As a segment that says nothing new about the other direction.
        seg.flags = kAck | kPsh;
        seg.ack = t.snd.una;
        seg.wnd = uint16_t(t.snd.wnd >> t.snd.wscale);
        return segment_arrives(t, seg, now, out);
    }
    ++t.count.segs_in;
    ++t.count.data_segs_in;
    t.count.bytes_received += n;
    t.timers.last_rcv = t.ack.last_data = now;
    t.timers.keepalives = 0;
    t.snd.wl1 = seg.seq;
    text_of(*seg.packet) = {t.rcv.nxt, seg.payload_offset, n};
    t.in.append(static_cast<Packet&&>(seg.packet));
    t.rcv.nxt += n;
    t.rcv.acked = t.rcv.nxt;
    if (new_quarter(t.rcv.nxt, n)) follow_received(t);
    charge_frames(t);
    out.set(kReadable);
    return Verdict::go_on();
}

}  // namespace vma::tcp
