// Shard: the sleep protocol when several threads sleep on one ring.
#include "engine/shard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/own_fd.h"
#include "support/quiet_ring.h"

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

class ShardSleep : public testing::Test {
  protected:
    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        arena_ = *arena;
        auto* pool = arena_->make<PacketPool>(*arena_, PoolLimits{});
        ring_ = new BellRing(*pool);
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
    BellRing* ring_ = nullptr;
    Shard* shard_ = nullptr;
};

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
