// The 40 bytes before a datagram in the receiver's memory: a global route header, or for RoCE v2 over IPv4 the IPv4 header in
// the last 20 of them (InfiniBand Architecture annex A17).
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "softhca/hca/memory.h"
#include "wire/ipv4.h"

namespace softhca {

using vma::ByteSpan;
using vma::ByteView;

inline bool is_ipv4(const ibv_gid& gid) {
    static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return !std::memcmp(gid.raw, kMapped, sizeof(kMapped));
}

inline void write_grh(const ibv_gid& from, const ibv_gid& to, uint32_t payload, uint8_t* out) {
    constexpr uint32_t kUdpAndBth = 8 + 12 + 8 + 4;  // UDP, BTH, DETH, ICRC
    std::memset(out, 0, 40);
    if (is_ipv4(from) && is_ipv4(to)) {
        vma::Ipv4Header ip;
        ip.src = vma::load_be32(from.raw + 12);
        ip.dst = vma::load_be32(to.raw + 12);
        ip.total_len = uint16_t(vma::kIpv4Size + kUdpAndBth + payload);
        ip.ttl = 64;
        ip.protocol = vma::ip_protocol::udp;
        ip.dont_fragment = true;
        vma::emit_ipv4(ip, ByteSpan(out + 20, 20));
        return;
    }
    out[0] = 0x60;
    vma::store_be16(out + 4, uint16_t(kUdpAndBth + payload));
    out[6] = vma::ip_protocol::udp;
    out[7] = 64;
    std::memcpy(out + 8, from.raw, 16);
    std::memcpy(out + 24, to.raw, 16);
}

// Copies from[0], which is this process's memory, and the rest, which is `from_pid`'s, one behind the other.
inline bool copy_prefixed(uint32_t to_pid, const iovec* to, uint32_t to_count, uint32_t from_pid,
                          const iovec* from, uint32_t from_count) {
    if (!copy_between(to_pid, to, to_count, own_pid(), from, 1)) return false;
    iovec rest[32];
    uint32_t n = 0;
    size_t skip = from[0].iov_len;
    for (uint32_t i = 0; i < to_count; i++) {
        const size_t here = skip < to[i].iov_len ? skip : to[i].iov_len;
        rest[n++] = {static_cast<char*>(to[i].iov_base) + here, to[i].iov_len - here};
        skip -= here;
    }
    return copy_between(to_pid, rest, n, from_pid, from + 1, from_count - 1);
}

}  // namespace softhca
