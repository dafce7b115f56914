// ClockLine: the time of a reference clock by the counter of a device, as a straight line through readings of both. Pure.
//
// Between readings the line runs on. A new one bends it, so that it meets the reference when the next is due: the time that it tells
// goes neither back nor in jumps for that. A reference that has itself jumped (it was set) is followed with one jump.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace vma {

class ClockLine {
  public:
    // Of both clocks at the same moment.
    struct Reading {
        uint64_t ticks = 0;
        int64_t ns = 0;
    };
    // Further off than that the reference has jumped; faster or slower than a counter can be wrong by, the counter was not read for
    // longer than it goes round, or made anew.
    static constexpr Duration kMostBent = Duration::millis(1);
    static constexpr int64_t kMostDriftPpm = 1000;
    static constexpr int64_t kLeastTicks = 10;  // off by fewer: the rate stays as it is

    // A counter of `hz` ticks a second that wraps at `mask`, one less than a power of two. Until the first reading its own ticks in ns.
    ClockLine(uint64_t hz, uint64_t mask);
    // `until_next`: when the next reading is due.
    void take(const Reading& reading, Duration until_next);

    // The time of a moment less than half the counter's round before or behind the last reading.
    int64_t at(uint64_t ticks) const;

  private:
    static constexpr unsigned kShift = 32;
    int64_t since(uint64_t ticks, uint64_t from) const;
    void jump(const Reading& reading, int64_t slope);

    uint64_t hz_, mask_;
    int64_t nominal_;  // slopes: ns per tick << kShift
    int64_t steady_;   // the counter's rate, as far as it is known
    int64_t slope_;    // of the line, bent to meet the reference
    Reading base_;     // a point of the line
    Reading last_;     // the last reading
    bool started_ = false;
};

}  // namespace vma
