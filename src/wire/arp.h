// ARP for IPv4 over Ethernet (RFC 826), parse only: the kernel answers and resolves, we at most
// listen. Pure.
#pragma once

#include "wire/ethernet.h"

namespace vma {

constexpr uint32_t kArpSize = 28;

struct ArpView {
    uint16_t operation = 0;  // 1 request, 2 reply
    MacAddr sender_mac, target_mac;
    uint32_t sender_ip = 0, target_ip = 0;  // host order
};

// `packet`: Ethernet payload. `truncated` when short, `not_ip` for another hardware or protocol
// type.
inline Parsed<ArpView> parse_arp(ByteView packet) {
    if (packet.size() < kArpSize) return DropReason::truncated;
    const uint8_t* p = packet.data();
    if (load_be16(p) != 1 || load_be16(p + 2) != ethertype::ipv4 || p[4] != 6 || p[5] != 4)
        return DropReason::not_ip;
    ArpView v;
    v.operation = load_be16(p + 6);
    v.sender_mac = MacAddr::from(p + 8);
    v.sender_ip = load_be32(p + 14);
    v.target_mac = MacAddr::from(p + 18);
    v.target_ip = load_be32(p + 24);
    return v;
}

}  // namespace vma
