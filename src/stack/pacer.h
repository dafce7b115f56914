// Pacer: when the next frame of a flow may leave so that it keeps to a rate. A bucket of credit that fills with the rate and
// holds a millisecond's worth, or two frames where that is more: no burst is longer.
//
// A flow that has nothing to send gains no more than a full bucket. One whose frames wait, and are let out late, keeps what it
// lost: it goes on by its schedule, at twice the rate at most, until that is made up for. A second bucket, of the same size, sees to
// that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace vma {

class Pacer {
  public:
    // Bytes per second, 0: as fast as may be. `frame`: the largest, in the same bytes.
    void set_rate(uint64_t rate, uint32_t frame) {
        rate_ = rate;
        carry_ = 0;
        empty_at_ = {};
        doubled_at_ = {};
        burst_ = std::max<uint64_t>(2 * uint64_t(frame), rate / 1000);
        if (rate) depth_ = time_of(burst_);
    }
    uint64_t rate() const { return rate_; }
    uint64_t burst() const { return burst_; }  // bytes: what may leave at once after a pause

    // The moment from which on a frame of so many bytes may leave.
    Instant due(uint32_t bytes) const {
        if (rate_ == 0) return {};
        const Duration short_of = time_of(bytes) - depth_;
        return std::max(empty_at_ + short_of, doubled_at_ + short_of / 2);
    }
    // A frame begins to wait, and none did: what was not sent before is not made up for.
    void start_waiting(Instant now) { empty_at_ = std::max(empty_at_, now); }
    // It left. `waited`: from before it was due.
    void sent(uint32_t bytes, Instant now, bool waited) {
        if (rate_ == 0) return;
        // What a division leaves is kept: at a high rate it would be a part of each frame's time.
        const uint64_t parts = uint64_t(bytes) * kSecond + carry_;
        const Duration time{int64_t(parts / rate_)};
        empty_at_ = (waited ? empty_at_ : std::max(empty_at_, now)) + time;
        doubled_at_ = std::max(doubled_at_, now) + time / 2;
        carry_ = parts % rate_;
    }

  private:
    static constexpr uint64_t kSecond = 1000000000;
    Duration time_of(uint64_t bytes) const { return {int64_t(bytes * kSecond / rate_)}; }

    uint64_t rate_ = 0, burst_ = 0;
    Duration depth_;      // of the bucket, as time
    Instant empty_at_;    // when the bucket, which is used up to here, would be full again
    Instant doubled_at_;  // the same of the one that fills at twice the rate
    uint64_t carry_ = 0;
};

}  // namespace vma
