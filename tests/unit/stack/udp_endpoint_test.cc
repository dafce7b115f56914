#include "stack/udp_endpoint.h"

#include <deque>

#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

class UdpEndpointTest : public UdpFixture {
  protected:
    // A packet of `bytes` payload behind 42 bytes of header.
    Packet make(uint32_t bytes, uint16_t segment, UdpRxInfo& info, uint8_t fill = 0) {
        Packet p = packet(Bytes(42 + bytes, fill));
        info = {};
        info.source = {IpAddr::v4(kPeerIp), kPeerPort};
        info.next = 42;
        info.end = 42 + bytes;
        info.segment_size = segment;
        info.charge = udp_charge(42 + (segment ? segment : bytes));
        return p;
    }
    DropReason deliver(UdpEndpoint& e, uint32_t bytes, uint16_t segment = 0, uint8_t fill = 0) {
        UdpRxInfo info;
        Packet p = make(bytes, segment, info, fill);
        return e.deliver(std::move(p), info);
    }
};

// What kernel 6.18 charges (queue length in /proc/net/udp over loopback, one datagram of this payload); ours never more.
TEST(UdpCharge, NeverAboveTheKernel) {
    const struct {
        uint32_t payload, kernel;
    } seen[] = {{0, 832},    {1, 832},    {14, 832},    {100, 832},
                {500, 1280}, {700, 2304}, {1400, 2304}, {1472, 2304}};
    for (auto s : seen) EXPECT_LE(udp_charge(s.payload + 42), s.kernel) << s.payload;
    EXPECT_EQ(udp_charge(42), 768u);
    EXPECT_EQ(udp_charge(192), 768u);
    EXPECT_EQ(udp_charge(193), 832u);
}

TEST_F(UdpEndpointTest, LimitAdmitsOneDatagramPastIt) {
    UdpEndpoint e;
    e.set_receive_limit(10 * 768);
    unsigned taken = 0;
    while (deliver(e, 10) == DropReason::none) taken++;
    EXPECT_EQ(taken, 11u);
    EXPECT_EQ(e.counters.dropped_full, 1u);
    EXPECT_EQ(e.charged(), 11u * 768);
    EXPECT_EQ(e.counters.queued_max, 11u);
    e.consume();
    EXPECT_EQ(deliver(e, 10), DropReason::none);
    EXPECT_EQ(deliver(e, 10), DropReason::receive_queue_full);
}

TEST_F(UdpEndpointTest, ALimitOfZeroStillPassesOneAtATime) {
    UdpEndpoint e;
    e.set_receive_limit(0);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(deliver(e, 60000), DropReason::none);
        EXPECT_EQ(deliver(e, 1), DropReason::receive_queue_full);
        e.consume();
    }
}

TEST_F(UdpEndpointTest, EmptyDatagramsAreDatagrams) {
    UdpEndpoint e;
    EXPECT_EQ(deliver(e, 0), DropReason::none);
    EXPECT_EQ(deliver(e, 0, 100),
              DropReason::receive_queue_full);  // a train without a byte holds no datagram
    EXPECT_TRUE(e.readable());
    UdpDatagram d;
    ASSERT_TRUE(e.peek(d));
    EXPECT_TRUE(d.payload.empty());
    e.consume();
    EXPECT_FALSE(e.readable());
    e.consume();  // nothing there: nothing happens
    EXPECT_EQ(e.queued(), 0u);
}

TEST_F(UdpEndpointTest, TrainIsCutWhereTheLimitIs) {
    UdpEndpoint e;
    const uint32_t charge = udp_charge(42 + 100);
    e.set_receive_limit(2 * charge);
    EXPECT_EQ(deliver(e, 950, 100), DropReason::none);  // ten datagrams, three fit
    EXPECT_EQ(e.queued(), 3u);
    EXPECT_EQ(e.counters.dropped_full, 7u);
    EXPECT_EQ(e.counters.rx_bytes, 300u);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(e.next_size(), 100u);
        e.consume();
    }
    EXPECT_FALSE(e.readable());
    EXPECT_EQ(e.charged(), 0u);
}

TEST_F(UdpEndpointTest, PurgeAndDestructorFreeEverything) {
    {
        UdpEndpoint e;
        for (int i = 0; i < 5; i++) ASSERT_EQ(deliver(e, 500, 100), DropReason::none);
        e.consume();
        EXPECT_EQ(pool.counters().in_use, 5u);
        e.purge();
        EXPECT_EQ(pool.counters().in_use, 0u);
        EXPECT_EQ(e.charged(), 0u);
        ASSERT_EQ(deliver(e, 500), DropReason::none);
    }
    EXPECT_EQ(pool.counters().in_use, 0u);
}

TEST_F(UdpEndpointTest, ConnectKeepsWhatIsQueued) {
    UdpEndpoint e;
    ASSERT_EQ(deliver(e, 5), DropReason::none);
    e.remote = {IpAddr::v4(9, 9, 9, 9), 9};
    EXPECT_EQ(deliver(e, 5), DropReason::peer_mismatch);
    EXPECT_EQ(e.queued(), 1u);
}

// Random deliveries and reads against a queue of lengths; the charge is always that of what is unread.
TEST_F(UdpEndpointTest, EqualsAQueueOfDatagrams) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        UdpEndpoint e;
        e.set_receive_limit(20000);
        bool whole = false;
        struct Want {
            uint32_t bytes, charge;
            uint8_t fill;
            uint64_t packet;
            uint32_t count;  // datagrams
        };
        std::deque<Want> want;
        uint64_t charged = 0, queued = 0, lost = 0;
        for (uint64_t step = 0; step < 2000; step++) {
            if (rng.chance(1, 8)) e.set_whole_trains(whole = !whole);
            if (rng.chance(1, 2)) {
                const uint32_t bytes = rng.below(2000);
                const auto segment = uint16_t(rng.chance(1, 3) ? 1 + rng.below(600) : 0);
                const auto fill = uint8_t(rng.next() >> 33);
                if (segment != 0 && bytes == 0) continue;
                const uint32_t charge = udp_charge(42 + (segment ? segment : bytes));
                bool some = false;
                for (uint32_t at = 0; at < std::max(bytes, 1u);
                     at += segment ? segment : std::max(bytes, 1u)) {
                    if (charged > 20000) {
                        lost++;
                        continue;
                    }
                    some = true;
                    charged += charge;
                    queued++;
                    const uint32_t size = segment ? std::min<uint32_t>(segment, bytes - at) : bytes;
                    if (whole && !want.empty() && want.back().packet == step) {
                        want.back().bytes += size;
                        want.back().charge += charge;
                        want.back().count++;
                    } else {
                        want.push_back({size, charge, fill, step, 1});
                    }
                }
                ASSERT_EQ(deliver(e, bytes, segment, fill),
                          some ? DropReason::none : DropReason::receive_queue_full)
                    << step;
            } else if (!want.empty()) {
                UdpDatagram d;
                ASSERT_TRUE(e.peek(d));
                ASSERT_EQ(d.payload.size(), want.front().bytes) << step;
                if (!d.payload.empty()) {
                    ASSERT_EQ(d.payload[0], want.front().fill);
                }
                charged -= want.front().charge;
                queued -= want.front().count;
                want.pop_front();
                e.consume();
            }
            ASSERT_EQ(e.queued(), queued) << step;
            ASSERT_EQ(e.charged(), charged) << step;
            ASSERT_EQ(e.counters.dropped_full, lost) << step;
        }
    }
}

}  // namespace
}  // namespace vma::test
