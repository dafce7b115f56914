#include "base/spsc.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

struct Item {
    uint64_t a, b;
};

TEST(Spsc, FillsToCapacityAndKeepsOrder) {
    Spsc<int, 4> ring;
    EXPECT_TRUE(ring.empty());
    int out = 0;
    EXPECT_FALSE(ring.pop(out));
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.push(i));
    EXPECT_FALSE(ring.push(9));
    EXPECT_EQ(ring.size(), 4u);
    for (int i = 0; i < 4; ++i) {
        ASSERT_TRUE(ring.pop(out));
        EXPECT_EQ(out, i);
    }
    EXPECT_TRUE(ring.empty());
}

TEST(Spsc, RandomBatchesAgainstAQueue) {
    const uint64_t seed = std::random_device{}();
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Rng rng(seed);
    Spsc<uint32_t, 64> ring;
    std::deque<uint32_t> oracle;
    uint32_t next = 0;
    for (int step = 0; step < 50000; ++step) {
        uint32_t batch[100];
        const uint32_t n = rng.below(100);
        if (rng.chance(1, 2)) {
            for (uint32_t i = 0; i < n; ++i) batch[i] = next + i;
            const uint32_t took = ring.push(batch, n);
            ASSERT_EQ(took, std::min<size_t>(n, 64 - oracle.size())) << "seed " << seed;
            for (uint32_t i = 0; i < took; ++i) oracle.push_back(next++);
        } else {
            const uint32_t got = ring.pop(batch, n);
            ASSERT_EQ(got, std::min<size_t>(n, oracle.size())) << "seed " << seed;
            for (uint32_t i = 0; i < got; ++i) {
                ASSERT_EQ(batch[i], oracle.front()) << "seed " << seed;
                oracle.pop_front();
            }
        }
        ASSERT_EQ(ring.size(), oracle.size());
    }
}

template <class Ring>
void produce(Ring& ring, uint64_t count) {
    for (uint64_t i = 0; i < count;) {
        if (ring.push(Item{i, ~i})) {
            ++i;
        } else {
            sched_yield();
        }
    }
}

// Items lost, doubled, torn or out of order.
template <class Ring>
uint64_t consume(Ring& ring, uint64_t count) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count;) {
        Item item[7];
        const uint32_t n = ring.pop(item, 7);
        if (n == 0) sched_yield();
        for (uint32_t k = 0; k < n; ++k, ++i) wrong += item[k].a != i || item[k].b != ~i;
    }
    return wrong;
}

TEST(Spsc, TwoThreads) {
    auto ring = std::make_unique<Spsc<Item, 128>>();
    std::thread producer([&] { produce(*ring, 200000); });
    EXPECT_EQ(consume(*ring, 200000), 0u);
    producer.join();
    EXPECT_TRUE(ring->empty());
}

TEST(Spsc, TwoProcessesInZeroFilledSharedMemory) {
    using Ring = Spsc<Item, 128>;
    void* memory =
        mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* ring = static_cast<Ring*>(memory);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        produce(*ring, 200000);
        _exit(0);
    }
    EXPECT_EQ(consume(*ring, 200000), 0u);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    munmap(memory, sizeof(Ring));
}

// The other side scribbles over the whole ring, indices included: nothing outside is touched (ASan, guards).
TEST(Spsc, GarbageIndicesStayInsideTheRing) {
    const uint64_t seed = std::random_device{}();
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Rng rng(seed);
    struct Guarded {
        alignas(64) uint8_t before[64];
        Spsc<uint32_t, 8> ring;
        alignas(64) uint8_t after[64];
    };
    auto g = std::make_unique<Guarded>();
    memset(g->before, 0x5a, 64);
    memset(g->after, 0x5a, 64);
    for (int step = 0; step < 20000; ++step) {
        auto* bytes = reinterpret_cast<uint8_t*>(&g->ring);
        for (size_t i = 0; i < sizeof(g->ring); ++i)
            if (rng.chance(1, 4)) bytes[i] = uint8_t(rng.next());
        uint32_t out[20] = {};
        const uint32_t in[20] = {};
        ASSERT_LE(g->ring.push(in, 20), 8u) << "seed " << seed;
        ASSERT_LE(g->ring.pop(out, 20), 8u) << "seed " << seed;
        ASSERT_LE(g->ring.size(), 8u) << "seed " << seed;
    }
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(g->before[i], 0x5a);
        ASSERT_EQ(g->after[i], 0x5a);
    }
}

}  // namespace
}  // namespace vma
