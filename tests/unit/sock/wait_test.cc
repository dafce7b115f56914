// wait_until: what a target answers, and that a yes is taken as it comes.
#include "sock/wait.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace vma::sock {
namespace {

// Says yes once, at the n-th question: as an accept() or a receive that takes what is there with its yes.
class Once final : public WaitTarget {
  public:
    explicit Once(int n) : left_(n) {}
    bool ready(bool) override { return left_-- == 0; }
    void watch(Sleeper&) override {}
    void unwatch(Sleeper&) override {}
    std::span<Shard* const> shards() override { return {}; }
    void progress() override {}

  private:
    int left_;
};

// A yes in the look before the sleep (the third question of a wait that does not spin) was asked for again, and lost.
TEST(WaitUntil, AYesAtAnyQuestionEndsTheWait) {
    for (int n = 0; n < 6; n++) {
        Once target(n);
        SpinGovernor governor;
        WaitLimits limits;
        limits.spin = {};
        limits.deadline = monotonic_now() + Duration::millis(50);
        const WaitEnd end = wait_until(target, governor, limits);
        // Questions after the first sleep come when something wakes it; nothing does here.
        if (n <= 2)
            EXPECT_EQ(end, WaitEnd::ready) << "question " << n;
        else
            EXPECT_NE(end, WaitEnd::interrupted) << "question " << n;
    }
}

}  // namespace
}  // namespace vma::sock
