#include "pkt/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

constexpr size_t MiB = size_t(1) << 20;

struct Fixture : testing::Test {
    Arena* arena = nullptr;
    PacketPool* pool = nullptr;
    void SetUp() override {
        auto r = Arena::create(64 * MiB);
        ASSERT_TRUE(r.ok());
        arena = *r;
        pool = arena->make<PacketPool>(*arena);
        ASSERT_NE(pool, nullptr);
    }
    void TearDown() override {
        if (pool) {
            // Everything taken has come back, and with the pool everything of the arena.
            EXPECT_EQ(pool->counters().in_use, 0u);
            EXPECT_EQ(pool->counters().lent, 0u);
            EXPECT_EQ(pool->counters().bytes_in_use, 0u);
            EXPECT_EQ(pool->counters().free, pool->counters().created);
            if (pool->counters().in_use == 0) {
                arena->destroy(pool);
                EXPECT_EQ(arena->in_use(), 0u);
            }
        }
        Arena::unmap(arena);
    }
};
using PacketPoolTest = Fixture;

struct Lender final : PacketLender {
    std::vector<uint64_t> cookies;
    const uint8_t* last_data = nullptr;
    void give_back(PacketBuf& buf) override {
        cookies.push_back(buf.lender_cookie);
        last_data = buf.data;
    }
};

TEST_F(PacketPoolTest, RoomIsRoundedToItsClassAlignedAndDisjoint) {
    const struct {
        size_t ask, get;
    } rows[] = {{0, 256},      {1, 256},       {256, 256},     {257, 2048},       {2048, 2048},
                {2049, 69632}, {69632, 69632}, {69633, 69633}, {1000000, 1000000}};
    std::vector<Packet> held;
    for (auto& row : rows) {
        Packet p = pool->take(row.ask);
        ASSERT_TRUE(p) << row.ask;
        EXPECT_EQ(p->room, row.get) << row.ask;
        EXPECT_EQ(p->len, 0u);
        EXPECT_EQ(p->pool, pool);
        EXPECT_EQ(p->lender, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p->data) % PacketPool::kDataAlign, 0u);
        EXPECT_TRUE(arena->contains(p->data + p->room - 1));
        memset(p->data, int(held.size()), p->room);
        held.push_back(std::move(p));
    }
    for (size_t i = 0; i < held.size(); ++i) {
        EXPECT_EQ(held[i]->data[0], i);
        EXPECT_EQ(held[i]->data[held[i]->room - 1], i);
    }
    EXPECT_EQ(pool->counters().in_use, std::size(rows));
}

TEST_F(PacketPoolTest, ReleasedRecordIsReusedClean) {
    Packet p = pool->take(100);
    PacketBuf* record = &*p;
    p->data += 14;  // a holder may move the start of the frame
    p->room -= 14;
    p->len = 77;
    p->meta.gso_size = 1448;
    p->meta.has_vlan = true;
    p.reset();
    EXPECT_EQ(pool->counters().free, 1u);
    Packet q = pool->take(100);
    EXPECT_EQ(&*q, record);
    EXPECT_EQ(q->room, PacketPool::kSmallRoom);
    EXPECT_EQ(q->len, 0u);
    EXPECT_EQ(q->meta.gso_size, 0);
    EXPECT_FALSE(q->meta.has_vlan);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(q->data) % PacketPool::kDataAlign, 0u);
    EXPECT_EQ(pool->counters().created, 1u);
}

TEST_F(PacketPoolTest, PacketLimitCountsLentOnesAndFailedTakes) {
    Lender lender;
    uint8_t area[64] = {};
    pool->set_limits({.packets = 2});
    Packet a = pool->take(10);
    Packet b = pool->lend(area, sizeof(area), &lender, 1);
    EXPECT_TRUE(a);
    EXPECT_TRUE(b);
    EXPECT_FALSE(pool->take(10));
    EXPECT_FALSE(pool->lend(area, sizeof(area), &lender, 2));
    EXPECT_FALSE(pool->copy_of(*a));
    EXPECT_EQ(pool->counters().failed_takes, 3u);
    EXPECT_TRUE(lender.cookies.empty());  // a refused loan gives nothing back
    a.reset();
    EXPECT_TRUE(pool->take(10));
    pool->set_limits({.packets = 0});
    EXPECT_FALSE(pool->take(10));
}

TEST_F(PacketPoolTest, ByteLimitCountsRoundedRooms) {
    pool->set_limits({.bytes = 4096 + 256});
    Packet a = pool->take(2000);
    Packet b = pool->take(300);
    EXPECT_EQ(pool->counters().bytes_in_use, 4096u);
    EXPECT_FALSE(pool->take(300));
    Packet c = pool->take(256);
    EXPECT_TRUE(c);
    EXPECT_FALSE(pool->take(1));
    pool->set_limits({.bytes = 100});  // below what is out
    EXPECT_FALSE(pool->take(1));
    a.reset();
    b.reset();
    c.reset();
    EXPECT_FALSE(pool->take(1));  // 256 rounded
    pool->set_limits({.bytes = 256});
    EXPECT_TRUE(pool->take(1));
    EXPECT_FALSE(pool->take(size_t(1) << 40));
}

TEST_F(PacketPoolTest, LentMemoryGoesBackExactlyOncePerLoanInAnyOrder) {
    Lender lender;
    uint8_t area[3][16] = {};
    Packet a = pool->lend(area[0], 16, &lender, 10);
    Packet b = pool->lend(area[1], 16, &lender, 11);
    Packet c = pool->lend(area[2], 16, &lender, 12);
    EXPECT_EQ(a->data, area[0]);
    EXPECT_EQ(a->len, 16u);
    EXPECT_EQ(a->room, 0u);
    EXPECT_EQ(pool->counters().lent, 3u);
    EXPECT_EQ(pool->counters().bytes_in_use, 0u);
    b.reset();
    EXPECT_EQ(lender.last_data, area[1]);
    Packet moved = std::move(c);
    moved.reset();
    a.reset();
    EXPECT_EQ(lender.cookies, (std::vector<uint64_t>{11, 12, 10}));
    // The record serves the next loan of somebody else.
    Lender other;
    pool->lend(area[0], 1, &other, 99).reset();
    EXPECT_EQ(lender.cookies.size(), 3u);
    EXPECT_EQ(other.cookies, (std::vector<uint64_t>{99}));
}

TEST_F(PacketPoolTest, CopyOfALentPacketSurvivesTheLoan) {
    Lender lender;
    std::vector<uint8_t> area(3000);
    for (size_t i = 0; i < area.size(); ++i) area[i] = uint8_t(i * 7);
    Packet lent = pool->lend(area.data(), 3000, &lender, 5);
    lent->meta.ifindex = 4;
    lent->meta.flow_tag = 9;
    lent->as<uint64_t>() = 0x1122334455667788;
    Packet copy = pool->copy_of(*lent);
    ASSERT_TRUE(copy);
    EXPECT_TRUE(lender.cookies.empty());
    lent.reset();
    EXPECT_EQ(lender.cookies.size(), 1u);
    const std::vector<uint8_t> expect = area;
    std::fill(area.begin(), area.end(), 0);
    EXPECT_EQ(copy->len, 3000u);
    EXPECT_EQ(copy->lender, nullptr);
    EXPECT_EQ(memcmp(copy->data, expect.data(), 3000), 0);
    EXPECT_EQ(copy->meta.ifindex, 4u);
    EXPECT_EQ(copy->meta.flow_tag, 9u);
    EXPECT_EQ(copy->as<uint64_t>(), 0x1122334455667788u);
    Packet empty = pool->lend(nullptr, 0, &lender, 6);
    EXPECT_TRUE(pool->copy_of(*empty));
}

TEST_F(PacketPoolTest, DetachAndQueueKeepOwnership) {
    PacketQueue queue;
    for (int i = 0; i < 5; ++i) {
        Packet p = pool->take(64);
        p->len = uint32_t(i);
        queue.push_back(*p.detach());
    }
    EXPECT_EQ(pool->counters().in_use, 5u);
    for (uint32_t i = 0; PacketBuf* buf = queue.pop_front(); ++i) EXPECT_EQ(Packet(buf)->len, i);
    EXPECT_EQ(pool->counters().in_use, 0u);
}

TEST_F(PacketPoolTest, ArenaExhaustionIsAFailedTakeAndHeals) {
    std::vector<Packet> all;
    for (;;) {
        Packet p = pool->take(PacketPool::kLargeRoom);
        if (!p) break;
        all.push_back(std::move(p));
    }
    EXPECT_GT(all.size(), 800u);  // 64 MiB of 68 KiB and a record each
    EXPECT_EQ(pool->counters().failed_takes, 1u);
    EXPECT_FALSE(pool->take(8 * MiB));
    all.pop_back();
    EXPECT_TRUE(pool->take(PacketPool::kLargeRoom));
}

TEST_F(PacketPoolTest, RandomizedCountsReturnToFull) {
    const uint64_t seed = std::random_device{}();
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Rng rng(seed);
    Lender lender;
    uint8_t area[2048] = {};
    pool->set_limits({.packets = 300, .bytes = 6 * MiB});
    struct Held {
        Packet packet;
        uint8_t mark;
        bool lent;
    };
    std::vector<Held> held;
    uint64_t loans = 0, refused = 0;
    for (int i = 0; i < 50000; ++i) {
        if (rng.chance(1, 2)) {
            const auto mark = uint8_t(rng.next());
            const bool lent = rng.chance(1, 4);
            const size_t room = rng.chance(1, 20) ? 69633 + rng.below(200000) : rng.below(70000);
            Packet p = lent ? pool->lend(area, 2048, &lender, mark) : pool->take(room);
            if (!p) {
                ++refused;
                continue;
            }
            if (lent) {
                ++loans;
            } else {
                ASSERT_GE(p->room, room);
                p->data[0] = p->data[p->room - 1] = mark;
            }
            held.push_back({std::move(p), mark, lent});
        } else if (!held.empty()) {
            const size_t at = rng.below(uint32_t(held.size()));
            Held& h = held[at];
            if (h.lent) {
                ASSERT_EQ(h.packet->lender_cookie, h.mark) << "seed " << seed;
            } else {
                ASSERT_EQ(h.packet->data[0], h.mark) << "seed " << seed;
                ASSERT_EQ(h.packet->data[h.packet->room - 1], h.mark) << "seed " << seed;
            }
            std::swap(held[at], held.back());
            held.pop_back();
        }
        const PoolCounters& c = pool->counters();
        ASSERT_EQ(c.in_use, held.size()) << "seed " << seed;
        ASSERT_EQ(c.created, c.in_use + c.free) << "seed " << seed;
        ASSERT_LE(c.in_use, 300u);
        ASSERT_LE(c.bytes_in_use, 6 * MiB);
    }
    held.clear();
    EXPECT_EQ(lender.cookies.size(), loans);
    EXPECT_EQ(pool->counters().failed_takes, refused);
}

}  // namespace
}  // namespace vma
