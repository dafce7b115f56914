// Raw Ethernet QPs: offloads of the sending side, the switch, and frames into receive requests.
#pragma once

#include <sys/uio.h>

#include "base/bytes.h"
#include "softhca/hca/context.h"

namespace softhca {

// The error of ibv_post_send, *bad at the first request that was not taken. Requests are carried out at once.
int post_raw(Context& c, Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad);

// A frame in pieces of this process's memory.
struct RawFrame {
    const iovec* parts = nullptr;
    uint32_t count = 0;
    uint64_t bytes = 0;     // of the parts
    bool checksum = false;  // to be made by the device
    vma::ByteView
        tso_headers;  // in front of the parts, which are cut into segments; empty: a frame as it is
    uint16_t mss = 0;
};
// Sends it by the QP, whose send lock is held; the status of its completion.
ibv_wc_status transmit(Context& c, Qp& qp, const RawFrame& frame);

// Up to `count` completions of frames that wait for raw QPs of `cq`.
unsigned receive_frames(Context& c, Cq& cq, unsigned count, Cqe* out);

// The frames that wait for a raw QP, in order. Its receive queue's lock is held.
class WaitingFrames {
  public:
    WaitingFrames(const Context& c, const QpShared& qp);
    ~WaitingFrames();          // what was taken is the switch's again
    const FrameSlot* first();  // null: none
    void take();               // the first
    void drop_all() { head_ = tail_; }

  private:
    FrameRing& ring_;
    uint64_t head_, tail_;
};

// What somebody wants to go wrong with this request, once (hca/faults.h).
ibv_wc_status injected(std::atomic<uint32_t>& fault);

}  // namespace softhca
