// IPv4 header (RFC 791, 1122, 6864). Pure; every length checked.
#pragma once

#include <cstring>

#include "wire/checksum.h"
#include "wire/parsed.h"

namespace vma {

constexpr uint32_t kIpv4Size = 20, kIpv4MaxHeader = 60, kIpv4MaxPacket = 65535;

namespace ip_protocol {
constexpr uint8_t icmp = 1, tcp = 6, udp = 17;
}

struct Ipv4Header {
    uint32_t src = 0, dst = 0;  // host order
    uint16_t total_len = 0;     // header and payload
    uint16_t id = 0;
    uint16_t fragment_offset = 0;  // bytes, multiple of 8
    bool dont_fragment = false, more_fragments = false;
    uint8_t tos = 0, ttl = 0, protocol = 0;
    uint8_t header_len = kIpv4Size;  // 20..60, options included
    bool is_fragment() const { return more_fragments || fragment_offset != 0; }
    uint8_t ecn() const { return tos & 3; }
    bool operator==(const Ipv4Header&) const = default;
};

struct Ipv4View {
    Ipv4Header header;
    ByteView options;
    ByteView payload;  // exactly total_len - header_len bytes: link padding is trimmed
};

// Reads the fixed part and options without looking at total_len or the checksum: for the header
// quoted inside ICMP, of which routers cut the payload and may have changed fields. `packet` may be
// shorter than total_len says.
inline Parsed<Ipv4View> parse_ipv4_quoted(ByteView packet) {
    if (packet.size() < kIpv4Size) return DropReason::truncated;
    const uint8_t* p = packet.data();
    if (p[0] >> 4 != 4) return DropReason::ip_version;
    Ipv4View v;
    Ipv4Header& h = v.header;
    h.header_len = uint8_t((p[0] & 0x0f) * 4);
    if (h.header_len < kIpv4Size || h.header_len > packet.size())
        return DropReason::ip_header_length;
    h.tos = p[1];
    h.total_len = load_be16(p + 2);
    h.id = load_be16(p + 4);
    const uint16_t frag = load_be16(p + 6);
    h.dont_fragment = (frag & 0x4000) != 0;
    h.more_fragments = (frag & 0x2000) != 0;
    h.fragment_offset = uint16_t((frag & 0x1fff) * 8);
    h.ttl = p[8];
    h.protocol = p[9];
    h.src = load_be32(p + 12);
    h.dst = load_be32(p + 16);
    v.options = packet.subspan(kIpv4Size, h.header_len - kIpv4Size);
    v.payload = packet.subspan(h.header_len);
    return v;
}

// `packet`: from the IP header to the end of the frame, padding allowed. Header checksum is
// verified.
inline Parsed<Ipv4View> parse_ipv4(ByteView packet) {
    Parsed<Ipv4View> quoted = parse_ipv4_quoted(packet);
    if (!quoted) return quoted;
    Ipv4View v = *quoted;
    const Ipv4Header& h = v.header;
    if (h.total_len < h.header_len || h.total_len > packet.size())
        return DropReason::ip_total_length;
    if (checksum(packet.first(h.header_len)) != 0) return DropReason::ip_checksum;
    v.payload = packet.subspan(h.header_len, h.total_len - h.header_len);
    return v;
}

// Writes header and checksum; bytes written, 0 when `out` is too small or header_len does not match
// the options (which must be a multiple of 4, at most 40 bytes). fragment_offset must be a multiple
// of 8.
inline uint32_t emit_ipv4(const Ipv4Header& h, ByteSpan out, ByteView options = {}) {
    if (h.header_len != kIpv4Size + options.size() || h.header_len % 4 != 0 ||
        h.header_len > kIpv4MaxHeader || out.size() < h.header_len || h.fragment_offset % 8 != 0)
        return 0;
    uint8_t* p = out.data();
    p[0] = uint8_t(0x40 | h.header_len / 4);
    p[1] = h.tos;
    store_be16(p + 2, h.total_len);
    store_be16(p + 4, h.id);
    store_be16(p + 6, uint16_t((h.dont_fragment ? 0x4000 : 0) | (h.more_fragments ? 0x2000 : 0) |
                               h.fragment_offset / 8));
    p[8] = h.ttl;
    p[9] = h.protocol;
    store_be16(p + 10, 0);
    store_be32(p + 12, h.src);
    store_be32(p + 16, h.dst);
    if (!options.empty()) std::memcpy(p + kIpv4Size, options.data(), options.size());
    store_be16(p + 10, checksum(ByteView(p, h.header_len)));
    return h.header_len;
}

}  // namespace vma
