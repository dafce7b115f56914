// What an end of a pair takes for a pair's memory and bells, and what it refuses.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <functional>
#include <thread>

#include "support/shm_pair.h"

namespace vma::test {
namespace {

using namespace shm;

constexpr uint32_t kRing = kLeastRingBytes;

struct Forged {
    uint64_t bytes = total_bytes(kRing);
    Header header{kMagic, kVersion, kRing, total_bytes(kRing)};
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
};

// What mapping the forged memory says; empty: it was taken.
std::string refusal(const Forged& forged) {
    const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd, off_t(forged.bytes)), 0);
    const Header& h = forged.header;
    const size_t n = std::min<uint64_t>(sizeof(h), forged.bytes);
    EXPECT_EQ(pwrite(fd, &h, n, 0), ssize_t(n));
    if (forged.seals) {
        EXPECT_EQ(fcntl(fd, F_ADD_SEALS, forged.seals), 0);
    }
    PairMapping mapping;
    std::string why;
    const Status s = mapping.map(fd, Side::joiner, &why);
    EXPECT_EQ(s.ok(), mapping.mapped());
    EXPECT_EQ(s.ok(), why.empty()) << why;
    close(fd);
    return why;
}

TEST(ShmMemory, IsRefusedUnlessSealedAndWhatItsHeaderSays) {
    struct Case {
        std::function<void(Forged&)> change;
        const char* says;
    } const cases[] = {
        {[](Forged& f) { f.seals = 0; }, "not sealed"},
        {[](Forged& f) { f.seals = F_SEAL_GROW | F_SEAL_SEAL; }, "not sealed"},    // can shrink
        {[](Forged& f) { f.seals = F_SEAL_SHRINK | F_SEAL_SEAL; }, "not sealed"},  // can grow
        {[](Forged& f) { f.seals = F_SEAL_SHRINK | F_SEAL_GROW; }, "not sealed"},
        {[](Forged& f) { f.seals |= F_SEAL_WRITE; }, "mapping"},
        {[](Forged& f) { f.bytes = 0; }, "no header"},
        {[](Forged& f) { f.bytes = sizeof(Header) - 1; }, "no header"},
        {[](Forged& f) { f.bytes = sizeof(Header); }, "another size"},
        {[](Forged& f) { f.bytes -= 4096; }, "another size"},
        {[](Forged& f) { f.bytes -= 1; }, "another size"},
        {[](Forged& f) { f.bytes += 1; }, "another size"},
        {[](Forged& f) { f.header.total_bytes += 4096, f.bytes += 4096; }, "another size"},
        {[](Forged& f) { f.header.magic++; }, "not a pair's"},
        {[](Forged& f) { f.header.version = 0; }, "version 0"},
        {[](Forged& f) { f.header.version = 99; }, "version 99"},
        {[](Forged& f) { f.header.ring_bytes = 0; }, "impossible size"},
        {[](Forged& f) { f.header.ring_bytes = kRing - 64; }, "impossible size"},
        {[](Forged& f) { f.header.ring_bytes = kRing + 4096; }, "impossible size"},
        {[](Forged& f) { f.header.ring_bytes = kRing / 2; }, "impossible size"},
        {[](Forged& f) { f.header.ring_bytes = 0x80000000; }, "impossible size"},
        {[](Forged& f) { f.header.ring_bytes = kRing * 2; }, "another size"},
    };
    EXPECT_EQ(refusal({}), "");
    for (const Case& c : cases) {
        Forged f;
        c.change(f);
        EXPECT_NE(refusal(f).find(c.says), std::string::npos) << c.says << ": " << refusal(f);
    }
}

TEST(ShmMemory, OtherDescriptorsAreNotMemory) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    FILE* const file = tmpfile();
    for (int fd : {-1, ends[0], fileno(file), eventfd(0, EFD_CLOEXEC)}) {
        PairMapping mapping;
        std::string why;
        EXPECT_EQ(mapping.map(fd, Side::joiner, &why).error(), EINVAL);
        EXPECT_NE(why.find("not"), std::string::npos) << why;
    }
    fclose(file);
    close(ends[0]);
    close(ends[1]);
}

TEST(ShmMemory, CannotBeResizedAndTheNeighborsRecordsCannotBeWritten) {
    const auto memory = create_pair_memory(kRing, nullptr);
    ASSERT_TRUE(memory);
    EXPECT_NE(ftruncate(*memory, 4096), 0);
    EXPECT_NE(ftruncate(*memory, off_t(total_bytes(kRing)) + 4096), 0);
    PairMapping opener, joiner;
    ASSERT_TRUE(opener.map(*memory, Side::opener, nullptr));
    ASSERT_TRUE(joiner.map(*memory, Side::joiner, nullptr));
    close(*memory);
    for (uint64_t at : {uint64_t(0), uint64_t(kRing) - 1}) {  // twice in a row, at both ends
        opener.outgoing()[at] = uint8_t(at + 1);
        joiner.outgoing()[at] = uint8_t(at + 2);
        for (uint64_t again : {at, at + kRing}) {
            EXPECT_EQ(opener.outgoing()[again], uint8_t(at + 1));
            EXPECT_EQ(joiner.incoming()[again], uint8_t(at + 1));
            EXPECT_EQ(opener.incoming()[again], uint8_t(at + 2));
        }
    }
    opener.of_incoming().consumed = 4711;
    EXPECT_EQ(joiner.of_outgoing().consumed, 4711u);
    EXPECT_NE(&opener.of_incoming(), &opener.of_outgoing());
    const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(read(zeros, const_cast<uint8_t*>(opener.incoming()), 1), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(read(zeros, opener.outgoing(), 1), 1);
    close(zeros);
}

TEST(ShmMemory, ImpossibleSizesSayWhichArePossible) {
    for (uint32_t n : {0u, 4096u, kRing - 1, kRing + 4096, kMostRingBytes * 2}) {
        std::string why;
        EXPECT_EQ(create_pair_memory(n, &why).error(), EINVAL) << n;
        EXPECT_NE(why.find("power of two"), std::string::npos) << why;
    }
}

TEST(ShmMemory, AFileSizeLimitIsAnErrorAndNoSignal) {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit limit{4096, 4096};
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(create_pair_memory(kRing, nullptr).error() == EFBIG ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ShmMemory, AForkedChildDoesNotHaveIt) {
    const auto memory = create_pair_memory(kRing, nullptr);
    ASSERT_TRUE(memory);
    PairMapping mapping;
    ASSERT_TRUE(mapping.map(*memory, Side::opener, nullptr));
    close(*memory);
    const pid_t child = fork();
    if (child == 0) {
        unsigned char vector[1];
        const auto* page = reinterpret_cast<void*>(uintptr_t(mapping.outgoing()) & ~4095ul);
        const bool there = mincore(const_cast<void*>(page), 4096, vector) == 0;
        mapping.forget();
        _exit(there ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// ---- bells

int waits(int set) {
    epoll_event event;
    return epoll_wait(set, &event, 1, 0);
}

TEST(ShmBell, WakesOncePerRingAndNeedsNoReader) {
    const auto bell = create_bell();
    ASSERT_TRUE(bell);
    BorrowedBell borrowed;
    ASSERT_TRUE(borrowed.adopt(ShmParts::copy(*bell)));
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, *bell, &event), 0);
    EXPECT_EQ(waits(set), 0);
    for (int i = 0; i < 1000; ++i) {
        borrowed.ring();
        ASSERT_EQ(waits(set), 1) << i;
        ASSERT_EQ(waits(set), 0) << i;
    }
    borrowed.ring();
    borrowed.ring();
    EXPECT_EQ(waits(set), 1);
    EXPECT_EQ(waits(set), 0);
    close(set);
    close(*bell);
}

// The owner of a bell tries to keep the one who rings it: an eventfd that is full and blocking would.
TEST(ShmBell, RingingNeverWaitsForItsOwner) {
    const auto bell = create_bell();
    ASSERT_TRUE(bell);
    BorrowedBell borrowed;
    ASSERT_TRUE(borrowed.adopt(ShmParts::copy(*bell)));
    ASSERT_EQ(fcntl(*bell, F_SETFL, 0), 0);  // blocking, for both
    const itimerspec far{{0, 0}, {1000, 0}}, often{{0, 1}, {0, 1}}, never{};
    std::thread reader([&] {  // sits in a blocking read of it
        uint64_t ticks;
        for (int i = 0; i < 3; ++i) EXPECT_EQ(read(*bell, &ticks, sizeof ticks), 8);
    });
    alarm(20);  // ends the test if one of these waits
    for (int i = 0; i < 3000; ++i) {
        if (i % 3 == 0) timerfd_settime(*bell, 0, &far, nullptr);
        if (i % 3 == 1) timerfd_settime(*bell, 0, &often, nullptr);
        borrowed.ring();
    }
    timerfd_settime(*bell, 0, &often, nullptr);
    reader.join();
    timerfd_settime(*bell, 0, &never, nullptr);
    alarm(0);
    close(*bell);
}

TEST(ShmBell, OtherDescriptorsAreNotBells) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    for (int fd : {-1, ends[1], eventfd(0, EFD_CLOEXEC), open("/dev/null", O_RDWR | O_CLOEXEC)}) {
        BorrowedBell bell;
        EXPECT_EQ(bell.adopt(fd).error(), EINVAL);
        EXPECT_FALSE(bell.valid());
        if (fd >= 0) {
            EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "closed on every path";
        }
    }
    close(ends[0]);
}

TEST(ShmPair, RefusesWhatIsNotOneAndClosesAll) {
    auto open_now = [] {
        int n = 0;
        for (int fd = 0; fd < 1024; ++fd) n += fcntl(fd, F_GETFD) != -1;
        return n;
    };
    const int before = open_now();
    std::string why;
    {
        ShmParts parts;
        Pair good;
        EXPECT_TRUE(good.open(parts.end[0], &why)) << why;
        close(std::exchange(parts.end[1].neighbor_bell, eventfd(0, EFD_CLOEXEC)));
        Pair bad;
        EXPECT_EQ(bad.open(parts.end[1], &why).error(), EINVAL);
        EXPECT_NE(why.find("not a timer"), std::string::npos) << why;
    }
    {
        ShmParts parts;
        close(std::exchange(parts.end[0].bell, -1));
        Pair bad;
        EXPECT_FALSE(bad.open(parts.end[0], &why));
        EXPECT_NE(why.find("no bell"), std::string::npos) << why;
        close(std::exchange(parts.end[1].memory, memfd_create("empty", MFD_CLOEXEC)));
        Pair worse;
        EXPECT_FALSE(worse.open(parts.end[1], &why));
        EXPECT_NE(why.find("not sealed"), std::string::npos) << why;
    }
    EXPECT_EQ(open_now(), before);
}

}  // namespace
}  // namespace vma::test
