// The small value types: Result, Seq, IpAddr, Endpoint, loads and stores.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/ip_addr.h"
#include "base/result.h"
#include "base/seq.h"

namespace vma {
namespace {

TEST(Result, ValueOrErrno) {
    Result<int> good = 7;
    EXPECT_TRUE(good.ok());
    EXPECT_TRUE(static_cast<bool>(good));
    EXPECT_EQ(*good, 7);
    EXPECT_EQ(good.error(), 0);
    *good = 8;
    EXPECT_EQ(good.value(), 8);
    Result<int> bad = Errno{ENOENT};
    EXPECT_FALSE(bad.ok());
    EXPECT_EQ(bad.error(), ENOENT);
    Status fine;
    EXPECT_TRUE(fine.ok());
    Status failed = Errno{EPERM};
    EXPECT_FALSE(static_cast<bool>(failed));
    EXPECT_EQ(failed.error(), EPERM);
}

TEST(Result, OwnsItsValueOnce) {
    auto counted = std::make_shared<std::string>("x");
    {
        Result<std::shared_ptr<std::string>> a = counted;
        EXPECT_EQ(counted.use_count(), 2);
        Result<std::shared_ptr<std::string>> b = a;
        EXPECT_EQ(counted.use_count(), 3);
        Result<std::shared_ptr<std::string>> c = std::move(a);
        EXPECT_EQ(counted.use_count(), 3);
        EXPECT_EQ(**c, "x");
        EXPECT_EQ(b->get(), counted.get());
        Result<std::shared_ptr<std::string>> failed = Errno{EIO};
        Result<std::shared_ptr<std::string>> copy = failed;
        EXPECT_EQ(copy.error(), EIO);
    }
    EXPECT_EQ(counted.use_count(), 1);
    Result<std::unique_ptr<int>> moved = std::make_unique<int>(3);
    std::unique_ptr<int> out = std::move(*moved);
    EXPECT_EQ(*out, 3);
}

TEST(Seq, ComparisonAroundTheWrap) {
    const struct {
        uint32_t a, b;
        int32_t difference;  // a - b; its sign is the order
    } rows[] = {
        {0, 0, 0},
        {1, 0, 1},
        {0, 0xffffffff, 1},
        {5, 0xfffffffb, 10},
        {0xfffffff0, 0x10, -32},
        {0x7fffffff, 0, 0x7fffffff},
        {0x80000001, 0, -0x7fffffff},
        {0x12345678, 0x12345678, 0},
    };
    for (auto& r : rows) {
        const Seq a{r.a}, b{r.b};
        EXPECT_EQ(a - b, r.difference) << r.a << " " << r.b;
        EXPECT_EQ(b - a, -r.difference) << r.a << " " << r.b;
        EXPECT_EQ(a < b, r.difference < 0);
        EXPECT_EQ(a <= b, r.difference <= 0);
        EXPECT_EQ(a > b, r.difference > 0);
        EXPECT_EQ(a >= b, r.difference >= 0);
        EXPECT_EQ(a == b, r.difference == 0);
        EXPECT_EQ(Seq::max(a, b), r.difference >= 0 ? a : b);
        EXPECT_EQ(Seq::min(a, b), r.difference <= 0 ? a : b);
        EXPECT_EQ(b + uint32_t(r.difference), a);
        EXPECT_EQ(a - uint32_t(r.difference), b);
    }
    Seq s{0xffffffff};
    s += 2;
    EXPECT_EQ(s.v, 1u);
}

TEST(IpAddr, Classes) {
    const struct {
        const char* text;
        bool v4, any, multicast, loopback, broadcast;
    } rows[] = {
        {"0.0.0.0", true, true, false, false, false},
        {"127.0.0.1", true, false, false, true, false},
        {"127.255.255.254", true, false, false, true, false},
        {"128.0.0.1", true, false, false, false, false},
        {"10.1.2.3", true, false, false, false, false},
        {"223.255.255.255", true, false, false, false, false},
        {"224.0.0.1", true, false, true, false, false},
        {"239.255.255.255", true, false, true, false, false},
        {"240.0.0.1", true, false, false, false, false},
        {"255.255.255.255", true, false, false, false, true},
        {"::", false, true, false, false, false},
        {"::1", false, false, false, true, false},
        {"::2", false, false, false, false, false},
        {"fe80::1", false, false, false, false, false},
        {"ff02::1", false, false, true, false, false},
        {"2001:db8::7f00:1", false, false, false, false, false},
        {"::ffff:127.0.0.1", true, false, false, true, false},
        {"::fffe:127.0.0.1", false, false, false, false, false},
    };
    for (auto& r : rows) {
        IpAddr a;
        uint8_t raw[16];
        if (inet_pton(AF_INET, r.text, raw) == 1) {
            a = IpAddr::v4_bytes(raw);
            EXPECT_EQ(a, IpAddr::v4(raw[0], raw[1], raw[2], raw[3])) << r.text;
            EXPECT_EQ(a.v4_host(), ntohl(inet_addr(r.text))) << r.text;
        } else {
            ASSERT_EQ(inet_pton(AF_INET6, r.text, raw), 1) << r.text;
            a = IpAddr::v6_bytes(raw);
        }
        EXPECT_EQ(a.is_v4(), r.v4) << r.text;
        EXPECT_EQ(a.is_any(), r.any) << r.text;
        EXPECT_EQ(a.is_multicast(), r.multicast) << r.text;
        EXPECT_EQ(a.is_loopback(), r.loopback) << r.text;
        EXPECT_EQ(a.is_limited_broadcast(), r.broadcast) << r.text;
    }
}

TEST(IpAddr, OrderScopeAndMappedForm) {
    EXPECT_LT(IpAddr::v4(10, 0, 0, 1), IpAddr::v4(10, 0, 0, 2));
    EXPECT_LT(IpAddr::v4(10, 0, 0, 255), IpAddr::v4(192, 0, 0, 1));
    uint8_t raw[16];
    inet_pton(AF_INET6, "fe80::1", raw);
    EXPECT_NE(IpAddr::v6_bytes(raw, 2), IpAddr::v6_bytes(raw, 3));
    inet_pton(AF_INET6, "::ffff:10.0.0.1", raw);
    EXPECT_EQ(IpAddr::v6_bytes(raw), IpAddr::v4(10, 0, 0, 1));
    EXPECT_EQ(IpAddr::any_v4(), IpAddr::v4(0u));
    EXPECT_NE(IpAddr::any_v4(), IpAddr{});
}

TEST(Endpoint, SockaddrBothWaysAndRefusals) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(8080);
    in.sin_addr.s_addr = inet_addr("192.0.2.7");
    Endpoint e;
    ASSERT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in), sizeof(in), e));
    EXPECT_EQ(e, (Endpoint{IpAddr::v4(192, 0, 2, 7), 8080}));
    const sockaddr_in back = e.to_sockaddr_in();
    EXPECT_EQ(memcmp(&back, &in, sizeof(in)), 0);

    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(53);
    in6.sin6_scope_id = 4;
    inet_pton(AF_INET6, "fe80::9", &in6.sin6_addr);
    ASSERT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in6), sizeof(in6), e));
    EXPECT_EQ(e.port, 53);
    EXPECT_EQ(e.addr.scope, 4u);
    EXPECT_EQ(memcmp(e.addr.bytes.data(), &in6.sin6_addr, 16), 0);

    const Endpoint before = e;
    const struct {
        sa_family_t family;
        socklen_t len;
    } refused[] = {{AF_INET, 0},   {AF_INET, 1},  {AF_INET, 15},  {AF_INET6, 16},
                   {AF_INET6, 27}, {AF_UNIX, 28}, {AF_UNSPEC, 28}};
    for (auto& r : refused) {
        in6.sin6_family = r.family;
        EXPECT_FALSE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in6), r.len, e))
            << r.family << "/" << r.len;
    }
    EXPECT_FALSE(Endpoint::from_sockaddr(nullptr, 28, e));
    EXPECT_EQ(e, before);
}

TEST(Bytes, NetworkOrderAtEveryAlignment) {
    uint8_t buffer[16];
    for (size_t at = 0; at < 8; ++at) {
        memset(buffer, 0xee, sizeof(buffer));
        store_be16(buffer + at, 0x1234);
        EXPECT_EQ(buffer[at], 0x12);
        EXPECT_EQ(buffer[at + 1], 0x34);
        EXPECT_EQ(buffer[at + 2], 0xee);
        EXPECT_EQ(load_be16(buffer + at), 0x1234);
        store_be32(buffer + at, 0xdeadbe01);
        EXPECT_EQ(buffer[at], 0xde);
        EXPECT_EQ(buffer[at + 3], 0x01);
        EXPECT_EQ(buffer[at + 4], 0xee);
        EXPECT_EQ(load_be32(buffer + at), 0xdeadbe01u);
        uint32_t host;
        memcpy(&host, buffer + at, 4);
        EXPECT_EQ(load_u32(buffer + at), host);
    }
}

}  // namespace
}  // namespace vma
