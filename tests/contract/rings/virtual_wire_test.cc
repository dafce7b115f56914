// The virtual wire's own tools: time, loss, duplication, reordering, corruption, the same for the same seed.
#include "support/virtual_wire.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ring_pair.h"
#include "wait.h"

namespace vma::test {
namespace {

struct Outcome {
    std::vector<uint32_t> order;  // sequence numbers as they arrived
    unsigned bad = 0;             // not vouched for
    WireCounters counters;
};

Outcome send_numbered(const WireConfig& config, uint32_t frames) {
    Pool pools[2];
    VirtualWire wire(config, pools[0].pool, pools[1].pool);
    FlowKey k;
    k.local = {IpAddr::v4(10, 99, 0, 2), 7000};
    k.protocol = IPPROTO_UDP;
    EXPECT_TRUE(wire.end(1).steer(k));
    Outcome run;
    auto take = [&] {
        Packet p[1];
        while (wire.end(1).recv(p)) {
            run.order.push_back(load_be32(p[0]->data + 42));
            run.bad += !p[0]->meta.checksum_good;
            p[0].reset();
        }
    };
    for (uint32_t i = 0; i < frames; ++i) {
        FrameSpec s;
        s.src = {IpAddr::v4(10, 99, 0, 1), 9000};
        s.dst = k.local;
        Frame f = build_frame(s);
        const uint32_t number = __builtin_bswap32(i);
        std::memcpy(&f.bytes[42], &number, 4);
        EXPECT_EQ(send_one(wire.end(0), f.plain()), 0);
        wire.advance(wire.now() + Duration::micros(5));
        take();
    }
    while (!wire.next_event().is_never()) {
        wire.advance(wire.next_event());
        take();
    }
    run.counters = wire.counters();
    return run;
}

TEST(virtual_wire, frames_take_their_time) {
    Pool pools[2];
    VirtualWire wire({.latency = Duration::micros(10)}, pools[0].pool, pools[1].pool);
    FlowKey k;
    k.local = {IpAddr::v4(10, 99, 0, 2), 7000};
    k.protocol = IPPROTO_UDP;
    ASSERT_TRUE(wire.end(1).steer(k));
    FrameSpec s;
    s.src = {IpAddr::v4(10, 99, 0, 1), 9000};
    s.dst = k.local;
    Frame f = build_frame(s);
    ASSERT_EQ(send_one(wire.end(0), f.plain()), 0);
    EXPECT_EQ(wire.next_event(), Instant{10000});
    Packet p[1];
    wire.advance(Instant{9999});
    EXPECT_EQ(wire.end(1).recv(p), 0u);
    wire.advance(Instant{10000});
    EXPECT_EQ(wire.end(1).recv(p), 1u);
    EXPECT_TRUE(wire.next_event().is_never());
    EXPECT_EQ(wire.now(), Instant{10000});
}

TEST(virtual_wire, misfortunes_come_at_their_rate_and_repeat_with_the_seed) {
    constexpr uint32_t kFrames = 10000;
    WireConfig c{.latency = Duration::micros(20),
                 .lose = {1, 50},
                 .duplicate = {1, 100},
                 .reorder = {1, 25},
                 .seed = 9};
    c.reorder_delay = Duration::micros(100);
    const Outcome one = send_numbered(c, kFrames), same = send_numbered(c, kFrames);
    EXPECT_EQ(one.order, same.order);
    c.seed = 10;
    EXPECT_NE(one.order, send_numbered(c, kFrames).order);

    const WireCounters& n = one.counters;
    EXPECT_EQ(n.sent, kFrames);
    EXPECT_NEAR(double(n.lost), kFrames / 50.0, 60);
    EXPECT_NEAR(double(n.duplicated), kFrames / 100.0, 50);
    EXPECT_NEAR(double(n.reordered), kFrames / 25.0, 100);
    EXPECT_EQ(one.order.size(), kFrames - n.lost + n.duplicated);
    EXPECT_FALSE(std::is_sorted(one.order.begin(), one.order.end()));
    std::set<uint32_t> distinct(one.order.begin(), one.order.end());
    EXPECT_EQ(distinct.size(), kFrames - n.lost);
}

TEST(virtual_wire, a_clean_wire_keeps_all_in_order) {
    const Outcome run = send_numbered({.latency = Duration::micros(20)}, 1000);
    EXPECT_EQ(run.order.size(), 1000u);
    EXPECT_TRUE(std::is_sorted(run.order.begin(), run.order.end()));
    EXPECT_EQ(run.bad, 0u);
}

TEST(virtual_wire, damaged_frames_are_not_vouched_for) {
    const Outcome run = send_numbered({.latency = Duration::micros(20), .corrupt = {1, 10}}, 2000);
    EXPECT_GT(run.counters.corrupted, 100u);
    EXPECT_GT(run.bad, 20u);
    EXPECT_LE(run.bad, run.counters.corrupted);
    EXPECT_EQ(run.order.size() + run.counters.to_kernel, 2000u)
        << "a damaged address leads elsewhere";
}

}  // namespace
}  // namespace vma::test
