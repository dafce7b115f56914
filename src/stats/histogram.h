// Histogram of times in nanoseconds: eight buckets an octave, so a value is known to 12.5 %; 256 buckets reach 17 seconds, the
// last one takes what is longer. Plain data of a fixed size, for the statistics page.
//
// Threads: one writer; a reader sees each bucket whole, not all of one moment.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace vma::stats {

struct Histogram {
    static constexpr unsigned kBuckets = 256;
    uint64_t n[kBuckets] = {};
    uint64_t sum = 0, max = 0;  // of the values

    static constexpr unsigned bucket_of(uint64_t ns) {
        if (ns < 8) return unsigned(ns);
        const unsigned shift = unsigned(std::bit_width(ns)) - 4;
        const unsigned bucket = 8 * (shift + 1) + unsigned(ns >> shift & 7);
        return bucket < kBuckets ? bucket : kBuckets - 1;
    }
    // Smallest value of bucket i.
    static constexpr uint64_t floor_of(unsigned i) {
        return i < 8 ? i : uint64_t(8 + i % 8) << (i / 8 - 1);
    }

    void record(uint64_t ns) {
        add(n[bucket_of(ns)], 1);
        add(sum, ns);
        if (ns > max) std::atomic_ref(max).store(ns, std::memory_order_relaxed);
    }
    uint64_t count() const {
        uint64_t total = 0;
        for (const uint64_t k : n) total += k;
        return total;
    }
    // The value below or at which the part q (0 .. 1) of all values lies: the upper edge of its bucket, at most max. 0: none.
    uint64_t percentile(double q) const {
        const uint64_t total = count();
        const auto wanted = uint64_t(q * double(total));
        uint64_t seen = 0;
        for (unsigned i = 0; i < kBuckets && total != 0; i++) {
            seen += n[i];
            if (seen > wanted || seen == total) {
                const uint64_t edge = i + 1 < kBuckets ? floor_of(i + 1) - 1 : max;
                return edge < max ? edge : max;
            }
        }
        return 0;
    }

  private:
    static void add(uint64_t& word, uint64_t k) {
        std::atomic_ref<uint64_t> to(word);
        to.store(to.load(std::memory_order_relaxed) + k, std::memory_order_relaxed);
    }
};

}  // namespace vma::stats
