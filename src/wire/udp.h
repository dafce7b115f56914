// UDP header (RFC 768). Pure; every length checked.
#pragma once

#include "base/bytes.h"
#include "wire/parsed.h"

namespace vma {

constexpr uint32_t kUdpSize = 8, kUdpChecksumOffset = 6;
// Largest payload over IPv4 without options: 65535 - 20 - 8.
constexpr uint32_t kUdpMaxPayload4 = 65507;

struct UdpHeader {
    uint16_t src_port = 0, dst_port = 0;  // host order
    uint16_t length = 0;                  // header and payload
    uint16_t checksum = 0;                // 0: none was computed (IPv4)
    bool operator==(const UdpHeader&) const = default;
};

struct UdpView {
    UdpHeader header;
    ByteView datagram;  // header and payload, `length` bytes: what the checksum covers after the
                        // pseudo header
    ByteView payload;
};

// `segment`: IP payload; bytes behind `length` are ignored, as Linux does. The checksum is the
// caller's to verify (it needs the addresses, and often the device has done it).
inline Parsed<UdpView> parse_udp(ByteView segment) {
    if (segment.size() < kUdpSize) return DropReason::truncated;
    const uint8_t* p = segment.data();
    UdpView v;
    v.header = {load_be16(p), load_be16(p + 2), load_be16(p + 4), load_be16(p + 6)};
    if (v.header.length < kUdpSize || v.header.length > segment.size())
        return DropReason::udp_length;
    v.datagram = segment.first(v.header.length);
    v.payload = v.datagram.subspan(kUdpSize);
    return v;
}

// Bytes written, 0 when `out` is too small.
inline uint32_t emit_udp(const UdpHeader& h, ByteSpan out) {
    if (out.size() < kUdpSize) return 0;
    store_be16(out.data(), h.src_port);
    store_be16(out.data() + 2, h.dst_port);
    store_be16(out.data() + 4, h.length);
    store_be16(out.data() + 6, h.checksum);
    return kUdpSize;
}

}  // namespace vma
