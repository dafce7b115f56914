#include "vmad/ledger.h"

#include <gtest/gtest.h>

namespace vmad {
namespace {

using vma::Duration;
using vma::Instant;

constexpr Instant kStart{5'000'000'000};
constexpr Duration kSecond = Duration::seconds(1);

TEST(Ledger, SoManyFlowsInASecond) {
    Ledger ledger;
    Ledger::Account& a = ledger.begin(7, kStart);
    EXPECT_TRUE(a.admits_flow(2, kStart));
    EXPECT_TRUE(a.admits_flow(2, kStart + Duration::millis(999)));
    EXPECT_FALSE(a.admits_flow(2, kStart + Duration::millis(999)));
    EXPECT_TRUE(a.admits_flow(3, kStart + Duration::millis(999))) << "the rule is another now";
    EXPECT_TRUE(a.admits_flow(2, kStart + kSecond));
    EXPECT_FALSE(a.admits_flow(0, kStart + kSecond * 5)) << "none is none";
}

TEST(Ledger, AnotherSessionIsTheSameProcess) {
    Ledger ledger;
    Ledger::Account& a = ledger.begin(7, kStart);
    Ledger::Account& b = ledger.begin(7, kStart);
    EXPECT_EQ(&a, &b);
    EXPECT_TRUE(a.admits_flow(1, kStart));
    EXPECT_FALSE(b.admits_flow(1, kStart));
    EXPECT_TRUE(ledger.begin(8, kStart).admits_flow(1, kStart)) << "another process";
}

// Nobody gains by ending his sessions and beginning anew.
TEST(Ledger, OneThatIsBegunAnewIsTheSameProcess) {
    Ledger ledger;
    EXPECT_TRUE(ledger.begin(7, kStart).admits_flow(1, kStart));
    ledger.end(7, kStart);
    EXPECT_FALSE(ledger.begin(7, kStart).admits_flow(1, kStart));
    ledger.end(7, kStart);
    EXPECT_EQ(ledger.size(), 1u);
    EXPECT_TRUE(ledger.begin(7, kStart + kSecond).admits_flow(1, kStart + kSecond));
}

TEST(Ledger, NothingStaysOfWhoHasGone) {
    Ledger ledger;
    for (pid_t process = 1; process <= 100; process++) {
        EXPECT_TRUE(ledger.begin(process, kStart).admits_flow(1, kStart));
        ledger.end(process, kStart);
    }
    EXPECT_EQ(ledger.size(), 100u);
    ledger.begin(200, kStart + kSecond);
    EXPECT_EQ(ledger.size(), 1u);
    ledger.end(200, kStart + kSecond);
    EXPECT_EQ(ledger.size(), 0u);
}

}  // namespace
}  // namespace vmad
