// Two stacks over {loss} x {reorder} x {duplicate} x {corrupt} x {RTT} x {rate}: every byte arrives, both ways, in
// bounded virtual time.
#include "support/tcp_link.h"

namespace vma::tcp {
namespace {

struct GridPoint {
    uint32_t loss, reorder, duplicate, corrupt;  // per mille
    int64_t rtt_us;
    uint64_t mbit;
    uint32_t gso;
    bool sack, timestamps;
    CcKind cc;
    uint64_t seed;
};

std::string pattern(size_t n, uint64_t seed) {
    Rng rng(seed);
    std::string s(n, 0);
    for (size_t i = 0; i < n; ++i) s[i] = char(rng.next() >> 33);
    return s;
}

void run_point(const GridPoint& g, size_t bytes) {
    SCOPED_TRACE(testing::Message()
                 << "seed " << g.seed << " loss " << g.loss << " reorder " << g.reorder << " dup "
                 << g.duplicate << " corrupt " << g.corrupt << " rtt_us " << g.rtt_us << " mbit "
                 << g.mbit << " gso " << g.gso << " sack " << g.sack << " ts " << g.timestamps
                 << " cc " << int(g.cc));
    LinkParams p;
    p.seed = g.seed;
    p.loss_permille = g.loss;
    p.reorder_permille = g.reorder;
    p.duplicate_permille = g.duplicate;
    p.corrupt_permille = g.corrupt;
    p.rtt = Duration::micros(g.rtt_us);
    p.bytes_per_second = g.mbit * 125000;
    TcpLink link(p);
    for (Host* h : {&link.client, &link.server}) {
        h->cfg.max_gso_bytes = g.gso;
        h->cfg.sack = g.sack;
        h->cfg.timestamps = g.timestamps;
        h->cfg.cc = g.cc;
        h->cfg.syn_retries = h->cfg.synack_retries = 10;
        h->cfg.send_buffer = 1 << 20;
    }
    link.client.to_send = pattern(bytes, g.seed * 2 + 1);
    link.server.to_send = pattern(bytes / 2, g.seed * 2 + 2);
    link.start();
    const Instant began = link.now;
    const bool finished = link.run(Duration::seconds(3600));
    EXPECT_TRUE(finished) << "client " << state_name(link.client.t.state) << " server "
                          << state_name(link.server.t.state) << " got "
                          << link.server.received.size() << "/" << bytes << " and "
                          << link.client.received.size() << "/" << bytes / 2;
    EXPECT_EQ(link.client.error, 0);
    EXPECT_EQ(link.server.error, 0);
    EXPECT_TRUE(link.server.received == link.client.to_send);
    EXPECT_TRUE(link.client.received == link.server.to_send);
    // A generous bound that a stalled connection breaks: the line time and a second per ten segments lost, and hand-shake
    // repetitions.
    const double line = double(bytes) * 1.5 / double(p.bytes_per_second);
    const double losses = double(link.dropped) * 0.1 * (0.3 + double(g.rtt_us) * 5e-6);
    const double rounds = double(g.rtt_us) * 1e-6 * (60 + double(bytes) / 20000);
    const double spent = double((link.now - began).ns) * 1e-9;
    EXPECT_LT(spent, 20 + 5 * line + 5 * losses + rounds);
}

class Grid : public testing::TestWithParam<int> {};

TEST_P(Grid, EveryByteArrives) {
    const int part = GetParam();
    uint64_t seed = 1000 + uint64_t(part) * 1000;
    for (uint32_t loss : {0u, 10u, 50u, 100u})
        for (uint32_t mess : {0u, 20u})
            for (int64_t rtt : {10ll, 1000ll, 20000ll, 200000ll}) {
                GridPoint g{};
                g.loss = loss;
                g.reorder = mess;
                g.duplicate = mess;
                g.corrupt = mess / 20;
                g.rtt_us = rtt;
                g.mbit = part & 1 ? 10 : 1000;
                g.gso = part & 2 ? 65536 : 0;
                g.sack = (part & 4) == 0;
                g.timestamps = (seed & 1) != 0;
                g.cc = seed % 3 == 0   ? CcKind::newreno
                       : seed % 3 == 1 ? CcKind::cubic
                                       : CcKind::bbr;
                g.seed = ++seed;
                run_point(g, 200000);
                if (HasFailure()) return;
            }
}
INSTANTIATE_TEST_SUITE_P(All, Grid, testing::Range(0, 8));

TEST(Goodput, CleanGigabitLinkIsFilled) {
    LinkParams p;
    p.rtt = Duration::millis(1);
    TcpLink link(p);
    for (Host* h : {&link.client, &link.server}) {
        h->cfg.max_gso_bytes = 65536;
        h->cfg.send_buffer = 4 << 20;
    }
    link.client.to_send = pattern(20 << 20, 7);
    link.start();
    const Instant began = link.now;
    ASSERT_TRUE(link.run(Duration::seconds(100)));
    EXPECT_TRUE(link.server.received == link.client.to_send);
    const double seconds = double((link.now - began).ns) * 1e-9;
    EXPECT_LT(seconds, 0.25);  // 0.174 s is the line rate
    EXPECT_EQ(link.server.error, 0);
}

TEST(Goodput, OnePercentLossAtTwentyMilliseconds) {
    LinkParams p;
    p.seed = 42;
    p.rtt = Duration::millis(20);
    p.loss_permille = 10;
    TcpLink link(p);
    for (Host* h : {&link.client, &link.server}) h->cfg.send_buffer = 4 << 20;
    link.client.to_send = pattern(10 << 20, 7);
    link.start();
    const Instant began = link.now;
    ASSERT_TRUE(link.run(Duration::seconds(600)));
    EXPECT_TRUE(link.server.received == link.client.to_send);
    const double seconds = double((link.now - began).ns) * 1e-9;
    RecordProperty("milliseconds", int(seconds * 1000));
    // Mathis for Reno gives about 0.9 MB/s here.
    EXPECT_LT(seconds, 16) << "rto " << link.client.t.count.timeouts;
    EXPECT_LE(link.client.t.count.timeouts, 20u);
}

// A retransmission timeout costs more than a round trip: with text behind the hole it must be the exception.
TEST(Goodput, FivePercentLossRarelyNeedsTheTimeout) {
    uint32_t timeouts = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        LinkParams p;
        p.seed = seed;
        p.rtt = Duration::millis(20);
        p.loss_permille = 50;
        TcpLink link(p);
        for (Host* h : {&link.client, &link.server}) h->cfg.send_buffer = 4 << 20;
        link.client.to_send = pattern(4 << 20, seed);
        link.start();
        ASSERT_TRUE(link.run(Duration::seconds(600))) << "seed " << seed;
        EXPECT_TRUE(link.server.received == link.client.to_send) << "seed " << seed;
        timeouts += link.client.t.count.timeouts;
    }
    EXPECT_LE(timeouts, 15u) << "48 without the rule for lost retransmissions";
}

}  // namespace
}  // namespace vma::tcp
