#include "stack/tcp/sack.h"

#include <algorithm>

namespace vma::tcp {

bool Scoreboard::sent(TcpMemory& memory, Seq start, Seq end, Instant now, uint64_t delivered,
                      uint32_t mss) {
    TxRange* r = memory.take_range();
    if (r == nullptr) return false;
    r->start = start;
    r->end = end;
    r->sent = now;
    r->delivered = delivered;
    r->mss = uint16_t(mss);
    r->prev = tail;
    (tail ? tail->next : head) = r;
    tail = r;
    return true;
}

TxRange* Scoreboard::split(TcpMemory& memory, TxRange& range, Seq at) {
    TxRange* upper = memory.take_range();
    if (upper == nullptr) return nullptr;
    *upper = range;
    upper->start = at;
    upper->prev = &range;
    (range.next ? range.next->prev : tail) = upper;
    range.next = upper;
    range.end = at;
    return upper;
}

void Scoreboard::unlink(TxRange& range) {
    if (first_waiting_ == &range) first_waiting_ = range.next;
    (range.prev ? range.prev->next : head) = range.next;
    (range.next ? range.next->prev : tail) = range.prev;
}

void Scoreboard::set_lost(TxRange& range) {
    if (range.lost) return;
    range.lost = true;
    lost += range.len();
    if (range.retransmitted) return;
    waiting += range.len();
    lower_hint(range);
}

void Scoreboard::set_in_flight_again(TxRange& range, bool again) {
    if (range.retransmitted == again) return;
    range.retransmitted = again;
    const uint32_t n = range.len();
    if (again)
        retransmitted += n;
    else
        retransmitted -= n;
    if (!range.lost) return;
    if (again) {
        waiting -= n;
    } else {
        waiting += n;
        lower_hint(range);
    }
}

void Scoreboard::uncount(TxRange& range, uint32_t n) {
    if (range.lost) lost -= n;
    if (range.retransmitted) retransmitted -= n;
    if (range.lost && !range.retransmitted) waiting -= n;
}

bool Scoreboard::resent(TcpMemory& memory, TxRange& range, uint32_t n, Instant now,
                        uint64_t delivered, uint32_t mss) {
    if (n < range.len() && split(memory, range, range.start + n) == nullptr) return false;
    range.sent = now;
    range.delivered = delivered;
    range.mss = uint16_t(mss);
    range.ever_retransmitted = true;
    set_in_flight_again(range, true);
    return true;
}

namespace {

// `r` was delivered up to `end`.
void note_delivered(const TxRange& r, Seq end, AckResult& out) {
    if (r.delivered_at.ns != 0 && (!out.rate_valid || r.delivered > out.rate_delivered ||
                                   (r.delivered == out.rate_delivered && r.sent > out.rate_sent))) {
        out.rate_valid = true;
        out.rate_delivered = r.delivered;
        out.rate_delivered_at = r.delivered_at;
        out.rate_sent = r.sent;
        out.rate_first_sent = r.first_sent;
        out.rate_limited = r.app_limited;
    }
    if (r.ever_retransmitted) {
        out.retransmitted_acked = true;
        // Which copy arrived is not known: an answer faster than any round trip was to an earlier one.
        if (out.now - r.sent < out.min_rtt) return;
    } else {
        if (!out.rtt_valid || r.sent > out.rtt_sent) out.rtt_sent = r.sent;
        out.rtt_valid = true;
        if (r.start < out.fack && (!out.reordered || r.start < out.reordered_at)) {
            out.reordered = true;
            out.reordered_at = r.start;
        }
        if (end <= out.recover) out.original_acked = true;
    }
    if (out.rack_valid &&
        (out.rack.sent > r.sent || (out.rack.sent == r.sent && out.rack.end > end)))
        return;
    out.rack = {r.sent, end};
    out.rack_valid = true;
}

}  // namespace

void Scoreboard::acknowledge(TcpMemory& memory, Seq una, AckResult& out) {
    while (head != nullptr && head->start < una) {
        TxRange& r = *head;
        const Seq end = Seq::min(una, r.end);
        const uint32_t n = uint32_t(end - r.start);
        if (r.sacked) {
            sacked -= n;
        } else {
            note_delivered(r, end, out);
            out.delivered += n;
        }
        uncount(r, n);
        out.acked += n;
        if (una < r.end) {
            r.start = una;
            break;
        }
        unlink(r);
        memory.give_range(&r);
    }
}

void Scoreboard::apply_sack(TcpMemory& memory, SackBlock block, AckResult& out) {
    for (TxRange* r = head; r != nullptr && r->start < block.right; r = r->next) {
        if (r->sacked || r->end <= block.left) continue;
        const uint32_t mss = r->mss ? r->mss : 1;
        if (r->start < block.left) {
            // Inward to a segment border: segments are cut from the start of a range.
            const uint32_t cut = (uint32_t(block.left - r->start) + mss - 1) / mss * mss;
            if (cut >= r->len()) continue;
            if (split(memory, *r, r->start + cut) == nullptr) return;
            continue;  // the upper part is next
        }
        if (block.right < r->end) {
            const uint32_t cut = uint32_t(block.right - r->start) / mss * mss;
            if (cut == 0 || split(memory, *r, r->start + cut) == nullptr) return;
        }
        const uint32_t n = r->len();
        note_delivered(*r, r->end, out);
        uncount(*r, n);
        r->lost = r->retransmitted = false;
        r->sacked = true;
        if (sacked == 0 || r->end > highest_sacked) highest_sacked = r->end;
        sacked += n;
        out.sacked += n;
        out.delivered += n;
    }
}

uint32_t Scoreboard::sacked_segments(uint32_t most) const {
    uint32_t n = 0, left = sacked;
    for (const TxRange* r = head; r != nullptr && left > 0 && n < most; r = r->next) {
        if (!r->sacked) continue;
        left -= r->len();
        n += r->mss ? (r->len() + r->mss - 1) / r->mss : 1;
    }
    return n;
}

uint32_t Scoreboard::mark_head_lost(TcpMemory& memory, uint32_t n) {
    TxRange* r = head;
    if (r == nullptr || r->lost || r->sacked) return 0;
    if (n < r->len()) (void)split(memory, *r, r->start + n);
    set_lost(*r);
    return r->len();
}

void Scoreboard::mark_lost_by_timeout(bool reneged, Instant sent_by) {
    reno_sacked = 0;
    if (reneged) sacked = 0;
    for (TxRange* r = head; r != nullptr; r = r->next) {
        if (reneged) r->sacked = false;
        if (r->sacked || (r != head && r->sent > sent_by)) continue;
        set_in_flight_again(*r, false);
        set_lost(*r);
    }
}

uint32_t Scoreboard::mark_lost_by_time(const Delivered& newest, Duration wait, Instant now,
                                       Duration& wait_more, uint32_t& again) {
    uint32_t marked = 0;
    again = 0;
    wait_more = Duration{0};
    for (TxRange* r = head; r != nullptr; r = r->next) {
        // Originals leave in order: behind one that is newer, all is.
        if (!r->ever_retransmitted && r->sent > newest.sent) break;
        if (r->sacked || (r->lost && !r->retransmitted) || !newest.after(*r)) continue;
        const Duration left = r->sent + wait - now;
        if (left.ns > 0) {
            wait_more = std::max(wait_more, left);
            continue;
        }
        if (r->retransmitted) again += r->len();
        set_in_flight_again(*r, false);
        set_lost(*r);
        marked += r->len();
    }
    return marked;
}

uint32_t Scoreboard::mark_larger_lost(uint32_t mss) {
    const uint32_t before = waiting;
    for (TxRange* r = head; r != nullptr; r = r->next) {
        if (r->sacked || std::min<uint32_t>(r->len(), r->mss) <= mss) continue;
        set_in_flight_again(*r, false);
        set_lost(*r);
    }
    return waiting - before;
}

void Scoreboard::unmark_lost() {
    for (TxRange* r = head; r != nullptr && lost > 0; r = r->next) {
        if (!r->lost) continue;
        r->lost = false;
        lost -= r->len();
    }
    waiting = 0;
}

TxRange* Scoreboard::last_segment(TcpMemory& memory, uint32_t mss) {
    TxRange* r = tail;
    if (r == nullptr || r->sacked || r->lost || mss == 0) return nullptr;
    if (r->len() <= mss) return r;
    return split(memory, *r, r->start + (r->len() - 1) / mss * mss);
}

TxRange* Scoreboard::next_lost() {
    if (waiting == 0) return nullptr;
    for (TxRange* r = first_waiting_; r != nullptr; r = r->next) {
        first_waiting_ = r;
        if (r->lost && !r->retransmitted) return r;
    }
    return nullptr;
}

uint32_t Scoreboard::pipe(Seq una, Seq nxt) const {
    const uint32_t out = uint32_t(nxt - una) + retransmitted;
    const uint32_t left = sacked + lost + reno_sacked;
    return out > left ? out - left : 0;
}

void Scoreboard::clear(TcpMemory& memory) {
    while (head != nullptr) {
        TxRange* gone = head;
        unlink(*gone);
        memory.give_range(gone);
    }
    sacked = lost = retransmitted = waiting = reno_sacked = 0;
}

}  // namespace vma::tcp
