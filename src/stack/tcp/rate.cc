// Numbers about sending: the delivery rate (draft-cheng-iccrg-delivery-rate-estimation, as Linux) and what sending waited for.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {

void stamp_rate(Tcb& t, TxRange& range, bool first_in_flight, Instant now) {
    DeliveryRate& r = t.rate;
    if (first_in_flight) r.first_sent = r.delivered_at = now;
    range.delivered = t.loss.delivered;
    range.delivered_at = r.delivered_at;
    range.first_sent = r.first_sent;
    range.app_limited = r.app_limited != 0;
}

bool sample_rate(Tcb& t, const AckResult& result, uint32_t delivered, Instant now) {
    DeliveryRate& r = t.rate;
    t.loss.delivered += delivered;
    r.delivered_at = now;
    if (r.app_limited != 0 && t.loss.delivered > r.app_limited) r.app_limited = 0;
    if (!result.rate_valid) return false;
    r.first_sent = result.rate_sent;
    // The slower of sending and acknowledging: ACKs may come compressed.
    const Duration interval =
        std::max(result.rate_sent - result.rate_first_sent, now - result.rate_delivered_at);
    if (interval.ns <= 0 || interval < t.rtt.min_rtt) return false;
    const uint64_t bytes = t.loss.delivered - result.rate_delivered;
    r.latest_bytes = bytes;
    r.latest_interval = interval;
    // One that lacked text only counts when it shows more than was known.
    if (result.rate_limited && r.interval.ns > 0 &&
        double(bytes) * double(r.interval.ns) < double(r.bytes) * double(interval.ns))
        return true;
    r.bytes = bytes;
    r.interval = interval;
    r.sample_limited = result.rate_limited;
    return true;
}

void note_app_limited(Tcb& t) {
    if (unsent_bytes(t) > 0 || t.board.waiting > 0) return;
    if (t.board.pipe(t.snd.una, t.snd.nxt) >= t.cc.cwnd) return;
    t.rate.app_limited =
        std::max<uint64_t>(t.loss.delivered + t.board.pipe(t.snd.una, t.snd.nxt), 1);
}

void note_busy(Tcb& t, Instant now) {
    BusyTimes& b = t.busy;
    Busy next = Busy::idle;
    const uint32_t unsent = unsent_bytes(t);
    if (unsent > 0) {
        const uint32_t pipe = t.board.pipe(t.snd.una, t.snd.nxt);
        const bool window =
            t.snd.una + t.snd.wnd < t.snd.nxt + std::min<uint32_t>(unsent, t.snd.mss);
        next = window && pipe + t.snd.mss <= t.cc.cwnd ? Busy::peer_window : Busy::sending;
    } else if (t.flight() > 0) {
        next = b.write_cut ? Busy::send_buffer : Busy::sending;
    }
    if (next == b.now) return;
    if (b.now != Busy::idle) b.total[unsigned(b.now)] = b.total[unsigned(b.now)] + (now - b.since);
    b.now = next;
    b.since = now;
}

}  // namespace vma::tcp
