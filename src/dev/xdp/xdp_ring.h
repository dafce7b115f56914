// XdpRing: a packet ring (dev/packet/packet_ring.h) that gets most frames by an XDP socket, before the kernel has made a packet of
// them or looked further at it. What such a socket cannot carry whole and with all that belongs to it (segmentation-offload and
// jumbo frames, fragments, groups, ICMP, requests for connections, other queues of the device) comes as to a packet ring; both ways
// keep the order of arrival. It sends as a packet ring does. docs/decisions/0025-xdp-ring.md says why.
//
// One ring of an interface's receive queue has the socket: EADDRINUSE for the next. Thread rules: ring.h. Descriptors: three more than
// a packet ring's two: socket, link, wake-up; while it opens, the table of sockets, too.
// Memory: the packet ring's, and 8 or 16 MiB of the arena, pinned.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/arena.h"
#include "base/result.h"
#include "dev/packet/packet_ring.h"
#include "dev/ring.h"
#include "dev/xdp/attach.h"

namespace vma {

struct XdpRingConfig {
    PacketRingConfig packet;
    std::array<uint8_t, 6> mac{};  // of the interface
    XdpMode mode = XdpMode::automatic;
    Arena* arena = nullptr;  // of the shard; outlives the ring and every packet it gave out
};

// As open_packet_ring(). Errors besides: EBUSY (another XDP program is on the interface), EADDRINUSE (another XDP socket has every queue that
// it could have: a packet ring is as good), EPERM (CAP_SYS_ADMIN besides those of the packet ring; nobody lends such a ring),
// EOPNOTSUPP (kernel or interface without it).
Result<Ring*> open_xdp_ring(const XdpRingConfig& config, std::string* why);

}  // namespace vma
