// What the settings make of a verbs ring; tests/contract/rings/verbs_ring_test.cc shows what each makes of the device.
#include <gtest/gtest.h>

#include <variant>

#include "dev/verbs/verbs_ring.h"
#include "engine/placement.h"
#include "support/parsed_options.h"

namespace vma {
namespace {

struct Row {
    const char* setting;
    std::variant<uint32_t VerbsRingConfig::*, bool VerbsRingConfig::*> member;
    uint32_t unset, set;
};
const Row kRows[] = {
    {"VMA_RX_WRE=512", &VerbsRingConfig::rx_requests, 4096, 512},
    {"VMA_RX_WRE_BATCHING=16", &VerbsRingConfig::rx_batching, 64, 16},
    {"VMA_TX_WRE=512", &VerbsRingConfig::tx_requests, 2048, 512},
    {"VMA_TX_WRE_BATCHING=8", &VerbsRingConfig::tx_batching, 64, 8},
    {"VMA_TX_MAX_INLINE=100", &VerbsRingConfig::max_inline, 204, 100},
    {"VMA_CQ_POLL_BATCH_MAX=5", &VerbsRingConfig::poll_batch, 16, 5},
    {"VMA_RX_PREFETCH_BYTES=64", &VerbsRingConfig::prefetch_bytes, 256, 64},
    {"VMA_RX_PREFETCH_BYTES_BEFORE_POLL=128", &VerbsRingConfig::prefetch_bytes_before_poll, 0, 128},
    {"VMA_TCP_3T_RULES=1", &VerbsRingConfig::tcp_by_local, 0, 1},
    {"VMA_UDP_3T_RULES=1", &VerbsRingConfig::udp_by_local, 0, 1},
    {"VMA_CQ_KEEP_QP_FULL=0", &VerbsRingConfig::drop_without_packet, 1, 0},
    {"VMA_CQ_MODERATION_ENABLE=1", &VerbsRingConfig::moderation_count, 0, 48},
    {"VMA_CQ_MODERATION_COUNT=7", &VerbsRingConfig::moderation_count, 0, 7},
    {"VMA_CQ_MODERATION_PERIOD_USEC=9", &VerbsRingConfig::moderation_usec, 0, 9},
};

uint32_t value(const VerbsRingConfig& config, const Row& row) {
    return std::visit([&](auto member) { return uint32_t(config.*member); }, row.member);
}

TEST(RingSettings, EachReachesTheRing) {
    for (const Row& row : kRows) {
        SCOPED_TRACE(row.setting);
        EXPECT_EQ(value(verbs_settings(options({})), row), row.unset);
        EXPECT_EQ(value(verbs_settings(options({row.setting})), row), row.set);
    }
}

TEST(RingSettings, WhoeverPollsForEverIsNotModerated) {
    const auto count = [](std::vector<std::string> settings) {
        settings.emplace_back("VMA_CQ_MODERATION_COUNT=7");
        return verbs_settings(options(settings)).moderation_count;
    };
    EXPECT_EQ(count({}), 7u);
    EXPECT_EQ(count({"VMA_RX_POLL=-1"}), 0u);
    EXPECT_EQ(count({"VMA_SELECT_POLL=-1", "VMA_CQ_MODERATION_ENABLE=1"}), 0u);
    EXPECT_EQ(count({"VMA_CQ_MODERATION_ENABLE=0"}), 0u);
    EXPECT_EQ(count({"VMA_RX_WRE=10", "VMA_RX_WRE_BATCHING=2"}), 5u);
}

}  // namespace
}  // namespace vma
