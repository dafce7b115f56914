#include "base/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/own_fd.h"
#include "base/rng.h"

namespace vma {
namespace {

constexpr size_t MiB = size_t(1) << 20;

struct Unmap {
    void operator()(Arena* a) const { Arena::unmap(a); }
};
using ArenaPtr = std::unique_ptr<Arena, Unmap>;

ArenaPtr make_arena(size_t reserve, OwnFd* fd = nullptr) {
    auto r = Arena::create(reserve, fd);
    EXPECT_TRUE(r.ok()) << strerror(r.error());
    return ArenaPtr(r.ok() ? *r : nullptr);
}

bool aligned(const void* p, size_t a) { return reinterpret_cast<uintptr_t>(p) % a == 0; }

// Runs `f` in a forked child and returns its exit code, -1 if it did not exit.
template <class F>
int in_child(F f) {
    const pid_t pid = fork();
    if (pid == 0) _exit(f());
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

int64_t resident_pages(const void* p, size_t bytes) {
    std::vector<unsigned char> vec(bytes / Arena::kPage);
    if (mincore(const_cast<void*>(p), bytes, vec.data()) != 0) return -1;
    int64_t n = 0;
    for (unsigned char c : vec) n += c & 1;
    return n;
}

TEST(Arena, EverySizeAndAlignmentIsAlignedAndWritable) {
    ArenaPtr a = make_arena(256 * MiB);
    for (size_t align = 1; align <= Arena::kPage; align *= 2) {
        for (size_t n :
             {size_t(0), size_t(1), size_t(31), size_t(32), size_t(33), size_t(48), size_t(49),
              size_t(96), size_t(97), size_t(192), size_t(4095), size_t(4097), size_t(6144),
              size_t(98304), size_t(131072), size_t(131073), size_t(300000)}) {
            void* p = a->allocate(n, align);
            ASSERT_NE(p, nullptr) << n << " align " << align;
            EXPECT_TRUE(aligned(p, std::max(align, Arena::kMinAlign))) << n << " align " << align;
            EXPECT_TRUE(a->contains(p));
            memset(p, 0xa5, n);
        }
    }
}

TEST(Arena, FreedBlockIsReusedByTheSameClassAndCountersReturn) {
    ArenaPtr a = make_arena(64 * MiB);
    const size_t before = a->in_use();
    void* p = a->allocate(100);
    EXPECT_EQ(a->in_use(), before + 128);
    a->free(p, 100);
    EXPECT_EQ(a->allocate(128), p);
    a->free(p, 128);
    void* large = a->allocate(MiB);
    EXPECT_EQ(a->in_use(), before + MiB);
    a->free(large, MiB);
    EXPECT_EQ(a->allocate(MiB), large);
    a->free(large, MiB);
    EXPECT_EQ(a->in_use(), before);
    EXPECT_EQ(a->high_water(), before + MiB);
    a->free(nullptr, 5);
    EXPECT_EQ(a->in_use(), before);
}

TEST(Arena, MakeConstructsAlignedAndDestroyRunsTheDestructor) {
    struct alignas(64) Probe {
        int* counter;
        char more[100];
        explicit Probe(int* c) : counter(c) { ++*counter; }
        ~Probe() { --*counter; }
    };
    ArenaPtr a = make_arena(64 * MiB);
    int live = 0;
    Probe* one = a->make<Probe>(&live);
    Probe* two = a->make<Probe>(&live);
    EXPECT_TRUE(aligned(one, 64));
    EXPECT_TRUE(aligned(two, 64));
    EXPECT_EQ(live, 2);
    a->destroy(one);
    a->destroy(two);
    EXPECT_EQ(live, 0);
    EXPECT_EQ(a->in_use(), 0u);
    a->destroy<Probe>(nullptr);
}

TEST(Arena, ExhaustionReturnsNullAndFreeingHelps) {
    ArenaPtr a = make_arena(8 * MiB);
    EXPECT_EQ(a->allocate(9 * MiB), nullptr);
    EXPECT_EQ(a->allocate(SIZE_MAX), nullptr);
    EXPECT_EQ(a->allocate(SIZE_MAX - 8), nullptr);
    std::vector<void*> all;
    while (void* p = a->allocate(MiB)) all.push_back(p);
    EXPECT_EQ(all.size(), 7u);  // the arena itself takes a page of the eighth
    size_t small = 0;
    while (void* p = a->allocate(4096)) {
        memset(p, 1, 4096);
        ++small;
    }
    EXPECT_GT(small, 240u);
    EXPECT_LE(small, 255u);
    a->free(all.back(), MiB);
    EXPECT_NE(a->allocate(4096), nullptr);
    EXPECT_NE(a->allocate(200000), nullptr);
}

TEST(Arena, FreePagesMergeInEveryOrder) {
    std::vector<int> order = {0, 1, 2, 3};
    do {
        ArenaPtr a = make_arena(8 * MiB);
        void* block[4];
        for (auto& b : block) b = a->allocate(MiB);
        void* guard = a->allocate(3 * MiB);
        ASSERT_NE(guard, nullptr);
        for (int i : order) a->free(block[i], MiB);
        EXPECT_EQ(a->allocate(4 * MiB), block[0]) << order[0] << order[1] << order[2] << order[3];
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Arena, LargeBlocksReturnTheirPagesAndReadZeroAgain) {
    ArenaPtr a = make_arena(64 * MiB);
    auto* p = static_cast<uint8_t*>(a->allocate(4 * MiB));
    auto* guard = a->allocate(MiB);
    memset(p, 7, 4 * MiB);
    EXPECT_EQ(resident_pages(p, 4 * MiB), 1024);
    a->free(p, 4 * MiB);
    EXPECT_LE(resident_pages(p, 4 * MiB), 1);  // the node of the free list
    EXPECT_EQ(a->allocate(4 * MiB), p);
    EXPECT_EQ(p[Arena::kPage], 0);
    EXPECT_EQ(p[4 * MiB - 1], 0);
    a->free(guard, MiB);
}

TEST(Arena, ForkedChildSeesWritesAtTheSameAddressBothWays) {
    OwnFd fd;
    ArenaPtr a = make_arena(1024 * MiB, &fd);
    auto* word = static_cast<std::atomic<int>*>(a->allocate(sizeof(std::atomic<int>)));
    auto* late = static_cast<std::atomic<char*>*>(a->allocate(sizeof(void*)));
    new (word) std::atomic<int>(1);
    new (late) std::atomic<char*>(nullptr);
    int to_child[2];
    ASSERT_EQ(pipe(to_child), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        char go;
        alarm(20);
        own_fds_close_in_child();
        if (read(to_child[0], &go, 1) != 1) _exit(9);
        if (word->load() != 2) _exit(1);
        // Memory that the parent added after the fork, beyond the file's size at the fork.
        if (!a->follow_growth()) _exit(4);
        if (strcmp(late->load(), "after the fork") != 0) _exit(2);
        word->store(3);
        _exit(0);
    }
    ASSERT_GT(pid, 0);
    const size_t size_at_fork = a->file_size();
    auto* text = static_cast<char*>(a->allocate(16 * MiB));
    ASSERT_NE(text, nullptr);
    EXPECT_GT(a->file_size(), size_at_fork);
    char* end_of_block = text + 16 * MiB - 32;
    strcpy(end_of_block, "after the fork");
    late->store(end_of_block);
    word->store(2);
    ASSERT_EQ(write(to_child[1], "g", 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(word->load(), 3);
    close(to_child[0]);
    close(to_child[1]);
}

TEST(Arena, GrowsOnDemandAndOnlyWhileTheDescriptorIsOpen) {
    OwnFd fd;
    ArenaPtr a = make_arena(64 * MiB, &fd);
    EXPECT_EQ(a->memfd(), fd.fd());
    EXPECT_TRUE(is_own_fd(fd.fd()));
    EXPECT_EQ(a->file_size(), Arena::kGrowStep);
    struct stat st;
    ASSERT_EQ(fstat(fd.fd(), &st), 0);
    EXPECT_EQ(size_t(st.st_size), a->file_size());
    EXPECT_NE(a->allocate(10 * MiB), nullptr);
    EXPECT_EQ(a->file_size(), 12 * MiB);
    fd.reset();
    EXPECT_EQ(a->memfd(), -1);
    EXPECT_NE(a->allocate(MiB), nullptr);  // still inside the file
    EXPECT_EQ(a->allocate(4 * MiB), nullptr);
    EXPECT_EQ(a->grow_to_full().error(), EBADF);
}

TEST(Arena, GrowToFullMakesClosingHarmless) {
    OwnFd fd;
    ArenaPtr a = make_arena(64 * MiB, &fd);
    ASSERT_TRUE(a->grow_to_full().ok());
    fd.reset();
    auto* p = static_cast<char*>(a->allocate(50 * MiB));
    ASSERT_NE(p, nullptr);
    p[50 * MiB - 1] = 1;
}

TEST(Arena, HalvesTheReservationWhenAddressSpaceIsShort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr size_t slack =
        0;  // the sanitizer's shadow counts: limit by a reservation that nothing can hold
    const size_t asked = size_t(1) << 47;
#else
    const size_t asked = Arena::kDefaultReserve;
    constexpr size_t slack = 1024 * MiB;
#endif
    const int code = in_child([&] {
        if (slack) {
            const rlimit limit{slack, slack};
            if (setrlimit(RLIMIT_AS, &limit) != 0) return 9;
        }
        OwnFd fd;
        auto r = Arena::create(asked, &fd);
        if (!r.ok()) return 1;
        if ((*r)->reserved() >= asked || (*r)->reserved() < Arena::kMinReserve) return 2;
        return (*r)->allocate(MiB) ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
}

TEST(Arena, FileSizeLimitIsAnErrorAndNoSignal) {
    const int code = in_child([] {
        rlimit limit{8 * MiB, 8 * MiB};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 9;
        if (Arena::create(64 * MiB).error() != EFBIG) return 1;
        OwnFd fd;
        auto r = Arena::create(64 * MiB, &fd);
        if (!r.ok()) return 2;
        if ((*r)->allocate(3 * MiB) == nullptr) return 3;
        return (*r)->allocate(20 * MiB) == nullptr ? 0 : 4;
    });
    EXPECT_EQ(code, 0);
}

TEST(Arena, MlockallOfTheProgramDoesNotPopulateTheReservation) {
    const int code = in_child([] {
        rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
        const bool unlimited = setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
        OwnFd before, after;
        auto r = Arena::create(Arena::kDefaultReserve, &before);
        if (!r.ok()) return 1;
        // Without the right to lock much, mlockall itself fails: then only the sizes are compared.
        const bool locked = unlimited && mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
        dprintf(STDOUT_FILENO, "mlockall in force: %s\n", locked ? "yes" : "no");
        struct stat st;
        if (fstat(before.fd(), &st) != 0 || size_t(st.st_blocks) * 512 > 2 * Arena::kGrowStep)
            return 2;
        if (!locked) return 0;
        auto late = Arena::create(Arena::kDefaultReserve, &after);
        if (!late.ok()) return 3;
        if (fstat(after.fd(), &st) != 0 || size_t(st.st_blocks) * 512 > 2 * Arena::kGrowStep)
            return 4;
        return 0;
    });
    EXPECT_EQ(code, 0);
}

TEST(Arena, RandomizedAgainstAnOracle) {
    const uint64_t seed = std::random_device{}() | uint64_t(std::random_device{}()) << 32;
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Rng rng(seed);
    OwnFd fd;
    ArenaPtr a = make_arena(96 * MiB, &fd);
    struct Block {
        size_t n, align;
        uint8_t mark;
    };
    std::map<uint8_t*, Block> live;  // oracle: what is handed out, by address
    size_t failures = 0;
    auto check = [&](uint8_t* p, const Block& b) {
        return p[0] == b.mark && p[b.n - 1] == b.mark && p[b.n / 2] == b.mark;
    };
    for (int step = 0; step < 60000; ++step) {
        if (live.empty() || rng.chance(53, 100)) {
            Block b;
            const uint32_t kind = rng.below(100);
            b.n = 1 + (kind < 80   ? rng.below(4000)
                       : kind < 95 ? rng.below(140000)
                                   : rng.below(3000000));
            b.align = size_t(1) << rng.below(13);
            b.mark = uint8_t(rng.next());
            auto* p = static_cast<uint8_t*>(a->allocate(b.n, b.align));
            if (p == nullptr) {
                ++failures;
                continue;
            }
            ASSERT_TRUE(aligned(p, b.align)) << "seed " << seed << " step " << step;
            auto next = live.lower_bound(p);
            if (next != live.end()) {
                ASSERT_LE(p + b.n, next->first) << "seed " << seed << " step " << step;
            }
            if (next != live.begin()) {
                auto prev = std::prev(next);
                ASSERT_LE(prev->first + prev->second.n, p) << "seed " << seed << " step " << step;
            }
            p[0] = p[b.n - 1] = p[b.n / 2] = b.mark;
            live[p] = b;
        } else {
            auto it =
                live.lower_bound(reinterpret_cast<uint8_t*>(a.get()) + rng.next() % a->reserved());
            if (it == live.end()) it = live.begin();
            ASSERT_TRUE(check(it->first, it->second)) << "seed " << seed << " step " << step;
            a->free(it->first, it->second.n, it->second.align);
            live.erase(it);
        }
    }
    for (auto& [p, b] : live) {
        ASSERT_TRUE(check(p, b)) << "seed " << seed;
        a->free(p, b.n, b.align);
    }
    EXPECT_EQ(a->in_use(), 0u) << "seed " << seed;
    printf("allocations refused: %zu, high water %zu of %zu\n", failures, a->high_water(),
           a->reserved());
}

}  // namespace
}  // namespace vma
