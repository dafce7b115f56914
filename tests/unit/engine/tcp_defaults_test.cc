// What the settings make of a connection; tests/script/tcp shows what each makes of its packets.
#include "engine/tcp_defaults.h"

#include <gtest/gtest.h>

#include "support/parsed_options.h"

namespace vma {
namespace {

tcp::TcpConfig defaults(const char* setting, const RingCaps& caps = {}) {
    return tcp_defaults(options({setting}), caps, 1500);
}

TEST(TcpDefaults, EachReachesTheConnection) {
    const tcp::TcpConfig unset = defaults("");
    EXPECT_FALSE(unset.quickack_always);
    EXPECT_TRUE(defaults("VMA_TCP_QUICKACK=1").quickack_always);
    EXPECT_EQ(unset.quickack_bytes, 0u);
    EXPECT_EQ(defaults("VMA_TCP_QUICKACK_THRESHOLD=700").quickack_bytes, 700u);
    EXPECT_EQ(defaults("VMA_TCP_CC_ALGO=2").cc, tcp::CcKind::none);
    EXPECT_EQ(defaults("VMA_TCP_CC_ALGO=0").cc, tcp::CcKind::newreno);
    EXPECT_EQ(unset.mss, 1460);
    EXPECT_EQ(defaults("VMA_MTU=1000").mss, 960);
    EXPECT_EQ(defaults("VMA_MTU=9000").mss, 1460);
    EXPECT_EQ(defaults("VMA_MTU=100").mss, 536);
    EXPECT_EQ(defaults("VMA_MSS=700").mss, 700);
    EXPECT_FALSE(defaults("VMA_TCP_TIMESTAMP_OPTION=0").timestamps);
    EXPECT_TRUE(defaults("VMA_TCP_TIMESTAMP_OPTION=1").timestamps);
    EXPECT_FALSE(defaults("VMA_WINDOW_SCALING=-1").window_scaling);
    EXPECT_EQ(defaults("VMA_WINDOW_SCALING=3").receive_buffer_max, 65535u << 3);
}

// Text that waits for an acknowledgement in the process would be lost with it; what is in shared memory is not.
TEST(TcpDefaults, ARingThatPushesBackHasNoNagle) {
    RingCaps caps;
    EXPECT_FALSE(defaults("", caps).nodelay);
    caps.pushes_back = true;
    EXPECT_TRUE(defaults("", caps).nodelay);
}

}  // namespace
}  // namespace vma
