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

// SO_RXQ_OVFL: a datagram knows what was dropped before it was queued, not what was dropped since; of the tail of a train that
// does not fit the train itself knows nothing.
TEST_F(UdpEndpointTest, ADatagramTellsTheDropsBeforeIt) {
    UdpEndpoint e;
    e.set_receive_limit(0);
    const auto next = [&] {
        UdpDatagram d;
        EXPECT_TRUE(e.peek(d));
        const uint32_t drops = d.info->drops;
        e.consume();
        return drops;
    };
    const auto one_and_lost = [&](unsigned lost) {
        EXPECT_EQ(deliver(e, 10), DropReason::none);
        while (lost--) EXPECT_EQ(deliver(e, 10), DropReason::receive_queue_full);
    };
    one_and_lost(2);
    EXPECT_EQ(next(), 0u);
    one_and_lost(0);
    EXPECT_EQ(next(), 0u);  // not asked for
    e.set_tells_drops(true);
    one_and_lost(3);
    EXPECT_EQ(next(), 2u);
    EXPECT_EQ(deliver(e, 300, 100), DropReason::none);
    EXPECT_EQ(next(), 5u);
    one_and_lost(0);
    EXPECT_EQ(next(), 7u);
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

// A lent frame and a part of a super-frame are copied out, a packet of the pool is given as it is; each stays charged.
class LentMemory final : public PacketLender {
  public:
    void give_back(PacketBuf&) override { back++; }
    unsigned back = 0;
};

TEST_F(UdpEndpointTest, KeptDatagramsStayChargedAndInPlace) {
    UdpEndpoint e;
    const auto text = [](const Packet& p, const UdpRxInfo& info) {
        return Bytes(p->data + info.next, p->data + info.end);
    };
    UdpRxInfo info;
    EXPECT_FALSE(e.keep_front(pool, info));
    ASSERT_EQ(deliver(e, 100, 0, 7), DropReason::none);
    ASSERT_EQ(deliver(e, 250, 100, 8), DropReason::none);  // three datagrams
    Bytes lent_bytes(42 + 30, 9);
    LentMemory lender;
    {
        Packet lent = pool.lend(lent_bytes.data(), uint32_t(lent_bytes.size()), &lender, 0);
        UdpRxInfo lent_info;
        lent_info.next = 42;
        lent_info.end = 72;
        lent_info.charge = udp_charge(72);
        ASSERT_EQ(e.deliver(std::move(lent), lent_info), DropReason::none);
    }
    const uint32_t charged = e.charged();
    EXPECT_EQ(e.queued(), 5u);
    std::vector<Packet> kept;
    std::vector<UdpRxInfo> infos;
    const Bytes expected[] = {Bytes(100, 7), Bytes(100, 8), Bytes(100, 8), Bytes(50, 8),
                              Bytes(30, 9)};
    for (const Bytes& bytes : expected) {
        Packet p = e.keep_front(pool, info);
        ASSERT_TRUE(p);
        EXPECT_EQ(text(p, info), bytes);
        EXPECT_EQ(p->lender, nullptr);
        kept.push_back(std::move(p));
        infos.push_back(info);
    }
    EXPECT_EQ(lender.back, 1u);
    EXPECT_FALSE(e.readable());
    EXPECT_EQ(e.queued(), 0u);
    EXPECT_EQ(e.charged(), charged);
    e.set_receive_limit(charged - 1);
    EXPECT_EQ(deliver(e, 1), DropReason::receive_queue_full);
    for (const UdpRxInfo& i : infos) e.kept_returned(i.charge);
    EXPECT_EQ(e.charged(), 0u);
    EXPECT_EQ(deliver(e, 1), DropReason::none);
}

TEST_F(UdpEndpointTest, WithoutMemoryADatagramStaysInTheQueue) {
    UdpEndpoint e;
    ASSERT_EQ(deliver(e, 200, 100, 8), DropReason::none);
    const PoolLimits before = pool.limits();
    pool.set_limits({1, UINT64_MAX});
    UdpRxInfo info;
    EXPECT_FALSE(e.keep_front(pool, info));
    EXPECT_EQ(e.queued(), 2u);
    pool.set_limits(before);
    EXPECT_TRUE(e.keep_front(pool, info));
    EXPECT_EQ(e.queued(), 1u);
}

// UDP_GRO: a super-frame is kept as a whole, with what all its datagrams are charged.
TEST_F(UdpEndpointTest, AWholeTrainIsKeptAtOnce) {
    UdpEndpoint e;
    e.set_whole_trains(true);
    ASSERT_EQ(deliver(e, 250, 100, 8), DropReason::none);
    const uint32_t charged = e.charged();
    UdpRxInfo info;
    const Packet p = e.keep_front(pool, info);
    ASSERT_TRUE(p);
    EXPECT_EQ(info.end - info.next, 250u);
    EXPECT_EQ(info.charge, charged);
    EXPECT_EQ(e.queued(), 0u);
    EXPECT_EQ(e.charged(), charged);
    e.kept_returned(info.charge);
    EXPECT_EQ(e.charged(), 0u);
}

// What a screen has not let through is not there for readers; what it dropped or kept is charged until it is told.
TEST_F(UdpEndpointTest, AScreenStandsBeforeTheReaders) {
    UdpEndpoint e;
    e.screened = true;
    for (uint8_t fill = 1; fill <= 4; fill++) ASSERT_EQ(deliver(e, 10, 0, fill), DropReason::none);
    UdpDatagram d;
    EXPECT_FALSE(e.readable());
    EXPECT_FALSE(e.peek(d));
    EXPECT_EQ(e.next_size(), 0u);
    e.consume();
    EXPECT_EQ(e.queued(), 4u);
    EXPECT_TRUE(e.unscreened());
    const uint32_t each = e.charged() / 4;

    UdpRxInfo info;
    Packet first = e.screen_front(pool, info);
    e.pass(std::move(first), info);
    EXPECT_EQ(e.passed(), 1u);
    EXPECT_EQ(e.passed_bytes(), 10u);
    Packet second = e.screen_front(pool, info);  // dropped
    second.reset();
    e.kept_returned(info.charge);
    EXPECT_EQ(e.charged(), 3 * each);
    Packet third = e.screen_front(pool, info);  // kept for a while
    const uint32_t kept = info.charge;
    ASSERT_TRUE(e.peek(d));
    EXPECT_EQ(text(d.payload), Bytes(10, 1));
    EXPECT_EQ(e.next_size(), 10u);
    e.consume();
    EXPECT_FALSE(e.readable());
    EXPECT_EQ(e.passed() + e.passed_bytes(), 0u);
    EXPECT_EQ(e.charged(), 2 * each);

    e.screened = false;  // the rest is readable without it
    EXPECT_FALSE(e.unscreened());
    ASSERT_TRUE(e.peek(d));
    EXPECT_EQ(text(d.payload), Bytes(10, 4));
    e.purge();
    EXPECT_EQ(e.charged(), each);
    third.reset();
    e.kept_returned(kept);
    EXPECT_EQ(e.charged(), 0u);
}

// Stamps share the receive buffer with datagrams; unlike a datagram none passes the limit.
TEST_F(UdpEndpointTest, StampsAreChargedAndBounded) {
    UdpEndpoint e;
    e.set_receive_limit(10 * 768);
    ASSERT_EQ(deliver(e, 10), DropReason::none);
    TxStamp stamp;
    for (stamp.id = 0; e.queue_stamp(packet(Bytes(100)), stamp);) stamp.id++;
    EXPECT_EQ(stamp.id, 8u);
    EXPECT_EQ(e.charged(), 9u * 768);
    for (uint32_t id = 0; id < 8; id++) {
        ASSERT_NE(e.first_stamp(), nullptr);
        EXPECT_EQ(e.first_stamp()->as<TxStamp>().id, id);
        EXPECT_EQ(e.first_stamp()->len, 100u);
        e.consume_stamp();
    }
    EXPECT_EQ(e.first_stamp(), nullptr);
    EXPECT_EQ(e.charged(), 768u);
    EXPECT_TRUE(e.queue_stamp(packet(Bytes(100)), stamp));  // the endpoint's end frees it
}

}  // namespace
}  // namespace vma::test
