#include "base/signals_blocked.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace vma {
namespace {

uint64_t mask_now() {
    uint64_t mask = 0;
    sys::raw(SYS_rt_sigprocmask, SIG_BLOCK, 0, sys::ptr(&mask), sizeof mask);
    return mask;
}
constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

int g_arrived = 0;
void count(int) { ++g_arrived; }

TEST(SignalsBlocked, ArriveAfterwards) {
    g_arrived = 0;
    const auto before = signal(SIGUSR1, count);
    {
        SignalsBlocked blocked;
        ASSERT_EQ(raise(SIGUSR1), 0);
        EXPECT_EQ(g_arrived, 0);
    }
    kill(getpid(), 0);  // ThreadSanitizer runs a handler in the next call that it intercepts
    EXPECT_EQ(g_arrived, 1);
    signal(SIGUSR1, before);
}

TEST(SignalsBlocked, TheMaskIsWhatItWas) {
    uint64_t mine = bit(SIGUSR2) | bit(SIGTERM), before = 0;
    sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::ptr(&mine), sys::ptr(&before), sizeof mine);
    {
        SignalsBlocked outer;
        SignalsBlocked inner;
        EXPECT_TRUE(mask_now() & bit(SIGUSR1));
    }
    EXPECT_EQ(mask_now(), mine);
    sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::ptr(&before), 0, sizeof before);
}

TEST(SignalsBlocked, AThreadMadeMeanwhileStillHearsLibc) {
    {
        SignalsBlocked blocked(SignalsBlocked::Libc::left);
        EXPECT_FALSE(mask_now() & (bit(32) | bit(33)));
        EXPECT_TRUE(mask_now() & bit(SIGUSR1));
        EXPECT_TRUE(mask_now() & bit(34));
    }
    SignalsBlocked blocked;
    EXPECT_TRUE(mask_now() & bit(33));
}

}  // namespace
}  // namespace vma
