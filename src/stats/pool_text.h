// The memory of a ring as lines of text: a block of view 3 of vma_stats, and the memory report that VMA_STATS_FILE and the
// log get when the process ends.
#pragma once

#include <cstddef>

#include "stats/layout.h"

namespace vma::stats {

// Bytes that are enough for any ring.
inline constexpr size_t kPoolTextRoom = 512;

// Writes at most `room` bytes, no NUL, and returns how many. `index`: the ring's row. No malloc.
size_t pool_text(char* out, size_t room, size_t index, const RingNumbers& n);
// Something was refused for want of memory.
bool ran_short(const RingNumbers& n);

}  // namespace vma::stats
