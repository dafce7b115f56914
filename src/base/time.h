// Instant and Duration: nanoseconds, strong types. Nothing here reads a clock (that is clock.h, for engine and sock only).
#pragma once

#include <compare>
#include <cstdint>

namespace vma {

struct Duration {
    int64_t ns = 0;
    static constexpr Duration nanos(int64_t n) { return {n}; }
    static constexpr Duration micros(int64_t n) { return {n * 1000}; }
    static constexpr Duration millis(int64_t n) { return {n * 1000000}; }
    static constexpr Duration seconds(int64_t n) { return {n * 1000000000}; }
    static constexpr Duration max() { return {INT64_MAX}; }
    constexpr int64_t to_micros() const { return ns / 1000; }
    constexpr int64_t to_millis() const { return ns / 1000000; }
    constexpr auto operator<=>(const Duration&) const = default;
    constexpr Duration operator+(Duration o) const { return {ns + o.ns}; }
    constexpr Duration operator-(Duration o) const { return {ns - o.ns}; }
    constexpr Duration operator*(int64_t k) const { return {ns * k}; }
    constexpr Duration operator/(int64_t k) const { return {ns / k}; }
};

// A point on the monotonic clock (CLOCK_MONOTONIC; virtual time in tests). Instant::never() is later than all.
struct Instant {
    int64_t ns = 0;
    static constexpr Instant never() { return {INT64_MAX}; }
    constexpr bool is_never() const { return ns == INT64_MAX; }
    constexpr auto operator<=>(const Instant&) const = default;
    constexpr Instant operator+(Duration d) const {
        return is_never() || d.ns > INT64_MAX - ns ? never() : Instant{ns + d.ns};
    }
    constexpr Instant operator-(Duration d) const {
        return is_never() ? never() : Instant{ns - d.ns};
    }
    constexpr Duration operator-(Instant o) const { return {ns - o.ns}; }
};

}  // namespace vma
