// Which lane a key gets, and what a thread's key is.
#include "engine/lanes.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <thread>
#include <vector>

namespace vma {
namespace {

LaneKey of_thread(uint64_t id) { return {RingLogic::thread, id}; }

TEST(Lanes, AKeyHasOneLaneWhileItIsUsed) {
    Lanes lanes;
    const LaneUse a = lanes.take(of_thread(1), 0), b = lanes.take(of_thread(2), 0);
    EXPECT_NE(a.lane(), b.lane());
    EXPECT_EQ(lanes.take(of_thread(1), 0), a);
    EXPECT_EQ(lanes.take({RingLogic::socket, 1}, 0).lane(),
              2u);  // the same number means something else
    EXPECT_EQ(lanes.uses(a.lane()), 2u);
    EXPECT_TRUE(lanes.several());
    EXPECT_FALSE(Lanes().several());
}

TEST(Lanes, OneThatNobodyUsesIsGivenToTheNextKey) {
    Lanes lanes;
    const LaneUse a = lanes.take(of_thread(1), 0), b = lanes.take(of_thread(2), 0);
    lanes.give(a);
    lanes.give(b);
    // Whoever had one before gets it back.
    EXPECT_EQ(lanes.take(of_thread(2), 0).lane(), b.lane());
    EXPECT_EQ(lanes.take(of_thread(3), 0).lane(), a.lane());
    EXPECT_EQ(lanes.take(of_thread(4), 0).lane(), 2u);
}

TEST(Lanes, BeyondTheLimitTheLeastUsedIsShared) {
    Lanes lanes;
    const unsigned first = lanes.take(of_thread(1), 2).lane();
    EXPECT_EQ(lanes.take(of_thread(1), 2).lane(), first);
    const unsigned second = lanes.take(of_thread(2), 2).lane();
    EXPECT_NE(first, second);
    EXPECT_EQ(lanes.take(of_thread(3), 2).lane(), second);
    EXPECT_EQ(lanes.take(of_thread(3), 2).lane(), second);  // and stays there
    EXPECT_EQ(lanes.take(of_thread(4), 2).lane(), first);
    EXPECT_EQ(lanes.take({RingLogic::user, 7}, 2).lane(), 2u);  // the user's are not counted
}

TEST(Lanes, AreAtMostSoManyWithoutALimit) {
    Lanes lanes;
    std::vector<LaneUse> uses;
    std::set<unsigned> seen;
    for (uint64_t id = 0; id < 2 * Lanes::kMostKeys; id++) {
        uses.push_back(lanes.take(of_thread(id), 0));
        EXPECT_LT(uses.back().lane(), Lanes::kMost);
        seen.insert(uses.back().lane());
    }
    EXPECT_EQ(seen.size(), size_t(Lanes::kMost));
    for (unsigned i = 0; i < Lanes::kMost; i++) EXPECT_EQ(lanes.uses(i), 8u);
    for (const LaneUse& use : uses) lanes.give(use);
    for (unsigned i = 0; i < Lanes::kMost; i++) EXPECT_EQ(lanes.uses(i), 0u);
}

TEST(Lanes, AChoiceIsMadeOnceAndShared) {
    Lanes lanes;
    LaneChoice listener, accepted;
    EXPECT_FALSE(listener.made());
    const unsigned lane = listener.make(lanes, of_thread(1), 0);
    EXPECT_EQ(listener.make(lanes, of_thread(2), 0), lane);
    accepted.share(lanes, listener);
    EXPECT_EQ(accepted.lane(), lane);
    listener.give_back(lanes);
    listener.give_back(lanes);
    EXPECT_EQ(lanes.uses(lane), 1u);
    EXPECT_NE(lanes.take(of_thread(2), 0).lane(), lane);
    accepted.give_back(lanes);
    EXPECT_EQ(lanes.uses(lane), 0u);
}

TEST(Lanes, AMoveGivesBackWhatTheSocketHad) {
    Lanes lanes;
    LaneChoice socket;
    const unsigned before = socket.make(lanes, of_thread(1), 0);
    const LaneUse taken = lanes.take(of_thread(2), 0);
    EXPECT_NE(taken.lane(), before);
    socket.replace(lanes, taken);
    EXPECT_EQ(socket.lane(), taken.lane());
    EXPECT_EQ(lanes.uses(before), 0u);
    EXPECT_EQ(lanes.uses(taken.lane()), 1u);
    socket.give_back(lanes);
    EXPECT_EQ(lanes.uses(taken.lane()), 0u);
}

TEST(LaneKey, IsOfWhatTheLogicSays) {
    const IpAddr here = IpAddr::v4(10, 0, 0, 1), there = IpAddr::v4(10, 0, 0, 2);
    const auto key = [&](RingLogic logic, int fd, const IpAddr& local, uint32_t user) {
        return lane_key(logic, fd, local, user);
    };
    EXPECT_EQ(key(RingLogic::interface, 3, here, 1), key(RingLogic::interface, 4, there, 2));
    EXPECT_EQ(key(RingLogic::address, 3, here, 1), key(RingLogic::address, 4, here, 2));
    EXPECT_NE(key(RingLogic::address, 3, here, 1), key(RingLogic::address, 3, there, 1));
    EXPECT_EQ(key(RingLogic::socket, 3, here, 1), key(RingLogic::socket, 3, there, 2));
    EXPECT_NE(key(RingLogic::socket, 3, here, 1), key(RingLogic::socket, 4, here, 1));
    EXPECT_EQ(key(RingLogic::user, 3, here, 1), key(RingLogic::user, 4, there, 1));
    EXPECT_NE(key(RingLogic::user, 3, here, 1), key(RingLogic::user, 3, here, 2));
    const LaneKey mine = key(RingLogic::thread, 3, here, 1);
    EXPECT_EQ(mine, key(RingLogic::thread, 4, there, 2));
    std::thread([&] { EXPECT_NE(mine, key(RingLogic::thread, 3, here, 1)); }).join();
}

// Each thread stays on a CPU that it may use; they are spread over them.
TEST(LaneKey, PinsThreadsToTheLeastUsedCpu) {
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    std::vector<unsigned> threads_on(CPU_SETSIZE);
    const int all = 2 * CPU_COUNT(&allowed);
    std::vector<std::thread> threads;
    std::atomic<int> turn{0};
    std::atomic<bool> end{false};
    for (int i = 0; i < all; i++)
        threads.emplace_back([&, i] {
            while (turn.load() != i) sched_yield();
            const LaneKey key = lane_key(RingLogic::pinned_core, 3, {}, 0);
            EXPECT_EQ(lane_key(RingLogic::pinned_core, 4, {}, 0), key);
            cpu_set_t mine;
            EXPECT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
            EXPECT_EQ(CPU_COUNT(&mine), 1);
            EXPECT_TRUE(key.id < CPU_SETSIZE && CPU_ISSET(int(key.id), &mine) &&
                        CPU_ISSET(int(key.id), &allowed));
            threads_on[size_t(key.id)]++;
            turn++;
            // One that had ended would not count any more.
            while (!end.load()) sched_yield();
        });
    while (turn.load() != all) sched_yield();
    end = true;
    for (std::thread& t : threads) t.join();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        EXPECT_EQ(threads_on[size_t(cpu)], CPU_ISSET(cpu, &allowed) ? 2u : 0u) << cpu;
}

}  // namespace
}  // namespace vma
