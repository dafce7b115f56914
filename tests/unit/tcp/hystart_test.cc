// HyStart++, RFC 9406.
#include "stack/tcp/cc.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

// Rounds of `segments` ACKs with one round-trip time each.
struct Path {
    Cc cc;
    Seq una{1};
    Instant now{1000000000};

    explicit Path(CcKind kind = CcKind::cubic) {
        cc.kind = kind;
        cc.cwnd = 16000;
    }
    void round(Duration rtt, unsigned acks = 16) {
        for (unsigned i = 0; i < acks; ++i) {
            una += 1000;
            CcAck a;
            a.now = now;
            a.srtt = a.min_rtt = a.rtt = rtt;
            a.acked = a.mss = 1000;
            a.una = una;
            a.nxt = una + acks * 1000;  // a full window in flight
            a.cwnd_limited = true;
            kCubic.grow(cc, a);
        }
        now = now + rtt;
    }
};

TEST(HyStart, SteadyRoundTripDoubles) {
    Path p;
    for (int i = 0; i < 4; ++i) p.round(Duration::millis(40));
    EXPECT_EQ(p.cc.cwnd, 16000u + 4 * 16000u);
    EXPECT_EQ(p.cc.ssthresh, kInfiniteSsthresh);
}

TEST(HyStart, GrowingRoundTripEndsSlowStartGently) {
    // Section 4.2: five rounds at a quarter of the pace, then congestion avoidance.
    Path p;
    p.round(Duration::millis(40));
    p.round(Duration::millis(40));
    const uint32_t before = p.cc.cwnd;
    p.round(Duration::millis(50));
    EXPECT_GT(p.cc.hystart.slow_rounds, 0);
    EXPECT_LT(p.cc.cwnd, before + 16000);
    EXPECT_GT(p.cc.cwnd, before);
    for (int i = 0; i < 6; ++i) p.round(Duration::millis(50));
    EXPECT_LT(p.cc.ssthresh, kInfiniteSsthresh);
}

TEST(HyStart, PassingQueueResumes) {
    Path p;
    p.round(Duration::millis(40));
    p.round(Duration::millis(40));
    p.round(Duration::millis(50));
    ASSERT_GT(p.cc.hystart.slow_rounds, 0);
    p.round(Duration::millis(40));
    EXPECT_EQ(p.cc.hystart.slow_rounds, 0);
    EXPECT_EQ(p.cc.ssthresh, kInfiniteSsthresh);
}

TEST(HyStart, SmallGrowthIsNoise) {
    // Section 4.3: below 4 ms nothing is concluded.
    Path p;
    p.round(Duration::millis(1));
    p.round(Duration::millis(1));
    p.round(Duration::millis(4));
    EXPECT_EQ(p.cc.hystart.slow_rounds, 0);
}

TEST(HyStart, OnlyBeforeTheFirstLoss) {
    Path p;
    p.cc.ssthresh = 1000000;
    p.round(Duration::millis(40));
    p.round(Duration::millis(40));
    p.round(Duration::millis(80));
    EXPECT_EQ(p.cc.hystart.slow_rounds, 0);
    EXPECT_EQ(p.cc.cwnd, 16000u + 3 * 16000u);
}

TEST(HyStart, TooFewSamplesSayNothing) {
    Path p;
    p.round(Duration::millis(40), 4);
    p.round(Duration::millis(40), 4);
    p.round(Duration::millis(80), 4);
    EXPECT_EQ(p.cc.hystart.slow_rounds, 0);
}

}  // namespace
}  // namespace vma::tcp
