// The scoreboard equals a simple model under random histories, and what one ACK costs does not grow with the window.
#include <map>

#include "support/simple_board.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

struct Both {
    TcpWorld world;
    Scoreboard board;
    SimpleBoard simple;
    Seq una{0xffff0000}, nxt{0xffff0000};
    Instant now{1000};
    Delivered newest{};

    ~Both() { board.clear(*world.memory); }

    // Byte by byte, but only where either changes.
    void expect_equal(int step, bool merged = false) {
        TxRange* r = board.head;
        auto s = simple.ranges.begin();
        for (Seq at = una; at < nxt;) {
            ASSERT_TRUE(r != nullptr && s != simple.ranges.end()) << step;
            ASSERT_TRUE(r->start <= at && at < r->end) << step;
            ASSERT_TRUE(s->start <= at && at < s->end) << step;
            ASSERT_EQ(r->sacked, s->sacked) << step << " at " << at - una;
            ASSERT_EQ(r->lost, s->lost) << step << " at " << at - una;
            ASSERT_EQ(r->retransmitted, s->again) << step << " at " << at - una;
            if (!r->sacked && !merged) {
                ASSERT_EQ(r->sent.ns, s->sent.ns) << step;
                ASSERT_EQ(r->ever_retransmitted, s->ever) << step;
                ASSERT_TRUE(r->start == s->start && r->end == s->end) << step;
            }
            ASSERT_EQ(r->queue, r->sacked                      ? TxQueue::none
                                : r->lost && !r->retransmitted ? TxQueue::waiting
                                                               : TxQueue::flight)
                << step;
            at = Seq::min(r->end, s->end);
            if (r->end == at) r = r->next;
            if (s->end == at) ++s;
        }
        ASSERT_EQ(board.sacked, simple.sacked()) << step;
        ASSERT_EQ(board.waiting, simple.waiting()) << step;
        ASSERT_EQ(board.next_lost() != nullptr, board.waiting > 0) << step;
        ASSERT_EQ(board.sacked > 0, board.sacked_segments > 0) << step;
    }
};

void random_history(uint64_t seed, int steps) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Both b;
    Rng rng(seed);
    TcpMemory& memory = *b.world.memory;
    for (int i = 0; i < steps; ++i) {
        b.now = b.now + Duration::micros(rng.below(300));
        const uint32_t flight = uint32_t(b.nxt - b.una);
        switch (rng.below(10)) {
            case 0:
            case 1:
            case 2: {  // some segments, or one large one
                const uint32_t mss = rng.chance(1, 10) ? 536 : 1000;
                const uint32_t count = 1 + rng.below(8);
                const uint32_t each =
                    rng.chance(1, 3) ? mss * count : mss - rng.below(2) * rng.below(mss);
                for (uint32_t k = 0; k < (each > mss ? 1 : count); ++k) {
                    b.board.sent(memory, b.nxt, b.nxt + each, b.now, 0, mss);
                    b.simple.sent(b.nxt, b.nxt + each, b.now, mss);
                    b.nxt += each;
                }
                break;
            }
            case 3: {
                if (rng.chance(1, 2)) break;
                const uint32_t step = rng.below(std::min(flight, 9000u) + 1);
                AckResult result;
                b.una += step;
                b.board.acknowledge(memory, b.una, result);
                b.simple.acknowledge(b.una);
                if (result.rack_valid && !(b.newest.sent > result.rack.sent))
                    b.newest = result.rack;
                break;
            }
            case 4:
            case 5:
            case 6: {
                if (flight == 0) break;
                const Seq left = b.una + rng.below(flight);
                const Seq right =
                    Seq::min(left + 1 + rng.below(rng.chance(1, 4) ? 30000 : 4000), b.nxt);
                AckResult result;
                b.board.apply_sack(memory, {left, right}, result);
                b.simple.apply_sack({left, right});
                if (result.rack_valid && !(b.newest.sent > result.rack.sent))
                    b.newest = result.rack;
                break;
            }
            case 7: {
                Duration more, more2;
                uint32_t again;
                const Duration wait = Duration::micros(rng.below(4000));
                const uint32_t marked =
                    b.board.mark_lost_by_time(b.newest, wait, b.now, more, again);
                const uint32_t marked2 = b.simple.mark_lost_by_time(b.newest, wait, b.now, more2);
                ASSERT_EQ(marked, marked2) << i;
                ASSERT_EQ(more.ns > 0, more2.ns > 0) << i;
                ASSERT_GE(more.ns, more2.ns) << i;
                break;
            }
            case 8:
                for (unsigned k = rng.below(6); k > 0; --k) {
                    TxRange* r = b.board.next_lost();
                    if (r == nullptr) break;
                    const uint32_t n = 1 + rng.below(std::min(r->len(), 3000u));
                    b.simple.resent(r->start, n, b.now, 1000);
                    ASSERT_TRUE(b.board.resent(memory, *r, n, b.now, 0, 1000));
                }
                break;
            default:
                if (i + 1 == steps || rng.chance(1, 8)) {
                    const Instant by = b.now - Duration::micros(rng.below(2000));
                    // What was merged has one time of sending: nothing to compare any more.
                    const bool reneged = rng.chance(1, 8);
                    b.board.mark_lost_by_timeout(reneged, reneged ? b.now : by);
                    b.simple.mark_lost_by_timeout(reneged, reneged ? b.now : by);
                    if (reneged) return b.expect_equal(i, true);
                } else if (rng.chance(1, 8)) {
                    b.board.unmark_lost();
                    b.simple.unmark_lost();
                }
        }
        b.expect_equal(i);
        if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(Scoreboard, EqualsTheSimpleModel) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        random_history(seed, 400);
        if (HasFatalFailure()) return;
    }
}

// Merging: blocks that grow by a segment leave two ranges, whatever the window.
TEST(Scoreboard, OneRangePerSackedRun) {
    Both b;
    for (uint32_t i = 0; i < 1000; ++i)
        b.board.sent(*b.world.memory, b.una + 1000 * i, b.una + 1000 * (i + 1), b.now, 0, 1000);
    AckResult result;
    for (uint32_t i = 2; i <= 1000; ++i)
        b.board.apply_sack(*b.world.memory, {b.una + 1000, b.una + 1000 * i}, result);
    EXPECT_EQ(b.world.memory->ranges_out(), 2u);
    EXPECT_EQ(b.board.sacked_segments, 999u);
    EXPECT_EQ(result.sacked, 999000u);
}

// Every other segment of a window is lost, and each ACK has three blocks anywhere in it. docs/evidence/6-ack-cost.txt has the
// instructions of this for windows and counts of ACKs given by VMA_WINDOW and VMA_ACKS.
TEST(Scoreboard, AckOfALargeWindow) {
    const auto number = [](const char* name, uint32_t otherwise) {
        const char* text = getenv(name);
        return text ? uint32_t(atoi(text)) : otherwise;
    };
    const uint32_t window = number("VMA_WINDOW", 2000), acks = number("VMA_ACKS", 1000);
    Both b;
    TcpMemory& memory = *b.world.memory;
    for (uint32_t i = 0; i < window; ++i) {
        b.now = b.now + Duration::micros(1);
        b.board.sent(memory, b.una + 1000 * i, b.una + 1000 * (i + 1), b.now, 0, 1000);
    }
    Rng rng(7);
    for (uint32_t i = 1; i < window; i += 2) {  // the holes
        AckResult result;
        b.board.apply_sack(memory, {b.una + 1000 * i, b.una + 1000 * (i + 1)}, result);
        if (result.rack_valid) b.newest = result.rack;
    }
    Duration more;
    uint32_t again;
    b.board.mark_lost_by_time(b.newest, Duration{0}, b.now + Duration::micros(1), more, again);
    for (uint32_t i = 0; i < acks; ++i) {
        AckResult result;
        for (int k = 0; k < 3; ++k) {
            const uint32_t at = rng.below(window - 1);
            b.board.apply_sack(memory, {b.una + 1000 * at, b.una + 1000 * (at + 1)}, result);
        }
        b.now = b.now + Duration::micros(1);
        b.board.mark_lost_by_time(b.newest, Duration::micros(50), b.now, more, again);
        if (TxRange* r = b.board.next_lost()) b.board.resent(memory, *r, r->len(), b.now, 0, 1000);
    }
    EXPECT_GT(b.board.sacked, window / 2 * 1000 - 1000);
}

}  // namespace
}  // namespace vma::tcp
