// IpAddr (IPv4 or IPv6 with scope) and Endpoint: the one address type of the project, maps and statistics included.
#pragma once

#include <netinet/in.h>

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace vma {

// 16 address bytes in network order; IPv4 is stored as the mapped form ::ffff:a.b.c.d. `scope` is the interface index
// of a link-local IPv6 address, else 0. All zero bytes: the unspecified IPv6 address; ::ffff:0.0.0.0: INADDR_ANY.
struct IpAddr {
    std::array<uint8_t, 16> bytes{};
    uint32_t scope = 0;

    static constexpr IpAddr v4(uint32_t host_order) {
        IpAddr a;
        a.bytes[10] = a.bytes[11] = 0xff;
        a.bytes[12] = uint8_t(host_order >> 24);
        a.bytes[13] = uint8_t(host_order >> 16);
        a.bytes[14] = uint8_t(host_order >> 8);
        a.bytes[15] = uint8_t(host_order);
        return a;
    }
    static constexpr IpAddr v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
        return v4(uint32_t(a) << 24 | uint32_t(b) << 16 | uint32_t(c) << 8 | d);
    }
    static IpAddr v4_bytes(const void* four_network_bytes) {
        return v4(load_be32(four_network_bytes));
    }
    static IpAddr v6_bytes(const void* sixteen, uint32_t scope_id = 0) {
        IpAddr a;
        std::memcpy(a.bytes.data(), sixteen, 16);
        a.scope = scope_id;
        return a;
    }
    static constexpr IpAddr any_v4() { return v4(0u); }

    bool is_v4() const {
        static constexpr uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        return std::memcmp(bytes.data(), prefix, 12) == 0;
    }
    const uint8_t* v4_data() const {
        return bytes.data() + 12;
    }  // four bytes, network order; likewise
    uint32_t v4_host() const { return load_be32(bytes.data() + 12); }  // valid only if is_v4()
    bool is_any() const {
        if (is_v4()) return v4_host() == 0;
        static constexpr uint8_t zero[16] = {};
        return std::memcmp(bytes.data(), zero, 16) == 0;
    }
    bool is_multicast() const { return is_v4() ? (bytes[12] & 0xf0) == 0xe0 : bytes[0] == 0xff; }
    bool is_loopback() const {
        if (is_v4()) return bytes[12] == 127;
        static constexpr uint8_t one[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
        return std::memcmp(bytes.data(), one, 16) == 0;
    }
    bool is_limited_broadcast() const { return is_v4() && v4_host() == 0xffffffffu; }

    auto operator<=>(const IpAddr&) const = default;
    // The default one calls memcmp(), several times for each packet.
    constexpr bool operator==(const IpAddr& other) const {
        using Halves = std::array<uint64_t, 2>;
        const auto a = std::bit_cast<Halves>(bytes), b = std::bit_cast<Halves>(other.bytes);
        return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (scope ^ other.scope)) == 0;
    }
};

struct Endpoint {
    IpAddr addr = IpAddr::any_v4();
    uint16_t port = 0;  // host order
    auto operator<=>(const Endpoint&) const = default;

    // From/to a sockaddr. from_sockaddr returns false for a family other than AF_INET/AF_INET6 and for a length that is short
    // or more than the kernel takes.
    static bool from_sockaddr(const sockaddr* sa, socklen_t len, Endpoint& out) {
        if (sa == nullptr || len < sizeof(sa_family_t) || len > sizeof(sockaddr_storage))
            return false;
        if (sa->sa_family == AF_INET && len >= sizeof(sockaddr_in)) {
            sockaddr_in in;
            std::memcpy(&in, sa, sizeof(in));
            out = {IpAddr::v4_bytes(&in.sin_addr), uint16_t(__builtin_bswap16(in.sin_port))};
            return true;
        }
        if (sa->sa_family == AF_INET6 && len >= 28) {
            sockaddr_in6 in6;
            std::memcpy(&in6, sa, 28);
            out = {IpAddr::v6_bytes(&in6.sin6_addr, in6.sin6_scope_id),
                   uint16_t(__builtin_bswap16(in6.sin6_port))};
            return true;
        }
        return false;
    }
    sockaddr_in to_sockaddr_in() const {
        sockaddr_in in{};
        in.sin_family = AF_INET;
        in.sin_port = __builtin_bswap16(port);
        std::memcpy(&in.sin_addr, addr.bytes.data() + 12, 4);
        return in;
    }
};

}  // namespace vma
