// Pacer: no window of time sees more than the bucket and what the rate allows, and in the long run the rate is kept by somebody
// who comes late, however late if what was to be sent waited.
#include "stack/pacer.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

constexpr uint32_t kFrame = 1514;

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
        Rng rng(seed);
        const uint64_t rates[] = {125'000, 1'250'000, 12'500'000, 125'000'000, 625'000'000};
        const uint64_t rate = rates[seed % 5];
        const uint64_t depth = std::max<uint64_t>(2 * kFrame, rate / 1000);
        Pacer p;
        p.set_rate(rate, kFrame);
        struct Sent {
            Instant at;
            uint64_t before, after;  // bytes in all
        };
        std::vector<Sent> sent;
        const Instant start{1'000'000'000};
        Instant now = start;
        uint64_t total = 0;
        while (now < start + Duration::millis(5000) && sent.size() < 200'000) {
            const uint32_t bytes = 60 + rng.below(kFrame - 59);
            if (p.due(bytes) > now) now = p.due(bytes) + Duration{int64_t(rng.below(500'000))};
            p.sent(bytes, now, false);
            sent.push_back({now, total, total + bytes});
            total += bytes;
        }
        const double allowed = double(rate) * double((now - start).ns) / 1e9;
        EXPECT_LE(double(total), allowed + double(depth));
        EXPECT_GE(double(total), allowed * 0.999 - double(depth));
        // Windows from a frame to one up to 300 frames later.
        for (size_t i = 0; i < sent.size(); i += 1 + rng.below(50)) {
            const size_t j = std::min(sent.size() - 1, i + rng.below(300));
            const double in_window = double(sent[j].after - sent[i].before);
            const double time = double((sent[j].at - sent[i].at).ns) / 1e9;
            ASSERT_LE(in_window, double(depth) + double(rate) * time + 2) << i << " to " << j;
        }
    }
}

// Frames that wait while nobody looks for up to 40 ms: by the end all that the rate allows has left, and no window saw more
// than the bucket and twice the rate.
TEST(Pacer, WhatWaitedIsMadeUpFor) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        const uint64_t rates[] = {125'000, 1'250'000, 12'500'000, 125'000'000, 625'000'000};
        const uint64_t rate = rates[seed % 5];
        const uint64_t depth = std::max<uint64_t>(2 * kFrame, rate / 1000);
        Pacer p;
        p.set_rate(rate, kFrame);
        struct Sent {
            Instant at;
            uint64_t before, after;  // bytes in all
        };
        std::vector<Sent> sent;
        const Instant start{1'000'000'000};
        Instant now = start;
        uint64_t total = 0;
        p.start_waiting(now);
        // Half of the time it is late, then it catches up.
        while (now < start + Duration::millis(2500) && sent.size() < 200'000) {
            const uint32_t bytes = 60 + rng.below(kFrame - 59);
            const bool stalls = now < start + Duration::millis(1000) && rng.below(20) == 0;
            if (p.due(bytes) > now) now = p.due(bytes);
            if (stalls) now = now + Duration{int64_t(rng.below(40'000'000))};
            p.sent(bytes, now, true);
            sent.push_back({now, total, total + bytes});
            total += bytes;
        }
        const double allowed = double(rate) * double((now - start).ns) / 1e9;
        EXPECT_LE(double(total), allowed + double(depth) + 2);
        if (sent.size() < 200'000) {
            EXPECT_GE(double(total), allowed - double(depth) - kFrame);
        }
        for (size_t i = 0; i < sent.size(); i += 1 + rng.below(50)) {
            const size_t j = std::min(sent.size() - 1, i + rng.below(300));
            const double in_window = double(sent[j].after - sent[i].before);
            const double time = double((sent[j].at - sent[i].at).ns) / 1e9;
            ASSERT_LE(in_window, double(depth) + 2 * double(rate) * time + 600) << i << " to " << j;
        }
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
