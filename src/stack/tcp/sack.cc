#include "stack/tcp/sack.h"

#include <algorithm>

namespace vma::tcp {

bool Scoreboard::sent(TcpMemory& memory, Seq start, Seq end, Instant now, uint64_t delivered) {
    TxRange* r = memory.take_range();
    if (r == nullptr) return false;
    r->start = start;
    r->end = end;
    r->sent = now;
    r->delivered = delivered;
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
    (range.prev ? range.prev->next : head) = range.next;
    (range.next ? range.next->prev : tail) = range.prev;
}

bool Scoreboard::resent(TcpMemory& memory, TxRange& range, uint32_t n, Instant now,
                        uint64_t delivered) {
    if (n < range.len() && split(memory, range, range.start + n) == nullptr) return false;
    range.sent = now;
    range.delivered = delivered;
    range.retransmitted = range.ever_retransmitted = true;
    retransmitted += range.len();
    return true;
}

namespace {

void note_rtt(const TxRange& r, AckResult& out) {
    if (r.ever_retransmitted) {
        out.retransmitted_acked = true;
        return;
    }
    if (!out.rtt_valid || r.sent > out.rtt_sent) out.rtt_sent = r.sent;
    out.rtt_valid = true;
}

}  // namespace

void Scoreboard::acknowledge(TcpMemory& memory, Seq una, AckResult& out) {
    while (head != nullptr && head->start < una) {
        TxRange& r = *head;
        const uint32_t n = uint32_t(Seq::min(una, r.end) - r.start);
        if (r.sacked) {
            sacked -= n;
        } else {
            note_rtt(r, out);
        }
        if (r.lost) lost -= n;
        if (r.retransmitted) retransmitted -= n;
        out.acked += n;
        if (una < r.end) {
            r.start = una;
            break;
        }
        unlink(r);
        memory.give_range(&r);
    }
}

void Scoreboard::apply_sack(TcpMemory& memory, SackBlock block, uint32_t mss, AckResult& out) {
    for (TxRange* r = head; r != nullptr && r->start < block.right; r = r->next) {
        if (r->sacked || r->end <= block.left) continue;
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
        note_rtt(*r, out);
        if (r->lost) lost -= n;
        if (r->retransmitted) retransmitted -= n;
        r->lost = r->retransmitted = false;
        r->sacked = true;
        if (sacked == 0 || r->end > highest_sacked) highest_sacked = r->end;
        sacked += n;
        out.sacked += n;
    }
}

uint32_t Scoreboard::mark_lost(uint32_t mss) {
    // IsLost(SeqNum): more than (DupThresh - 1) * SMSS bytes, or DupThresh separate runs, sacked above.
    uint32_t marked = 0;
    uint32_t above = sacked;
    unsigned runs = 0;
    for (TxRange* r = head; r != nullptr; r = r->next) {
        if (r->sacked && (r->prev == nullptr || !r->prev->sacked)) ++runs;
    }
    for (TxRange* r = head; r != nullptr && above > 0; r = r->next) {
        if (r->sacked) {
            above -= r->len();
            if (r->next == nullptr || !r->next->sacked) --runs;
            continue;
        }
        if (above <= 2 * mss && runs < 3) break;
        if (r->lost) continue;
        r->lost = true;
        lost += r->len();
        marked += r->len();
    }
    return marked;
}

uint32_t Scoreboard::mark_head_lost(TcpMemory& memory, uint32_t n) {
    TxRange* r = head;
    if (r == nullptr || r->lost || r->sacked) return 0;
    if (n < r->len()) (void)split(memory, *r, r->start + n);
    r->lost = true;
    lost += r->len();
    return r->len();
}

void Scoreboard::mark_all_lost(bool reneged) {
    lost = retransmitted = 0;
    reno_sacked = 0;
    if (reneged) sacked = 0;
    for (TxRange* r = head; r != nullptr; r = r->next) {
        if (reneged) r->sacked = false;
        r->retransmitted = false;
        r->lost = !r->sacked;
        if (r->lost) lost += r->len();
    }
}

uint32_t Scoreboard::mark_retransmissions_lost(Instant before) {
    uint32_t again = 0;
    for (TxRange* r = head; r != nullptr && retransmitted > 0; r = r->next) {
        if (!r->retransmitted || r->sent >= before) continue;
        r->retransmitted = false;
        retransmitted -= r->len();
        again += r->len();
    }
    return again;
}

TxRange* Scoreboard::next_lost() const {
    if (lost == retransmitted) return nullptr;
    for (TxRange* r = head; r != nullptr; r = r->next)
        if (r->lost && !r->retransmitted) return r;
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
    sacked = lost = retransmitted = reno_sacked = 0;
}

}  // namespace vma::tcp
