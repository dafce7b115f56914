// A TCP segment in an IPv4 packet in an Ethernet frame, read and written in one go: the form of nearly every frame of a connection,
// without tag, IP options or fragments. The parsers of each header (ethernet.h, ipv4.h, tcp.h) read every other one, and say why
// one is none. Pure; every length checked.
#pragma once

#include <cstring>

#include "wire/checksum.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {

constexpr uint32_t kTcp4Head = kEthernetSize + kIpv4Size + kTcpSize;  // 54 bytes, options follow

struct Tcp4View {
    const uint8_t* ip = nullptr;   // the IPv4 header, 20 bytes
    const uint8_t* tcp = nullptr;  // the TCP header
    uint16_t tcp_len =
        0;  // header, options and payload, as the IP header says: padding is left out
    uint8_t header_len = 0;  // 20..60: TCP header with options
};

// True: `frame` has this form, and parse_ethernet, parse_ipv4 (with its checksum) and parse_tcp would take it.
inline bool read_tcp4(ByteView frame, Tcp4View& out) {
    if (frame.size() < kTcp4Head) return false;
    const uint8_t* const ip = frame.data() + kEthernetSize;
    if (load_be16(ip - 2) != ethertype::ipv4 || ip[0] != 0x45 || ip[9] != ip_protocol::tcp ||
        (load_be16(ip + 6) & 0x3fff) != 0)
        return false;
    const uint32_t total = load_be16(ip + 2);
    if (total < kIpv4Size + kTcpSize || total > frame.size() - kEthernetSize) return false;
    uint64_t sum = 0;
    for (unsigned i = 0; i < kIpv4Size; i += 4) sum += load_u32(ip + i);
    if (checksum_fold(sum) != 0xffff) return false;
    out.ip = ip;
    out.tcp = ip + kIpv4Size;
    out.tcp_len = uint16_t(total - kIpv4Size);
    out.header_len = uint8_t((out.tcp[12] >> 4) * 4);
    return out.header_len >= kTcpSize && out.header_len <= out.tcp_len;
}

// What is in front of a segment's options and payload.
struct Tcp4Head {
    MacAddr from, to;
    const uint8_t *src = nullptr, *dst = nullptr;  // four bytes each, as on the wire
    uint8_t tos = 0, ttl = 0;
    uint16_t ip_id = 0;
    uint16_t src_port = 0, dst_port = 0;  // host order
    Seq seq, ack;
    uint8_t flags = 0;
    uint16_t window = 0, urgent = 0;
    uint32_t options = 0;  // bytes, a multiple of 4, at most 40
    uint32_t payload = 0;  // bytes; one that is segmented later may be larger than a packet
};

// Writes kTcp4Head bytes with DF set and the IP checksum. The TCP checksum field gets the sum of the pseudo header, which is what a
// device that finishes it wants.
inline void emit_tcp4(const Tcp4Head& h, uint8_t* to) {
    const uint32_t tcp_len = kTcpSize + h.options + h.payload;
    const uint32_t total =
        kIpv4Size + tcp_len < kIpv4MaxPacket ? kIpv4Size + tcp_len : kIpv4MaxPacket;
    std::memcpy(to, h.to.bytes.data(), 6);
    std::memcpy(to + 6, h.from.bytes.data(), 6);
    store_be16(to + 12, ethertype::ipv4);
    uint8_t* const ip = to + kEthernetSize;
    store_be32(ip, 0x45000000u | uint32_t(h.tos) << 16 | total);
    store_be32(ip + 4, uint32_t(h.ip_id) << 16 | 0x4000);
    store_be32(ip + 8, uint32_t(h.ttl) << 24 | uint32_t(ip_protocol::tcp) << 16);
    std::memcpy(ip + 12, h.src, 4);
    std::memcpy(ip + 16, h.dst, 4);
    const uint64_t addresses = uint64_t(load_u32(h.src)) + load_u32(h.dst);
    const uint16_t sum =
        uint16_t(~checksum_fold(addresses + load_u32(ip) + load_u32(ip + 4) + load_u32(ip + 8)));
    std::memcpy(ip + 10, &sum, 2);
    uint8_t* const tcp = ip + kIpv4Size;
    store_be32(tcp, uint32_t(h.src_port) << 16 | h.dst_port);
    store_be32(tcp + 4, h.seq.v);
    store_be32(tcp + 8, h.ack.v);
    store_be32(tcp + 12, (kTcpSize + h.options) << 26 | uint32_t(h.flags) << 16 | h.window);
    const uint16_t pseudo = checksum_fold(addresses + __builtin_bswap16(ip_protocol::tcp) +
                                          __builtin_bswap16(uint16_t(tcp_len)));
    std::memcpy(tcp + 16, &pseudo, 2);
    store_be16(tcp + 18, h.urgent);
}

}  // namespace vma
