// Bounded waiting for what comes out of a ring.
#pragma once

#include <poll.h>
#include <time.h>

#include <cstdint>
#include <vector>

#include "dev/ring.h"

namespace vma::test {

inline int64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Takes packets until there are `count` or nothing came for `quiet_ms`.
inline std::vector<Packet> receive(Ring& ring, size_t count, int quiet_ms = 2000,
                                   unsigned batch = 32) {
    std::vector<Packet> all;
    std::vector<Packet> some(batch);
    int64_t last = clock_ns();
    while (all.size() < count && clock_ns() - last < int64_t(quiet_ms) * 1'000'000) {
        const size_t most = count - all.size() < batch ? count - all.size() : batch;
        const unsigned n = ring.recv({some.data(), most});
        for (unsigned i = 0; i < n; ++i) all.push_back(std::move(some[i]));
        if (n) last = clock_ns();
    }
    return all;
}

// Everything that is there now and within the next `ms`.
inline size_t drain(Ring& ring, int ms = 50) {
    size_t n = 0;
    const int64_t end = clock_ns() + int64_t(ms) * 1'000'000;
    while (clock_ns() < end) n += receive(ring, 1, 1).size();
    return n;
}

// Sends one frame, again while the device says "later".
inline int send_one(Ring& ring, const TxFrame& frame) {
    int why = 0;
    for (int i = 0; i < 100000; ++i) {
        if (ring.send({&frame, 1}, &why) == 1) return 0;
        if (why != EAGAIN && why != ENOBUFS) break;
    }
    return why;
}

}  // namespace vma::test
