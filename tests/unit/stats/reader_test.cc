// Pages that lie: each is refused with a line that says what is wrong, and nothing crashes or is written through.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <fstream>
#include <random>

#include "page_fixture.h"

namespace vma::stats {
namespace {

using testing::HasSubstr;

class Reader : public Pages {
  protected:
    // A whole, good page as bytes.
    std::string good_page() {
        RowHandle row;
        set_socket(row, udp(3, Path::offloaded, Reason::none));
        std::ifstream file(path(self()), std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(file)), {});
        withdraw(false);
        return bytes;
    }
    void put(const std::string& bytes) {
        std::ofstream(path(self()), std::ios::binary | std::ios::trunc) << bytes;
    }
    static Header header_of(const std::string& bytes) {
        Header h;
        std::memcpy(&h, bytes.data(), sizeof h);
        return h;
    }
    static std::string with(std::string bytes, const Header& h) {
        std::memcpy(bytes.data(), &h, sizeof h);
        return bytes;
    }
    // What open or else read says about the file; "" when it is fine.
    std::string verdict() {
        std::string why;
        auto page = PageFile::open(directory, self(), &why);
        Snapshot out;
        if (page && page->read(out, &why)) return "";
        EXPECT_NE(why, "");
        return why;
    }
};

TEST_F(Reader, TakesAGoodOne) {
    put(good_page());
    EXPECT_EQ(verdict(), "");
}

TEST_F(Reader, NoPage) { EXPECT_THAT(verdict(), HasSubstr("not preloaded")); }

TEST_F(Reader, CutShortAnywhere) {
    const std::string bytes = good_page();
    const Header h = header_of(bytes);
    const Segment& last = h.segments[h.segment_count - 1];  // what follows its rows is only padding
    const size_t end = last.offset + last.rows * last.row_size;
    ASSERT_LE(end, bytes.size());
    for (size_t n = 0; n < end; n += n < 2048 ? 37 : 1021) {
        put(bytes.substr(0, n));
        EXPECT_THAT(verdict(), HasSubstr("cut short")) << n;
    }
}

TEST_F(Reader, CutShortWhileOpen) {
    put(good_page());
    std::string why;
    auto page = PageFile::open(directory, self(), &why);
    ASSERT_TRUE(page) << why;
    ASSERT_EQ(truncate(path(self()).c_str(), 9000), 0);
    Snapshot out;
    EXPECT_FALSE(page->read(out, &why));
    EXPECT_THAT(why, HasSubstr("cut short"));
    ASSERT_EQ(truncate(path(self()).c_str(), 0), 0);
    EXPECT_FALSE(page->read(out, &why));
    EXPECT_EQ(page->ask(Verb::counters), EIO);
    EXPECT_FALSE(page->answered(Verb::counters));
}

TEST_F(Reader, WrongMagicVersionStateAndPid) {
    const std::string bytes = good_page();
    Header h = header_of(bytes);
    h.magic[0] = 'X';
    put(with(bytes, h));
    EXPECT_THAT(verdict(), HasSubstr("magic"));
    h = header_of(bytes);
    h.version = kVersion + 1;
    put(with(bytes, h));
    EXPECT_THAT(verdict(), HasSubstr("version"));
    h = header_of(bytes);
    h.header_size = 12;
    put(with(bytes, h));
    EXPECT_THAT(verdict(), HasSubstr("version"));
    h = header_of(bytes);
    h.state = PageState::in_making;
    put(with(bytes, h));
    EXPECT_THAT(verdict(), HasSubstr("being made"));
    h = header_of(bytes);
    h.pid++;
    put(with(bytes, h));
    EXPECT_THAT(verdict(), HasSubstr("not a page of"));
}

TEST_F(Reader, SegmentsThatLeadNowhere) {
    const std::string bytes = good_page();
    const auto check = [&](auto&& change, const char* text) {
        Header h = header_of(bytes);
        change(h);
        put(with(bytes, h));
        EXPECT_THAT(verdict(), HasSubstr(text));
    };
    check([](Header& h) { h.segment_count = kMaxSegments + 1; }, "damaged");
    check([](Header& h) { h.segments[0].row_size = 0; }, "damaged");
    check([](Header& h) { h.segments[0].row_size = 1u << 31; }, "damaged");
    check([](Header& h) { h.segments[0].rows = uint64_t(1) << 60; }, "damaged");
    check([](Header& h) { h.segments[0].rows = 1u << 20; }, "cut short");
    check([](Header& h) { h.segments[0].offset = 64; }, "damaged");
    check([](Header& h) { h.segments[0].offset = UINT64_MAX - 63; }, "cut short");
    check([](Header& h) { h.segments[1].offset += 1; }, "damaged");
    Header h = header_of(bytes);
    h.segments[0].kind = SegmentKind(77);  // of a later library: skipped
    put(with(bytes, h));
    EXPECT_EQ(verdict(), "");
}

TEST_F(Reader, RandomBytesNeverHurt) {
    const std::string good = good_page();
    const char* text = getenv("VMA_TEST_SEED");
    const unsigned seed = text ? unsigned(strtoul(text, nullptr, 0)) : 20260u;
    SCOPED_TRACE(testing::Message() << "VMA_TEST_SEED=" << seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 300; round++) {
        std::string bytes = good;
        // Mostly in the header, where the sizes are.
        for (unsigned i = 0, n = 1 + random() % 40; i < n; i++)
            bytes[random() % (random() % 4 ? sizeof(Header) : bytes.size())] = char(random());
        if (random() % 2) std::memcpy(bytes.data(), good.data(), 16);  // magic and version pass
        put(bytes);
        std::string why;
        if (auto page = PageFile::open(directory, self(), &why)) {
            Snapshot out;
            if (page->read(out, &why)) {
                for (char c : out.program) ASSERT_TRUE(c >= 0x20 && c < 0x7f);
            }
        }
    }
}

TEST_F(Reader, ARowThatIsNeverFinishedIsLeftOut) {
    std::string bytes = good_page();
    const Segment s = header_of(bytes).segments[0];
    SocketRow row;
    std::memcpy(&row, bytes.data() + s.offset, sizeof row);
    ASSERT_EQ(row.in_use, 1u);
    row.seq |= 1;
    std::memcpy(bytes.data() + s.offset, &row, sizeof row);
    put(bytes);
    EXPECT_TRUE(read().sockets.empty());
}

TEST_F(Reader, NotAFileOfItsOwn) {
    const std::string elsewhere = directory + "/elsewhere";
    std::ofstream(elsewhere) << good_page();
    ASSERT_EQ(symlink(elsewhere.c_str(), path(self()).c_str()), 0);
    EXPECT_THAT(verdict(), HasSubstr("symbolic link"));
    unlink(path(self()).c_str());
    ASSERT_EQ(link(elsewhere.c_str(), path(self()).c_str()), 0);
    EXPECT_THAT(verdict(), HasSubstr("not a regular file"));
    unlink(path(self()).c_str());
    ASSERT_EQ(mkfifo(path(self()).c_str(), 0600), 0);
    EXPECT_THAT(verdict(), HasSubstr("not a regular file"));  // and does not wait for a writer
    unlink(path(self()).c_str());
    ASSERT_EQ(mkdir(path(self()).c_str(), 0700), 0);
    EXPECT_NE(verdict(), "");
}

TEST_F(Reader, TextIsMadePrintable) {
    const char hostile[8] = {'a', '\x1b', '[', '2', 'J', '\n', '\xff', 'b'};  // no NUL
    EXPECT_EQ(printable(hostile, sizeof hostile), "a?[2J??b");
}

TEST_F(Reader, StalePagesGoAndOthersStay) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        forget_in_child();
        RowHandle row;
        set_socket(row, udp(3, Path::kernel, Reason::protocol));
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    RowHandle mine;
    set_socket(mine, udp(3, Path::kernel, Reason::protocol));
    std::ofstream(directory + "/vmastat.notapid") << "x";
    std::ofstream(directory + "/vmastat.4194304") << "not a page";  // beyond any pid
    std::string why;
    EXPECT_THAT(list_pages(directory, &why),
                testing::UnorderedElementsAre(self(), uint32_t(child), 4194304u));
    EXPECT_EQ(remove_stale_pages(directory), 0u);
    auto page = PageFile::open(directory, uint32_t(child), &why);
    ASSERT_TRUE(page) << why;
    EXPECT_TRUE(page->process_lives());
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(page->process_lives());
    Snapshot last;
    EXPECT_TRUE(page->read(last, &why)) << "what a killed process left can still be read: " << why;
    EXPECT_EQ(remove_stale_pages(directory), 1u);
    EXPECT_FALSE(std::filesystem::exists(path(uint32_t(child))));
    EXPECT_TRUE(std::filesystem::exists(path(self())));
    EXPECT_TRUE(std::filesystem::exists(directory + "/vmastat.4194304"));
    close(ready[0]);
    close(ready[1]);
}

// A number is used again, by another user's process as well.
TEST_F(Reader, APageWhoseNumberIsAnothersIsStale) {
    RowHandle mine;
    set_socket(mine, udp(3, Path::kernel, Reason::protocol));
    // That of a process which began earlier and had the number of our parent.
    const uint32_t parent = uint32_t(getppid());
    std::filesystem::copy_file(path(self()), path(parent));
    std::fstream page(path(parent), std::ios::in | std::ios::out | std::ios::binary);
    Header header;
    page.read(reinterpret_cast<char*>(&header), sizeof header);
    header.pid = parent;
    header.start_ticks = 1;
    page.seekp(0);
    page.write(reinterpret_cast<const char*>(&header), sizeof header);
    page.close();
    if (geteuid() == 0) {
        ASSERT_EQ(chown(path(parent).c_str(), 65534, 65534), 0);
    }
    EXPECT_EQ(remove_stale_pages(directory), 1u);
    EXPECT_FALSE(std::filesystem::exists(path(parent)));
    EXPECT_TRUE(std::filesystem::exists(path(self())));
}

TEST_F(Reader, APageThatWasOnlyBegunIsStaleAfterAWhile) {
    const uint32_t nobody = 4194304;  // beyond any pid
    for (const size_t bytes : {size_t(0), size_t(8192)}) {
        std::ofstream(path(nobody)) << std::string(bytes, '\0');
        EXPECT_EQ(remove_stale_pages(directory), 0u) << "it may be in the making";
        const timespec long_ago[2] = {{1, 0}, {1, 0}};
        ASSERT_EQ(utimensat(AT_FDCWD, path(nobody).c_str(), long_ago, 0), 0);
        std::filesystem::copy_file(path(nobody), path(self()));
        ASSERT_EQ(utimensat(AT_FDCWD, path(self()).c_str(), long_ago, 0), 0);
        EXPECT_EQ(remove_stale_pages(directory), 1u) << "who lives may still go on with his";
        EXPECT_FALSE(std::filesystem::exists(path(nobody)));
        std::filesystem::remove(path(self()));
    }
}

TEST_F(Reader, ADirectoryThatIsNotThere) {
    std::string why;
    EXPECT_TRUE(list_pages(directory + "/none", &why).empty());
    EXPECT_THAT(why, HasSubstr("No such file"));
    EXPECT_EQ(remove_stale_pages(directory + "/none"), 0u);
}

}  // namespace
}  // namespace vma::stats
