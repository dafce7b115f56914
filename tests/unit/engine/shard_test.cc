// Shard: the sleep protocol when several threads sleep on one ring, and the receive stamps of what a ring brings.
#include "engine/shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "base/clock.h"
#include "base/own_fd.h"
#include "support/quiet_ring.h"
#include "unit/stack/udp_fixture.h"

namespace vma {
namespace {

// A doorbell as the packet ring has it: one, rung once, silenced by whoever arms.
class BellRing final : public QuietRing {
  public:
    explicit BellRing(PacketPool& pool) : pool_(pool) {}
    void arrive() {
        frames_++;
        if (std::exchange(sleeping_, false)) bell_ = true;
    }
    bool bell() const { return bell_; }
    bool sleeping() const { return sleeping_; }
    unsigned waiting() const { return frames_; }
    // From now on as many have arrived as anybody wants to take.
    void flood() { flood_ = true; }
    uint64_t taken() const { return taken_; }

    unsigned recv(std::span<Packet> out) override {
        unsigned n = 0;
        if (flood_) frames_ += unsigned(out.size());
        for (; n < out.size() && frames_ != 0; n++, frames_--, taken_++) {
            out[n] = pool_.take(60);
            std::memset(out[n]->data, 0, 60);
            out[n]->len = 60;
        }
        return n;
    }
    RingBacklog backlog() const override { return {taken_, taken_ + frames_}; }
    bool arm() override {
        bell_ = false;
        sleeping_ = frames_ == 0;
        return sleeping_;
    }
    void disarm() override { sleeping_ = bell_ = false; }

  private:
    PacketPool& pool_;
    unsigned frames_ = 0;
    uint64_t taken_ = 0;
    bool flood_ = false;
    bool sleeping_ = false, bell_ = false;
};

// A ring that brings datagrams from 10.0.0.2 to port 7777 of 10.0.0.1, each with a receive stamp of its own.
class StampRing final : public QuietRing {
  public:
    explicit StampRing(PacketPool& pool) : pool_(pool) {}
    void arrive(int64_t stamp) { stamps_.push_back(stamp); }

    unsigned recv(std::span<Packet> out) override {
        const test::Bytes frame = test::udp_frame({});
        unsigned n = 0;
        for (; n < out.size() && !stamps_.empty(); n++, stamps_.pop_front()) {
            out[n] = pool_.take(uint32_t(frame.size()));
            std::memcpy(out[n]->data, frame.data(), frame.size());
            out[n]->len = uint32_t(frame.size());
            out[n]->meta.realtime_ns = stamps_.front();
        }
        return n;
    }

  private:
    PacketPool& pool_;
    std::deque<int64_t> stamps_;
};

template <class OneRing>
class ShardOver : public testing::Test {
  protected:
    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        arena_ = *arena;
        auto* pool = arena_->make<PacketPool>(*arena_, PoolLimits{});
        ring_ = new OneRing(*pool);
        Shard::Parts parts;
        parts.arena = arena_;
        parts.pool = pool;
        parts.ring = ring_;
        parts.secret = 1;
        shard_ = Shard::make(parts);
        ASSERT_NE(shard_, nullptr);
    }
    void TearDown() override { shard_->close_ring(); }

    OwnFd memory_;
    Arena* arena_ = nullptr;
    OneRing* ring_ = nullptr;
    Shard* shard_ = nullptr;
};
using ShardSleep = ShardOver<BellRing>;
using ShardStamps = ShardOver<StampRing>;

// One thread sleeps, a frame rings for it, a second one arms before the first has looked: the bell is gone, so the frame
// must have been handed out and the ring must ring for the next one.
TEST_F(ShardSleep, WhoSilencesTheDoorbellHandsTheFramesOut) {
    ASSERT_TRUE(shard_->arm());
    ring_->arrive();
    ASSERT_TRUE(ring_->bell());
    EXPECT_FALSE(shard_->arm());
    EXPECT_EQ(ring_->waiting(), 0u);
    shard_->disarm();
    EXPECT_TRUE(ring_->sleeping());
    ring_->arrive();
    EXPECT_TRUE(ring_->bell());
    shard_->disarm();
    EXPECT_FALSE(ring_->sleeping());
}

// A fork or a close under a flood must come to an end.
TEST_F(ShardSleep, DrainingEndsWhileFramesGoOnComing) {
    for (int i = 0; i < 100; i++) ring_->arrive();
    ring_->flood();
    LeaseGuard lease(shard_->lease());
    shard_->drain();
    EXPECT_LT(ring_->taken(), 200u);
    EXPECT_GE(ring_->taken(), 100u);
}

TEST_F(ShardSleep, ManyFramesAtOnce) {
    ASSERT_TRUE(shard_->arm());
    for (int i = 0; i < 500; i++) ring_->arrive();
    EXPECT_FALSE(shard_->arm());
    EXPECT_EQ(ring_->waiting(), 0u);
    EXPECT_TRUE(ring_->sleeping());
    shard_->disarm();
    shard_->disarm();
}

// Of many sleepers a few attend the ring, the others are called one at a time, when nobody does.
TEST_F(ShardSleep, ManySleepersHaveSomebodyOnTheRing) {
    struct Thread final : RingSleeper {
        void wake() override { woken++; }
        int woken = 0;
    };
    constexpr unsigned kMany = 12, kFew = 4;
    Thread threads[kMany];
    const auto attending = [&] {
        unsigned n = 0;
        for (const Thread& t : threads) n += t.attends;
        return n;
    };
    const auto woken = [&] {
        int n = 0;
        for (const Thread& t : threads) n += t.woken;
        return n;
    };
    for (Thread& t : threads) ASSERT_TRUE(shard_->arm(&t));
    ASSERT_GE(attending(), 1u);
    ASSERT_LE(attending(), kFew);
    EXPECT_TRUE(ring_->sleeping());
    shard_->pass_on();
    EXPECT_EQ(woken(), 0) << "somebody attends it";

    // A frame wakes those who attend; they sleep again, one of them on the ring.
    Thread* last = nullptr;
    for (Thread& t : threads)
        if (t.attends) shard_->disarm(last = &t);
    EXPECT_FALSE(ring_->sleeping());
    for (Thread& t : threads) {
        if (!std::exchange(t.attends, false)) continue;
        EXPECT_TRUE(shard_->arm(&t));
    }
    ASSERT_EQ(attending(), 1u);
    EXPECT_TRUE(ring_->sleeping());

    // It has got what it waited for and goes; whom that calls has got something, too, and calls the next. The last is never
    // left alone.
    for (unsigned left = kMany; left != 0; left--) {
        Thread* leaves = nullptr;
        for (Thread& t : threads)
            if (t.attends || t.called) leaves = &t;
        ASSERT_NE(leaves, nullptr) << left;
        shard_->disarm(leaves);
        leaves->attends = leaves->called = false;
        shard_->pass_on();
        EXPECT_EQ(woken(), int(kMany - left + (left > 1)));
    }
    EXPECT_FALSE(ring_->sleeping());
    const Instant now = monotonic_now();
    EXPECT_EQ(shard_->look(now), Shard::Attended::busy);  // polled since the last look
    EXPECT_EQ(shard_->look(now + Duration::millis(100)), Shard::Attended::by_nobody);
}

TEST_F(ShardSleep, ACalledSleeperAttendsWhenItSleepsAgain) {
    struct Thread final : RingSleeper {
        void wake() override {}
    };
    Thread threads[8];
    for (Thread& t : threads) ASSERT_TRUE(shard_->arm(&t));
    for (Thread& t : threads)
        if (t.attends) shard_->disarm(&t);
    shard_->pass_on();
    for (Thread& t : threads) {
        if (!t.called) continue;
        shard_->disarm(&t);
        EXPECT_TRUE(shard_->arm(&t));
        EXPECT_TRUE(t.attends);
        shard_->disarm(&t);
    }
    for (Thread& t : threads)
        if (!t.attends) shard_->disarm(&t);
    EXPECT_FALSE(ring_->sleeping());
}

// What a reader sees, and what orders a datagram among those of other paths: the ring's stamp, also one of the future, from before
// the clock was set back (sock/udp_order.cc takes it for older). Without one the time at which it was taken from the ring.
TEST_F(ShardStamps, TheRingsStampOrTheTimeItWasTaken) {
    LeaseGuard lease(shard_->lease());
    UdpEndpoint* const endpoint = shard_->make_udp({IpAddr::any_v4(), test::kOurPort});
    ASSERT_NE(endpoint, nullptr);
    ASSERT_TRUE(shard_->udp().demux.insert(endpoint->tuple(), *endpoint).ok());
    const int64_t before = realtime_ns();
    for (const int64_t stamp : {before - 5000, before - 3000, int64_t(0), before + int64_t(3600e9)})
        ring_->arrive(stamp);
    ASSERT_EQ(shard_->poll(), 4u);
    const int64_t after = realtime_ns();
    std::vector<int64_t> seen;
    for (UdpDatagram d; endpoint->peek(d); endpoint->consume()) seen.push_back(d.info->realtime_ns);
    ASSERT_EQ(seen.size(), 4u);
    EXPECT_EQ(seen[0], before - 5000);
    EXPECT_EQ(seen[1], before - 3000);
    EXPECT_GE(seen[2], before);
    EXPECT_LE(seen[2], after);
    EXPECT_EQ(seen[3], before + int64_t(3600e9));
    shard_->udp().demux.remove(endpoint->tuple());
    shard_->free_udp(endpoint);
}

struct Words {
    int left_by_the_last = 0;
    Words* next = nullptr;
};

// What children look at stays such a record after it was given back, and is not made again and again.
TEST_F(ShardSleep, RecordsForChildrenAreUsedAgain) {
    Words* const first = shard_->take_record<Words>();
    ASSERT_NE(first, nullptr);
    Words* const second = shard_->take_record<Words>();
    ASSERT_NE(second, nullptr);
    EXPECT_NE(first, second);
    const size_t in_use = arena_->in_use();
    for (int i = 1; i <= 1000; i++) {
        first->left_by_the_last = i;
        shard_->give_record(first);
        EXPECT_EQ(first->left_by_the_last, i);
        ASSERT_EQ(shard_->take_record<Words>(), first);
    }
    EXPECT_EQ(arena_->in_use(), in_use);
}

}  // namespace
}  // namespace vma
