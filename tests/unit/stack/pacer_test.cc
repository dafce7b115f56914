// Pacer: no window of time sees more than the bucket and what the rate allows, and in the long run the rate is kept by somebody
// who comes late, however late if what was to be sent waited.
#include "stack/pacer.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

constexpr uint32_t kFrame = 1514;

// Frames of any size that leave by one of five rates, chosen by the seed, and what left in which window.
struct Stream {
    explicit Stream(uint64_t seed)
        : rng(seed), rate(kRates[seed % 5]), depth(std::max<uint64_t>(2 * kFrame, rate / 1000)) {
        pacer.set_rate(rate, kFrame);
    }
    bool goes_on(Duration limit) const { return now < kStart + limit && !is_full(); }
    bool is_full() const { return sent.size() >= 200'000; }
    uint32_t next() { return 60 + rng.below(kFrame - 59); }
    void send(uint32_t bytes, bool waited) {
        pacer.sent(bytes, now, waited);
        sent.push_back({now, total, total + bytes});
        total += bytes;
    }
    double allowed() const { return double(rate) * double((now - kStart).ns) / 1e9; }
    // Windows from a frame to one up to 300 frames later: at most the bucket, `times` the rate and `slack` bytes.
    void expect_windows(double times, double slack) {
        for (size_t i = 0; i < sent.size(); i += 1 + rng.below(50)) {
            const size_t j = std::min(sent.size() - 1, i + rng.below(300));
            const double in_window = double(sent[j].after - sent[i].before);
            const double time = double((sent[j].at - sent[i].at).ns) / 1e9;
            ASSERT_LE(in_window, double(depth) + times * double(rate) * time + slack)
                << i << " to " << j;
        }
    }

    static constexpr Instant kStart{1'000'000'000};
    static constexpr uint64_t kRates[] = {125'000, 1'250'000, 12'500'000, 125'000'000, 625'000'000};
    struct Sent {
        Instant at;
        uint64_t before, after;  // bytes in all
    };
    Rng rng;
    uint64_t rate, depth;
    Pacer pacer;
    std::vector<Sent> sent;
    Instant now = kStart;
    uint64_t total = 0;
};

TEST(Pacer, WithoutARateEverythingLeavesAtOnce) {
    Pacer p;
    for (int i = 0; i < 10; i++) {
        EXPECT_LE(p.due(65000), Instant{1});
        p.sent(65000, Instant{1}, false);
    }
}

TEST(Pacer, TwoFramesThenOneByOne) {
    Pacer p;
    p.set_rate(151400, kFrame);  // a frame in 10 ms
    Instant now{1'000'000'000};
    for (int i = 0; i < 2; i++) {
        EXPECT_LE(p.due(kFrame), now);
        p.sent(kFrame, now, false);
    }
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(p.due(kFrame), now + Duration::millis(10));
        now = p.due(kFrame);
        p.sent(kFrame, now, false);
    }
}

TEST(Pacer, AMillisecondsWorthAfterAPause) {
    Pacer p;
    p.set_rate(625'000'000, kFrame);
    const Instant now{5'000'000'000};
    uint32_t bytes = 0;
    for (; p.due(kFrame) <= now; bytes += kFrame) p.sent(kFrame, now, false);
    EXPECT_GT(bytes, 625'000u - kFrame);
    EXPECT_LE(bytes, 625'000u);
}

// Frames of any size, a sender that comes up to half a millisecond late.
TEST(Pacer, RateAndBurst) {
    for (uint64_t seed = 1; seed <= 12; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Stream s(seed);
        while (s.goes_on(Duration::millis(5000))) {
            const uint32_t bytes = s.next();
            if (s.pacer.due(bytes) > s.now)
                s.now = s.pacer.due(bytes) + Duration{int64_t(s.rng.below(500'000))};
            s.send(bytes, false);
        }
        EXPECT_LE(double(s.total), s.allowed() + double(s.depth));
        EXPECT_GE(double(s.total), s.allowed() * 0.999 - double(s.depth));
        s.expect_windows(1, 2);
    }
}

// Frames that wait while nobody looks for up to 40 ms: by the end all that the rate allows has left, and no window saw more
// than the bucket and twice the rate.
TEST(Pacer, WhatWaitedIsMadeUpFor) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Stream s(seed);
        s.pacer.start_waiting(s.now);
        // Half of the time it is late, then it catches up.
        while (s.goes_on(Duration::millis(2500))) {
            const uint32_t bytes = s.next();
            const bool stalls = s.now < s.kStart + Duration::millis(1000) && s.rng.below(20) == 0;
            if (s.pacer.due(bytes) > s.now) s.now = s.pacer.due(bytes);
            if (stalls) s.now = s.now + Duration{int64_t(s.rng.below(40'000'000))};
            s.send(bytes, true);
        }
        EXPECT_LE(double(s.total), s.allowed() + double(s.depth) + 2);
        if (!s.is_full()) {
            EXPECT_GE(double(s.total), s.allowed() - double(s.depth) - kFrame);
        }
        s.expect_windows(2, 600);
    }
}

TEST(Pacer, APauseIsNotMadeUpFor) {
    Pacer p;
    p.set_rate(151400, kFrame);  // a frame in 10 ms
    p.sent(kFrame, Instant{1'000'000'000}, false);
    const Instant now{3'000'000'000};
    p.start_waiting(now);
    for (int i = 0; i < 2; i++) {
        EXPECT_LE(p.due(kFrame), now);
        p.sent(kFrame, now, true);
    }
    EXPECT_EQ(p.due(kFrame), now + Duration::millis(10));
}

}  // namespace
}  // namespace vma
