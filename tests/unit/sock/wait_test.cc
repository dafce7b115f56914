// wait_until: whatever a target answers is taken as it comes.
#include "sock/wait.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace vma::sock {
namespace {

class Target : public WaitTarget {
  public:
    void watch(Sleeper&) override { watched = true; }
    void unwatch(Sleeper&) override { watched = false; }
    std::span<Shard* const> shards() override { return {}; }
    void progress() override {}
    bool watched = false;

  protected:
    ~Target() = default;
};

WaitEnd wait_without_spinning(WaitTarget& target) {
    SpinGovernor governor;
    WaitLimits limits;
    limits.spin = {};
    limits.deadline = monotonic_now() + Duration::millis(50);
    return wait_until(target, governor, limits);
}

// Says yes once, at the n-th question: as an accept() or a receive that takes what is there with its yes.
class Once final : public Target {
  public:
    explicit Once(int n) : left_(n) {}
    bool ready(bool) override { return left_-- == 0; }

  private:
    int left_;
};

// Before the wait, in its first turn, before the sleep (that yes was asked for again, and lost), after the sleep.
TEST(WaitUntil, AYesAtAnyQuestionEndsTheWait) {
    for (int n = 0; n < 4; n++) {
        Once target(n);
        EXPECT_EQ(wait_without_spinning(target), WaitEnd::ready) << "question " << n;
    }
}

// A member that moved while it was watched: nothing to report yet, and nothing would end a sleep.
class Moved final : public Target {
  public:
    bool may_sleep() override {
        moved_ = true;
        return false;
    }
    bool ready(bool) override { return moved_ && !watched; }

  private:
    bool moved_ = false;
};

TEST(WaitUntil, ATargetThatMustNotSleepIsLookedAtOutsideTheWatch) {
    Moved target;
    EXPECT_EQ(wait_without_spinning(target), WaitEnd::ready);
}

}  // namespace
}  // namespace vma::sock
