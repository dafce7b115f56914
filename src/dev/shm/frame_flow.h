// The tuple of an IPv4 TCP or UDP frame, packed for comparison and hashing. Pure.
#pragma once

#include <netinet/in.h>

#include "base/bytes.h"
#include "dev/ring.h"

namespace vma::shm {

// 16 bytes that are equal exactly when the tuples are. A tuple whose local or remote half is all zero stands for any.
struct PackedFlow {
    uint64_t addresses = 0;  // local, remote
    uint64_t rest = 0;       // protocol, local port, remote port
    bool operator==(const PackedFlow&) const = default;

    static constexpr PackedFlow of(uint8_t protocol, uint32_t local, uint16_t local_port,
                                   uint32_t remote, uint16_t remote_port) {
        return {uint64_t(local) << 32 | remote,
                uint64_t(protocol) << 32 | uint64_t(local_port) << 16 | remote_port};
    }
    PackedFlow any_remote() const { return {addresses & ~0xffffffffull, rest & ~0xffffull}; }
    PackedFlow any_local() const { return {addresses & 0xffffffffull, rest & ~0xffff0000ull}; }
};

enum class Toward : uint8_t { us, them };

// False: not a whole IPv4 datagram with TCP or UDP ports. `l3_bytes`: what the frame has behind its Ethernet header; `head`
// may be only the front of it, ports included.
inline bool flow_of_frame(ByteView head, uint32_t l3_bytes, Toward toward, PackedFlow& out) {
    if (head.size() < 14 + 20 + 4) return false;
    const uint8_t* const ip = head.data() + 14;
    const uint32_t ip_bytes = (ip[0] & 15) * 4u;
    if (load_be16(ip - 2) != 0x0800 || ip[0] >> 4 != 4 || ip_bytes < 20) return false;
    if (head.size() < 14 + ip_bytes + 4) return false;
    const uint32_t total = load_be16(ip + 2);
    if (total < ip_bytes + 4 || total > l3_bytes) return false;
    if ((load_be16(ip + 6) & 0x3fff) != 0) return false;  // a fragment
    const uint8_t protocol = ip[9];
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) return false;
    const uint32_t source = load_be32(ip + 12), destination = load_be32(ip + 16);
    const uint16_t source_port = load_be16(ip + ip_bytes),
                   destination_port = load_be16(ip + ip_bytes + 2);
    out = toward == Toward::us
              ? PackedFlow::of(protocol, destination, destination_port, source, source_port)
              : PackedFlow::of(protocol, source, source_port, destination, destination_port);
    return true;
}

}  // namespace vma::shm
