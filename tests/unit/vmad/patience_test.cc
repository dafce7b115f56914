#include "vmad/patience.h"

#include <gtest/gtest.h>

namespace vmad {
namespace {

constexpr vma::Instant kStart{5'000'000'000};

TEST(Patience, EndsForAWhile) {
    Patience patience;
    EXPECT_FALSE(patience.is_over(7, kStart));
    EXPECT_FALSE(patience.spend(7, Patience::kMost - 1, kStart));
    EXPECT_FALSE(patience.is_over(7, kStart));
    EXPECT_TRUE(patience.spend(7, 1, kStart + Patience::kFor - vma::Duration::millis(1)));
    EXPECT_TRUE(patience.is_over(7, kStart + Patience::kFor - vma::Duration::millis(1)));
    EXPECT_FALSE(patience.is_over(8, kStart)) << "another user";
    EXPECT_FALSE(patience.is_over(7, kStart + Patience::kFor));
    EXPECT_FALSE(patience.spend(7, 1, kStart + Patience::kFor)) << "from the beginning";
}

TEST(Patience, SeldomIsForgiven) {
    Patience patience;
    vma::Instant now = kStart;
    for (int i = 0; i < 100; i++, now = now + vma::Duration::seconds(10))
        EXPECT_FALSE(patience.spend(7, 1, now));
}

}  // namespace
}  // namespace vmad
