// The page as its own process makes it: rows, growth, requests, exit, fork, and a directory that others may write to.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "base/clock.h"
#include "page_fixture.h"

namespace vma::stats {
namespace {

using Publisher = Pages;
constexpr Instant at_ms(int64_t ms) { return Instant{ms * 1'000'000}; }

TEST_F(Publisher, NoFileBeforeTheFirstRow) {
    EXPECT_EQ(page_path(), "");
    EXPECT_FALSE(due_now(at_ms(1)));
    EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST_F(Publisher, RowsAreReadAsTheyWereWritten) {
    RowHandle row;
    SocketIdentity id = udp(7, Path::offloaded, Reason::none);
    id.rings = 1;
    id.local = to_address({IpAddr::v4(10, 0, 0, 1), 7300});
    set_socket(row, id);
    SocketNumbers numbers;
    numbers.rx_packets = 0x1'0000'0001;
    numbers.rx_dropped_full = 3;
    set_socket(row, id, &numbers);
    DropCounters drops;
    drops.add(DropReason::udp_checksum, 9);
    RingIdentity ring{4, 1, "veth0", "packet"};
    set_ring(0, ring, {1, 2, 3, 4, 5, 6, 7}, drops);

    const Snapshot page = read();
    EXPECT_EQ(page.program, "unit-test");
    EXPECT_STREQ(page.header.library, "1.2.3");
    EXPECT_EQ(page.header.pid, self());
    EXPECT_NE(page.header.start_ticks, 0u);
    ASSERT_EQ(page.sockets.size(), 1u);
    const SocketRow& s = page.sockets[0];
    EXPECT_EQ(s.id.fd, 7);
    EXPECT_EQ(s.id.path, Path::offloaded);
    EXPECT_EQ(s.id.inode, 1007u);
    EXPECT_EQ(s.id.cookie, 5007u);
    EXPECT_EQ(to_endpoint(s.id.local), (Endpoint{IpAddr::v4(10, 0, 0, 1), 7300}));
    EXPECT_EQ(s.numbers.rx_packets, 0x1'0000'0001u);
    EXPECT_EQ(s.numbers.rx_dropped_full, 3u);
    ASSERT_GE(page.rings.size(), 1u);
    EXPECT_STREQ(page.rings[0].id.interface, "veth0");
    EXPECT_EQ(page.rings[0].numbers.wakeups, 7u);
    EXPECT_EQ(page.rings[0].drops[unsigned(DropReason::udp_checksum)], 9u);

    // A second set changes who serves it and keeps the rest; the counters stay.
    set_socket(row, udp(8, Path::kernel, Reason::fork));
    const Snapshot later = read();
    ASSERT_EQ(later.sockets.size(), 1u);
    EXPECT_EQ(later.sockets[0].id.reason, Reason::fork);
    EXPECT_EQ(later.sockets[0].id.inode, 1007u);
    EXPECT_EQ(later.sockets[0].numbers.rx_packets, 0x1'0000'0001u);
}

TEST_F(Publisher, InodeAndCookieComeFromTheSocket) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    ASSERT_GE(fd, 0);
    SocketIdentity id = udp(fd, Path::undecided, Reason::undecided);
    id.inode = id.cookie = 0;
    RowHandle row;
    set_socket(row, id);
    struct stat st;
    ASSERT_EQ(fstat(fd, &st), 0);
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len), 0);
    close(fd);
    const Snapshot page = read();
    ASSERT_EQ(page.sockets.size(), 1u);
    EXPECT_EQ(page.sockets[0].id.inode, st.st_ino);
    EXPECT_EQ(page.sockets[0].id.cookie, cookie);
}

TEST_F(Publisher, ARemovedRowIsUsedAgainAndStartsAtZero) {
    RowHandle a, b;
    set_socket(a, udp(1, Path::offloaded, Reason::none));
    SocketNumbers numbers;
    numbers.tx_packets = 5;
    set_socket(a, udp(1, Path::offloaded, Reason::none), &numbers);
    const uint32_t place = a.row;
    remove_socket(a);
    EXPECT_TRUE(read().sockets.empty());
    remove_socket(a);  // harmless
    set_socket(b, udp(2, Path::offloaded, Reason::none));
    EXPECT_EQ(b.row, place);
    const Snapshot page = read();
    ASSERT_EQ(page.sockets.size(), 1u);
    EXPECT_EQ(page.sockets[0].numbers.tx_packets, 0u);
}

TEST_F(Publisher, TenThousandSocketsHaveTheirRows) {
    std::vector<RowHandle> rows(10'000);
    for (int i = 0; i < 10'000; i++)
        set_socket(rows[size_t(i)], udp(i, Path::kernel, Reason::protocol));
    const Snapshot page = read();
    ASSERT_EQ(page.sockets.size(), 10'000u);
    std::set<int> fds;
    for (const SocketRow& row : page.sockets) fds.insert(row.id.fd);
    EXPECT_EQ(fds.size(), 10'000u);
    EXPECT_EQ(*fds.rbegin(), 9'999);
    for (RowHandle& row : rows) remove_socket(row);
    EXPECT_TRUE(read().sockets.empty());
}

TEST_F(Publisher, FileIsForOwnerAndGroupWhateverTheUmask) {
    for (const mode_t mask : {0000u, 0077u}) {
        const mode_t before = umask(mask);
        RowHandle row;
        set_socket(row, udp(1, Path::kernel, Reason::protocol));
        umask(before);
        struct stat st;
        ASSERT_EQ(stat(path(self()).c_str(), &st), 0);
        EXPECT_EQ(st.st_mode & 07777, 0640u) << "umask " << mask;
        withdraw(false);
    }
}

TEST_F(Publisher, CountersArePublishedOnlyWhileAsked) {
    RowHandle row;
    set_socket(row, udp(1, Path::offloaded, Reason::none));
    will_publish();
    EXPECT_FALSE(due_now(at_ms(1000)));
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_EQ(page->ask(Verb::counters), 0);
    EXPECT_FALSE(page->answered(Verb::counters));
    EXPECT_TRUE(due_now(at_ms(1001)));
    published(at_ms(1001));
    EXPECT_TRUE(page->answered(Verb::counters));
    EXPECT_FALSE(due_now(at_ms(1100)));  // 100 ms after the last
    EXPECT_TRUE(due_now(at_ms(1101)));
    published(at_ms(1101));
    EXPECT_EQ(page->ask(Verb::counters), 0);  // a new request need not wait so long
    EXPECT_TRUE(due_now(at_ms(1111)));
    published(at_ms(1111));
    EXPECT_TRUE(page->answered(Verb::counters));
    EXPECT_TRUE(due_now(at_ms(11'110)));
    EXPECT_FALSE(due_now(at_ms(11'111)));  // 10 s after the last request
}

TEST_F(Publisher, ARequestBeforeTheInternalThreadRunsIsToldApart) {
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_EQ(page->ask(Verb::counters), EAGAIN);
}

TEST_F(Publisher, AThreadThatIsThereBeforeThePageIsAskedAtOnce) {
    will_publish();
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_EQ(page->ask(Verb::counters), 0);
}

TEST_F(Publisher, ARingHasNoRowBeforeThereIsAPage) {
    EXPECT_FALSE(set_ring(0, {}, {}, {}));
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_TRUE(set_ring(0, {}, {}, {}));
    EXPECT_EQ(read().rings.at(0).in_use, 1u);
}

TEST_F(Publisher, ARequestForTheRulesIsAnsweredOnce) {
    EXPECT_EQ(asked_now(Verb::reload), 0u);
    RowHandle row;
    set_socket(row, udp(7, Path::offloaded, Reason::none));
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_EQ(asked_now(Verb::reload), 0u);
    EXPECT_EQ(page->ask(Verb::reload),
              EAGAIN);  // no internal thread yet; the next socket() looks, too
    will_publish();
    EXPECT_EQ(page->ask(Verb::reload), 0);
    const uint64_t number = asked_now(Verb::reload);
    EXPECT_NE(number, 0u);
    Header header;
    EXPECT_FALSE(page->answered(Verb::reload));
    set_rules({1, 5, true, "by itself"});
    EXPECT_EQ(asked_now(Verb::reload), number);
    EXPECT_FALSE(page->answered(Verb::reload));
    set_rules({2, 6, false, std::string(1000, 'x')});
    answer(Verb::reload, number);
    EXPECT_EQ(asked_now(Verb::reload), 0u);
    ASSERT_TRUE(page->answered(Verb::reload));
    ASSERT_TRUE(page->header(header));
    EXPECT_EQ(header.rules_generation, 2u);
    EXPECT_EQ(header.rules_count, 6u);
    EXPECT_EQ(header.rules_ok, 0u);
    EXPECT_EQ(std::string(header.rules_text), std::string(sizeof header.rules_text - 1, 'x'));
}

TEST_F(Publisher, WithdrawRemovesTheFileAndRowsComeBackInAnother) {
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    withdraw(false);
    EXPECT_TRUE(std::filesystem::is_empty(directory));
    Snapshot left;
    EXPECT_FALSE(page->read(left, &why));
    EXPECT_THAT(why, testing::HasSubstr("has ended"));
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_EQ(read().sockets.size(), 1u);
    withdraw(true);
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST_F(Publisher, APageThatIsCutShortIsMadeAnew) {
    for (const off_t length : {0, 100, 8192 + 100}) {
        RowHandle rows[2];
        count(rows[0], 1, 4);
        count(rows[1], 2, 5);
        look();
        EXPECT_FALSE(mend());
        ASSERT_EQ(truncate(path(self()).c_str(), length), 0);
        count(rows[0], 1, 6);
        look();
        EXPECT_TRUE(mend());
        EXPECT_FALSE(mend());
        const Snapshot page = read();
        ASSERT_EQ(page.sockets.size(), 2u) << length;
        EXPECT_EQ(page.sockets[0].numbers.rx_packets, 6u);
        EXPECT_EQ(page.sockets[1].numbers.rx_packets, 5u);
        withdraw(false);
    }
}

TEST_F(Publisher, ARequestOfTheCutPageIsNotAnsweredInTheNext) {
    RowHandle row;
    set_socket(row, udp(1, Path::offloaded, Reason::none));
    will_publish();
    std::string why;
    auto cut = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(cut) << why;
    for (int i = 0; i < 3; i++) EXPECT_EQ(cut->ask(Verb::log), 0);
    const uint64_t number = asked_now(Verb::log);
    EXPECT_EQ(number, 3u);
    ASSERT_EQ(truncate(path(self()).c_str(), 0), 0);
    look();
    EXPECT_TRUE(mend());
    answer(Verb::log, number);
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_EQ(page->ask(Verb::log), 0);
    EXPECT_FALSE(page->answered(Verb::log));
    answer(Verb::log, asked_now(Verb::log));
    EXPECT_TRUE(page->answered(Verb::log));
}

// Another thread cuts the page again and again, to any length, while rows are written and tables grow: at whatever moment it
// happens, nothing ends and nothing is forgotten.
TEST_F(Publisher, ACutAtAnyMomentEndsNothing) {
    end();
    begin_in("/dev/shm");  // where pages are by default; a disk's file system is slow to cut
    constexpr unsigned kCuts = 30;
    std::atomic<unsigned> mended{0};
    std::jthread cutter([&](const std::stop_token& stop) {
        std::minstd_rand random(2026);
        const std::string name = path(self());
        while (!stop.stop_requested()) (void)truncate(name.c_str(), off_t(random() % 200'000));
    });
    std::vector<RowHandle> rows(2000);
    uint64_t round = 0;
    const Instant end = monotonic_now() + Duration::seconds(60);
    while (mended < kCuts && monotonic_now() < end) {
        round++;
        for (int i = 0; i < 20; i++) {
            RowHandle& row = rows[(round * 20 + unsigned(i)) % rows.size()];
            count(row, int(&row - rows.data()), round);
        }
        {
            Listing<OptionRow> list;
            for (unsigned i = 0; i < round % 200; i++) list.add({});
        }
        look();
        (void)due(at_ms(int64_t(round)));
        published(at_ms(int64_t(round)));
        mended += mend();
    }
    cutter.request_stop();
    cutter.join();
    EXPECT_EQ(mended, kCuts) << "in " << round << " rounds";
    count(rows[0], 0, round + 1);
    look();
    mend();
    const Snapshot page = read();
    std::set<int> fds;
    for (const SocketRow& row : page.sockets) fds.insert(row.id.fd);
    unsigned placed = 0;
    for (const RowHandle& row : rows) placed += row.row != UINT32_MAX;
    EXPECT_EQ(fds.size(), placed);
    EXPECT_GT(placed, 64u) << "no table grew";
    EXPECT_EQ(page.sockets[rows[0].row].numbers.rx_packets, round + 1);
}

// A program that lowers the limit afterwards is not told by a signal what it cannot know of.
TEST_F(Publisher, ALoweredFileSizeLimitDoesNotConcernThePage) {
    RowHandle row;
    set_socket(row, udp(1, Path::offloaded, Reason::none));
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    count(row, 1, 7);
    published(at_ms(1));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    const Snapshot page = read();
    EXPECT_EQ(page.sockets.at(0).numbers.rx_packets, 7u);
    EXPECT_EQ(page.header.published_ns, 1'000'000u);
}

TEST_F(Publisher, ForkedChildMakesItsOwnPage) {
    RowHandle row;
    set_socket(row, udp(1, Path::offloaded, Reason::none));
    for (const bool hooked : {true, false}) {
        const pid_t child = fork();
        if (child == 0) {
            if (hooked) forget_in_child();  // else it finds out by its pid
            set_socket(row, udp(1, Path::kernel, Reason::fork));
            std::string why;
            Snapshot mine;
            auto page = PageFile::open(directory, uint32_t(getpid()), &why);
            const bool good = page && page->read(mine, &why) && mine.sockets.size() == 1 &&
                              mine.sockets[0].id.reason == Reason::fork;
            withdraw(true);
            _exit(good ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0) << "hooked " << hooked;
        const Snapshot page = read();
        ASSERT_EQ(page.sockets.size(), 1u);
        EXPECT_EQ(page.sockets[0].id.reason, Reason::none)
            << "the child wrote into its parent's page";
    }
    EXPECT_TRUE(std::filesystem::exists(path(self())));
}

TEST_F(Publisher, NeverWritesThroughALinkOrOverAnotherNamespacesPage) {
    const std::string target = directory + "/target";
    {
        const int fd = open(target.c_str(), O_CREAT | O_WRONLY, 0600);
        ASSERT_EQ(write(fd, "precious", 8), 8);
        close(fd);
    }
    ASSERT_EQ(symlink(target.c_str(), path(self()).c_str()), 0);
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_EQ(std::filesystem::file_size(target), 8u);
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path(self()))));
    withdraw(false);

    Header header;
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.version = kVersion;
    header.pid = self();
    header.pid_namespace = 1;
    const int fd = open(path(self()).c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    ASSERT_EQ(write(fd, &header, sizeof header), ssize_t(sizeof header));
    close(fd);
    testing::internal::CaptureStderr();
    RowHandle other;
    set_socket(other, udp(1, Path::kernel, Reason::protocol));
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("VMA_STATS_SHMEM_DIR"));
    EXPECT_EQ(page_path(), "");
    EXPECT_EQ(std::filesystem::file_size(path(self())), sizeof header);
}

TEST_F(Publisher, AStaleFileOfThisNumberIsReplaced) {
    const int fd = open(path(self()).c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    ASSERT_EQ(write(fd, "left over", 9), 9);
    close(fd);
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_EQ(read().sockets.size(), 1u);
}

TEST_F(Publisher, WhatCannotBeMadeIsSaidOnceAndNothingElse) {
    const auto once = [](const char* what) {
        testing::internal::CaptureStderr();
        for (int fd = 0; fd < 3; fd++) {
            RowHandle row;
            set_socket(row, udp(fd, Path::kernel, Reason::protocol));
            EXPECT_EQ(row.row, UINT32_MAX) << what;
        }
        const std::string said = testing::internal::GetCapturedStderr();
        EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << what << ": " << said;
    };
    configure(directory + "/none", "unit-test", "1");
    once("no directory");
    configure(directory, "unit-test", "1");
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{8192, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    once("file size limit");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(std::filesystem::is_empty(directory));
    configure("", "unit-test", "1");
    testing::internal::CaptureStderr();
    RowHandle row;
    set_socket(row, udp(1, Path::kernel, Reason::protocol));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "an empty directory is a wish";
}

// A reader sees each row as one set left it, though the writer never stops.
TEST_F(Publisher, NoTornRow) {
    RowHandle row;
    set_socket(row, udp(0, Path::kernel, Reason::protocol));
    const std::jthread writer([&](const std::stop_token& stop) {
        for (int i = 1; !stop.stop_requested(); i = i % 1'000'000 + 1) {
            SocketNumbers n;
            n.rx_packets = n.rx_bytes = n.tx_os_bytes = n.rx_dropped_full = uint64_t(i);
            set_socket(row, udp(0, Path::kernel, Reason::protocol), &n);
            // Without a rest no read of a slow machine falls between two writes.
            for (int rest = 0; rest < 20; rest++) cpu_relax();
        }
    });
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    unsigned seen = 0;
    for (int i = 0; i < 4000; i++) {
        Snapshot copy;
        ASSERT_TRUE(page->read(copy, &why)) << why;
        for (const SocketRow& r : copy.sockets) {
            seen++;
            ASSERT_EQ(r.numbers.rx_packets, r.numbers.rx_dropped_full);
            ASSERT_EQ(r.numbers.rx_bytes, r.numbers.tx_os_bytes);
            ASSERT_EQ(r.numbers.rx_packets, r.numbers.rx_bytes);
        }
    }
    EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace vma::stats
