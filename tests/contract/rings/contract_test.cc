// What src/dev/ring.h promises, over every kind of ring.
#include <unistd.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "ring_pair.h"
#include "support/root.h"
#include "wait.h"

namespace vma::test {
namespace {

class RingContract : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (GetParam() == "packet") {
            NEEDS_ROOT("a packet ring");
            auto p = std::make_unique<PacketPair>(1u << 20);
            ASSERT_TRUE(p->ring[1]) << p->why;
            pair = std::move(p);
        } else if (GetParam() == "xdp" || GetParam() == "xdp_native") {
            NEEDS_ROOT("an xdp ring");
            auto p = std::make_unique<XdpPair>(
                GetParam() == "xdp" ? XdpMode::automatic : XdpMode::native, 1u << 20);
            ASSERT_TRUE(p->ring[1]) << p->why;
            pair = std::move(p);
        } else if (GetParam() == "shm") {
            auto p = std::make_unique<ShmPair>();
            ASSERT_TRUE(p->ring[1]) << p->why;
            pair = std::move(p);
        } else if (GetParam() == "verbs" || GetParam() == "mlx5") {
            VerbsRingConfig c;
            c.stamps = true;  // as by default
            c.mlx5 = GetParam() == "mlx5";
            auto p = std::make_unique<VerbsPair>(c);
            ASSERT_TRUE(p->ring[1]) << p->why;
            pair = std::move(p);
        } else {
            pair = std::make_unique<VirtualPair>();
        }
    }
    void TearDown() override {
        if (!pair) return;
        for (Pool& p : pair->pools) EXPECT_EQ(p.pool.counters().in_use, 0u);
    }
    Ring& out() { return *pair->ring[0]; }
    Ring& in() { return *pair->ring[1]; }
    std::unique_ptr<RingPair> pair;
};

TEST_P(RingContract, frames_arrive_as_sent_at_every_size) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    for (uint32_t payload = 0; payload <= in().caps().mtu - 28; payload += payload < 64 ? 1 : 13) {
        FrameSpec s = pair->spec(9000, 7000, payload);
        s.seed = payload;
        s.finished = payload & 1;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.plain(!s.finished)), 0) << payload;
        auto got = receive(in(), 1);
        ASSERT_EQ(got.size(), 1u) << payload;
        EXPECT_TRUE(same_frame(got[0]->view(), f)) << payload;
        EXPECT_EQ(got[0]->meta.gso_size, 0);
        EXPECT_TRUE(s.finished || got[0]->meta.checksum_good) << "unfinished and not vouched for";
    }
}

TEST_P(RingContract, super_frames_keep_their_bytes) {
    ASSERT_TRUE(in().steer(pair->flow(7000, 0, IPPROTO_TCP)));
    const uint16_t mss = 1448;
    for (uint32_t payload : {2 * 1448u, 10 * 1448u + 1, 44 * 1448u}) {
        FrameSpec s = pair->spec(9000, 7000, payload);
        s.protocol = IPPROTO_TCP;
        s.finished = false;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.segmented(mss, Gso::tcp_v4)), 0);
        std::vector<uint8_t> stream;
        while (stream.size() < payload) {
            auto got = receive(in(), 1);
            ASSERT_EQ(got.size(), 1u) << stream.size() << " of " << payload;
            const ByteView v = got[0]->view();
            if (v.size() > 1514u) {
                EXPECT_EQ(got[0]->meta.gso_size, mss);
            }
            stream.insert(stream.end(), v.begin() + f.head, v.end());
        }
        ASSERT_EQ(stream.size(), payload);
        EXPECT_EQ(std::memcmp(stream.data(), f.bytes.data() + f.head, payload), 0);
    }
}

TEST_P(RingContract, order_is_kept_and_batches_are_bounded) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    constexpr unsigned kFrames = 500;
    for (unsigned i = 0; i < kFrames; ++i) {
        FrameSpec s = pair->spec(9000, 7000, 32);
        s.seed = i;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.plain()), 0);
    }
    unsigned next = 0;
    const int64_t end = clock_ns() + 5'000'000'000;
    while (next < kFrames && clock_ns() < end) {
        Packet batch[8];
        const unsigned n = in().recv({batch, 7});
        ASSERT_LE(n, 7u);
        EXPECT_FALSE(batch[7]);
        for (unsigned i = 0; i < n; ++i, ++next) {
            ASSERT_EQ(batch[i]->len, 42u + 32u);
            for (unsigned k = 0; k < 32; ++k)
                ASSERT_EQ(batch[i]->data[42 + k], payload_byte(next, k)) << next;
        }
    }
    EXPECT_EQ(next, kFrames);
}

// Packets are held for a random time and come back in random order; what is held keeps its bytes, and nobody's holding on
// stops the ring.
TEST_P(RingContract, packets_come_back_in_any_order) {
    const uint32_t seed = 20250101;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    struct Held {
        Packet packet;
        uint32_t seed;
        uint32_t payload;
    };
    std::vector<Held> held;
    std::deque<std::pair<uint32_t, uint32_t>> expected;  // seed, payload
    auto check = [](const Held& h) {
        ASSERT_EQ(h.packet->len, 42 + h.payload);
        for (uint32_t k = 0; k < h.payload; ++k)
            ASSERT_EQ(h.packet->data[42 + k], payload_byte(h.seed, k)) << h.seed;
    };
    Packet forgotten;  // held from the start to the end
    for (uint32_t i = 0; i < 12000; ++i) {
        FrameSpec s = pair->spec(9000, 7000, 18 + random() % 1400);
        s.seed = i;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.plain()), 0);
        expected.push_back({i, s.payload});
        if (random() % 4) continue;
        for (Packet& p : receive(in(), expected.size())) {
            held.push_back({std::move(p), expected.front().first, expected.front().second});
            expected.pop_front();
        }
        ASSERT_TRUE(expected.empty()) << "frame " << expected.front().first << " did not arrive";
        if (!forgotten && !held.empty()) forgotten = std::move(held.back().packet), held.pop_back();
        while (held.size() > random() % 64) {
            const size_t k = random() % held.size();
            check(held[k]);
            std::swap(held[k], held.back());
            held.pop_back();
        }
    }
    EXPECT_EQ(in().counters().drops.sum(), 0u);
    EXPECT_TRUE(forgotten);
    for (const Held& h : held) check(h);
}

TEST_P(RingContract, a_backlog_is_through_when_its_last_frame_was_received) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    EXPECT_TRUE(in().backlog().is_through(in().backlog())) << "nothing has arrived";
    Frame f = build_frame(pair->spec(9000, 7000, 32));
    RingBacklog there;
    for (int round = 0; round < 10; ++round) {
        ASSERT_EQ(send_one(out(), f.plain()), 0);
        const int64_t end = clock_ns() + 5'000'000'000;
        do there = in().backlog();
        while (there.is_through(in().backlog()) && clock_ns() < end);
        ASSERT_FALSE(there.is_through(in().backlog())) << "it has arrived";
        ASSERT_EQ(send_one(out(), f.plain()), 0);
        ASSERT_EQ(receive(in(), 1).size(), 1u);
        EXPECT_TRUE(there.is_through(in().backlog())) << "what came later does not count";
        ASSERT_EQ(receive(in(), 1).size(), 1u);
    }
}

TEST_P(RingContract, an_empty_pool_delays_and_loses_nothing) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    pair->pools[1].pool.set_limits({8, UINT64_MAX});
    for (unsigned i = 0; i < 40; ++i) {
        FrameSpec s = pair->spec(9000, 7000, 32);
        s.seed = i;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.plain()), 0);
    }
    unsigned next = 0;
    for (int round = 0; round < 5; ++round) {
        auto got = receive(in(), 8);
        ASSERT_EQ(got.size(), 8u);
        Packet more[4];
        EXPECT_EQ(in().recv(more), 0u);
        for (Packet& p : got) EXPECT_EQ(p->data[42 + 1], payload_byte(next++, 1));
    }
    EXPECT_EQ(in().counters().drops.sum(), 0u);
}

TEST_P(RingContract, only_steered_flows_arrive) {
    auto send_to = [&](uint16_t from, uint16_t to, uint8_t protocol = IPPROTO_UDP) {
        FrameSpec s = pair->spec(from, to);
        s.protocol = protocol;
        Frame f = build_frame(s);
        ASSERT_EQ(send_one(out(), f.plain()), 0);
    };
    send_to(9000, 7000);
    EXPECT_EQ(drain(in()), 0u) << "nothing is steered yet";

    ASSERT_TRUE(in().steer(pair->flow(7000, 9000)));
    EXPECT_EQ(in().steer(pair->flow(7000, 9000)).error(), EEXIST);
    send_to(9000, 7000);
    EXPECT_EQ(receive(in(), 1).size(), 1u);
    send_to(9001, 7000);               // other remote port
    send_to(9000, 7001);               // other local port
    send_to(9000, 7000, IPPROTO_TCP);  // other protocol
    EXPECT_EQ(drain(in()), 0u);

    ASSERT_TRUE(in().steer(pair->flow(7000))) << "unconnected beside connected";
    send_to(9001, 7000);
    send_to(9000, 7000);
    EXPECT_EQ(receive(in(), 2).size(), 2u);

    in().unsteer(pair->flow(7000));
    in().unsteer(pair->flow(7000));  // twice is harmless
    send_to(9001, 7000);
    EXPECT_EQ(drain(in()), 0u);
    send_to(9000, 7000);
    EXPECT_EQ(receive(in(), 1).size(), 1u) << "the connected one is still there";
    in().unsteer(pair->flow(7000, 9000));
    send_to(9000, 7000);
    EXPECT_EQ(drain(in()), 0u);
    ASSERT_TRUE(in().steer(pair->flow(7000, 9000))) << "free again";

    FlowKey any = pair->flow(7100);
    any.local.addr = IpAddr::any_v4();
    EXPECT_EQ(in().steer(any).error(), EINVAL);
    FlowKey group = pair->flow(7100);
    group.local.addr = IpAddr::v4(239, 1, 1, 1);
    EXPECT_EQ(in().steer(group).error(), EINVAL);
    EXPECT_EQ(in().steer(pair->flow(7100, 0, 132)).error(), EINVAL);
}

// The reader sleeps at every chance, the sender sends at random moments: no frame may wait for the next one to be seen.
TEST_P(RingContract, sleeping_loses_no_wake_up) {
    const uint32_t seed = 77;
    SCOPED_TRACE(seed);
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    constexpr uint32_t kFrames = 4000;
    std::atomic<uint32_t> seen{0};
    std::atomic<bool> failed{false};
    std::thread sender([&] {
        std::mt19937 random(seed);
        for (uint32_t i = 0; i < kFrames && !failed; ++i) {
            FrameSpec s = pair->spec(9000, 7000, 32);
            Frame f = build_frame(s);
            if (send_one(out(), f.plain()) != 0) failed = true;
            if (random() % 3 ==
                0) {  // each frame alone: the next one must not cover up a lost wake-up
                const int64_t end = clock_ns() + 5'000'000'000;
                while (seen <= i && !failed)
                    if (clock_ns() > end) failed = true;
            }
            std::atomic<uint32_t> spin{uint32_t(random() % 3000)};
            while (spin != 0) spin--;
        }
    });
    uint32_t slept = 0;
    while (seen < kFrames && !failed) {
        Packet batch[16];
        const unsigned n = in().recv(batch);
        seen += n;
        if (n) continue;
        if (!in().arm()) continue;
        ++slept;
        pollfd p{in().wake_fd(), POLLIN, 0};
        if (poll(&p, 1, 4000) != 1) failed = true;
        in().disarm();
    }
    EXPECT_FALSE(failed) << "after " << seen << " frames, " << slept << " sleeps";
    failed = true;
    sender.join();
    EXPECT_EQ(seen, kFrames);
    EXPECT_GT(slept, 10u);
    // Quiet and armed: not readable.
    ASSERT_TRUE(in().arm());
    pollfd p{in().wake_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 30), 0);
    in().disarm();
}

TEST_P(RingContract, sleeping_with_packets_held_is_sleeping) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    Frame f = build_frame(pair->spec(9000, 7000));
    ASSERT_EQ(send_one(out(), f.plain()), 0);
    auto held = receive(in(), 1);
    ASSERT_EQ(held.size(), 1u);
    ASSERT_TRUE(in().arm());
    pollfd p{in().wake_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 30), 0) << "the held packet must not keep the descriptor readable";
    ASSERT_EQ(send_one(out(), f.plain()), 0);
    EXPECT_EQ(poll(&p, 1, 4000), 1);
    in().disarm();
    EXPECT_EQ(receive(in(), 1).size(), 1u);
    EXPECT_TRUE(same_frame(held[0]->view(), f));
    ASSERT_EQ(send_one(out(), f.plain()), 0);
    const int64_t end = clock_ns() + 2'000'000'000;
    bool armed = true;  // until the frame is there
    while (armed && clock_ns() < end) {
        armed = in().arm();
        in().disarm();
    }
    EXPECT_FALSE(armed) << "arm() sees what is there already";
    EXPECT_EQ(receive(in(), 1).size(), 1u);
}

TEST_P(RingContract, counters_add_up) {
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 200; ++i) {
        Frame f = build_frame(pair->spec(9000, 7000, 20 + i));
        ASSERT_EQ(send_one(out(), f.plain()), 0);
        bytes += f.bytes.size();
    }
    EXPECT_EQ(receive(in(), 200).size(), 200u);
    const RingCounters tx = out().counters(), rx = in().counters();
    EXPECT_EQ(tx.tx_frames, 200u);
    EXPECT_EQ(tx.tx_bytes, bytes);
    EXPECT_EQ(rx.rx_frames, 200u);
    EXPECT_EQ(rx.rx_bytes, bytes);
    EXPECT_EQ(rx.drops.sum(), 0u);

    // Nobody reads: what does not fit is dropped and counted, the oldest stay. Or it is refused, and nothing is lost.
    unsigned flood = 12000;
    for (unsigned i = 0; i < flood; ++i) {
        FrameSpec s = pair->spec(9000, 7000, 1000);
        s.seed = i;
        Frame f = build_frame(s);
        if (!out().caps().pushes_back) {
            ASSERT_EQ(send_one(out(), f.plain()), 0);
            continue;
        }
        int why = 0;
        const TxFrame t = f.plain();
        if (out().send({&t, 1}, &why) == 1) continue;
        EXPECT_EQ(why, EAGAIN);
        EXPECT_EQ(out().counters().tx_refused, 1u);
        EXPECT_FALSE(out().has_room({{pair->addr[0], 9000}, {pair->addr[1], 7000}, IPPROTO_UDP}));
        ASSERT_GT(i, 100u);
        flood = i;
    }
    // A lower limit first: frames may still be under way.
    unsigned got = 0;
    bool in_order = true;
    for (;;) {
        auto some = receive(in(), 1, 200);
        if (some.empty()) break;
        in_order = in_order && some[0]->data[42 + 3] == payload_byte(got, 3);
        if (got < 100) {
            EXPECT_TRUE(in_order) << got;
        }
        ++got;
    }
    EXPECT_EQ(got + in().counters().drops[DropReason::ring_full], flood);
    EXPECT_EQ(got + in().counters().drops.sum(), flood);
    if (out().caps().pushes_back) {
        EXPECT_EQ(got, flood);
        Frame f = build_frame(pair->spec(9000, 7000, 1000));
        EXPECT_TRUE(out().has_room({{pair->addr[0], 9000}, {pair->addr[1], 7000}, IPPROTO_UDP}));
        EXPECT_EQ(send_one(out(), f.plain()), 0) << "room again";
        EXPECT_EQ(receive(in(), 1).size(), 1u);
    } else {
        EXPECT_LT(got, flood);
    }
}

TEST_P(RingContract, too_large_is_refused_with_the_reason) {
    Frame f = build_frame(pair->spec(9000, 7000, in().caps().mtu));
    int why = 0;
    const TxFrame t = f.plain();
    EXPECT_EQ(out().send({&t, 1}, &why), 0u);
    EXPECT_EQ(why, EMSGSIZE);
    EXPECT_EQ(out().counters().tx_refused, 1u);
}

TEST_P(RingContract, garbage_neither_harms_nor_stays) {
    const uint32_t seed = 4711;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ASSERT_TRUE(in().steer(pair->flow(7000)));
    ASSERT_TRUE(in().steer(pair->flow(7000, 0, IPPROTO_TCP)));
    for (int i = 0; i < 20000; ++i) {
        FrameSpec s = pair->spec(9000, 7000, random() % 200);
        s.protocol = random() % 2 ? IPPROTO_UDP : IPPROTO_TCP;
        s.ip_option_words = random() % 11;
        if (random() % 4 == 0) s.fragment = uint16_t(random());
        Frame f = build_frame(s);
        switch (random() % 6) {
            case 0:
                f.bytes.resize(14 + random() % (f.bytes.size() - 13));
                break;  // cut
            case 1:
                store_be16(&f.bytes[16], uint16_t(random()));
                break;  // total length
            case 2:
                f.bytes[14] = uint8_t(0x40 | random() % 16);
                break;  // header length
            case 3:
                f.bytes[f.l4 + f.csum_offset] ^= 0x55;
                break;  // checksum
            case 4:
                store_be16(&f.bytes[12], 0x8100), store_be16(&f.bytes[14], uint16_t(random()));
                break;  // VLAN
            default:
                for (unsigned k = 0; k < 8; ++k)
                    f.bytes[random() % f.bytes.size()] = uint8_t(random());
        }
        TxFrame t;
        t.head = f.view();
        if (t.head.size() > 100) {  // headers only in head
            t = TxFrame{};
            f.head = 60;
            t = f.plain();
        }
        int why;
        (void)out().send({&t, 1}, &why);
        if (i % 16) continue;
        Packet batch[32];
        const unsigned n = in().recv(batch);
        for (unsigned k = 0; k < n; ++k) {
            ASSERT_GE(batch[k]->len, 14u);
            volatile uint8_t sum = 0;  // every byte can be read
            for (uint8_t byte : batch[k]->view()) sum = uint8_t(sum + byte);
        }
    }
    drain(in());
    Frame good = build_frame(pair->spec(9000, 7000));
    ASSERT_EQ(send_one(out(), good.plain()), 0);
    auto got = receive(in(), 1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(same_frame(got[0]->view(), good));
}

INSTANTIATE_TEST_SUITE_P(rings, RingContract,
                         testing::Values("virtual", "packet", "xdp", "xdp_native", "shm", "verbs",
                                         "mlx5"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace vma::test
