// The Internet checksum (RFC 1071), incremental update (RFC 1624), IPv4 and IPv6 pseudo headers.
// Pure, no allocation. Every 16-bit value in and out of this file is a plain number: store it with
// store_be16(), read it with load_be16().
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/ip_addr.h"

namespace vma {

// One's-complement sum of 64-bit words in memory order. Byte order does not matter to the sum (RFC
// 1071 section 2(B)), so words are added as the machine loads them and only the folded result is
// swapped, in Checksum::sum().
inline uint64_t checksum_add64(uint64_t acc, uint64_t word) {
    acc += word;
    return acc + (acc < word);  // end-around carry
}

inline uint16_t checksum_fold(uint64_t acc) {
    acc = (acc & 0xffffffffu) + (acc >> 32);
    acc = (acc & 0xffffffffu) + (acc >> 32);
    acc = (acc & 0xffff) + (acc >> 16);
    acc = (acc & 0xffff) + (acc >> 16);
    return uint16_t(acc);
}

// Memory-order sum of `n` bytes, as if a zero byte followed an odd tail.
inline uint64_t checksum_bytes(const uint8_t* p, size_t n, uint64_t acc = 0) {
    uint64_t a = acc, b = 0, c = 0, d = 0;
    // Four accumulators, so that the carry chains of neighbouring words run side by side.
    while (n >= 32) {
        uint64_t w[4];
        std::memcpy(w, p, 32);
        a = checksum_add64(a, w[0]);
        b = checksum_add64(b, w[1]);
        c = checksum_add64(c, w[2]);
        d = checksum_add64(d, w[3]);
        p += 32;
        n -= 32;
    }
    a = checksum_add64(checksum_add64(a, b), checksum_add64(c, d));
    while (n >= 8) {
        uint64_t w;
        std::memcpy(&w, p, 8);
        a = checksum_add64(a, w);
        p += 8;
        n -= 8;
    }
    if (n > 0) {
        uint64_t w = 0;
        std::memcpy(&w, p, n);
        a = checksum_add64(a, w);
    }
    return a;
}

// A running checksum over pieces of any length; a piece after an odd number of bytes is added
// swapped, which is what it would have contributed in place (RFC 1071 section 2(B)).
class Checksum {
  public:
    void add(ByteView bytes) {
        const uint64_t part = checksum_bytes(bytes.data(), bytes.size());
        if (odd_)
            acc_ = checksum_add64(acc_, __builtin_bswap16(checksum_fold(part)));
        else
            acc_ = checksum_add64(acc_, part);
        odd_ ^= (bytes.size() & 1) != 0;
    }
    void add_iovecs(const iovec* iov, size_t count) {
        for (size_t i = 0; i < count; i++)
            add({static_cast<const uint8_t*>(iov[i].iov_base), iov[i].iov_len});
    }
    // Numbers count as big-endian bytes at an even offset, whatever was added before.
    void add_be16(uint16_t v) { acc_ = checksum_add64(acc_, __builtin_bswap16(v)); }
    void add_be32(uint32_t v) { acc_ = checksum_add64(acc_, __builtin_bswap32(v)); }

    // RFC 768 / RFC 9293 section 3.1: addresses in host order, `length` = L4 header and payload.
    void add_pseudo_v4(uint32_t src, uint32_t dst, uint8_t protocol, uint16_t length) {
        add_be32(src);
        add_be32(dst);
        add_be16(protocol);
        add_be16(length);
    }
    // RFC 8200 section 8.1.
    void add_pseudo_v6(const IpAddr& src, const IpAddr& dst, uint8_t next_header, uint32_t length) {
        acc_ = checksum_bytes(src.bytes.data(), 16, acc_);
        acc_ = checksum_bytes(dst.bytes.data(), 16, acc_);
        add_be32(length);
        add_be32(next_header);
    }
    // Either family; an address pair of mixed families is summed as the family of `src`.
    void add_pseudo(const IpAddr& src, const IpAddr& dst, uint8_t protocol, uint32_t length) {
        if (src.is_v4())
            add_pseudo_v4(src.v4_host(), dst.v4_host(), protocol, uint16_t(length));
        else
            add_pseudo_v6(src, dst, protocol, length);
    }

    // The folded sum itself: what a checksum-offload device wants in the checksum field (pseudo
    // header only).
    uint16_t sum() const { return __builtin_bswap16(checksum_fold(acc_)); }
    // The checksum field: complement of the sum. Over bytes that contain a right checksum this is
    // 0.
    uint16_t finish() const { return uint16_t(~sum()); }

  private:
    uint64_t acc_ = 0;
    bool odd_ = false;
};

// Checksum of one contiguous piece.
inline uint16_t checksum(ByteView bytes) {
    Checksum c;
    c.add(bytes);
    return c.finish();
}

// RFC 1624 eqn. 3: new checksum field after a 16-bit word of the covered bytes changed.
inline uint16_t checksum_update16(uint16_t field, uint16_t old_word, uint16_t new_word) {
    uint32_t s = uint16_t(~field) + uint32_t(uint16_t(~old_word)) + new_word;
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    return uint16_t(~s);
}
inline uint16_t checksum_update32(uint16_t field, uint32_t old_word, uint32_t new_word) {
    field = checksum_update16(field, uint16_t(old_word >> 16), uint16_t(new_word >> 16));
    return checksum_update16(field, uint16_t(old_word), uint16_t(new_word));
}

}  // namespace vma
