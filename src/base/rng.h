// Rng: a small seeded generator (xorshift64*), for tests, back-off and port choice. Not for secrets: those come from
// getrandom(2) at start and are passed in.
#pragma once

#include <cstdint>

namespace vma {

struct Rng {
    uint64_t state;
    explicit constexpr Rng(uint64_t seed) : state(seed ? seed : 0x9e3779b97f4a7c15ull) {}
    constexpr uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545f4914f6cdd1dull;
    }
    constexpr uint32_t below(uint32_t n) { return n ? uint32_t((next() >> 32) * n >> 32) : 0; }
    constexpr bool chance(uint32_t numerator, uint32_t denominator) {
        return below(denominator) < numerator;
    }
};

}  // namespace vma
