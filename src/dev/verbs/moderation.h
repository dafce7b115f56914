// How late a device may wake a sleeper: after so many frames, or so long after the first of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace vma {

struct Moderation {
    uint32_t count = 0, usec = 0;  // 0: for each frame
    bool operator==(const Moderation&) const = default;
};

// Follows the traffic (VMA_CQ_AIM_*): aims at so many wake-ups a second, but lets small frames wake at once while there are not
// many, because they are somebody's answer.
struct AdaptiveModeration {
    Duration every{};  // 0: it does not follow
    uint32_t max_count = 0, max_usec = 0;
    uint32_t wakeups_per_second = 0;

    // After `frames` with so many bytes came in `time`. `otherwise`: when nothing came.
    Moderation next(uint64_t frames, uint64_t bytes, Duration time, Moderation otherwise) const {
        constexpr uint64_t kSmall = 1024, kMany = 450'000, kSecond = 1'000'000'000;
        if (frames == 0 || time.ns <= 0) return otherwise;
        const uint64_t rate =
            frames * (kSecond / 1000) / std::max<uint64_t>(uint64_t(time.ns) / 1000, 1);
        if (bytes / frames < kSmall && rate < kMany) return {};
        const uint64_t aim = std::max(wakeups_per_second, 1u);
        const uint64_t wait = 1'000'000 / aim - 1'000'000 / std::max(rate, aim);
        return {uint32_t(std::min<uint64_t>(rate / aim, max_count)),
                uint32_t(std::min<uint64_t>(wait, max_usec))};
    }
};

}  // namespace vma
