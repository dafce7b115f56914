// Pacer: no window of time sees more than the bucket and what the rate allows, and in the long run the rate is kept by somebody
// who comes late.
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
        p.sent(65000, Instant{1});
    }
}

TEST(Pacer, TwoFramesThenOneByOne) {
    Pacer p;
    p.set_rate(151400, kFrame);  // a frame in 10 ms
    Instant now{1'000'000'000};
    for (int i = 0; i < 2; i++) {
        EXPECT_LE(p.due(kFrame), now);
        p.sent(kFrame, now);
    }
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(p.due(kFrame), now + Duration::millis(10));
        now = p.due(kFrame);
        p.sent(kFrame, now);
    }
}

TEST(Pacer, AMillisecondsWorthAfterAPause) {
    Pacer p;
    p.set_rate(625'000'000, kFrame);
    const Instant now{5'000'000'000};
    uint32_t bytes = 0;
    for (; p.due(kFrame) <= now; bytes += kFrame) p.sent(kFrame, now);
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
            p.sent(bytes, now);
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

}  // namespace
}  // namespace vma
