#include "engine/clock_line.h"

#include <cstdlib>

namespace vma {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace

ClockLine::ClockLine(uint64_t hz, uint64_t mask)
    : hz_(hz),
      mask_(mask),
      nominal_(int64_t((__int128(kNsPerSecond) << kShift) / hz)),
      steady_(nominal_),
      slope_(nominal_) {}

// From one value of the counter to another, the shorter way round.
int64_t ClockLine::since(uint64_t ticks, uint64_t from) const {
    const uint64_t forward = (ticks - from) & mask_;
    return forward <= mask_ / 2 ? int64_t(forward) : -int64_t(((from - ticks) & mask_));
}

int64_t ClockLine::at(uint64_t ticks) const {
    if (!started_) return int64_t(__int128(ticks) * kNsPerSecond / hz_);
    return base_.ns + int64_t((__int128(since(ticks, base_.ticks)) * slope_) >> kShift);
}

void ClockLine::jump(const Reading& reading, int64_t slope) {
    base_ = last_ = reading;
    steady_ = slope_ = slope;
    started_ = true;
}

void ClockLine::take(const Reading& reading, Duration until_next) {
    const int64_t ticks = since(reading.ticks, last_.ticks);
    if (!started_ || ticks <= 0) return jump(reading, nominal_);
    const __int128 elapsed = (__int128(reading.ns - last_.ns) << kShift) / ticks;
    const __int128 most = nominal_ / 1'000'000 * kMostDriftPpm;
    if (elapsed < nominal_ - most || elapsed > nominal_ + most) return jump(reading, nominal_);
    const auto measured = int64_t(elapsed);
    const int64_t told = at(reading.ticks), off = reading.ns - told;
    if (std::llabs(off) > kMostBent.ns) return jump(reading, measured);
    last_ = reading;
    base_ = {reading.ticks, told};
    slope_ = steady_;
    if (std::llabs(off) < (__int128(kLeastTicks) * nominal_) >> kShift) return;
    steady_ = measured;
    slope_ = measured + int64_t(__int128(measured) * off / until_next.ns);
}

}  // namespace vma
