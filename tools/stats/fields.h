// The numbers of the page by name: what JSON, Prometheus and the differences of two looks are made from.
#pragma once

#include <cstdint>
#include <span>

#include "stats/layout.h"

namespace vma::stats {

template <class Numbers>
struct Field {
    const char* name;
    uint64_t Numbers::*value;
    bool counter;  // only grows; else it is what there is now, or the most there was
    const char* help;
};

std::span<const Field<SocketNumbers>> socket_fields();
std::span<const Field<RingNumbers>> ring_fields();
std::span<const Field<WaitNumbers>> wait_fields();

// Counters of `now` less those of `before`, the rest as in `now`.
template <class Numbers>
Numbers difference(std::span<const Field<Numbers>> fields, Numbers now, const Numbers& before) {
    for (const Field<Numbers>& f : fields)
        if (f.counter) now.*f.value -= before.*f.value;
    return now;
}

// The numbers of TcpNumbers that have a name of their own in `ss -ti`; widths differ, so by a function.
struct TcpField {
    const char* name;
    uint64_t (*value)(const TcpNumbers&);
    const char* help;
};
std::span<const TcpField> tcp_fields();

}  // namespace vma::stats
