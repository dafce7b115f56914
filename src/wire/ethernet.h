// Ethernet II header with an optional 802.1Q tag (IEEE 802.3, 802.1Q). Pure; every length checked.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "wire/parsed.h"

namespace vma {

struct MacAddr {
    std::array<uint8_t, 6> bytes{};
    static MacAddr from(const void* six) {
        MacAddr m;
        std::memcpy(m.bytes.data(), six, 6);
        return m;
    }
    static constexpr MacAddr broadcast() { return {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}; }
    // RFC 1112 section 6.4: 01:00:5e and the low 23 bits of the group.
    static constexpr MacAddr v4_multicast(uint32_t group) {
        return {
            {0x01, 0x00, 0x5e, uint8_t(group >> 16 & 0x7f), uint8_t(group >> 8), uint8_t(group)}};
    }
    constexpr bool is_multicast() const { return (bytes[0] & 1) != 0; }  // broadcast included
    constexpr bool is_zero() const { return *this == MacAddr{}; }
    constexpr auto operator<=>(const MacAddr&) const = default;
};

namespace ethertype {
constexpr uint16_t ipv4 = 0x0800, arp = 0x0806, vlan = 0x8100, ipv6 = 0x86dd;
}

struct EthernetHeader {
    MacAddr dst, src;
    uint16_t type = 0;  // after the tag, if there is one
    bool has_vlan = false;
    uint16_t vlan_tci = 0;  // priority 3 bits, DEI 1, VLAN id 12
    uint16_t vlan_id() const { return vlan_tci & 0x0fff; }
    uint32_t size() const { return has_vlan ? 18 : 14; }
    bool operator==(const EthernetHeader&) const = default;
};

struct EthernetView {
    EthernetHeader header;
    ByteView payload;  // with the padding of short frames
};

constexpr uint32_t kEthernetSize = 14, kVlanTagSize = 4;

// `truncated` when the header does not fit. One tag is read; a second one is left in the payload
// (type 0x8100).
inline Parsed<EthernetView> parse_ethernet(ByteView frame) {
    if (frame.size() < kEthernetSize) return DropReason::truncated;
    EthernetView v;
    v.header.dst = MacAddr::from(frame.data());
    v.header.src = MacAddr::from(frame.data() + 6);
    v.header.type = load_be16(frame.data() + 12);
    if (v.header.type == ethertype::vlan) {
        if (frame.size() < kEthernetSize + kVlanTagSize) return DropReason::truncated;
        v.header.has_vlan = true;
        v.header.vlan_tci = load_be16(frame.data() + 14);
        v.header.type = load_be16(frame.data() + 16);
    }
    v.payload = frame.subspan(v.header.size());
    return v;
}

// Bytes written, 0 when `out` is too small.
inline uint32_t emit_ethernet(const EthernetHeader& h, ByteSpan out) {
    if (out.size() < h.size()) return 0;
    std::memcpy(out.data(), h.dst.bytes.data(), 6);
    std::memcpy(out.data() + 6, h.src.bytes.data(), 6);
    if (h.has_vlan) {
        store_be16(out.data() + 12, ethertype::vlan);
        store_be16(out.data() + 14, h.vlan_tci);
        store_be16(out.data() + 16, h.type);
    } else {
        store_be16(out.data() + 12, h.type);
    }
    return h.size();
}

}  // namespace vma
