// What SO_TIMESTAMPING asks of the datagrams that a UDP socket sends: which are stamped, and by which number the program knows
// them. Datagrams that go by the twin are counted with the ring's; the kernel puts their stamps into the twin's error queue, and
// here stands which of them are still to come. docs/decisions/0019-transmit-stamps.md.
#pragma once

#include <linux/net_tstamp.h>

#include <array>
#include <atomic>

#include "base/spin_lock.h"
#include "sock/send_controls.h"
#include "stack/tx_stamp.h"

namespace vma::sock {

// Moments that a datagram of a ring can be stamped at (there is no acknowledgement of a datagram).
inline constexpr uint32_t kRingRecords =
    SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK;
// SO_TIMESTAMPING as far as it is a ring's: of the device's clock only stamps of what is received.
inline constexpr uint32_t kRingStamping =
    kRingRecords | SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE |
    SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_SYS_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE |
    SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_CMSG | SOF_TIMESTAMPING_OPT_TSONLY |
    SOF_TIMESTAMPING_OPT_STATS | SOF_TIMESTAMPING_OPT_PKTINFO | SOF_TIMESTAMPING_OPT_TX_SWHW;
// OPT_PKTINFO asks for more about datagrams with a stamp of the device's.
constexpr bool rings_can_stamp(uint32_t flags) {
    constexpr uint32_t kDescribed = SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_OPT_PKTINFO;
    return !(flags & ~kRingStamping) && (flags & kDescribed) != kDescribed;
}

class TxStamping {
  public:
    // As the twin has taken it.
    void set(uint32_t flags);
    bool counts() const { return flags() & SOF_TIMESTAMPING_OPT_ID; }
    bool tells_headers() const { return flags() & SOF_TIMESTAMPING_OPT_CMSG; }
    bool tells_stamps() const { return flags() & SOF_TIMESTAMPING_SOFTWARE; }

    // Of a datagram that is about to be sent; kinds 0: nothing is asked for. give_back(): it was not sent.
    TxStampRequest take(const SendControls& controls);
    void give_back(const TxStampRequest& request, const SendControls& controls);

    // The twin has sent it, and has told a stamp of one. Is the next of the twin's to come of a datagram before `order`?
    void sent_by_twin(const TxStampRequest& request);
    void twin_told(TxStampKind kind);
    bool is_twin_first(uint64_t order);

    void forget_lock_in_child() { new (&lock_) SpinLock; }

  private:
    struct OfTwin {
        uint64_t order;
        TxStampKind last;  // of its stamps
    };
    uint32_t flags() const { return flags_.load(std::memory_order_relaxed); }

    std::atomic<uint32_t> flags_{0}, next_id_{0};
    std::atomic<uint64_t> next_order_{0};
    SpinLock lock_;
    // The last of the twin's: who lets more of them wait gets the older ones' stamps after the ring's.
    std::array<OfTwin, 64> of_twin_;
    uint32_t first_ = 0, count_ = 0;
};

// Does the kernel count a datagram as it is told (SCM_TS_OPT_ID)?
bool kernel_takes_stamp_ids();

}  // namespace vma::sock
