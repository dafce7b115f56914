// Whether a ring can be, and what the settings make of a verbs ring; tests/contract/rings/verbs_ring_test.cc shows what each makes of the device.
#include <gtest/gtest.h>

#include "dev/verbs/verbs_ring.h"
#include "engine/placement.h"
#include "support/parsed_options.h"

namespace vma {
namespace {

#define MEMBER(name) [](const VerbsRingConfig& c) { return uint32_t(c.name); }
struct Row {
    const char* setting;
    uint32_t (*member)(const VerbsRingConfig&);
    uint32_t unset, set;
};
const Row kRows[] = {
    {"VMA_RX_WRE=512", MEMBER(rx_requests), 4096, 512},
    {"VMA_RX_WRE_BATCHING=16", MEMBER(rx_batching), 64, 16},
    {"VMA_TX_WRE=512", MEMBER(tx_requests), 2048, 512},
    {"VMA_TX_WRE_BATCHING=8", MEMBER(tx_batching), 64, 8},
    {"VMA_TX_MAX_INLINE=100", MEMBER(max_inline), 204, 100},
    {"VMA_CQ_POLL_BATCH_MAX=5", MEMBER(poll_batch), 16, 5},
    {"VMA_RX_PREFETCH_BYTES=64", MEMBER(prefetch_bytes), 256, 64},
    {"VMA_RX_PREFETCH_BYTES_BEFORE_POLL=128", MEMBER(prefetch_bytes_before_poll), 0, 128},
    {"VMA_TCP_3T_RULES=1", MEMBER(tcp_by_local), 0, 1},
    {"VMA_UDP_3T_RULES=1", MEMBER(udp_by_local), 0, 1},
    {"VMA_CQ_KEEP_QP_FULL=0", MEMBER(drop_without_packet), 1, 0},
    {"VMA_CQ_MODERATION_ENABLE=1", MEMBER(moderation.count), 0, 48},
    {"VMA_CQ_MODERATION_COUNT=7", MEMBER(moderation.count), 0, 7},
    {"VMA_CQ_MODERATION_PERIOD_USEC=9", MEMBER(moderation.usec), 0, 9},
    {"VMA_CQ_AIM_INTERVAL_MSEC=100", MEMBER(adaptive.every.to_millis()), 0, 100},
    {"VMA_CQ_AIM_INTERVAL_MSEC=0", MEMBER(adaptive.max_count), 0, 560},
    {"VMA_CQ_AIM_MAX_COUNT=9", MEMBER(adaptive.max_count), 0, 9},
    {"VMA_CQ_AIM_MAX_PERIOD_USEC=11", MEMBER(adaptive.max_usec), 0, 11},
    {"VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=70", MEMBER(adaptive.wakeups_per_second), 0, 70},
};

TEST(RingSettings, EachReachesTheRing) {
    for (const Row& row : kRows) {
        SCOPED_TRACE(row.setting);
        EXPECT_EQ(row.member(verbs_settings(options({}))), row.unset);
        EXPECT_EQ(row.member(verbs_settings(options({row.setting}))), row.set);
    }
}

TEST(RingSettings, WhoeverPollsForEverIsNotModerated) {
    const auto count = [](std::vector<std::string> settings) {
        settings.emplace_back("VMA_CQ_MODERATION_COUNT=7");
        return verbs_settings(options(settings)).moderation.count;
    };
    EXPECT_EQ(count({}), 7u);
    EXPECT_EQ(count({"VMA_RX_POLL=-1"}), 0u);
    EXPECT_EQ(count({"VMA_SELECT_POLL=-1", "VMA_CQ_MODERATION_ENABLE=1"}), 0u);
    EXPECT_EQ(count({"VMA_CQ_MODERATION_ENABLE=0"}), 0u);
    EXPECT_EQ(count({"VMA_RX_WRE=10", "VMA_RX_WRE_BATCHING=2"}), 5u);
}

TEST(RingSettings, PagesOfAnotherSizeAreAnObstacleThatIsNamed) {
    EXPECT_EQ(page_obstacle(4096), "");
    EXPECT_EQ(page_obstacle(65536),
              "this kernel has memory pages of 64 KiB: rings need pages of 4 KiB");
}

}  // namespace
}  // namespace vma
