// SipHash-2-4, a keyed hash for short inputs (Aumasson and Bernstein, 2012). For sequence numbers and hash tables that
// strangers can fill. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vma {

namespace siphash_detail {
struct State {
    uint64_t v0, v1, v2, v3;
    static uint64_t rotl(uint64_t x, int b) { return x << b | x >> (64 - b); }
    void round() {
        v0 += v1, v1 = rotl(v1, 13) ^ v0, v0 = rotl(v0, 32);
        v2 += v3, v3 = rotl(v3, 16) ^ v2;
        v0 += v3, v3 = rotl(v3, 21) ^ v0;
        v2 += v1, v1 = rotl(v1, 17) ^ v2, v2 = rotl(v2, 32);
    }
    void word(uint64_t m) {
        v3 ^= m;
        round();
        round();
        v0 ^= m;
    }
};
}  // namespace siphash_detail

inline uint64_t siphash24(uint64_t k0, uint64_t k1, const void* data, size_t n) {
    siphash_detail::State s{k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull,
                            k0 ^ 0x6c7967656e657261ull, k1 ^ 0x7465646279746573ull};
    const auto* p = static_cast<const uint8_t*>(data);
    const size_t total = n;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t m;
        std::memcpy(&m, p, 8);
        s.word(m);
    }
    uint64_t last = uint64_t(total) << 56;
    for (size_t i = 0; i < n; ++i) last |= uint64_t(p[i]) << (8 * i);
    s.word(last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; ++i) s.round();
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

}  // namespace vma
