// BBR's long-term sampling: a policer that lets a burst through and then drops what exceeds its rate.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

struct Path {
    Cc cc;
    Instant now{1000000000};
    uint64_t delivered = 0, lost = 0;

    Path() {
        cc.kind = CcKind::bbr;
        cc.cwnd = initial_window(1000);
    }
    // A round trip of 20 ms in which so much arrived and so much was lost.
    void round(uint32_t bytes, uint32_t dropped, bool limited = false) {
        CcSample s;
        s.prior_delivered = delivered;
        now = now + Duration::millis(20);
        delivered += bytes;
        lost += dropped;
        s.now = now;
        s.srtt = s.rtt = s.interval = Duration::millis(20);
        s.bytes = bytes;
        s.delivered = delivered;
        s.lost_ever = lost;
        s.acked = bytes;
        s.lost = dropped;
        s.pipe = bytes;
        s.mss = 1000;
        s.valid = true;
        s.app_limited = limited;
        kBbr.control(cc, s);
    }
    double rate() const { return double(bbr_view(cc).bytes_per_second); }
};

TEST(BbrPolicer, ItsRateIsBelievedAndProbedAgainLater) {
    Path p;
    for (int i = 0; i < 8; ++i) p.round(200000, 0);  // the bucket's burst: 10 MB/s
    EXPECT_NEAR(p.rate(), 10e6, 1e5);
    for (int i = 0; i < 12; ++i) p.round(50000, 25000);  // then 2.5 MB/s and a third lost
    EXPECT_NEAR(p.rate(), 2.5e6, 3e5);
    EXPECT_NEAR(double(p.cc.pacing_rate), 2.5e6, 3e5);
    EXPECT_TRUE(p.cc.bbr.lt_use);
    // No probing above it meanwhile; after 48 rounds the path may show more again.
    for (int i = 0; i < 40; ++i) p.round(50000, 0);
    EXPECT_TRUE(p.cc.bbr.lt_use);
    for (int i = 0; i < 10; ++i) p.round(50000, 0);
    EXPECT_FALSE(p.cc.bbr.lt_use);
    for (int i = 0; i < 10; ++i) p.round(200000, 0);
    EXPECT_NEAR(p.rate(), 10e6, 1e6);
}

TEST(BbrPolicer, SmallLossIsNoPolicer) {
    Path p;
    for (int i = 0; i < 8; ++i) p.round(200000, 0);
    for (int i = 0; i < 40; ++i) p.round(200000, 20000);
    EXPECT_FALSE(p.cc.bbr.lt_use);
}

TEST(BbrPolicer, UnevenRatesAreNone) {
    Path p;
    for (int i = 0; i < 8; ++i) p.round(200000, 0);
    for (int i = 0; i < 60; ++i) p.round((i / 5) % 2 ? 20000 : 120000, 60000);
    EXPECT_FALSE(p.cc.bbr.lt_use);
}

TEST(BbrPolicer, NothingIsConcludedWithoutText) {
    Path p;
    for (int i = 0; i < 8; ++i) p.round(200000, 0);
    for (int i = 0; i < 30; ++i) p.round(50000, 25000, i % 3 == 0);
    EXPECT_FALSE(p.cc.bbr.lt_use);
}

}  // namespace
}  // namespace vma::tcp
