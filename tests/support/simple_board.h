// The scoreboard as one would write it without a thought for cost: a list of ranges, walked from the front for everything.
// What Scoreboard (stack/tcp/sack.h) must equal.
#pragma once

#include <list>

#include "stack/tcp/sack.h"

namespace vma::tcp {

struct SimpleBoard {
    struct Range {
        Seq start, end;
        Instant sent;
        uint32_t mss;
        bool sacked = false, lost = false, again = false, ever = false;
        uint32_t len() const { return uint32_t(end - start); }
        bool waits() const { return lost && !again; }
    };
    std::list<Range> ranges;

    uint32_t sum(bool (*of)(const Range&)) const {
        uint32_t n = 0;
        for (const Range& r : ranges)
            if (of(r)) n += r.len();
        return n;
    }
    uint32_t sacked() const {
        return sum([](const Range& r) { return r.sacked; });
    }
    uint32_t waiting() const {
        return sum([](const Range& r) { return r.waits(); });
    }
    void sent(Seq start, Seq end, Instant now, uint32_t mss) {
        ranges.push_back({start, end, now, mss});
    }
    // Returns the lower part; `r` is the upper one.
    std::list<Range>::iterator cut(std::list<Range>::iterator r, Seq at) {
        Range lower = *r;
        lower.end = at;
        r->start = at;
        return ranges.insert(r, lower);
    }
    // The range that starts at `start` and waits: its first n bytes go out again.
    void resent(Seq start, uint32_t n, Instant now, uint32_t mss) {
        for (auto r = ranges.begin(); r != ranges.end(); ++r) {
            if (!(r->start == start)) continue;
            if (n < r->len()) r = cut(r, start + n);
            r->sent = now;
            r->mss = mss;
            r->again = r->ever = true;
            return;
        }
    }
    void acknowledge(Seq una) {
        while (!ranges.empty() && ranges.front().end <= una) ranges.pop_front();
        if (!ranges.empty() && ranges.front().start < una) ranges.front().start = una;
    }
    void apply_sack(SackBlock b) {
        for (auto r = ranges.begin(); r != ranges.end() && r->start < b.right; ++r) {
            if (r->sacked || r->end <= b.left) continue;
            if (r->start < b.left) {
                const uint32_t at = (uint32_t(b.left - r->start) + r->mss - 1) / r->mss * r->mss;
                if (at >= r->len()) continue;
                cut(r, r->start + at);  // r is the upper part now, and next in turn
            }
            if (b.right < r->end) {
                const uint32_t at =
                    uint32_t(int32_t(b.right - r->start) < 0 ? 0 : b.right - r->start) / r->mss *
                    r->mss;
                if (at == 0) return;
                r = cut(r, r->start + at);
            }
            r->sacked = true;
            r->lost = r->again = false;
        }
    }
    void lose(Range& r) {
        r.lost = true;
        r.again = false;
    }
    uint32_t mark_lost_by_time(const Delivered& newest, Duration wait, Instant now,
                               Duration& more) {
        uint32_t n = 0;
        more = Duration{0};
        for (Range& r : ranges) {
            if (r.sacked || r.waits()) continue;
            if (r.sent > newest.sent || (r.sent == newest.sent && r.end >= newest.end)) continue;
            const Duration left = r.sent + wait - now;
            if (left.ns > 0) {
                more = std::max(more, left);
                continue;
            }
            lose(r);
            n += r.len();
        }
        return n;
    }
    void mark_lost_by_timeout(bool reneged, Instant sent_by) {
        for (Range& r : ranges) {
            if (reneged) r.sacked = false;
            if (!r.sacked && (&r == &ranges.front() || r.sent <= sent_by)) lose(r);
        }
    }
    void unmark_lost() {
        for (Range& r : ranges) r.lost = false;
    }
};

}  // namespace vma::tcp
