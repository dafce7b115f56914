// ICMPv4 error reports: destination unreachable (3), time exceeded (11), parameter problem (12),
// with the quoted packet (RFC 792, next-hop MTU RFC 1191, longer quotes RFC 4884). Pure; every
// length checked.
#pragma once

#include <cstring>

#include "wire/ipv4.h"

namespace vma {

constexpr uint32_t kIcmpSize = 8, kIcmpQuotedMin = 8;

namespace icmp_type {
constexpr uint8_t unreachable = 3, time_exceeded = 11, parameter_problem = 12;
}
namespace icmp_code {  // of icmp_type::unreachable
constexpr uint8_t net = 0, host = 1, protocol = 2, port = 3, fragmentation_needed = 4;
}

struct IcmpErrorHeader {
    uint8_t type = 0, code = 0;
    uint16_t mtu = 0;     // type 3 code 4: next-hop MTU, 0 from routers older than RFC 1191
    uint8_t pointer = 0;  // type 12: offset of the octet in error
    bool operator==(const IcmpErrorHeader&) const = default;
};

struct IcmpErrorView {
    IcmpErrorHeader header;
    Ipv4View quoted;  // the packet that we sent: its src is ours. payload: what the router quoted,
                      // at least 8 bytes
    // First words of the quoted L4 header: ports of UDP and TCP, then the TCP sequence number.
    // Meaningless unless quoted.header.fragment_offset is 0.
    uint16_t quoted_src_port() const { return load_be16(quoted.payload.data()); }
    uint16_t quoted_dst_port() const { return load_be16(quoted.payload.data() + 2); }
    uint32_t quoted_seq() const { return load_be32(quoted.payload.data() + 4); }
};

// `message`: IP payload of protocol 1. Other ICMP types: icmp_type; bad sum: icmp_checksum; short:
// truncated; a quoted header that is no IPv4 header: ip_version or ip_header_length.
inline Parsed<IcmpErrorView> parse_icmp_error(ByteView message) {
    if (message.size() < kIcmpSize) return DropReason::truncated;
    const uint8_t* p = message.data();
    IcmpErrorView v;
    v.header.type = p[0];
    v.header.code = p[1];
    if (p[0] != icmp_type::unreachable && p[0] != icmp_type::time_exceeded &&
        p[0] != icmp_type::parameter_problem)
        return DropReason::icmp_type;
    if (checksum(message) != 0) return DropReason::icmp_checksum;
    if (p[0] == icmp_type::unreachable && p[1] == icmp_code::fragmentation_needed)
        v.header.mtu = load_be16(p + 6);
    if (p[0] == icmp_type::parameter_problem) v.header.pointer = p[4];
    Parsed<Ipv4View> quoted = parse_ipv4_quoted(message.subspan(kIcmpSize));
    if (!quoted) return quoted.why();
    v.quoted = *quoted;
    if (v.quoted.payload.size() < kIcmpQuotedMin) return DropReason::truncated;
    return v;
}

// Header, `quoted` bytes (IPv4 header and at least 8 more) and checksum. Bytes written, 0 when
// `out` is too small.
inline uint32_t emit_icmp_error(const IcmpErrorHeader& h, ByteView quoted, ByteSpan out) {
    const size_t size = kIcmpSize + quoted.size();
    if (out.size() < size) return 0;
    uint8_t* p = out.data();
    std::memset(p, 0, kIcmpSize);
    p[0] = h.type;
    p[1] = h.code;
    if (h.type == icmp_type::unreachable && h.code == icmp_code::fragmentation_needed)
        store_be16(p + 6, h.mtu);
    if (h.type == icmp_type::parameter_problem) p[4] = h.pointer;
    if (!quoted.empty()) std::memcpy(p + kIcmpSize, quoted.data(), quoted.size());
    store_be16(p + 2, checksum(ByteView(p, size)));
    return uint32_t(size);
}

}  // namespace vma
