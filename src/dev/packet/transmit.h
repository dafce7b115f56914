// The sending half of the packet ring: an AF_PACKET socket that only sends (bound with protocol 0, so no packet of the
// interface is ever offered to it), past the qdisc (PACKET_QDISC_BYPASS), with PACKET_VNET_HDR for checksum and segmentation
// offload. Source: packet(7), virtio 1.2 section 5.1.6. Thread rules: the ring's.
#pragma once

#include <cstdint>
#include <string>

#include "base/own_fd.h"
#include "base/result.h"
#include "dev/ring.h"

namespace vma {

struct VnetHeader {
    uint8_t flags, gso_type;
    uint16_t header_len, gso_size, csum_start, csum_offset;
};
static_assert(sizeof(VnetHeader) == 10);

class Transmitter {
  public:
    static constexpr uint32_t kMostFrameBytes =
        65535;  // of a segmentation-offload frame, Ethernet header included
    static constexpr uint16_t kMostSegments = 128;
    // Frames up to this size are copied into one buffer; larger ones go as a vector (one copy less).
    static constexpr uint32_t kCopyLimit = 2048;

    // Errors: EPERM (CAP_NET_RAW), ENODEV, those of socket(2), setsockopt(2), bind(2).
    Status open(int ifindex, std::string* why);
    // A socket that open() has made in another process; closed on every path.
    Status adopt(int socket) { return socket_.adopt(socket); }
    int fd() const { return socket_.fd(); }

    // One frame; 0 or a positive errno. A segmentation-offload frame that the device refuses is cut here and sent in pieces;
    // it counts as sent when its first piece was.
    int send(const TxFrame& frame);

    uint64_t cut_frames() const { return cut_frames_; }  // segmented here
    // Tests: as if the device refused every segmentation-offload frame.
    void refuse_gso(bool on) { refuse_gso_ = on; }

  private:
    int send_whole(const TxFrame& frame);
    int send_cut(const TxFrame& frame);

    // After a refusal the next frames are cut without asking; then the device is asked again.
    static constexpr uint32_t kCutWithoutAsking = 1000;

    OwnFd socket_;
    uint32_t gso_pause_[4] = {};  // by Gso
    uint64_t cut_frames_ = 0;
    bool refuse_gso_ = false;
    alignas(64) uint8_t scratch_[sizeof(VnetHeader) + 128 + kCopyLimit];
};

}  // namespace vma
