// The line that turns a device's counter into time, and the clocks that it is drawn by, on time that the test makes.
#include "engine/device_clock.h"

#include <gtest/gtest.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/rng.h"
#include "support/quiet_ring.h"

namespace vma {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A counter of `hz`, which it misses by `ppm`, and the time by which it is read.
struct Device {
    uint64_t hz, mask;
    double ppm;
    uint64_t start = 12345;
    uint64_t ticks(int64_t ns) const {
        return (start + uint64_t(double(ns) * double(hz) / 1e9 * (1 + ppm * 1e-6))) & mask;
    }
};

TEST(ClockLine, RawIsTheCounterInNanoseconds) {
    EXPECT_EQ(ClockLine(1'000'000'000, ~0ull).at(77), 77);
    EXPECT_EQ(ClockLine(156'250'000, ~0ull).at(10), 64);
    EXPECT_EQ(ClockLine(1'000'000, ~0ull).at(uint64_t(1) << 40), int64_t(1000) << 40);
}

// A counter that drifts is told within a fifth of a microsecond from the second reading on, and its time never goes back.
TEST(ClockLine, FollowsADriftWithoutGoingBack) {
    for (const double ppm : {-200.0, -3.0, 0.0, 50.0, 400.0}) {
        SCOPED_TRACE(testing::Message() << ppm << " ppm");
        const Device device{156'250'000, (uint64_t(1) << 48) - 1, ppm};
        ClockLine line(device.hz, device.mask);
        const int64_t epoch = 1'700'000'000 * kSecond;
        int64_t last = 0, next = 0;
        unsigned readings = 0;
        for (int64_t now = 0; now < 20 * kSecond; now += 1'000'000) {
            if (now >= next) {
                const Duration until = readings == 0   ? Duration::millis(100)
                                       : readings == 1 ? Duration::millis(200)
                                                       : Duration::seconds(1);
                line.take({device.ticks(now), epoch + now}, until);
                next = now + until.ns;
                readings++;
            }
            const int64_t told = line.at(device.ticks(now));
            EXPECT_GE(told, last);
            last = told;
            if (now > kSecond / 2) {
                EXPECT_NEAR(told - epoch - now, 0, 200) << "at " << now;
            }
        }
    }
}

// Readings that are each off by up to a microsecond, as by an interrupt between the clocks, do not make the time go back either.
TEST(ClockLine, NoiseDoesNotTurnTimeBack) {
    const uint64_t seed = 0x1588;
    Rng rng(seed);
    const Device device{1'000'000'000, ~0ull, 20};
    ClockLine line(device.hz, device.mask);
    int64_t last = INT64_MIN, next = 0;
    for (int64_t now = 0; now < 60 * kSecond; now += 1'000'000) {
        if (now >= next) {
            line.take({device.ticks(now), now + int64_t(rng.below(2000)) - 1000},
                      Duration::seconds(1));
            next = now + kSecond;
        }
        const int64_t told = line.at(device.ticks(now));
        ASSERT_GE(told, last) << "seed " << seed << " at " << now;
        last = told;
        if (now > 2 * kSecond) {
            ASSERT_NEAR(told - now, 0, 10'000) << "seed " << seed << " at " << now;
        }
    }
}

// The system's time is set: stamps have the new one from the next reading on, and the same rate as before.
TEST(ClockLine, AStepIsFollowedAtOnce) {
    for (const int64_t step : {5 * kSecond, -5 * kSecond, 3'000'000'000'000 * int64_t(1000)}) {
        const Device device{1'000'000'000, ~0ull, 30};
        ClockLine line(device.hz, device.mask);
        int64_t offset = 0;
        for (int64_t now = 0; now < 10 * kSecond; now += kSecond) {
            if (now == 4 * kSecond) offset = step;
            line.take({device.ticks(now), now + offset}, Duration::seconds(1));
            if (now == 4 * kSecond) {
                EXPECT_EQ(line.at(device.ticks(now)), now + offset);
            }
        }
        EXPECT_NEAR(line.at(device.ticks(10 * kSecond)) - 10 * kSecond - step, 0, 1000);
    }
}

// Smaller than what counts as a step: the time runs a little faster or slower until it is made up for.
TEST(ClockLine, ASmallDifferenceIsSlewed) {
    const Device device{1'000'000'000, ~0ull, 0};
    ClockLine line(device.hz, device.mask);
    line.take({device.ticks(0), 0}, Duration::seconds(1));
    line.take({device.ticks(kSecond), kSecond}, Duration::seconds(1));
    constexpr int64_t kOff = 500'000;
    line.take({device.ticks(2 * kSecond), 2 * kSecond - kOff}, Duration::seconds(1));
    EXPECT_EQ(line.at(device.ticks(2 * kSecond)), 2 * kSecond);
    int64_t last = 2 * kSecond;
    for (int64_t now = 2 * kSecond; now < 3 * kSecond; now += 10'000'000) {
        const int64_t told = line.at(device.ticks(now));
        EXPECT_GE(told, last);
        last = told;
    }
    EXPECT_NEAR(line.at(device.ticks(3 * kSecond)), 3 * kSecond - kOff, kOff + 1000);
    EXPECT_LT(line.at(device.ticks(3 * kSecond)), 3 * kSecond - kOff / 2);
}

TEST(ClockLine, TheCounterGoesRound) {
    for (const unsigned bits : {32u, 41u, 48u, 64u}) {
        SCOPED_TRACE(testing::Message() << bits << " bits");
        const uint64_t mask = bits == 64 ? ~0ull : (uint64_t(1) << bits) - 1;
        Device device{1'000'000'000, mask, 0};
        device.start = mask - 1'500'000'000;  // one and a half seconds before
        ClockLine line(device.hz, device.mask);
        for (int64_t now = 0; now < 4 * kSecond; now += kSecond)
            line.take({device.ticks(now), 70 * kSecond + now}, Duration::seconds(1));
        for (const int64_t now : {3 * kSecond + 400, 3 * kSecond - 400, 3 * kSecond + kSecond / 2})
            EXPECT_NEAR(line.at(device.ticks(now)), 70 * kSecond + now, 2);
    }
}

// A frame may have arrived a little before the reading that its stamp is told by.
TEST(ClockLine, MomentsBeforeTheReading) {
    const Device device{500'000'000, (uint64_t(1) << 32) - 1, 0};
    ClockLine line(device.hz, device.mask);
    line.take({device.ticks(kSecond), 9 * kSecond}, Duration::millis(100));
    EXPECT_NEAR(line.at(device.ticks(kSecond - 1'000'000)), 9 * kSecond - 1'000'000, 2);
}

// Nothing arrived for longer than the counter takes to go round: what it has counted says nothing, and the line begins again.
TEST(ClockLine, LongSilence) {
    const Device device{1'000'000'000, (uint64_t(1) << 32) - 1, 0};
    ClockLine line(device.hz, device.mask);
    line.take({device.ticks(0), 0}, Duration::seconds(1));
    for (const int64_t now : {100 * kSecond, 5000 * kSecond}) {
        line.take({device.ticks(now), now}, Duration::seconds(1));
        EXPECT_EQ(line.at(device.ticks(now)), now);
        EXPECT_NEAR(line.at(device.ticks(now + kSecond)), now + kSecond, 2);
    }
}

// A ring with a counter, and a clock to follow, both of which the test moves.
class CountingRing final : public QuietRing {
  public:
    CountingRing() {
        caps_.counter_hz = 1'000'000'000;
        caps_.counter_mask = ~0ull;
    }
    bool read_counter(uint64_t* ticks) override {
        reads++;
        *ticks = now;
        return readable;
    }

    using QuietRing::caps_;
    uint64_t now = 1000;
    bool readable = true;
    unsigned reads = 0;
};

class FakePtp final : public ReferenceClock {
  public:
    explicit FakePtp(const CountingRing& ring) : ring_(ring) {}
    bool read(int64_t* ns) override {
        *ns = int64_t(ring_.now) + kTai;
        return true;
    }
    static constexpr int64_t kTai = 37 * kSecond;

  private:
    const CountingRing& ring_;
};

class Clock : public testing::Test {
  protected:
    Clock() : arena(*Arena::create(8 << 20)), pool(*arena->make<PacketPool>(*arena)) {}
    ~Clock() override {
        arena->destroy(&pool);
        Arena::unmap(arena);
    }
    int64_t told(DeviceClock& clock, uint64_t ticks) {
        Packet frame = pool.take(64);
        frame->meta.hw_time_ns = int64_t(ticks);
        clock.convert({&frame, 1}, at, ring);
        return frame->meta.hw_time_ns;
    }
    Arena* arena;
    PacketPool& pool;
    CountingRing ring;
    Instant at{kSecond};
};

TEST_F(Clock, WhatEachSettingGives) {
    EXPECT_EQ(DeviceClock::make(ring, StampConversion::off, "lo"), nullptr);
    EXPECT_EQ(told(*DeviceClock::make(ring, StampConversion::raw, "lo"), 5), 5);
    for (const auto wanted :
         {StampConversion::best, StampConversion::system, StampConversion::ptp}) {
        timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        // lo has no PTP clock: as 3.
        const auto clock = DeviceClock::make(ring, wanted, "lo");
        ASSERT_NE(clock, nullptr);
        EXPECT_NEAR(double(told(*clock, ring.now)), double(now.tv_sec) * 1e9, 60e9);
    }
    // A counter that cannot be read: "best" is raw, the others have nothing to go by until it can.
    ring.readable = false;
    EXPECT_EQ(told(*DeviceClock::make(ring, StampConversion::best, "lo"), 5), 5);
    const auto clock = DeviceClock::make(ring, StampConversion::system, "lo");
    EXPECT_EQ(told(*clock, 5), 0);
    ring.readable = true;
    at = monotonic_now() + Duration::seconds(1);
    EXPECT_GT(told(*clock, ring.now), kSecond);
    ring.caps_.counter_hz = 0;
    EXPECT_EQ(DeviceClock::make(ring, StampConversion::raw, "lo"), nullptr);
}

TEST_F(Clock, ThePtpClockIsFollowedEveryTenthOfASecond) {
    DeviceClock clock(ring.caps(), std::make_unique<FakePtp>(ring), true);
    EXPECT_EQ(told(clock, ring.now), int64_t(ring.now) + FakePtp::kTai);
    for (int i = 0; i < 5; i++) {
        const unsigned before = ring.reads;
        ring.now += 99'000'000;
        at = at + Duration::millis(99);
        EXPECT_EQ(told(clock, ring.now), int64_t(ring.now) + FakePtp::kTai);
        EXPECT_EQ(ring.reads, before);
        ring.now += 1'000'000;
        at = at + Duration::millis(1);
        EXPECT_EQ(told(clock, ring.now - 500), int64_t(ring.now) - 500 + FakePtp::kTai);
        EXPECT_EQ(ring.reads, before + 10);
    }
}

TEST_F(Clock, ASystemClockIsFollowedAfterOneTwoAndTenTenths) {
    DeviceClock clock(ring.caps(), std::make_unique<FakePtp>(ring), false);
    std::vector<int64_t> seen;
    unsigned before = ring.reads;
    for (int64_t ms = 0; ms < 3000; ms += 10) {
        at = Instant{kSecond + ms * 1'000'000};
        ring.now = uint64_t(ms * 1'000'000 + 1000);
        (void)told(clock, ring.now);
        if (ring.reads != before) seen.push_back(ms);
        before = ring.reads;
    }
    EXPECT_EQ(seen, (std::vector<int64_t>{0, 100, 300, 1300, 2300}));
}

TEST_F(Clock, AFrameWithoutAReadingStaysWithout) {
    DeviceClock clock(ring.caps(), std::make_unique<FakePtp>(ring), true);
    EXPECT_EQ(told(clock, 0), 0);
}

// The device stops telling its time: the line runs on, and is taken up again later.
TEST_F(Clock, ACounterThatCannotBeReadForAWhile) {
    DeviceClock clock(ring.caps(), std::make_unique<FakePtp>(ring), true);
    (void)told(clock, ring.now);
    ring.readable = false;
    ring.now += kSecond;
    at = at + Duration::seconds(1);
    EXPECT_EQ(told(clock, ring.now), int64_t(ring.now) + FakePtp::kTai);
    ring.readable = true;
    ring.now += kSecond;
    at = at + Duration::seconds(1);
    EXPECT_EQ(told(clock, ring.now), int64_t(ring.now) + FakePtp::kTai);
}

}  // namespace
}  // namespace vma
