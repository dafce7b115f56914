// The log's lines, destinations and limits.
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/own_fd.h"

namespace vma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> g_lines;
std::vector<int> g_levels;
int64_t g_now = 0;
int64_t test_now() { return g_now; }
void receive(int level, const char* line) {
    g_levels.push_back(level);
    g_lines.emplace_back(line);
    errno = ENOENT;  // a callback that spoils errno
}

class Log : public testing::Test {
  protected:
    void SetUp() override {
        before_ = log_config();
        g_lines.clear();
        g_levels.clear();
        config_.callback = receive;
        log_configure(config_);
    }
    void TearDown() override { log_configure(before_); }
    LogConfig before_, config_;
};

TEST_F(Log, PlainLine) {
    vma_log(warning, "config", "x {} y", 7);
    log_text(LogLevel::info, "---");
    EXPECT_THAT(g_lines, ElementsAre(" VMA WARNING: x 7 y\n", " VMA INFO: ---\n"));
    EXPECT_THAT(g_levels, ElementsAre(2, 3));
}

TEST_F(Log, LevelsFilterAndChangeAtRunTime) {
    vma_log(debug, "a", "hidden");
    log_text(LogLevel::details, "hidden");
    log_set_level(LogLevel::debug);
    vma_log(debug, "area", "seen");
    EXPECT_THAT(g_lines, ElementsAre(" VMA DEBUG: area: seen\n"));
    log_set_level(LogLevel::none);
    vma_log(panic, "a", "hidden");
    EXPECT_EQ(g_lines.size(), 1u);
    log_set_level(LogLevel::all);  // above what is compiled in
    EXPECT_EQ(log_config().level, kMaxLogLevel);
}

TEST_F(Log, Details) {
    const std::string tid = fmt::format("{:5}", gettid()), pid = fmt::format("{:5}", getpid());
    g_now = 1'000'000'000;
    config_.now_ns = test_now;
    log_configure(config_);
    g_now += 1'234'567;
    for (int d = 0; d <= 3; ++d) {
        log_set_details(d);
        log_text(LogLevel::error, "t");
    }
    EXPECT_THAT(g_lines,
                ElementsAre(" VMA ERROR: t\n", " Tid: " + tid + " VMA ERROR: t\n",
                            " Pid: " + pid + " Tid: " + tid + " VMA ERROR: t\n",
                            " Time:     1.235 Pid: " + pid + " Tid: " + tid + " VMA ERROR: t\n"));
}

TEST_F(Log, ColoursPerLevel) {
    config_.colours = true;
    log_configure(config_);
    log_text(LogLevel::panic, "a");
    log_text(LogLevel::warning, "b");
    log_text(LogLevel::info, "c");
    EXPECT_THAT(g_lines,
                ElementsAre("\033[0;31m VMA PANIC: a\033[0m\n",
                            "\033[2;35m VMA WARNING: b\033[0m\n", "\033[0m VMA INFO: c\033[0m\n"));
}

TEST_F(Log, LongLinesAreCut) {
    const std::string longer(2 * kLogLineMax, 'x');
    vma_log(info, "a", "{}", longer);
    log_text(LogLevel::info, longer);
    for (const std::string& line : g_lines) {
        EXPECT_LT(line.size(), kLogLineMax);
        EXPECT_GT(line.size(), kLogLineMax - 32);
        EXPECT_TRUE(line.ends_with("xxx...\n"));
    }
    EXPECT_EQ(g_lines.size(), 2u);
}

TEST_F(Log, ErrnoStays) {
    errno = EAGAIN;
    vma_log(info, "a", "callback");
    EXPECT_EQ(errno, EAGAIN);
    config_.callback = nullptr;
    config_.fd = -1;
    log_configure(config_);
    vma_log(info, "a", "bad descriptor");
    EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Log, WritesToAFileDescriptor) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    config_.callback = nullptr;
    config_.fd = ends[1];
    log_configure(config_);
    vma_log(info, "a", "one {}", 1);
    close(ends[1]);
    char text[64] = {};
    EXPECT_EQ(read(ends[0], text, sizeof(text)), 17);
    EXPECT_STREQ(text, " VMA INFO: one 1\n");
    close(ends[0]);
}

// The number may become the program's: by dup2() onto it, and by anything once the file is closed.
TEST_F(Log, FollowsItsFileToAnotherNumber) {
    int log[2], program[2];
    ASSERT_EQ(pipe(log), 0);
    ASSERT_EQ(pipe2(program, O_NONBLOCK), 0);
    OwnFd file;
    ASSERT_TRUE(file.adopt(log[1]).ok());
    config_.callback = nullptr;
    config_.fd = file.fd();
    config_.file = &file;
    log_configure(config_);
    const int was = file.fd();
    ASSERT_TRUE(own_fd_relocate(was));
    ASSERT_EQ(dup2(program[1], was), was);
    vma_log(info, "a", "one");
    file.reset();
    vma_log(info, "a", "two");
    char text[64] = {};
    EXPECT_EQ(read(log[0], text, sizeof(text)), 15);
    EXPECT_STREQ(text, " VMA INFO: one\n");
    EXPECT_EQ(read(log[0], text, sizeof(text)), 0) << "the end";
    EXPECT_EQ(read(program[0], text, sizeof(text)), -1) << text;
    for (const int fd : {was, log[0], program[0], program[1]}) close(fd);
}

void repeat(int times) {
    for (int i = 0; i < times; ++i) vma_log(info, "a", "n");
}

TEST_F(Log, RepeatsAreCountedPerWindow) {
    g_now = 1;
    config_.now_ns = test_now;
    log_configure(config_);
    const unsigned burst = log_detail::Site::kBurst;
    repeat(100);
    EXPECT_EQ(g_lines.size(), burst);
    g_now += log_detail::Site::kWindowNs - 1;
    repeat(1);
    EXPECT_EQ(g_lines.size(), burst);
    g_now += 1;
    repeat(2);
    ASSERT_EQ(g_lines.size(), burst + 2);
    EXPECT_EQ(g_lines[burst],
              fmt::format(" VMA INFO: n [{} similar lines not shown]\n", 101 - burst));
    EXPECT_EQ(g_lines[burst + 1], " VMA INFO: n\n");
}

TEST_F(Log, RepeatsWithoutAClock) {
    for (int i = 0; i < 70; ++i) vma_log(info, "a", "n");
    // 20 lines, then the 32nd and the 64th.
    ASSERT_EQ(g_lines.size(), 22u);
    EXPECT_THAT(g_lines[20], HasSubstr("[11 similar lines not shown]"));
    EXPECT_THAT(g_lines[21], HasSubstr("[31 similar lines not shown]"));
}

TEST_F(Log, BannerTextIsNeverLimited) {
    for (int i = 0; i < 100; ++i) log_text(LogLevel::info, "row");
    EXPECT_EQ(g_lines.size(), 100u);
}

}  // namespace
}  // namespace vma
