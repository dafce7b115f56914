// The capture file as the library writes it: records that wrap, a ring that is full, a viewer that lies.
#include "stats/capture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "base/clock.h"
#include "page_fixture.h"

namespace vma::stats {
namespace {

constexpr Instant at_s(int64_t s) { return Instant{s * 1'000'000'000}; }

class Capture : public Pages {
  protected:
    ~Capture() override { end(); }
    void begin(uint32_t bytes = kLeastCapture) {
        ASSERT_EQ(start_capture((directory + "/").c_str(), bytes, 1, at_s(1)), 0);
        name = directory + "/vmacap." + std::to_string(self());
        fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
        ASSERT_GE(fd, 0);
    }
    void end() {
        stop_capture();
        free_capture();
        if (fd >= 0) close(fd);
        fd = -1;
    }
    CaptureHeader header() const {
        CaptureHeader h;
        EXPECT_EQ(pread(fd, &h, sizeof h, 0), ssize_t(sizeof h));
        return h;
    }
    void put_tail(uint64_t tail) const {
        EXPECT_EQ(pwrite(fd, &tail, sizeof tail, kControlOffset), ssize_t(sizeof tail));
    }
    std::string ring(uint64_t at, size_t n) const {
        const uint32_t size = header().bytes;
        std::string out(n, '\0');
        for (size_t i = 0; i < n; i++)
            EXPECT_EQ(pread(fd, &out[i], 1, off_t(kCaptureData + ((at + i) & (size - 1)))), 1);
        return out;
    }
    CaptureRecord record(uint64_t at) const {
        CaptureRecord r;
        std::memcpy(&r, ring(at, sizeof r).data(), sizeof r);
        return r;
    }
    static void put(const std::string& frame, DropReason drop = DropReason::none) {
        CaptureSlot slot(3, Direction::in, uint32_t(frame.size()), 77);
        slot.add(frame.data(), frame.size() / 2);
        slot.add(frame.data() + frame.size() / 2, frame.size() - frame.size() / 2);
        slot.finish(drop);
    }
    std::string name;
    int fd = -1;
};

TEST_F(Capture, OffTakesNothing) {
    EXPECT_FALSE(capturing());
    put("nothing");  // harmless
    EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST_F(Capture, AFrameIsWholeOnceItIsFinished) {
    begin();
    struct stat st;
    ASSERT_EQ(fstat(fd, &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0600u);
    {
        CaptureSlot slot(3, Direction::out, 5, 99);
        slot.add("hello", 5);
        put("behind it");  // waits for it
        EXPECT_EQ(header().head, 0u);
        slot.finish(DropReason::no_endpoint);
    }
    EXPECT_EQ(header().head, 32u + 40);  // 24 and 5, 24 and 9, rounded up
    EXPECT_EQ(record(32).state, kRecordReady);
    const CaptureRecord r = record(0);
    EXPECT_EQ(r.state, kRecordReady);
    EXPECT_EQ(r.size, sizeof r + 5);
    EXPECT_EQ(r.ifindex, 3u);
    EXPECT_EQ(r.direction, Direction::out);
    EXPECT_EQ(r.drop, DropReason::no_endpoint);
    EXPECT_EQ(r.realtime_ns, 99);
    EXPECT_EQ(ring(sizeof r, 5), "hello");
}

TEST_F(Capture, EveryByteComesThroughARingThatIsEmptiedAsItFills) {
    begin();
    std::mt19937 random(2026);
    uint64_t tail = 0;
    for (int i = 0; i < 400; i++) {  // several times around
        std::string frame(random() % 3000, '\0');
        for (char& c : frame) c = char(random());
        put(frame);
        const CaptureRecord r = record(tail);
        ASSERT_EQ(r.state, kRecordReady);
        ASSERT_EQ(r.size, sizeof r + frame.size());
        ASSERT_EQ(ring(tail + sizeof r, frame.size()), frame) << i;
        tail += (r.size + 7) & ~uint64_t{7};
        put_tail(tail);
        ASSERT_EQ(header().head, tail);
    }
    EXPECT_GT(tail, 4u * kLeastCapture);
    EXPECT_EQ(header().dropped, 0u);
}

TEST_F(Capture, WhatDoesNotFitIsCountedAndDestroysNothing) {
    begin();
    const std::string frame(1000, 'x');
    for (int i = 0; i < 100; i++) put(frame);
    const uint64_t held = kLeastCapture / 1024;  // 24 and 1000 bytes each
    EXPECT_EQ(header().head, held * 1024);
    EXPECT_EQ(header().dropped, 100 - held);
    for (uint64_t i = 0; i < held; i++) EXPECT_EQ(record(i * 1024).state, kRecordReady);
    put_tail(1024);  // room for one
    put(frame);
    put(frame);
    EXPECT_EQ(header().head, (held + 1) * 1024);
    EXPECT_EQ(header().dropped, 100 - held + 1);
}

TEST_F(Capture, ATailThatCannotBeIsAFullRing) {
    begin();
    const std::string frame(1000, 'x');
    const uint64_t held = kLeastCapture / 1024;
    for (uint64_t i = 0; i < held; i++) put(frame);
    for (const uint64_t lie : {uint64_t(1), UINT64_MAX, uint64_t(1) << 40}) {
        put_tail(lie);
        put(frame);
    }
    EXPECT_EQ(header().head, held * 1024);
    EXPECT_EQ(header().dropped, 3u);
    put_tail(1024);
    put(frame);
    EXPECT_EQ(header().head, (held + 1) * 1024);
    EXPECT_EQ(header().dropped, 3u);
}

TEST_F(Capture, ACutEndsTheCaptureAndNothingElse) {
    for (const off_t length : {0, 100, 5000, 8192 + 20'000}) {
        begin();
        put("before");
        EXPECT_FALSE(capture_is_over(at_s(2)));
        ASSERT_EQ(truncate(name.c_str(), length), 0);
        for (int i = 0; i < 60; i++) put(std::string(1000, 'x'));  // all of the ring
        EXPECT_FALSE(capturing()) << length;
        EXPECT_TRUE(capture_is_over(at_s(2))) << length;
        // Until the internal thread has cleared it away there is no other.
        EXPECT_EQ(start_capture((directory + "/").c_str(), kLeastCapture, 1, at_s(2)), EBUSY);
        end();
        EXPECT_FALSE(capture_is_over(at_s(2)));
    }
}

TEST_F(Capture, ACutAtAnyMomentEndsNothing) {
    Pages::end();
    begin_in("/dev/shm");
    const std::string file = directory + "/vmacap." + std::to_string(self());
    std::jthread cutter([&](const std::stop_token& stop) {
        std::minstd_rand random(2026);
        while (!stop.stop_requested()) (void)truncate(file.c_str(), off_t(random() % 80'000));
    });
    unsigned cut = 0;
    constexpr unsigned kCuts = 30;
    const Instant end_by = monotonic_now() + Duration::seconds(60);
    while (cut < kCuts && monotonic_now() < end_by) {
        if (start_capture((directory + "/").c_str(), kLeastCapture, 1, at_s(1)) != 0) {
            cut++;
            continue;
        }
        for (int i = 0; i < 60 && capturing(); i++) put(std::string(size_t(i) * 20, 'x'));
        cut += capture_is_over(at_s(2));
        end();
    }
    EXPECT_GE(cut, kCuts);
}

TEST_F(Capture, TheViewerMustSayThatItIsThere) {
    begin();
    EXPECT_FALSE(capture_is_over(at_s(5)));
    EXPECT_EQ(start_capture((directory + "/").c_str(), kLeastCapture, 1, at_s(5)), 0);  // it has
    EXPECT_EQ(start_capture((directory + "/").c_str(), kLeastCapture, 2, at_s(8)), EBUSY);
    EXPECT_FALSE(capture_is_over(at_s(9)));
    EXPECT_TRUE(capture_is_over(at_s(11)));
    end();
    EXPECT_FALSE(capturing());
    EXPECT_FALSE(std::filesystem::exists(name));
    begin();  // a new one begins with nothing of the old
    EXPECT_EQ(header().head, 0u);
    put("again");
    EXPECT_EQ(record(0).state, kRecordReady);
}

TEST_F(Capture, SizesAreRoundedAndClamped) {
    begin(kLeastCapture + 1);
    EXPECT_EQ(header().bytes, 2 * kLeastCapture);
    end();
    begin(1);
    EXPECT_EQ(header().bytes, kLeastCapture);
}

TEST_F(Capture, NoDirectoryNoCapture) {
    EXPECT_EQ(start_capture("", kLeastCapture, 1, at_s(1)), ENOENT);
    EXPECT_EQ(start_capture((directory + "/none/").c_str(), kLeastCapture, 1, at_s(1)), ENOENT);
    EXPECT_FALSE(capturing());
}

TEST_F(Capture, AForkedChildDoesNotWriteIntoItsParentsFile) {
    begin();
    const pid_t child = fork();
    if (child == 0) {
        capture_forget_in_child();
        put("the child's");
        _exit(capturing() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(header().head, 0u);
}

}  // namespace
}  // namespace vma::stats
