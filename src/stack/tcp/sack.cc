#include "stack/tcp/sack.h"

#include <algorithm>

namespace vma::tcp {

void Scoreboard::Queue::insert_after(TxRange* place, TxRange& range) {
    range.q_prev = place;
    range.q_next = place ? place->q_next : head;
    (range.q_next ? range.q_next->q_prev : tail) = &range;
    (place ? place->q_next : head) = &range;
}

void Scoreboard::Queue::remove(TxRange& range) {
    (range.q_prev ? range.q_prev->q_next : head) = range.q_next;
    (range.q_next ? range.q_next->q_prev : tail) = range.q_prev;
    range.q_next = range.q_prev = nullptr;
}

void Scoreboard::leave_queue(TxRange& range) {
    if (range.queue == TxQueue::none) return;
    queue_of(range.queue).remove(range);
    range.queue = TxQueue::none;
}

void Scoreboard::enqueue(TxQueue which, TxRange* place, TxRange& range) {
    queue_of(which).insert_after(place, range);
    range.queue = which;
}

// By number as far as a short look goes: the order is a preference (RFC 6675 NextSeg), the cost a promise.
void Scoreboard::enqueue_waiting(TxRange& range) {
    TxRange* place = waiting_.tail;
    if (place != nullptr && range.start < waiting_.head->start)
        place = nullptr;
    else
        for (unsigned i = 0; i < kLook && place != nullptr && range.start < place->start; ++i)
            place = place->q_prev;
    enqueue(TxQueue::waiting, place, range);
}

uint8_t Scoreboard::draw_level() {
    dice_ ^= dice_ << 13;
    dice_ ^= dice_ >> 17;
    dice_ ^= dice_ << 5;
    uint8_t level = 0;
    for (uint32_t d = dice_; level < TxRange::kLevels && (d & 7) == 0; d >>= 3) ++level;
    return level;
}

TxRange* Scoreboard::last_before(Seq at, TxRange** before) const {
    TxRange* place = nullptr;
    for (unsigned level = TxRange::kLevels; level-- > 0;) {
        TxRange* n = place ? place->up[level] : index_head_[level];
        for (; n != nullptr && n->start < at; n = n->up[level]) place = n;
        before[level] = place;
    }
    TxRange* n = place ? place->next : head;
    for (; n != nullptr && n->start < at; n = n->next) place = n;
    return place;
}

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
    r->level = draw_level();
    for (unsigned i = 0; i < r->level; ++i) {
        (index_tail_[i] ? index_tail_[i]->up[i] : index_head_[i]) = r;
        index_tail_[i] = r;
    }
    enqueue(TxQueue::flight, flight_.tail, *r);
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
    if (range.queue != TxQueue::none) enqueue(range.queue, &range, *upper);
    upper->level = draw_level();
    if (upper->level == 0) return upper;
    TxRange* before[TxRange::kLevels];
    last_before(at, before);
    for (unsigned i = 0; i < upper->level; ++i) {
        upper->up[i] = before[i] ? before[i]->up[i] : index_head_[i];
        (before[i] ? before[i]->up[i] : index_head_[i]) = upper;
        if (upper->up[i] == nullptr) index_tail_[i] = upper;
    }
    return upper;
}

void Scoreboard::remove(TcpMemory& memory, TxRange& range) {
    if (range.level > 0) {
        TxRange* before[TxRange::kLevels] = {};
        if (&range != head) last_before(range.start, before);
        for (unsigned i = 0; i < range.level; ++i) {
            (before[i] ? before[i]->up[i] : index_head_[i]) = range.up[i];
            if (index_tail_[i] == &range) index_tail_[i] = before[i];
        }
    }
    leave_queue(range);
    (range.prev ? range.prev->next : head) = range.next;
    (range.next ? range.next->prev : tail) = range.prev;
    memory.give_range(&range);
}

void Scoreboard::set_lost(TxRange& range) {
    if (range.lost) return;
    range.lost = true;
    lost += range.len();
    if (range.retransmitted) return;
    waiting += range.len();
    leave_queue(range);
    enqueue_waiting(range);
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
        leave_queue(range);
        enqueue_waiting(range);
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
    leave_queue(range);
    enqueue(TxQueue::flight, flight_.tail, range);
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
            // What is left of a range counts one segment at least.
            const uint32_t mss = std::max<uint32_t>(r.mss, 1);
            const uint32_t k =
                una < r.end ? std::min(r.segments - 1, (n + mss - 1) / mss) : r.segments;
            sacked -= n;
            sacked_segments -= k;
            r.segments -= k;
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
        remove(memory, r);
    }
}

TxRange* Scoreboard::merge_sacked(TcpMemory& memory, TxRange& range) {
    TxRange* r = &range;
    if (TxRange* left = r->prev; left != nullptr && left->sacked) {
        left->end = r->end;
        left->segments += r->segments;
        remove(memory, *r);
        r = left;
    }
    if (TxRange* right = r->next; right != nullptr && right->sacked) {
        r->end = right->end;
        r->segments += right->segments;
        remove(memory, *right);
    }
    return r;
}

void Scoreboard::apply_sack(TcpMemory& memory, SackBlock block, AckResult& out) {
    TxRange* before[TxRange::kLevels];
    TxRange* r = last_before(block.left + 1, before);
    if (r == nullptr) r = head;
    for (; r != nullptr && r->start < block.right; r = r->next) {
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
        leave_queue(*r);
        r->lost = r->retransmitted = false;
        r->sacked = true;
        r->segments = (n + mss - 1) / mss;
        if (sacked == 0 || r->end > highest_sacked) highest_sacked = r->end;
        sacked += n;
        sacked_segments += r->segments;
        out.sacked += n;
        out.delivered += n;
        r = merge_sacked(memory, *r);
    }
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
    if (reneged) sacked = sacked_segments = 0;
    for (TxRange* r = head; r != nullptr; r = r->next) {
        if (reneged) r->sacked = false;
        if (r->sacked) continue;
        if (r == head || r->sent <= sent_by) {
            set_in_flight_again(*r, false);
            set_lost(*r);
        }
        if (r->queue == TxQueue::none) enqueue(TxQueue::flight, flight_.tail, *r);
        if (r->queue != TxQueue::waiting) continue;
        // Everything is looked at anyway: the queue gets its exact order.
        leave_queue(*r);
        enqueue(TxQueue::waiting, waiting_.tail, *r);
    }
}

uint32_t Scoreboard::mark_lost_by_time(const Delivered& newest, Duration wait, Instant now,
                                       Duration& wait_more, uint32_t& again) {
    uint32_t marked = 0;
    again = 0;
    wait_more = Duration{0};
    unsigned looked = 0;
    for (TxRange *r = flight_.head, *next; r != nullptr && r->sent <= newest.sent; r = next) {
        next = r->q_next;
        const Duration left = r->sent + wait - now;
        if (left.ns <= 0 && newest.after(*r)) {
            if (r->retransmitted) again += r->len();
            set_in_flight_again(*r, false);
            set_lost(*r);
            marked += r->len();
            continue;
        }
        if (newest.after(*r)) wait_more = std::max(wait_more, left);
        if (++looked < kLook) continue;
        // None of the others was sent later than `newest`.
        if (wait_more.ns > 0) wait_more = std::max(wait_more, newest.sent + wait - now);
        break;
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

namespace {

// Chains through q_next, by the time of sending.
TxRange* merge_by_time(TxRange* a, TxRange* b) {
    TxRange* first = nullptr;
    TxRange** end = &first;
    while (a != nullptr && b != nullptr) {
        TxRange*& from = b->sent < a->sent ? b : a;
        *end = from;
        end = &from->q_next;
        from = from->q_next;
    }
    *end = a != nullptr ? a : b;
    return first;
}

TxRange* sort_by_time(TxRange* chain) {
    TxRange* runs[32] = {};  // runs[i]: 2^i ranges
    while (chain != nullptr) {
        TxRange* run = chain;
        chain = chain->q_next;
        run->q_next = nullptr;
        unsigned i = 0;
        for (; runs[i] != nullptr; ++i) {
            run = merge_by_time(runs[i], run);
            runs[i] = nullptr;
        }
        runs[i] = run;
    }
    for (TxRange* run : runs) chain = merge_by_time(run, chain);
    return chain;
}

}  // namespace

void Scoreboard::unmark_lost() {
    for (TxRange* r = head; r != nullptr && lost > 0; r = r->next) {
        if (!r->lost) continue;
        r->lost = false;
        lost -= r->len();
    }
    waiting = 0;
    // What waited is in flight again, since it was sent last.
    TxRange* chain = merge_by_time(flight_.head, sort_by_time(waiting_.head));
    flight_ = waiting_ = {};
    while (chain != nullptr) {
        TxRange* r = chain;
        chain = chain->q_next;
        enqueue(TxQueue::flight, flight_.tail, *r);
    }
}

TxRange* Scoreboard::last_segment(TcpMemory& memory, uint32_t mss) {
    TxRange* r = tail;
    if (r == nullptr || r->sacked || r->lost || mss == 0) return nullptr;
    if (r->len() <= mss) return r;
    return split(memory, *r, r->start + (r->len() - 1) / mss * mss);
}

uint32_t Scoreboard::pipe(Seq una, Seq nxt) const {
    const uint32_t out = uint32_t(nxt - una) + retransmitted;
    const uint32_t left = sacked + lost + reno_sacked;
    return out > left ? out - left : 0;
}

void Scoreboard::clear(TcpMemory& memory) {
    while (head != nullptr) {
        TxRange* gone = head;
        head = gone->next;
        memory.give_range(gone);
    }
    tail = nullptr;
    flight_ = waiting_ = {};
    for (unsigned i = 0; i < TxRange::kLevels; ++i) index_head_[i] = index_tail_[i] = nullptr;
    sacked = sacked_segments = lost = retransmitted = waiting = reno_sacked = 0;
}

}  // namespace vma::tcp
