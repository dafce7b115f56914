// Ethernet frames for tests, built byte by byte without the code under test: IPv4 with UDP or TCP, finished or unfinished
// checksums, and the sums to check them with.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/ip_addr.h"
#include "dev/ring.h"

namespace vma::test {

using Mac = std::array<uint8_t, 6>;

struct FrameSpec {
    Mac to{}, from{};
    Endpoint src, dst;
    uint8_t protocol = IPPROTO_UDP;
    uint32_t payload = 18;
    uint32_t seed = 1;         // payload contents
    uint32_t sequence = 0;     // TCP
    uint8_t tcp_flags = 0x10;  // ACK
    unsigned ip_option_words = 0;
    uint16_t fragment = 0;  // the IP field: MF 0x2000, offset in 8 byte units
    bool finished = true;   // full checksum; false: pseudo-header sum for the device to finish
};

inline uint32_t add_words(const uint8_t* p, size_t n, uint32_t sum) {
    for (size_t i = 0; i + 1 < n; i += 2) sum += load_be16(p + i);
    if (n & 1) sum += uint32_t(p[n - 1]) << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}
inline uint32_t pseudo_sum(const uint8_t* ip, uint32_t l4_bytes) {
    return add_words(ip + 12, 8, uint32_t(ip[9]) + l4_bytes);
}

struct Frame {
    std::vector<uint8_t> bytes;
    uint16_t head = 0;  // Ethernet, IP and L4 headers
    uint16_t l4 = 0;    // offset of the L4 header
    uint16_t csum_offset = 0;
    iovec payload_vector{};

    ByteView view() const { return {bytes.data(), bytes.size()}; }
    // As one frame for Ring::send; valid while this Frame lives and does not move.
    TxFrame plain(bool unfinished = false) {
        TxFrame f;
        f.head = {bytes.data(), head};
        payload_vector = {bytes.data() + head, bytes.size() - head};
        f.payload = &payload_vector;
        f.payload_count = payload_vector.iov_len ? 1 : 0;
        f.payload_len = uint32_t(payload_vector.iov_len);
        if (unfinished) {
            f.csum_start = l4;
            f.csum_offset = csum_offset;
        }
        return f;
    }
    TxFrame segmented(uint16_t size, Gso gso) {
        TxFrame f = plain(true);
        f.gso = gso;
        f.gso_size = size;
        return f;
    }
};

inline uint8_t payload_byte(uint32_t seed, uint32_t i) {
    return uint8_t((i * 131 + seed * 29 + (i >> 8) * 7) & 0xff);
}

inline Frame build_frame(const FrameSpec& s) {
    Frame f;
    const uint32_t ip_bytes = 20 + 4 * s.ip_option_words;
    const uint32_t l4_bytes = s.protocol == IPPROTO_TCP ? 20 : 8;
    f.l4 = uint16_t(14 + ip_bytes);
    f.head = uint16_t(f.l4 + l4_bytes);
    f.csum_offset = s.protocol == IPPROTO_TCP ? 16 : 6;
    f.bytes.assign(f.head + s.payload, 0);
    uint8_t* b = f.bytes.data();
    std::memcpy(b, s.to.data(), 6);
    std::memcpy(b + 6, s.from.data(), 6);
    store_be16(b + 12, 0x0800);
    uint8_t* ip = b + 14;
    ip[0] = uint8_t(0x40 | ip_bytes / 4);
    store_be16(ip + 2, uint16_t(ip_bytes + l4_bytes + s.payload));
    store_be16(ip + 6, uint16_t(s.fragment ? s.fragment : 0x4000));
    ip[8] = 64;
    ip[9] = s.protocol;
    std::memcpy(ip + 12, s.src.addr.bytes.data() + 12, 4);
    std::memcpy(ip + 16, s.dst.addr.bytes.data() + 12, 4);
    for (unsigned i = 0; i < 4 * s.ip_option_words; ++i) ip[20 + i] = 1;  // no-operation
    store_be16(ip + 10, uint16_t(~add_words(ip, ip_bytes, 0)));
    uint8_t* l4 = b + f.l4;
    store_be16(l4, s.src.port);
    store_be16(l4 + 2, s.dst.port);
    if (s.protocol == IPPROTO_TCP) {
        store_be16(l4 + 4, uint16_t(s.sequence >> 16));
        store_be16(l4 + 6, uint16_t(s.sequence));
        l4[12] = 0x50;
        l4[13] = s.tcp_flags;
        store_be16(l4 + 14, 0xffff);
    } else {
        store_be16(l4 + 4, uint16_t(8 + s.payload));
    }
    for (uint32_t i = 0; i < s.payload; ++i) b[f.head + i] = payload_byte(s.seed, i);
    const uint32_t pseudo = pseudo_sum(ip, l4_bytes + s.payload);
    const uint16_t sum =
        s.finished ? uint16_t(~add_words(l4, l4_bytes + s.payload, pseudo)) : uint16_t(pseudo);
    store_be16(l4 + f.csum_offset,
               s.finished && sum == 0 && s.protocol == IPPROTO_UDP ? 0xffff : sum);
    return f;
}

// Frames compare equal but for an L4 checksum that a device may have finished or left unfinished.
inline bool same_frame(ByteView got, const Frame& sent) {
    if (got.size() != sent.bytes.size()) return false;
    std::vector<uint8_t> a(got.begin(), got.end()), b = sent.bytes;
    for (auto* v : {&a, &b})
        (*v)[sent.l4 + sent.csum_offset] = (*v)[sent.l4 + sent.csum_offset + 1] = 0;
    return a == b;
}

}  // namespace vma::test
