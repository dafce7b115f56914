// What to send next, pulled by the ring: RFC 9293 sections 3.8.6 (window), 3.7.4 (Nagle), 3.8.4 (keep-alive), RFC 6675
// NextSeg, RFC 5681.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr Duration kPaceJitter = Duration::millis(1);

unsigned sack_bytes(const Tcb& t) {
    if (!t.loss.sack_ok) return 0;
    const unsigned most = t.ts.on ? 3 : 4;
    const unsigned n = std::min<unsigned>(most, t.ooo.block_count + (t.ack.dsack ? 1 : 0));
    return n ? 4 + 8 * n : 0;
}

void add_sack(Tcb& t, TcpOptions& opt) {
    if (!t.loss.sack_ok) return;
    const unsigned most = t.ts.on ? 3 : 4;
    if (t.ack.dsack) opt.sack[opt.sack_count++] = t.ack.dsack_block;  // RFC 2883: first
    for (unsigned i = 0; i < t.ooo.block_count && opt.sack_count < most; ++i)
        opt.sack[opt.sack_count++] = t.ooo.blocks[i];
}

// Fields that every segment of a synchronised connection has; books the ACK it carries.
void fill_head(Tcb& t, SegmentHead& h, Seq seq, uint8_t flags, unsigned segments, Instant now) {
    h = {};
    h.seq = seq;
    h.ack = t.rcv.nxt;
    h.flags = uint8_t(flags | kAck);
    h.wnd = offer_window(t);
    if (t.ts.on) {
        h.opt.has_timestamps = true;
        h.opt.ts_val = t.ts.value(now);
        h.opt.ts_ecr = t.ts.recent;
    }
    if (t.ecn.on && t.ecn.echo) h.flags |= kEce;
    add_sack(t, h.opt);
    acked_now(t, 1);
    t.count.segs_out += segments;
}

// Our own number for a segment without text, inside the window that the peer may have shrunk, as Linux: what the rounding of
// a scaled window hides is no shrinking.
Seq bare_seq(const Tcb& t) {
    const Seq edge = t.snd.una + t.snd.wnd;
    const uint32_t rounding = (1u << t.snd.wscale) - 1;
    return t.snd.nxt <= edge || uint32_t(t.snd.nxt - edge) <= rounding ? t.snd.nxt : edge;
}

bool plan_reset(Tcb& t, SegmentPlan& p) {
    p.head = {};
    p.head.seq = bare_seq(t);
    p.head.ack = t.rcv.nxt;
    p.head.flags = kRst | kAck;
    t.rst_due = false;
    ++t.count.segs_out;
    return true;
}

void fill_payload(Tcb& t, SegmentPlan& p, Seq from, uint32_t n, uint32_t mss) {
    p.payload_len = n ? t.out.slices(from, n, p.slices, kMaxSlices, &p.slice_count) : 0;
    if (n == 0) p.slice_count = 0;
    p.gso_size = p.payload_len > mss ? uint16_t(mss) : uint16_t(0);
}

// RFC 7413 section 4.2.1: text that follows the SYN, in the same segment.
void add_syn_text(Tcb& t, Instant now, SegmentPlan& p) {
    const uint32_t room = t.fast_open.room;
    const uint32_t n = std::min({unsent_bytes(t), room, t.cfg.mss - tcp_options_size(p.head.opt)});
    if (n == 0) return;
    fill_payload(t, p, t.snd.nxt, n, n);
    const Seq end = t.snd.nxt + p.payload_len;
    if (!t.board.sent(*t.memory, t.snd.nxt, end, now, 0, p.payload_len)) {
        p.payload_len = p.slice_count = 0;
        return;
    }
    t.snd.nxt = end;
    if (t.marks != nullptr) (void)pass_messages(t, end);
    t.count.bytes_sent += p.payload_len;
    ++t.count.data_segs_out;
    t.timers.last_snd = now;
}

bool plan_syn(Tcb& t, Instant now, SegmentPlan& p) {
    t.syn_due = false;
    const bool synack = t.state == State::SYN_RECEIVED;
    p.head = syn_head(t, synack, now);
    p.retransmission = t.timers.retries > 0 || (!synack && t.board.head != nullptr);
    if (t.board.head == nullptr) {
        // The range is only for the RTT sample: without memory the SYN goes out all the same.
        const bool noted = t.board.sent(*t.memory, t.snd.iss, t.snd.iss + 1, now, 0, 1);
        if (t.fast_open.room > 0 && noted && !synack) add_syn_text(t, now, p);
    } else if (p.retransmission) {
        t.board.head->ever_retransmitted = true;
    }
    if (t.timers.kind != Rtx::rto) arm(t, Rtx::rto, now + t.rtt.backed_off(t.timers.backoff));
    if (synack) acked_now(t, 1);
    ++t.count.segs_out;
    return true;
}

// Bytes per second that text may leave with, 0: as it comes.
uint64_t pacing_rate(const Tcb& t) {
    if (t.cc.pacing_rate == 0 || t.cc.kind != CcKind::bbr) return t.cfg.pacing_rate;
    return t.cfg.pacing_rate ? std::min(t.cfg.pacing_rate, t.cc.pacing_rate) : t.cc.pacing_rate;
}

// Largest payload of one plan, in whole segments of `mss`. Paced: a millisecond's worth, as Linux.
uint32_t plan_limit(const Tcb& t, uint32_t mss) {
    uint64_t most = t.cfg.max_gso_bytes;
    if (const uint64_t rate = pacing_rate(t))
        most = std::min(most, std::max<uint64_t>(rate / 1000, 2 * mss));
    if (most <= mss) return mss;
    return uint32_t(most) / mss * mss;
}

void mark_urgent_field(const Tcb& t, SegmentHead& h) {
    if (!t.snd.urgent || !(h.seq < t.snd.up)) return;
    const uint32_t distance = uint32_t(t.snd.up - h.seq);
    if (distance > 0xffff) return;
    h.flags |= kUrg;
    h.urg = uint16_t(distance);
}

void pace(Tcb& t, uint32_t bytes, Instant now) {
    const uint64_t rate = pacing_rate(t);
    if (rate == 0) return;
    Duration d = Duration::nanos(int64_t(double(bytes) * 1e9 / double(rate)));
    // Woken late: half of the delay is made good, as Linux does against jitter.
    const Duration late = now - t.timers.pace_at;
    if (late.ns > 0 && late < kPaceJitter) d = d - std::min(d / 2, late);
    t.timers.pace_at = std::max(t.timers.pace_at, now) + d;
}

bool paced_out(Tcb& t, Instant now) {
    t.timers.pace_wait = now < t.timers.pace_at && pacing_rate(t) != 0;
    return t.timers.pace_wait;
}

unsigned segments_of(const SegmentPlan& p) {
    return p.gso_size ? (p.payload_len + p.gso_size - 1) / p.gso_size : 1;
}

// Puts the first `n` bytes of `r` into the plan and books them as sent again.
bool repeat(Tcb& t, TxRange& r, uint32_t n, uint32_t mss, Instant now, SegmentPlan& p) {
    const Seq start = r.start, fin_at = t.write_seq();
    uint32_t text = start < fin_at ? std::min(n, uint32_t(fin_at - start)) : 0;
    fill_payload(t, p, start, text, mss);
    if (p.payload_len < text) {  // more slices than a plan holds
        text = p.payload_len;
        n = text;
    }
    const bool head = &r == t.board.head;
    if (!t.board.resent(*t.memory, r, n, now, t.loss.delivered, mss)) return false;
    stamp_rate(t, r, false, now);
    note_repeated(t, n, now);
    uint8_t flags = 0;
    if (text > 0 && (start + n == fin_at || start + n == fin_at + 1)) flags |= kPsh;
    if (n > text) flags |= kFin;
    p.retransmission = true;
    const unsigned segments = segments_of(p);
    fill_head(t, p.head, start, flags, segments, now);
    mark_urgent_field(t, p.head);
    if (t.loss.state == Recovery::fast || t.loss.state == Recovery::cwr) t.loss.prr_out += n;
    t.count.retransmits += segments;
    VMA_PROBE3(tcp_retransmit, &t, start.v, n);
    t.count.bytes_retransmitted += text;
    t.count.data_segs_out += segments;
    // The RTO starts anew with the head only: something must remain that ends a series of lost repetitions.
    if (t.timers.kind == Rtx::none || (head && t.timers.kind != Rtx::reorder)) rearm_rto(t, now);
    pace(t, p.payload_len, now);
    return true;
}

bool plan_retransmission(Tcb& t, Instant now, SegmentPlan& p) {
    if (t.loss.new_first) return false;
    TxRange* r = t.board.next_lost();
    if (r == nullptr || paced_out(t, now)) return false;
    const uint32_t mss = t.snd.mss - sack_bytes(t);
    const uint32_t pipe = t.board.pipe(t.snd.una, t.snd.nxt);
    const uint32_t quota = t.cc.cwnd > pipe ? t.cc.cwnd - pipe : 0;
    uint32_t n = std::min(r->len(), plan_limit(t, mss));
    if (n > quota) n = quota / mss * mss;
    if (n == 0) return false;
    // A window that shrank: only its left edge is tried, as a probe would be.
    const Seq edge = t.snd.una + t.snd.wnd;
    if (r->start >= edge && !(r->start == t.snd.una && t.loss.rto_head)) return false;
    if (r->start + n > edge && !(r->start == t.snd.una)) n = uint32_t(edge - r->start);
    if (r->start == t.snd.una && t.snd.wnd < n) n = std::min(n, mss);
    if (!repeat(t, *r, n, mss, now, p)) return false;
    t.loss.rto_head = false;
    return true;
}

// Nagle as modified by Minshall, which is Linux's: hold a short segment only while another short one is unacknowledged.
bool may_send_short(const Tcb& t, const Piece& piece) {
    if (t.snd.fin_queued || t.timers.probe_due) return true;
    if (t.marks != nullptr) return piece.whole;
    if (t.cfg.cork) return false;
    return t.cfg.nodelay || !(t.snd.sml > t.snd.una && t.snd.sml <= t.snd.nxt);
}

// Super-frames cost per frame, not per byte: with an ACK about to come anyway, wait until a worthwhile piece can go at once
// instead of following the ACK clock segment by segment. Worthwhile is what the path carries in a millisecond (as Linux
// sizes its frames), but no more than an eighth of the window: waiting leaves the path idle by half of that.
bool better_later(const Tcb& t, uint32_t limit, uint32_t unsent, uint32_t mss, Instant now) {
    const uint32_t most = plan_limit(t, mss);
    if (most == mss || limit >= unsent || t.board.head == nullptr || !t.rtt.has_sample())
        return false;
    if (t.loss.state != Recovery::open) return false;
    const uint32_t window = std::min(t.snd.wnd, t.cc.cwnd);
    const uint64_t per_ms = uint64_t(window) * 1000000 / uint64_t(t.rtt.srtt.ns);
    const uint64_t piece =
        std::min<uint64_t>({most, std::max<uint64_t>(2 * mss, per_ms), window / 8});
    return piece > 2 * mss && limit < piece && now - t.board.head->sent >= t.rtt.srtt / 2;
}

Piece next_piece(const Tcb& t) {
    const uint32_t unsent = uint32_t(t.write_seq() - t.snd.nxt);
    if (t.marks == nullptr) [[likely]]
        return {unsent, true};
    if (t.marks->count == 0) return {unsent, false};
    return {uint32_t(t.marks->front() - t.snd.nxt), true};
}

// Bytes of new text to send now; sets the reason's traces (cwnd limited) when it is none.
uint32_t new_text(Tcb& t, uint32_t mss, Instant now) {
    const Piece piece = next_piece(t);
    const uint32_t unsent = piece.bytes;
    const int64_t window = int64_t(t.snd.una + t.snd.wnd - t.snd.nxt);
    if (unsent == 0 || window <= 0) return 0;
    const uint32_t pipe = t.board.pipe(t.snd.una, t.snd.nxt);
    const uint32_t quota = t.cc.cwnd > pipe ? t.cc.cwnd - pipe : 0;
    // A message that fits one segment and every window, without the divisions that follow.
    if (unsent < mss && unsent <= std::min(quota, uint32_t(window)))
        return may_send_short(t, piece) ? unsent : 0;
    uint32_t n = std::min({unsent, uint32_t(window), plan_limit(t, mss)});
    if (n > quota) {
        n = quota / mss * mss;
        t.loss.limited = true;
        t.loss.limited_at = t.snd.nxt;
        if (n == 0) return 0;
    }
    if (better_later(t, std::min(quota, uint32_t(window)), unsent, mss, now)) return 0;
    const uint32_t tail = n % mss;
    if (tail == 0) return n;
    if (n == unsent) return may_send_short(t, piece) ? n : n - tail;
    // Cut by the peer's window: RFC 9293 section 3.8.6.2.1, a fraction only if it is half of its largest window.
    if (n > tail) return n - tail;
    // A message is not cut for that, unless a window that stays too small leaves nothing else.
    if (t.marks != nullptr && !t.timers.probe_due) return 0;
    return n >= t.snd.max_wnd / 2 || t.timers.probe_due ? n : 0;
}

// New text in the plan: `n` bytes from SND.NXT on, FIN after them where it belongs.
bool emit_text(Tcb& t, Instant now, SegmentPlan& p, uint32_t n, uint32_t mss) {
    fill_payload(t, p, t.snd.nxt, n, mss);
    if (p.payload_len < n && p.payload_len > mss) {
        // More slices than a plan holds: whole segments of what fits.
        n = p.payload_len / mss * mss;
        fill_payload(t, p, t.snd.nxt, n, mss);
    }
    n = p.payload_len;
    const Seq start = t.snd.nxt;
    const bool last = start + n == t.write_seq();
    const bool fin = last && t.snd.fin_queued && start + n < t.snd.una + t.snd.wnd &&
                     (n > 0 || t.write_seq() == t.snd.nxt);
    if (n == 0 && !fin) return false;
    const Seq end = start + (n + (fin ? 1 : 0));
    const bool first = t.flight() == 0;
    if (!t.board.sent(*t.memory, start, end, now, t.loss.delivered, mss)) return false;
    stamp_rate(t, *t.board.tail, first, now);
    t.snd.nxt = end;
    if (n < mss ? n != 0 : n % mss != 0) t.snd.sml = end;
    uint8_t flags = 0;
    const bool ends = t.marks != nullptr && pass_messages(t, start + n);
    // PSH where the application's data ends, and at least every half window (Linux's forced push).
    if (n > 0 && (last || ends || end > t.snd.pushed + t.snd.max_wnd / 2)) {
        flags |= kPsh;
        t.snd.pushed = end;
    }
    if (fin) {
        flags |= kFin;
        t.snd.fin_sent = true;
    }
    if (t.ecn.on && t.ecn.cwr_due && n > 0) {
        flags |= kCwr;
        t.ecn.cwr_due = false;
    }
    t.timers.probe_due = false;
    const unsigned segments = segments_of(p);
    fill_head(t, p.head, start, flags, segments, now);
    p.head.ect = t.ecn.on && n > 0;  // RFC 3168 section 6.1.5: new text only
    mark_urgent_field(t, p.head);
    if (t.loss.state == Recovery::fast || t.loss.state == Recovery::cwr) t.loss.prr_out += n;
    t.count.bytes_sent += n;
    if (n > 0) t.count.data_segs_out += segments;
    // An answer soon after a question: let answers carry the ACKs from now on.
    if (n > 0 && now - t.ack.last_data < t.ack.ato) t.ack.pingpong = true;
    t.timers.last_snd = now;
    // The probe's timer follows the last text sent; the RTO keeps following the oldest.
    const Rtx kind = t.timers.kind;
    if (kind != Rtx::reorder && !schedule_probe(t, now, false) &&
        (kind == Rtx::none || kind == Rtx::persist))
        rearm_rto(t, now);
    pace(t, n, now);
    return true;
}

// New text as one segment larger than the path is known to take.
bool plan_size_probe(Tcb& t, Instant now, SegmentPlan& p, bool& later) {
    const uint32_t size = probe_size(t, now, later);
    if (size == 0) return false;
    const Seq start = t.snd.nxt;
    // More slices than a plan holds make an ordinary segment of it.
    if (!emit_text(t, now, p, size, size)) return false;
    if (p.payload_len != size) return true;
    t.search.size = uint16_t(size + (t.ts.on ? 12 : 0));
    t.search.start = start;
    t.search.end = t.snd.nxt;
    ++t.count.size_probes;
    return true;
}

bool plan_text(Tcb& t, Instant now, SegmentPlan& p) {
    if (t.snd.fin_sent || (t.write_seq() == t.snd.nxt && !t.snd.fin_queued)) return false;
    if (paced_out(t, now)) return false;
    if (t.flight() == 0 && t.cfg.slow_start_after_idle && t.timers.last_snd.ns != 0) {
        const Duration idle = now - t.timers.last_snd;
        if (idle > t.rtt.rto)
            cc_algorithm(t.cc.kind).restart(t.cc, idle, t.rtt.rto, t.snd.mss, now);
    }
    bool later = false;
    if (t.search.on && t.marks == nullptr && t.state >= State::ESTABLISHED &&
        plan_size_probe(t, now, p, later))
        return true;
    if (later) return false;
    const uint32_t mss = t.snd.mss - sack_bytes(t);
    return emit_text(t, now, p, new_text(t, mss, now), mss);
}

// RFC 8985 section 7.3: one segment of new text if the window lets it, else the last one again.
bool plan_tail_probe(Tcb& t, Instant now, SegmentPlan& p) {
    TailProbe& probe = t.loss.tlp;
    if (!probe.due) return false;
    probe.due = false;
    if (probe.out || t.flight() == 0 || t.loss.state > Recovery::cwr || paced_out(t, now))
        return false;
    const uint32_t mss = t.snd.mss - sack_bytes(t);
    const Piece piece = next_piece(t);
    const uint32_t unsent = piece.whole ? piece.bytes : 0;
    const int64_t window = int64_t(t.snd.una + t.snd.wnd - t.snd.nxt);
    bool sent = false;
    probe.repeated = false;
    if (unsent > 0 && window > 0 && !t.snd.fin_sent) {
        const uint32_t n = std::min({unsent, mss, uint32_t(window)});
        if (n == mss || n == unsent) sent = emit_text(t, now, p, n, mss);
    }
    if (!sent) {
        TxRange* r = t.board.last_segment(*t.memory, mss);
        if (r == nullptr || r->end > t.snd.una + t.snd.wnd) return false;
        sent = probe.repeated = repeat(t, *r, r->len(), mss, now, p);
    }
    if (!sent) return false;
    ++t.count.tail_probes;
    probe.out = true;
    probe.high = t.snd.nxt;
    rearm_rto(t, now);  // the last resort gets its full time
    return true;
}

// Text that waits with nothing in flight has no ACK to come: the persist timer keeps it alive (window closed, window
// silly, or cork, whose ceiling this is).
void keep_alive_by_persist(Tcb& t, Instant now) {
    if (t.flight() > 0 || t.timers.kind != Rtx::none || t.timers.pace_wait) return;
    if (t.snd.fin_sent || (t.write_seq() == t.snd.nxt && !t.snd.fin_queued)) return;
    arm(t, Rtx::persist, now + t.rtt.backed_off(t.timers.backoff));
}

// A number that the peer has acknowledged already: it must answer with an ACK and its window (RFC 9293 section 3.8.4 and
// 3.8.6.1; as Linux without a byte of text).
bool plan_probe(Tcb& t, Instant now, SegmentPlan& p) {
    if (!t.timers.probe_due) return false;
    t.timers.probe_due = false;
    p.probe = true;
    p.slice_count = 0;
    p.payload_len = p.gso_size = 0;
    fill_head(t, p.head, t.snd.una - 1, 0, 1, now);
    return true;
}

bool plan_ack(Tcb& t, Instant now, SegmentPlan& p) {
    if (!t.ack.now) return false;
    p.slice_count = 0;
    p.payload_len = p.gso_size = 0;
    fill_head(t, p.head, bare_seq(t), 0, 1, now);
    return true;
}

}  // namespace

bool next_segment(Tcb& t, Instant now, SegmentPlan& p) {
    p.slice_count = p.gso_size = 0;
    p.payload_len = 0;
    p.retransmission = p.probe = false;
    if (t.rst_due) return plan_reset(t, p);
    switch (t.state) {
        case State::CLOSED:
        case State::LISTEN:
            return false;
        case State::SYN_SENT:
            return t.syn_due && plan_syn(t, now, p);
        case State::SYN_RECEIVED:
            if (t.syn_due) return plan_syn(t, now, p);
            // Linux: the answer to a Fast Open need not wait for the end of the handshake.
            if (t.fast_open.server && t.timers.retries == 0 && plan_text(t, now, p)) return true;
            return plan_ack(t, now, p);
        case State::TIME_WAIT:
            return plan_ack(t, now, p);
        default:
            break;
    }
    // Nothing to send or to repeat, as most pulls find it: what follows would come to the same.
    if (!t.loss.tlp.due && t.board.next_lost() == nullptr &&
        (t.snd.fin_sent || (t.write_seq() == t.snd.nxt && !t.snd.fin_queued))) {
        if (t.flight() == 0) {
            t.rate.app_limited = std::max<uint64_t>(t.loss.delivered, 1);
            if (t.busy.now != Busy::idle) note_busy(t, now);
        } else {
            note_app_limited(t);
            note_busy(t, now);
        }
        return plan_probe(t, now, p) || plan_ack(t, now, p);
    }
    if (plan_tail_probe(t, now, p) || plan_retransmission(t, now, p) || plan_text(t, now, p))
        return true;
    keep_alive_by_persist(t, now);
    note_app_limited(t);
    note_busy(t, now);
    return plan_probe(t, now, p) || plan_ack(t, now, p);
}

}  // namespace vma::tcp
