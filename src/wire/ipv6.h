// IPv6 fixed header (RFC 8200 section 3). Extension headers are left in the payload. Pure; every
// length checked.
#pragma once

#include <cstring>

#include "base/ip_addr.h"
#include "wire/parsed.h"

namespace vma {

constexpr uint32_t kIpv6Size = 40;

struct Ipv6Header {
    IpAddr src, dst;          // scope 0: the caller knows the interface
    uint32_t flow_label = 0;  // 20 bits
    uint16_t payload_len = 0;
    uint8_t traffic_class = 0, next_header = 0, hop_limit = 0;
    bool operator==(const Ipv6Header&) const = default;
};

struct Ipv6View {
    Ipv6Header header;
    ByteView payload;  // exactly payload_len bytes
};

inline Parsed<Ipv6View> parse_ipv6(ByteView packet) {
    if (packet.size() < kIpv6Size) return DropReason::truncated;
    const uint8_t* p = packet.data();
    const uint32_t first = load_be32(p);
    if (first >> 28 != 6) return DropReason::ip_version;
    Ipv6View v;
    v.header.traffic_class = uint8_t(first >> 20);
    v.header.flow_label = first & 0xfffff;
    v.header.payload_len = load_be16(p + 4);
    v.header.next_header = p[6];
    v.header.hop_limit = p[7];
    v.header.src = IpAddr::v6_bytes(p + 8);
    v.header.dst = IpAddr::v6_bytes(p + 24);
    if (v.header.payload_len > packet.size() - kIpv6Size) return DropReason::ip_total_length;
    v.payload = packet.subspan(kIpv6Size, v.header.payload_len);
    return v;
}

// Bytes written, 0 when `out` is too small.
inline uint32_t emit_ipv6(const Ipv6Header& h, ByteSpan out) {
    if (out.size() < kIpv6Size) return 0;
    uint8_t* p = out.data();
    store_be32(p, 6u << 28 | uint32_t(h.traffic_class) << 20 | (h.flow_label & 0xfffff));
    store_be16(p + 4, h.payload_len);
    p[6] = h.next_header;
    p[7] = h.hop_limit;
    std::memcpy(p + 8, h.src.bytes.data(), 16);
    std::memcpy(p + 24, h.dst.bytes.data(), 16);
    return kIpv6Size;
}

}  // namespace vma
