// What an ordered wait lists: who reads it as he is told has everything in the order of arrival.
#include "sock/epoll_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"

namespace vma::sock {
namespace {

constexpr int64_t kNow = 1'000'000;

class Runs final : public OrderSink {
  public:
    void run(int event, const OrderedRun& run) override { of_event[event] = run; }
    std::map<int, OrderedRun> of_event;
};

// Sockets with what waits in them, oldest first, one byte each.
using Queues = std::vector<std::vector<int64_t>>;

OrderMemory listed(const Queues& queues, int64_t now = kNow) {
    OrderMemory memory;
    for (size_t i = 0; i < queues.size(); i++) {
        if (queues[i].empty()) continue;
        ReadyMember& r = memory.ready.emplace_back(nullptr, EPOLLIN | EPOLLOUT, i);
        Unread::Path path(r.unread, Unread::kMost);
        for (const int64_t at : queues[i])
            if (!path.add({at, 0, 1, 1})) break;
        r.unread.sort(now);
    }
    return memory;
}

// The least of what is known of the sockets, as a wait has it.
int64_t known(const OrderMemory& memory, int64_t horizon) {
    for (const ReadyMember& r : memory.ready) horizon = std::min(horizon, r.unread.known_until());
    return horizon;
}

TEST(EpollOrder, WhatIsReadAsListedIsInOrder) {
    const uint64_t seed = 0x2412;
    Rng rng(seed);
    for (int round = 0; round < 300; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        Queues queues(1 + rng.below(6));
        int64_t at = 0;
        std::vector<int64_t> all;
        for (uint32_t i = 0, n = rng.below(300); i < n; i++) {
            at += rng.below(3);  // some at the same time
            queues[rng.chance(1, 2) ? 0 : rng.below(uint32_t(queues.size()))].push_back(at);
            all.push_back(at);
        }
        std::vector<int64_t> read;
        const int max = int(1 + rng.below(6));
        while (read.size() < all.size()) {
            OrderMemory memory = listed(queues);
            epoll_event events[6];
            Runs runs;
            const int n = list_in_order(memory, known(memory, kNow), events, max, runs);
            ASSERT_GT(n, 0);
            for (int i = 0; i < n && runs.of_event.contains(i); i++) {
                auto& queue = queues[events[i].data.u64];
                const OrderedRun& run = runs.of_event[i];
                ASSERT_EQ(run.first.at, queue.front());
                ASSERT_GT(run.datagrams, 0u);
                ASSERT_EQ(run.bytes, run.datagrams);
                read.insert(read.end(), queue.begin(), queue.begin() + run.datagrams);
                queue.erase(queue.begin(), queue.begin() + run.datagrams);
            }
        }
        ASSERT_EQ(read, all);
    }
}

TEST(EpollOrder, NothingBeyondTheHorizon) {
    OrderMemory memory = listed({{10, 30}, {20}, {25}});
    epoll_event events[4];
    Runs runs;
    ASSERT_EQ(list_in_order(memory, 22, events, 4, runs), 3);
    ASSERT_EQ(runs.of_event.size(), 2u);
    EXPECT_EQ(events[0].data.u64, 0u);
    EXPECT_EQ(runs.of_event[0].datagrams, 1u);
    EXPECT_EQ(events[1].data.u64, 1u);
    EXPECT_EQ(events[1].events, uint32_t(EPOLLIN | EPOLLOUT));
    EXPECT_EQ(events[2].data.u64, 2u);  // can be written to, and is not to be read yet
    EXPECT_EQ(events[2].events, uint32_t(EPOLLOUT));
}

// The clock was set back: what has a stamp of the future is of before that.
TEST(EpollOrder, StampsOfTheFutureAreOld) {
    OrderMemory memory = listed({{100}, {kNow + 50}, {kNow + 40}});
    epoll_event events[3];
    Runs runs;
    ASSERT_EQ(list_in_order(memory, known(memory, kNow), events, 3, runs), 3);
    EXPECT_EQ(events[0].data.u64, 2u);
    EXPECT_EQ(runs.of_event[0].first.at, kNow + 40);
    EXPECT_EQ(events[1].data.u64, 1u);
    EXPECT_EQ(events[2].data.u64, 0u);
}

// A path that goes back in time is read in its order all the same; one without room ends what is known.
TEST(EpollOrder, APathIsReadFromItsFront) {
    Unread unread;
    Unread::Path path(unread, 3);
    EXPECT_TRUE(path.add({50, 0, 1, 0}));
    EXPECT_TRUE(path.add({40, 0, 2, 0}));
    Unread::Path other(unread, 1);
    EXPECT_TRUE(other.add({45, 0, 3, 0}));
    EXPECT_TRUE(path.add({60, 0, 4, 0}));
    EXPECT_EQ(unread.known_until(), INT64_MAX);
    EXPECT_FALSE(path.add({70, 0, 5, 0}));
    EXPECT_EQ(unread.known_until(), 70);
    unread.sort(kNow);
    std::vector<uint32_t> order;
    for (; !unread.empty(); unread.advance()) order.push_back(unread.first().bytes);
    EXPECT_EQ(order, (std::vector<uint32_t>{3, 1, 2, 4}));
}

}  // namespace
}  // namespace vma::sock
