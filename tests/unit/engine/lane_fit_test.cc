// When a socket moves to the lane of who uses it.
#include "engine/lane_fit.h"

#include <gtest/gtest.h>

#include <vector>

namespace vma {
namespace {

// A socket that is moved whenever it should be.
struct Used {
    explicit Used(int ratio, uint64_t own = 1) { fit.begin(ratio, own); }
    // So many accesses by the thread of that key; how many it took until the socket moved to it, 0: it did not.
    unsigned by(uint64_t key, unsigned accesses) {
        for (unsigned i = 1; i <= accesses; i++) {
            if (!fit.is_on()) continue;
            if (!fit.access([&] { return looks++, key; })) continue;
            fit.moved(key);
            moves++;
            return i;
        }
        return 0;
    }
    LaneFit fit;
    unsigned moves = 0, looks = 0;
};

TEST(LaneFit, MovesAfterAWholeFurtherWindow) {
    Used socket(100);
    EXPECT_EQ(socket.by(1, 1000), 0u);
    EXPECT_EQ(socket.looks, 10u);  // the owner's calls cost a look in a hundred
    EXPECT_EQ(socket.by(2, 1000), 200u);
    EXPECT_EQ(socket.fit.own(), 2u);
}

TEST(LaneFit, OneAccessOfAnotherEndsTheWindow) {
    Used socket(10);
    EXPECT_EQ(socket.by(2, 19), 0u);
    EXPECT_EQ(socket.by(3, 1), 0u);
    EXPECT_EQ(socket.by(2, 19), 0u);
    EXPECT_EQ(socket.by(1, 1), 0u);
    EXPECT_EQ(socket.by(2, 20), 20u);
}

TEST(LaneFit, ThreadsInTurnsMoveNothing) {
    for (const unsigned ratio : {2u, 3u, 10u, 100u}) {
        Used socket(int(ratio), 1);
        for (unsigned i = 0; i < 10000; i++) socket.by(1 + i % 2, 1);
        EXPECT_EQ(socket.moves, 0u) << ratio;
    }
}

TEST(LaneFit, RatioOneMovesAtTheSecondAccess) {
    Used socket(1);
    EXPECT_EQ(socket.by(1, 100), 0u);
    EXPECT_EQ(socket.by(2, 10), 2u);
}

// Handed to and fro in long turns, it moves ever more seldom.
TEST(LaneFit, MovesThatFollowEachOtherTakeEverMore) {
    Used socket(10);
    std::vector<unsigned> took;
    for (uint64_t turn = 0; turn < 8; turn++) took.push_back(socket.by(2 + turn % 2, 100000));
    EXPECT_EQ(took, (std::vector<unsigned>{20, 20, 30, 50, 90, 170, 330, 650}));
    Used often(10);
    for (unsigned turn = 0; turn < 10000; turn++) often.by(2 + turn % 2, 100);
    EXPECT_LE(often.moves, 6u);
}

TEST(LaneFit, AndSoonAgainOnceItHasStayed) {
    Used socket(10);
    for (uint64_t turn = 0; turn < 5; turn++) socket.by(2 + turn % 2, 100000);
    EXPECT_EQ(socket.by(2, 10000), 0u);
    EXPECT_EQ(socket.by(3, 1000), 170u);  // the window that it has
    EXPECT_EQ(socket.by(3, 10000), 0u);
    EXPECT_EQ(socket.by(2, 1000), 20u);
}

TEST(LaneFit, WhatIsRefusedIsTriedEverMoreSeldom) {
    Used socket(10);
    unsigned tries = 0;
    for (unsigned i = 0; i < 100000; i++)
        if (socket.fit.access([] { return uint64_t(2); })) {
            socket.fit.refused();
            tries++;
        }
    EXPECT_GE(tries, 10u);
    EXPECT_LE(tries, 25u);
}

TEST(LaneFit, OfARatioBelowOneNeverAsks) {
    for (const int ratio : {-1, 0}) {
        Used socket(ratio);
        EXPECT_EQ(socket.by(2, 1000), 0u);
        EXPECT_EQ(socket.looks, 0u);
    }
}

TEST(LaneFit, TheLargestRatioIsANumberAsAnyOther) {
    Used socket(INT32_MAX);
    for (unsigned i = 0; i < 4; i++) {
        EXPECT_EQ(socket.by(2, 1000), 0u);
        socket.fit.moved(i);
    }
}

}  // namespace
}  // namespace vma
