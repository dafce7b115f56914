#include "stats/pool_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace vma::stats {

size_t pool_text(char* out, size_t room, size_t index, const RingNumbers& n) {
    const auto done = fmt::format_to_n(
        out, room,
        "\tBUFFER_POOL(RX)=[{}]\n"
        "{:<20} {}\n"
        "{:<20} {} / {} [now/most]\n"
        "{:<20} {}\n"
        "{:<20} {} / {} [kilobytes in use/limit]\n"
        "{:<20} {} / {} / {} [kilobytes/refused/times short]\n",
        index, "Size:", n.pool_in_use + n.pool_free, "In use:", n.pool_in_use, n.pool_high_water,
        "No buffers error:", n.pool_refused, "Memory:", n.arena_bytes / 1024, n.arena_limit / 1024,
        "TCP memory:", n.tcp_memory / 1024, n.tcp_refused, n.tcp_pressed);
    return std::min(room, done.size);
}

bool ran_short(const RingNumbers& n) {
    return n.pool_refused != 0 || n.tcp_refused != 0 || n.tcp_pressed != 0;
}

}  // namespace vma::stats
