// TxStamping: which datagrams are stamped and how they are counted; and the control messages of a send.
#include "sock/tx_stamping.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include <cstring>
#include <vector>

namespace vma::sock {
namespace {

constexpr uint32_t kCounted = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_OPT_ID;

TEST(TxStamping, CountsWhatIsStamped) {
    TxStamping s;
    s.set(kCounted);
    EXPECT_EQ(s.take({}).id, 0u);
    const TxStampRequest refused = s.take({});
    EXPECT_EQ(refused.id, 1u);
    s.give_back(refused, {});
    EXPECT_EQ(s.take({}).id, 1u);
    SendControls none;
    none.stamping = 0;
    EXPECT_EQ(s.take(none).kinds, 0u);
    s.give_back(s.take(none), none);
    SendControls own;
    own.stamp_id = 77;
    const TxStampRequest with_own = s.take(own);
    EXPECT_EQ(with_own.id, 77u);
    s.give_back(with_own, own);
    EXPECT_EQ(s.take({}).id, 2u);
    s.set(kCounted | SOF_TIMESTAMPING_OPT_TSONLY);
    EXPECT_EQ(s.take({}).id, 3u);
    s.set(SOF_TIMESTAMPING_TX_SOFTWARE);
    EXPECT_EQ(s.take({}).id, 0u);
    s.set(kCounted);
    EXPECT_EQ(s.take({}).id, 0u);
}

TEST(TxStamping, WhatIsAskedFor) {
    TxStamping s;
    EXPECT_EQ(s.take({}).kinds, 0u);
    s.set(SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK | SOF_TIMESTAMPING_RX_SOFTWARE);
    EXPECT_EQ(s.take({}).kinds, kStampScheduled);
    EXPECT_TRUE(s.take({}).with_frame);
    s.set(SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY);
    EXPECT_EQ(s.take({}).kinds, kStampScheduled | kStampSent);
    EXPECT_FALSE(s.take({}).with_frame);
    SendControls own;
    own.stamping = SOF_TIMESTAMPING_TX_SOFTWARE;
    EXPECT_EQ(s.take(own).kinds, kStampSent);
}

// A stamp of the twin's is first while one of its datagrams that is older has not been told for the last time.
TEST(TxStamping, OrderOfTheTwins) {
    TxStamping s;
    s.set(SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_SOFTWARE);
    s.sent_by_twin(s.take({}));
    const uint64_t ring = s.take({}).order;
    s.sent_by_twin(s.take({}));
    EXPECT_TRUE(s.is_twin_first(ring));
    s.twin_told(kStampScheduled);
    EXPECT_TRUE(s.is_twin_first(ring));
    s.twin_told(kStampSent);
    EXPECT_FALSE(s.is_twin_first(ring));
    EXPECT_TRUE(s.is_twin_first(ring + 2));
    s.twin_told(kStampSent);
    EXPECT_FALSE(s.is_twin_first(ring + 2));
    s.twin_told(kStampSent);  // one more than there were
    EXPECT_FALSE(s.is_twin_first(UINT64_MAX));
}

TEST(TxStamping, RemembersTheLastOfTheTwins) {
    TxStamping s;
    s.set(SOF_TIMESTAMPING_TX_SOFTWARE);
    for (int i = 0; i < 100; i++) s.sent_by_twin(s.take({}));
    EXPECT_FALSE(s.is_twin_first(36));
    EXPECT_TRUE(s.is_twin_first(37));
    for (int i = 0; i < 64; i++) s.twin_told(kStampSent);
    EXPECT_FALSE(s.is_twin_first(UINT64_MAX));
}

class Controls {
  public:
    template <class T>
    Controls& add(int level, int type, const T& value, size_t length = sizeof(T)) {
        const size_t at = bytes_.size();
        bytes_.resize(at + CMSG_SPACE(sizeof(T)));
        const cmsghdr header{CMSG_LEN(length), level, type};
        std::memcpy(&bytes_[at], &header, sizeof header);
        std::memcpy(&bytes_[at + CMSG_LEN(0)], &value, sizeof value);
        return *this;
    }
    SendControls read(size_t cut = 0) {
        msghdr msg{};
        msg.msg_control = bytes_.data();
        msg.msg_controllen = bytes_.size() - cut;
        return read_send_controls(msg);
    }

  private:
    std::vector<uint8_t> bytes_;
};

TEST(SendControls, TakesTheRingsOwn) {
    const SendControls c =
        Controls()
            .add(IPPROTO_UDP, UDP_SEGMENT, uint16_t(700))
            .add(SOL_SOCKET, SO_TIMESTAMPING_NEW, uint32_t(SOF_TIMESTAMPING_TX_SCHED))
            .add(SOL_SOCKET, SCM_TS_OPT_ID, uint32_t(5))
            .read();
    EXPECT_FALSE(c.others);
    EXPECT_EQ(c.segment, 700);
    EXPECT_EQ(c.stamping, uint32_t(SOF_TIMESTAMPING_TX_SCHED));
    EXPECT_EQ(c.stamp_id, 5u);
}

TEST(SendControls, LeavesTheRestToTheKernel) {
    const SendControls beside = Controls()
                                    .add(IPPROTO_IP, IP_TTL, int(5))
                                    .add(SOL_SOCKET, SCM_TS_OPT_ID, uint32_t(5))
                                    .read();
    EXPECT_TRUE(beside.others);
    EXPECT_EQ(beside.stamp_id, 5u);
    // Sizes and values that the kernel refuses.
    EXPECT_TRUE(Controls().add(IPPROTO_UDP, UDP_SEGMENT, uint32_t(700)).read().others);
    EXPECT_TRUE(Controls().add(SOL_SOCKET, SCM_TS_OPT_ID, uint16_t(7)).read().others);
    EXPECT_TRUE(Controls()
                    .add(SOL_SOCKET, SO_TIMESTAMPING_OLD, uint32_t(SOF_TIMESTAMPING_OPT_ID))
                    .read()
                    .others);
    // Lengths that lead out of the buffer, or nowhere.
    for (const size_t length : {size_t(-16), size_t(-17), size_t(-100), size_t(1000)})
        EXPECT_TRUE(Controls().add(SOL_SOCKET, SCM_TS_OPT_ID, uint32_t(5), length).read().others);
    EXPECT_TRUE(Controls().add(SOL_SOCKET, SCM_TS_OPT_ID, uint32_t(5)).read(8).others);
    // Less than a header is nothing.
    EXPECT_FALSE(Controls().add(SOL_SOCKET, SCM_TS_OPT_ID, uint32_t(5)).read(9).others);
}

}  // namespace
}  // namespace vma::sock
