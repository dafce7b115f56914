// TCP header (RFC 9293 section 3.1; ECN flags RFC 3168). Options are in tcp_options.h. Pure; every
// length checked.
#pragma once

#include <cstring>

#include "base/bytes.h"
#include "base/seq.h"
#include "wire/parsed.h"

namespace vma {

constexpr uint32_t kTcpSize = 20, kTcpMaxHeader = 60, kTcpMaxOptions = 40, kTcpChecksumOffset = 16;

namespace tcp_flag {
constexpr uint8_t fin = 0x01, syn = 0x02, rst = 0x04, psh = 0x08, ack = 0x10, urg = 0x20,
                  ece = 0x40, cwr = 0x80;
}

struct TcpHeader {
    uint16_t src_port = 0, dst_port = 0;  // host order
    Seq seq, ack;
    uint8_t flags = 0;              // tcp_flag bits
    uint8_t reserved = 0;           // 4 bits; AE (the former NS) is bit 0
    uint8_t header_len = kTcpSize;  // 20..60, options included
    uint16_t window = 0;            // unscaled, as on the wire
    uint16_t checksum = 0;
    uint16_t urgent = 0;
    bool has(uint8_t mask) const { return (flags & mask) == mask; }
    bool operator==(const TcpHeader&) const = default;
};

struct TcpView {
    TcpHeader header;
    ByteView options;  // raw, 0..40 bytes
    ByteView payload;
    // SEG.LEN of RFC 9293: payload plus SYN and FIN.
    uint32_t seg_len() const {
        return uint32_t(payload.size()) + ((header.flags & tcp_flag::syn) != 0) +
               ((header.flags & tcp_flag::fin) != 0);
    }
};

// `segment`: IP payload, trimmed to the IP total length. The checksum is the caller's to verify.
inline Parsed<TcpView> parse_tcp(ByteView segment) {
    if (segment.size() < kTcpSize) return DropReason::truncated;
    const uint8_t* p = segment.data();
    TcpView v;
    TcpHeader& h = v.header;
    h.header_len = uint8_t((p[12] >> 4) * 4);
    if (h.header_len < kTcpSize || h.header_len > segment.size()) return DropReason::tcp_header;
    h.src_port = load_be16(p);
    h.dst_port = load_be16(p + 2);
    h.seq = {load_be32(p + 4)};
    h.ack = {load_be32(p + 8)};
    h.reserved = p[12] & 0x0f;
    h.flags = p[13];
    h.window = load_be16(p + 14);
    h.checksum = load_be16(p + 16);
    h.urgent = load_be16(p + 18);
    v.options = segment.subspan(kTcpSize, h.header_len - kTcpSize);
    v.payload = segment.subspan(h.header_len);
    return v;
}

// Writes the fixed part with `header_len` as given (options are written behind it by the caller);
// the checksum field is written as given. Bytes written (20), 0 when `out` is too small or
// header_len impossible.
inline uint32_t emit_tcp(const TcpHeader& h, ByteSpan out) {
    if (out.size() < kTcpSize || h.header_len < kTcpSize || h.header_len > kTcpMaxHeader ||
        h.header_len % 4 != 0)
        return 0;
    uint8_t* p = out.data();
    store_be16(p, h.src_port);
    store_be16(p + 2, h.dst_port);
    store_be32(p + 4, h.seq.v);
    store_be32(p + 8, h.ack.v);
    p[12] = uint8_t(h.header_len / 4 << 4 | (h.reserved & 0x0f));
    p[13] = h.flags;
    store_be16(p + 14, h.window);
    store_be16(p + 16, h.checksum);
    store_be16(p + 18, h.urgent);
    return kTcpSize;
}

}  // namespace vma
