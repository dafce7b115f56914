// Text, FIN, and when to acknowledge: RFC 9293 section 3.10.7.4 (seventh, eighth), section 3.8.6, RFC 1122 section
// 4.2.3.2, RFC 5681 section 4.2; the delayed-ACK policy is Linux's.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr Duration kAtoMin = Duration::millis(40);
constexpr Duration kDelackMax = Duration::millis(200);
constexpr Duration kShortRoundTrip = Duration::millis(2);
constexpr uint32_t kAcksPerRoundTrip = 16;

// Frames may be held beyond the text they carry; past this the peer is wasting our memory.
uint32_t charge_limit(const Tcb& t) { return 2 * t.rcv.buffer + 131072; }

void estimate_rcv_mss(Tcb& t, const SegView& seg) {
    const uint32_t size = seg.gso_size ? seg.gso_size : seg.payload_len;
    if (size >= t.ack.rcv_mss)
        t.ack.rcv_mss = uint16_t(std::min<uint32_t>(size, t.cfg.mss));
    else if (size >= 536 && seg.has(kPsh) == false)
        t.ack.rcv_mss = uint16_t(size);  // a full segment of a path that became narrower
}

// Inter-arrival statistics behind the delayed-ACK timeout.
void note_text_arrival(Tcb& t, const SegView& seg, Instant now) {
    estimate_rcv_mss(t, seg);
    AckState& a = t.ack;
    const Duration gap = now - a.last_data;
    if (a.ato.ns == 0) {
        enter_quickack(t, t.cfg.quickack_segments);
        a.ato = kAtoMin;
    } else if (gap <= kAtoMin / 2) {
        a.ato = a.ato / 2 + kAtoMin / 2;
    } else if (gap < a.ato) {
        a.ato = std::min(a.ato / 2 + gap, t.rtt.rto);
    } else if (gap > t.rtt.rto) {
        // Long silence: the sender may have restarted from a small window.
        enter_quickack(t, t.cfg.quickack_segments);
    }
    a.last_data = now;
}

// How long an ACK may wait now.
Duration delay(const Tcb& t) {
    Duration ato = t.ack.ato;
    if (ato > kAtoMin) {
        Duration most = t.ack.pingpong ? kDelackMax : Duration::millis(500);
        if (t.rtt.has_sample()) most = std::min(most, std::max(t.rtt.srtt / 8, kAtoMin));
        ato = std::min(ato, most);
    }
    return std::min(ato, kDelackMax);
}

// Whoever merges ACKs of a batch of frames bets on the one that is left: when that is lost, a sender in recovery has
// nothing but its timeout. So a batch is answered in pieces, each of two segments as RFC 5681 wants it or of a sixteenth of
// what comes in a round trip. On a short path in order a batch is no more than that anyway, and every frame counts.
bool separate_ack(const Tcb& t, bool in_order) {
    const Duration rtt = t.autotune.rtt.ns ? t.autotune.rtt : t.rtt.srtt;
    if (in_order && rtt < kShortRoundTrip) return false;
    return t.ack.held >= std::max(2u * t.ack.rcv_mss, t.autotune.space / kAcksPerRoundTrip);
}

void schedule_ack(Tcb& t, uint32_t text, Instant now, Actions& out) {
    AckState& a = t.ack;
    // Every second full segment at the latest (RFC 1122 MUST, RFC 5681), but only if the ACK also moves the window;
    // a merged frame counts as the segments it is made of.
    const bool two_full =
        uint32_t(t.rcv.nxt - t.rcv.acked) > a.rcv_mss &&
        (window_to_offer(t) >= t.rcv.wnd() || t.rcv.nxt + window_to_offer(t) >= t.rcv.adv);
    const bool quick = t.cfg.quickack_always || (a.quick > 0 && !a.pingpong && t.cfg.quickack);
    const bool small = t.cfg.quickack_bytes == 0 || text <= t.cfg.quickack_bytes;
    if (two_full || (quick && small) || !t.ooo.empty()) {
        a.now = true;
        if (separate_ack(t, t.ooo.empty())) out.set(kAckNow);
        return;
    }
    a.pending = true;
    const Instant due = now + delay(t);
    if (t.timers.delack_at.is_never() || due < t.timers.delack_at) t.timers.delack_at = due;
}

void sample_receiver_rtt(Tcb& t, Duration sample) {
    Duration& rtt = t.autotune.rtt;
    rtt = rtt.ns == 0 ? sample : std::min(sample, rtt + rtt / 8);
}

void advance_rcv_nxt(Tcb& t, uint32_t n, Instant now) {
    t.rcv.nxt += n;
    t.count.bytes_received += n;
    t.ack.duplicates = 0;
    // Receiver-side round trip: the time in which one window of text arrives.
    auto& at = t.autotune;
    if (at.rtt_at.ns == 0) {
        at.rtt_at = now;
        at.rtt_seq = t.rcv.adv;
    } else if (t.rcv.nxt >= at.rtt_seq) {
        sample_receiver_rtt(t, now - at.rtt_at);
        at.rtt_at = now;
        at.rtt_seq = t.rcv.nxt + t.rcv.wnd();
    }
}

// The same by timestamps, which see it long before the first window is full: the text came because of the ACK that it
// echoes. Below two milliseconds the clock of the option is too coarse.
void measure_round_trip(Tcb& t, const SegView& seg, Instant now) {
    if (!t.ts.on || !seg.opt.has_timestamps || seg.opt.ts_ecr == t.autotune.echo) return;
    if (seg.payload_len < t.ack.rcv_mss) return;
    t.autotune.echo = seg.opt.ts_ecr;
    const uint32_t ms = t.ts.value(now) - seg.opt.ts_ecr;
    if (ms >= 2 && ms <= 600000) sample_receiver_rtt(t, Duration::millis(ms));
}

void stash_out_of_order(Tcb& t, SegView& seg, RxText text, Actions& out) {
    ++t.count.ooo_in;
    t.ack.now = true;
    t.ack.held += text.len;
    // The sender counts three of them (RFC 5681 section 3.2).
    if (t.ack.duplicates < 3 || separate_ack(t, false)) out.set(kAckNow);
    if (t.ack.duplicates < 3) ++t.ack.duplicates;
    if (t.ooo.charge() + t.text_charge() + text.len > charge_limit(t)) return;
    if (t.memory->exhausted()) {
        t.memory->note_refused();
        return;
    }
    text_of(*seg.packet) = text;
    SackBlock dup;
    t.ooo.insert(static_cast<Packet&&>(seg.packet), dup);
    charge_frames(t);
    if (dup.left < dup.right) ++t.count.duplicates_in;
    if (t.loss.sack_ok && dup.left < dup.right) {
        t.ack.dsack = true;
        t.ack.dsack_block = dup;
    }
}

// RFC 3168 section 6.1.3: the mark is echoed until the sender tells that it has slowed down.
void note_congestion(Tcb& t, const SegView& seg) {
    if (seg.has(kCwr)) {
        t.ecn.echo = false;
        t.ack.now = true;
    }
    if (seg.ecn != kEcnCe) return;
    ++t.count.ce_in;
    // The sender's window may become very small: delayed ACKs would stall it.
    if (!t.ecn.echo) enter_quickack(t, 2);
    t.ecn.echo = true;
}

}  // namespace

void enter_quickack(Tcb& t, uint16_t segments) {
    const uint32_t wnd = t.rcv.wnd() / (2u * t.ack.rcv_mss);
    const uint16_t n = uint16_t(std::clamp<uint32_t>(wnd, 2, std::max<uint16_t>(segments, 2)));
    t.ack.quick = std::max(t.ack.quick, n);
    t.ack.pingpong = false;
    if (t.ack.ato.ns == 0) t.ack.ato = kAtoMin;
}

void challenge_ack(Tcb& t, Instant now) {
    // RFC 5961 section 7: a limit per connection, so that forged segments cannot make us a source of traffic.
    if (now - t.ack.challenge_window >= Duration::seconds(1)) {
        t.ack.challenge_window = now;
        t.ack.challenges = 0;
    }
    if (t.ack.challenges >= 10) return;
    ++t.ack.challenges;
    ++t.count.challenge_acks;
    t.ack.now = true;
}

Verdict take_in_order(Tcb& t, SegView& seg, Instant now, Actions& out) {
    const uint32_t skip = uint32_t(t.rcv.nxt - seg.seq);
    const uint32_t len = std::min(seg.payload_len - skip, t.rcv.wnd());
    if (t.text_charge() > charge_limit(t) && t.in.bytes > 0) {
        t.ack.now = true;
        return Verdict::drop(DropReason::receive_queue_full);
    }
    if (t.memory->exhausted() && t.in.bytes > 0) {
        // As Linux: what came out of order goes first (the peer repeats it), then new text; something to read is never refused.
        t.memory->note_refused();
        t.ooo.clear();
        charge_frames(t);
        t.ack.now = true;
        if (t.memory->exhausted()) return Verdict::drop(DropReason::tcp_memory);
    }
    note_text_arrival(t, seg, now);
    measure_round_trip(t, seg, now);
    t.ack.held += len;
    text_of(*seg.packet) = {t.rcv.nxt, seg.payload_offset + skip, len};
    t.in.append(static_cast<Packet&&>(seg.packet));
    const Seq before = t.rcv.nxt;
    Seq nxt = t.rcv.nxt + len;
    if (!t.ooo.empty()) {
        nxt = t.ooo.take_ready(nxt, t.in);
        t.ack.now = true;  // a hole closed: RFC 5681 section 4.2
        out.set(kAckNow);
    }
    advance_rcv_nxt(t, uint32_t(nxt - before), now);
    out.set(kReadable);
    charge_frames(t);
    schedule_ack(t, len, now, out);
    return Verdict::go_on();
}

Verdict take_text(Tcb& t, SegView& seg, Instant now, Actions& out) {
    if (seg.payload_len == 0) return Verdict::go_on();
    if (t.ecn.on) note_congestion(t, seg);
    if (t.state != State::ESTABLISHED && t.state != State::FIN_WAIT_1 &&
        t.state != State::FIN_WAIT_2) {
        // After the peer's FIN: at most a retransmission.
        t.ack.now = true;
        return Verdict::drop(DropReason::tcp_beyond_fin);
    }
    if (t.orphan && seg.text_end() > t.rcv.nxt) {
        // RFC 1122 section 4.2.2.13: nobody can read it; the peer must learn that it is lost.
        abort(t, 0, out);
        return Verdict::reply(DropReason::tcp_closed_reader);
    }
    Seq right = Seq::max(t.rcv.adv, t.rcv.nxt);
    if (t.rcv.fin_seen) right = Seq::min(right, t.rcv.fin);
    if (seg.seq < t.rcv.nxt) ++t.count.duplicates_in;
    if (seg.text_end() <= t.rcv.nxt) {
        if (t.loss.sack_ok) {
            t.ack.dsack = true;
            t.ack.dsack_block = {seg.seq, seg.text_end()};
        }
        t.ack.now = true;
        enter_quickack(t, t.cfg.quickack_segments);
        return Verdict::drop(DropReason::tcp_duplicate);
    }
    if (seg.seq >= right) {
        t.ack.now = true;
        return Verdict::drop(t.rcv.fin_seen ? DropReason::tcp_beyond_fin
                                            : DropReason::tcp_sequence);
    }
    if (seg.text_end() > right) seg.payload_len = uint32_t(right - seg.seq);
    if (seg.seq <= t.rcv.nxt) {
        if (t.rcv.nxt == right) {  // nothing of it fits
            t.ack.now = true;
            return Verdict::drop(DropReason::tcp_sequence);
        }
        return take_in_order(t, seg, now, out);
    }
    note_text_arrival(t, seg, now);
    stash_out_of_order(t, seg, {seg.seq, seg.payload_offset, seg.payload_len}, out);
    return Verdict::go_on();
}

Verdict check_fin(Tcb& t, const SegView& seg, Seq text_end, Instant now, Actions& out) {
    if (seg.has(kFin) && !t.rcv.fin_seen) {
        // Beyond the window it is not known yet: the text in front of it was cut off, and comes again with it.
        if (text_end >= t.rcv.nxt && text_end <= Seq::max(t.rcv.adv, t.rcv.nxt)) {
            t.rcv.fin = text_end;
            t.rcv.fin_seen = true;
        }
    }
    if (seg.has(kFin)) t.ack.now = true;
    if (!t.rcv.fin_seen || t.rcv.fin_done || !(t.rcv.fin == t.rcv.nxt)) return Verdict::go_on();
    t.rcv.fin_done = true;
    t.rcv.nxt += 1;
    t.rcv.adv = Seq::max(t.rcv.adv, t.rcv.nxt);
    t.ooo.clear();
    charge_frames(t);
    t.ack.now = true;
    t.ack.pingpong = false;
    out.set(kPeerClosed | kReadable);
    switch (t.state) {
        case State::SYN_RECEIVED:
        case State::ESTABLISHED:
            enter(t, State::CLOSE_WAIT);
            break;
        // Our FIN was not acknowledged: check_ack would have moved us to FIN_WAIT_2.
        case State::FIN_WAIT_1:
            enter(t, State::CLOSING);
            break;
        case State::FIN_WAIT_2:
            enter_time_wait(t, now, out);
            break;
        default:
            break;
    }
    return Verdict::go_on();
}

uint8_t scale_for(uint32_t window) {
    uint8_t s = 0;
    while (s < 14 && (uint32_t(65535) << s) < window) ++s;  // RFC 7323 section 2.3: at most 14
    return s;
}

uint32_t window_to_offer(const Tcb& t) {
    const uint32_t used = t.in.bytes + t.kept.bytes;
    uint32_t space = used >= t.rcv.buffer ? 0 : t.rcv.buffer - used;
    const uint32_t cur = t.rcv.wnd();
    // Silly-window avoidance, RFC 9293 section 3.8.6.2.2: nothing rather than a sliver.
    if (space < std::min<uint32_t>(t.ack.rcv_mss, t.rcv.buffer / 2) || space < t.rcv.buffer / 16)
        space = 0;
    if (t.text_charge() + t.ooo.charge() > charge_limit(t)) space = 0;
    if (t.memory->pressure()) space = std::min(space, 4u * t.ack.rcv_mss);
    space = std::min({space, t.cfg.window_clamp, uint32_t(65535) << t.rcv.wscale});
    const uint32_t mask = (1u << t.rcv.wscale) - 1;
    space &= ~mask;
    // MUST NOT shrink (RFC 9293 SHLD-14): rounded up, the edge stays or moves right.
    if (space < cur) space = (cur + mask) & ~mask;
    return std::min(space, uint32_t(65535) << t.rcv.wscale);
}

uint16_t offer_window(Tcb& t) {
    const uint32_t window = window_to_offer(t);
    t.rcv.adv = Seq::max(t.rcv.adv, t.rcv.nxt + window);
    return uint16_t(window >> t.rcv.wscale);
}

void charge_frames(Tcb& t) {
    const uint32_t held = t.text_charge() + t.ooo.charge();
    if (held == t.charged || t.memory == nullptr) return;
    t.memory->charge_frames(int64_t(held) - int64_t(t.charged));
    t.charged = held;
}

void acked_now(Tcb& t, unsigned segments) {
    t.rcv.acked = t.rcv.nxt;
    t.ack.now = t.ack.pending = t.ack.dsack = false;
    t.ack.held = 0;
    t.timers.delack_at = Instant::never();
    t.ack.quick = uint16_t(t.ack.quick > segments ? t.ack.quick - segments : 0);
}

namespace {

// Dynamic right sizing as Linux: what was read in a round trip is measured when the next one is already under way, so offer
// twice that, and while it grows as much more as a sender in slow start will want by then.
void autotune(Tcb& t, uint32_t n, Instant now) {
    auto& at = t.autotune;
    if (at.at.ns == 0) {
        at.at = now;
        at.space = std::max(std::min(t.rcv.buffer, 10u * t.ack.rcv_mss), 1u);
    }
    at.copied += n;
    const Duration rtt = at.rtt.ns ? at.rtt : t.rtt.srtt;
    if (rtt.ns == 0 || now - at.at < rtt || t.memory->pressure()) return;
    if (at.copied > at.space) {
        uint64_t want = 2ull * at.copied + 16ull * t.ack.rcv_mss;
        want += 2 * (want * (at.copied - at.space) / at.space);
        if (want > t.rcv.buffer)
            t.rcv.buffer = uint32_t(std::min<uint64_t>(want, t.cfg.receive_buffer_max));
        at.space = at.copied;
    }
    at.copied = 0;
    at.at = now;
}

}  // namespace

void after_read(Tcb& t, uint32_t n, Instant now, Actions& out) {
    charge_frames(t);
    if (n == 0 || t.state <= State::SYN_SENT || t.state == State::TIME_WAIT) return;
    if (t.rcv.buffer < t.cfg.receive_buffer_max) autotune(t, n, now);
    if (t.rcv.fin_done) return;
    const uint32_t cur = t.rcv.wnd();
    const uint32_t next = window_to_offer(t);
    // Worth a segment of its own when the window at least doubles, or an owed ACK can go along with it.
    const bool doubled = next >= 2 * cur && next > cur && next - cur >= t.ack.rcv_mss;
    const bool owed = t.ack.pending && uint32_t(t.rcv.nxt - t.rcv.acked) > t.ack.rcv_mss;
    if (doubled || owed || (cur == 0 && next > 0)) {
        t.ack.now = true;
        out.set(kOutput);
    }
}

}  // namespace vma::tcp
