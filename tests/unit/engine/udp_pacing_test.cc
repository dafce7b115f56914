// UdpPacing: what leaves at once, what waits, who is told, what becomes of it when the socket goes. Virtual time.
#include "engine/udp_pacing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/own_fd.h"
#include "engine/shard.h"
#include "support/quiet_ring.h"

namespace vma {
namespace {

// Keeps the first byte of the payload and the size of what is sent; refuses while it is full.
class KeepingRing final : public QuietRing {
  public:
    ~KeepingRing() override {
        if (at_end) *at_end = sent;
    }
    unsigned send(std::span<const TxFrame> frames, int* why) override {
        if (error) {
            *why = error;
            return 0;
        }
        for (const TxFrame& f : frames) {
            sent.push_back(static_cast<const uint8_t*>(f.payload[0].iov_base)[0]);
            bytes += f.wire_bytes();
            super_frames += f.gso == Gso::udp_l4 && f.gso_size == 1000;
            EXPECT_EQ(f.head.size(), 42u);
            EXPECT_EQ(f.csum_start, 34u);
        }
        return unsigned(frames.size());
    }
    std::vector<uint8_t> sent;
    uint64_t bytes = 0;
    unsigned super_frames = 0;
    int error = 0;
    std::vector<uint8_t>* at_end = nullptr;  // gets `sent` when the ring goes
};

class Told final : public ReadySink {
  public:
    void udp_ready(UdpEndpoint&) override {}
    void udp_writable(UdpEndpoint&) override { writable++; }
    void udp_stamped(UdpEndpoint&) override { stamped++; }
    unsigned writable = 0, stamped = 0;
};

class UdpPacingTest : public testing::Test {
  protected:
    static constexpr uint32_t kFrame = 1042;
    static constexpr uint32_t kRate =
        1'042'000;  // a frame in a millisecond; the bucket holds two of 1514

    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        pool_ = (*arena)->make<PacketPool>(**arena, PoolLimits{});
        ring_ = new KeepingRing;
        Shard::Parts parts;
        parts.arena = *arena;
        parts.pool = pool_;
        parts.ring = ring_;
        parts.secret = 1;
        shard_ = Shard::make(parts);
        ASSERT_NE(shard_, nullptr);
        Shard::set_sink(&told_);
        endpoint_ = shard_->make_udp({IpAddr::any_v4(), 7777});
        flow_ = pacing().open(*endpoint_);
        ASSERT_NE(flow_, nullptr);
        pacing().set(*flow_, kRate, 20 * udp_charge(kFrame), now_);
    }
    void TearDown() override {
        EXPECT_EQ(pool_->counters().in_use, 0u);
        Shard::set_sink(nullptr);
        shard_->close_ring();
    }
    UdpPacing& pacing() { return shard_->pacing(); }
    int send(uint8_t number, const TxStampRequest& stamps = {}, unsigned segments = 1) {
        uint8_t head[42] = {};
        std::vector<uint8_t> payload(1000 * segments, number);
        iovec piece{payload.data(), payload.size()};
        TxFrame frame;
        frame.head = {head, sizeof head};
        frame.payload = &piece;
        frame.payload_count = 1;
        frame.payload_len = uint32_t(payload.size());
        frame.csum_start = 34;
        frame.csum_offset = 6;
        if (segments > 1) {
            frame.gso = Gso::udp_l4;
            frame.gso_size = 1000;
        }
        return pacing().send(*flow_, frame, now_, stamps);
    }
    void pass(Duration d) {
        for (const Instant end = now_ + d; pacing().next() <= end; pacing().run(now_))
            now_ = std::max(now_, pacing().next());
    }

    OwnFd memory_;
    PacketPool* pool_ = nullptr;
    KeepingRing* ring_ = nullptr;
    Shard* shard_ = nullptr;
    UdpEndpoint* endpoint_ = nullptr;
    PacedFlow* flow_ = nullptr;
    Told told_;
    Instant now_{1'000'000'000};
};

TEST_F(UdpPacingTest, InOrderAndInTime) {
    for (uint8_t i = 0; i < 10; i++) ASSERT_EQ(send(i), 0);
    EXPECT_EQ(ring_->sent.size(), 2u);
    EXPECT_EQ(shard_->pacing_deadline(), pacing().next());
    const Instant begun = now_;
    while (!pacing().next().is_never()) {
        now_ = pacing().next();
        pacing().run(now_);
        // The bucket: two frames of 1514 at the start.
        EXPECT_LE(double(ring_->bytes), 3028 + kRate * double((now_ - begun).ns) / 1e9 + 1);
    }
    EXPECT_EQ(ring_->sent, (std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_GE((now_ - begun).ns, Duration::millis(7).ns);
    EXPECT_TRUE(shard_->pacing_deadline().is_never());
}

// Half a burst at most is one super-frame, and it costs what its frames do, whether it waits or not.
TEST_F(UdpPacingTest, SuperFrames) {
    EXPECT_EQ(flow_->train(kFrame), 1u);  // two of 1514 bytes are a burst
    const uint64_t rate = 100 * 1000 * uint64_t(kFrame);
    pacing().set(*flow_, rate, 1 << 20, now_);
    EXPECT_EQ(flow_->train(kFrame), 50u);
    for (unsigned i = 0; i < 6; i++) EXPECT_EQ(send(uint8_t(i), {}, 50), 0);
    EXPECT_EQ(ring_->bytes, 100u * kFrame);  // the burst
    pass(Duration::micros(499));
    EXPECT_EQ(ring_->bytes, 100u * kFrame);
    pass(Duration::micros(501));
    EXPECT_EQ(ring_->bytes, 150u * kFrame);
    pass(Duration::micros(1501));
    EXPECT_EQ(ring_->bytes, 300u * kFrame);
    EXPECT_EQ(ring_->super_frames, 6u);
}

TEST_F(UdpPacingTest, RoomAndReadiness) {
    unsigned taken = 0;
    for (; flow_->has_room(); taken++) ASSERT_EQ(send(uint8_t(taken)), 0);
    EXPECT_EQ(taken, 22u);
    EXPECT_FALSE(flow_->is_writable());
    pass(Duration::millis(5));
    EXPECT_TRUE(flow_->has_room());
    EXPECT_FALSE(flow_->is_writable());
    EXPECT_EQ(told_.writable, 0u);
    pass(Duration::millis(100));
    EXPECT_TRUE(flow_->is_writable());
    EXPECT_EQ(told_.writable, 1u);
    EXPECT_EQ(ring_->sent.size(), taken);
}

TEST_F(UdpPacingTest, AClosedSocketsFramesLeaveInTheirTime) {
    for (uint8_t i = 0; i < 6; i++) ASSERT_EQ(send(i), 0);
    pacing().close(*flow_);
    EXPECT_EQ(ring_->sent.size(), 2u);
    pass(Duration::millis(100));
    EXPECT_EQ(ring_->sent.size(), 6u);
    EXPECT_EQ(told_.writable, 0u);
}

TEST_F(UdpPacingTest, FlushedAtOnce) {
    for (uint8_t i = 0; i < 6; i++) ASSERT_EQ(send(i), 0);
    pacing().flush(*flow_, now_);
    EXPECT_EQ(ring_->sent, (std::vector<uint8_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_TRUE(pacing().next().is_never());
}

TEST_F(UdpPacingTest, AFullDeviceIsAskedAgain) {
    ring_->error = ENOBUFS;
    for (uint8_t i = 0; i < 3; i++) ASSERT_EQ(send(i), 0);
    pacing().run(now_);
    EXPECT_TRUE(ring_->sent.empty());
    EXPECT_GT(pacing().next(), now_);
    EXPECT_LE(pacing().next(), now_ + Duration::millis(1));
    ring_->error = 0;
    pass(Duration::millis(100));
    EXPECT_EQ(ring_->sent, (std::vector<uint8_t>{0, 1, 2}));
    // What it refuses for good is lost, and does not stop the others.
    for (uint8_t i = 3; i < 6; i++) ASSERT_EQ(send(i), 0);
    ring_->error = ENETDOWN;
    pass(Duration::millis(2));
    ring_->error = 0;
    pass(Duration::millis(100));
    EXPECT_TRUE(pacing().next().is_never());
}

TEST_F(UdpPacingTest, AnotherRate) {
    for (uint8_t i = 0; i < 20; i++) ASSERT_EQ(send(i), 0);
    EXPECT_EQ(ring_->sent.size(), 2u);
    pacing().set(*flow_, 0, 20 * udp_charge(kFrame), now_);
    EXPECT_EQ(ring_->sent.size(), 20u);
}

// Of a frame that waits the one stamp is made at once, the other when it leaves; of one that leaves at once both.
TEST_F(UdpPacingTest, StampsOfWhatWaits) {
    TxStampRequest stamps;
    stamps.kinds = kStampScheduled | kStampSent;
    stamps.with_frame = true;
    for (stamps.id = 0; stamps.id < 3; stamps.id++) ASSERT_EQ(send(uint8_t(stamps.id), stamps), 0);
    ASSERT_EQ(ring_->sent.size(), 2u);
    EXPECT_EQ(told_.stamped, 5u);
    pass(Duration::millis(10));
    EXPECT_EQ(told_.stamped, 6u);
    const struct {
        uint32_t id;
        TxStampKind kind;
    } expected[] = {{0, kStampScheduled}, {0, kStampSent},      {1, kStampScheduled},
                    {1, kStampSent},      {2, kStampScheduled}, {2, kStampSent}};
    for (const auto& e : expected) {
        PacketBuf* const stamp = endpoint_->first_stamp();
        ASSERT_NE(stamp, nullptr);
        EXPECT_EQ(stamp->as<TxStamp>().id, e.id);
        EXPECT_EQ(stamp->as<TxStamp>().kind, e.kind);
        ASSERT_EQ(stamp->len, kFrame);
        EXPECT_EQ(stamp->data[42], e.id);
        endpoint_->consume_stamp();
    }
    EXPECT_EQ(endpoint_->first_stamp(), nullptr);
}

// Nobody hears of what leaves after the socket is closed, nor of a frame that the device refuses.
TEST_F(UdpPacingTest, NoStampWithoutASocketOrAFrame) {
    TxStampRequest stamps;
    stamps.kinds = kStampSent;
    ring_->error = EMSGSIZE;
    EXPECT_EQ(send(1, stamps), EMSGSIZE);
    EXPECT_EQ(told_.stamped, 0u);
    ring_->error = 0;
    for (uint8_t i = 0; i < 3; i++) ASSERT_EQ(send(i, stamps), 0);
    EXPECT_EQ(told_.stamped, 2u);
    pacing().close(*flow_);
    shard_->free_udp(endpoint_);
    pass(Duration::millis(10));
    EXPECT_EQ(ring_->sent.size(), 3u);
    EXPECT_EQ(told_.stamped, 2u);
}

// Nobody looks for 7 ms while frames wait: at twice the rate they are where they should be before the queue is empty.
TEST_F(UdpPacingTest, AStallIsMadeUpFor) {
    for (uint8_t i = 0; i < 18; i++) ASSERT_EQ(send(i), 0);
    const Instant begun = now_;
    ASSERT_EQ(ring_->sent.size(), 2u);
    now_ = now_ + Duration::millis(7);
    pacing().run(now_);
    EXPECT_LE(ring_->bytes, 2u * kFrame + 3028u);  // no burst beyond the bucket
    while (!pacing().next().is_never()) {
        now_ = std::max(now_, pacing().next());
        pacing().run(now_);
    }
    EXPECT_EQ(ring_->sent.size(), 18u);
    // As without the stall: the bucket at once, then a frame in a millisecond.
    const Duration lasted = now_ - begun;
    EXPECT_GE(lasted, Duration::micros(15000));
    EXPECT_LE(lasted, Duration::micros(15100));
}

// The process ends: also what a closed socket has left leaves before the ring goes.
TEST_F(UdpPacingTest, TheEndOfTheRingLetsEverythingGo) {
    for (uint8_t i = 0; i < 9; i++) ASSERT_EQ(send(i), 0);
    pacing().close(*flow_);
    shard_->free_udp(endpoint_);
    // The ring goes with its owner: what it was given is looked at before.
    std::vector<uint8_t> sent;
    ring_->at_end = &sent;
    shard_->close_ring();
    EXPECT_EQ(sent.size(), 9u);
    EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end()));
}

}  // namespace
}  // namespace vma
