// Histogram: where a value goes, and what comes back out of it.
#include "stats/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace vma::stats {
namespace {

TEST(Histogram, BucketsFollowEachOtherWithoutGapOrOverlap) {
    EXPECT_EQ(Histogram::floor_of(0), 0u);
    for (unsigned i = 0; i < Histogram::kBuckets; i++) {
        EXPECT_EQ(Histogram::bucket_of(Histogram::floor_of(i)), i);
        if (i) {
            EXPECT_EQ(Histogram::bucket_of(Histogram::floor_of(i) - 1), i - 1);
        }
        if (i >= 8 && i + 1 < Histogram::kBuckets) {
            const uint64_t floor = Histogram::floor_of(i);
            EXPECT_LE((Histogram::floor_of(i + 1) - floor) * 8, floor) << "wider than an eighth";
        }
    }
    EXPECT_EQ(Histogram::bucket_of(UINT64_MAX), Histogram::kBuckets - 1);
    EXPECT_GT(Histogram::floor_of(Histogram::kBuckets - 1), 16'000'000'000u);
}

TEST(Histogram, EmptyHasNoPercentiles) {
    const Histogram h;
    EXPECT_EQ(h.count(), 0u);
    EXPECT_EQ(h.percentile(0.5), 0u);
}

TEST(Histogram, OneValueIsEveryPercentile) {
    Histogram h;
    h.record(12'345);
    for (const double q : {0.0, 0.5, 0.999, 1.0}) EXPECT_EQ(h.percentile(q), 12'345u);
    EXPECT_EQ(h.sum, 12'345u);
}

TEST(Histogram, PercentilesAreWithinAnEighthOfTheSortedValues) {
    const char* text = getenv("VMA_TEST_SEED");
    const unsigned seed = text ? unsigned(strtoul(text, nullptr, 0)) : 20261u;
    SCOPED_TRACE(testing::Message() << "VMA_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    Histogram h;
    std::vector<uint64_t> values;
    for (int i = 0; i < 20'000; i++) {
        values.push_back(random() >> (30 + random() % 33));  // below 17 s, each magnitude alike
        h.record(values.back());
    }
    std::sort(values.begin(), values.end());
    EXPECT_EQ(h.count(), values.size());
    EXPECT_EQ(h.max, values.back());
    for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99, 0.999}) {
        const auto exact = double(values[size_t(q * double(values.size()))]);
        const auto told = double(h.percentile(q));
        EXPECT_GE(told, exact);
        EXPECT_LE(told, exact * 1.125 + 1) << q;
    }
}

}  // namespace
}  // namespace vma::stats
