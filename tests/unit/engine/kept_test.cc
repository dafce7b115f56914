#include "engine/kept.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/arena.h"
#include "base/own_fd.h"
#include "pkt/pool.h"

namespace vma {
namespace {

class KeptTest : public testing::Test {
  protected:
    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        arena_ = *arena;
        pool_ = arena_->make<PacketPool>(*arena_);
    }
    void TearDown() override {
        EXPECT_EQ(pool_->counters().in_use, 0u);
        arena_->destroy(pool_);
        Arena::unmap(arena_);
    }
    void* keep(void* owner, uint32_t charge) {
        return kept_.add(pool_->take(100), {owner, charge, Seq{7}});
    }

    OwnFd memory_;
    Arena* arena_ = nullptr;
    PacketPool* pool_ = nullptr;
    KeptPackets kept_;
    int first_ = 0, second_ = 0;  // owners
};

TEST_F(KeptTest, OnlyItsOwnerGetsItAndOnce) {
    void* const id = keep(&first_, 5);
    EXPECT_FALSE(kept_.remove(id, &second_));
    EXPECT_FALSE(kept_.remove(reinterpret_cast<void*>(0x1000), &first_));
    EXPECT_FALSE(kept_.remove(nullptr, &first_));
    {
        const Packet p = kept_.remove(id, &first_);
        ASSERT_TRUE(p);
        EXPECT_EQ(p->as<Kept>().charge, 5u);
        EXPECT_EQ(p->as<Kept>().connection, Seq{7});
    }
    EXPECT_FALSE(kept_.remove(id, &first_));
    EXPECT_EQ(kept_.now(), 0u);
    EXPECT_EQ(kept_.reclaimed(), 0u);
}

TEST_F(KeptTest, TheRestOfAnOwnerIsReclaimed) {
    std::vector<void*> ids;
    for (uint32_t i = 0; i < 500; i++) ids.push_back(keep(i % 2 ? &first_ : &second_, i));
    EXPECT_EQ(kept_.now(), 500u);
    for (size_t i = 1; i < ids.size(); i += 10) EXPECT_TRUE(kept_.remove(ids[i], &first_));
    unsigned reclaimed = 0;
    while (kept_.reclaim(&first_)) reclaimed++;
    EXPECT_EQ(reclaimed, 200u);
    EXPECT_EQ(kept_.reclaimed(), 200u);
    EXPECT_EQ(kept_.now(), 250u);
    for (size_t i = 0; i < ids.size(); i += 2) EXPECT_TRUE(kept_.remove(ids[i], &second_));
}

TEST_F(KeptTest, WhatIsLentOutlivesItsOwner) {
    std::vector<void*> ids;
    for (uint32_t i = 0; i < 200; i++) ids.push_back(keep(i % 2 ? &first_ : &second_, i));
    kept_.disown(&first_);
    EXPECT_EQ(kept_.now(), 200u);
    for (uint32_t i = 0; i < 200; i++) {
        PacketBuf* const buf = kept_.find(ids[i]);
        ASSERT_NE(buf, nullptr);
        EXPECT_EQ(buf->as<Kept>().owner, i % 2 ? nullptr : &second_);
        EXPECT_EQ(KeptPackets::id_of(&buf->as<Kept>().piece), ids[i]);
        EXPECT_EQ(kept_.take_out(*buf)->as<Kept>().charge, i);
        EXPECT_EQ(kept_.find(ids[i]), nullptr);
    }
    EXPECT_EQ(kept_.reclaimed(), 0u);
}

}  // namespace
}  // namespace vma
