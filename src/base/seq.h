// Seq: a TCP sequence number, arithmetic modulo 2^32 (RFC 9293 section 3.4). Strong type: no naked comparison.
#pragma once

#include <cstdint>

namespace vma {

struct Seq {
    uint32_t v = 0;
    constexpr Seq operator+(uint32_t n) const { return {v + n}; }
    constexpr Seq operator-(uint32_t n) const { return {v - n}; }
    // Signed distance from o to this; meaningful while the two are within 2^31.
    constexpr int32_t operator-(Seq o) const { return int32_t(v - o.v); }
    constexpr Seq& operator+=(uint32_t n) {
        v += n;
        return *this;
    }
    constexpr bool operator==(const Seq&) const = default;
    constexpr bool operator<(Seq o) const { return int32_t(v - o.v) < 0; }
    constexpr bool operator<=(Seq o) const { return int32_t(v - o.v) <= 0; }
    constexpr bool operator>(Seq o) const { return int32_t(v - o.v) > 0; }
    constexpr bool operator>=(Seq o) const { return int32_t(v - o.v) >= 0; }
    static constexpr Seq max(Seq a, Seq b) { return a < b ? b : a; }
    static constexpr Seq min(Seq a, Seq b) { return a < b ? a : b; }
};

}  // namespace vma
