// Cuts a segmentation-offload frame into plain frames: IPv4 and IPv6, TCP and UDP_L4. Pure. Source: RFC 9293 section 3.1, RFC 791
// section 3.1, RFC 768; which flags stay on which segment: RFC 3168 section 6.1.2 (CWR on the first), FIN and PSH on the last.
#pragma once

#include <cstdint>

#include "dev/ring.h"

namespace vma {

class Segmenter {
  public:
    static constexpr uint32_t kMostHeadBytes = 14 + 60 + 60;

    // The frame stays the caller's and outlives this. ok() false: its headers are not what its gso type says.
    explicit Segmenter(const TxFrame& frame);
    bool ok() const { return ok_; }
    bool done() const { return at_ >= frame_.payload_len; }

    // The headers of the next segment into `head` (kMostHeadBytes), its payload bounds in *payload_at and *payload_len.
    // The L4 checksum field holds the pseudo-header sum: the segment goes with the frame's csum_start and csum_offset.
    uint32_t next(uint8_t* head, uint32_t* payload_at, uint32_t* payload_len);

  private:
    TxFrame frame_;
    bool ok_ = false;
    bool v6_ = false;
    uint32_t l3_ = 0, l4_ = 0;  // offsets from the frame start
    uint32_t at_ = 0;           // payload cut so far
    uint32_t index_ = 0;
};

}  // namespace vma
