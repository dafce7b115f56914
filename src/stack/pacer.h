// Pacer: when the next frame of a flow may leave so that it keeps to a rate. A bucket of credit that fills with the rate and
// holds a millisecond's worth, or two frames where that is more: no burst is longer, and who comes late makes up for as much.
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
        if (rate) depth_ = time_of(std::max<uint64_t>(2 * uint64_t(frame), rate / 1000));
    }
    uint64_t rate() const { return rate_; }

    // The moment from which on a frame of so many bytes may leave.
    Instant due(uint32_t bytes) const {
        return rate_ ? empty_at_ + time_of(bytes) - depth_ : Instant{};
    }
    // It left.
    void sent(uint32_t bytes, Instant now) {
        if (rate_ == 0) return;
        // What a division leaves is kept: at a high rate it would be a part of each frame's time.
        const uint64_t parts = uint64_t(bytes) * kSecond + carry_;
        empty_at_ = std::max(empty_at_, now) + Duration{int64_t(parts / rate_)};
        carry_ = parts % rate_;
    }

  private:
    static constexpr uint64_t kSecond = 1000000000;
    Duration time_of(uint64_t bytes) const { return {int64_t(bytes * kSecond / rate_)}; }

    uint64_t rate_ = 0;
    Duration depth_;    // of the bucket, as time
    Instant empty_at_;  // when the bucket, which is used up to here, would be full again
    uint64_t carry_ = 0;
};

}  // namespace vma
