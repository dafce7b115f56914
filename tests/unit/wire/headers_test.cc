// Ethernet, ARP, IPv4, IPv6, UDP, TCP, ICMP: parse(emit(x)) = x, and each way in which a length can
// lie.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "wire/arp.h"
#include "wire/ethernet.h"
#include "wire/icmp.h"
#include "wire/ipv4.h"
#include "wire/ipv6.h"
#include "wire/tcp.h"
#include "wire/udp.h"

namespace vma {
namespace {

constexpr int kRounds = 3000;

uint32_t any32(Rng& rng) { return uint32_t(rng.next() >> 16); }
MacAddr any_mac(Rng& rng) {
    const uint64_t r = rng.next();
    return MacAddr::from(&r);
}
std::vector<uint8_t> any_bytes(Rng& rng, size_t n) {
    std::vector<uint8_t> b(n);
    for (auto& x : b) x = uint8_t(rng.next() >> 40);
    return b;
}

TEST(Ethernet, RoundTrip) {
    Rng rng(0x2001);
    for (int i = 0; i < kRounds; i++) {
        EthernetHeader h;
        h.dst = any_mac(rng);
        h.src = any_mac(rng);
        do h.type = uint16_t(any32(rng));
        while (h.type == ethertype::vlan);
        h.has_vlan = rng.chance(1, 2);
        if (h.has_vlan) h.vlan_tci = uint16_t(any32(rng));
        uint8_t frame[64] = {};
        ASSERT_EQ(emit_ethernet(h, frame), h.size());
        auto v = parse_ethernet(frame);
        ASSERT_TRUE(v) << "seed 0x2001 round " << i;
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(v->payload.data(), frame + h.size());
        EXPECT_EQ(v->payload.size(), 64 - h.size());
    }
}

TEST(Ethernet, ShortFramesAndShortBuffers) {
    uint8_t frame[18] = {};
    EthernetHeader h;
    EXPECT_EQ(emit_ethernet(h, ByteSpan(frame, 13)), 0u);
    for (size_t n = 0; n < 14; n++)
        EXPECT_EQ(parse_ethernet(ByteView(frame, n)).why(), DropReason::truncated);
    h.has_vlan = true;
    EXPECT_EQ(emit_ethernet(h, ByteSpan(frame, 17)), 0u);
    ASSERT_EQ(emit_ethernet(h, frame), 18u);
    for (size_t n = 14; n < 18; n++)
        EXPECT_EQ(parse_ethernet(ByteView(frame, n)).why(), DropReason::truncated);
    EXPECT_TRUE(parse_ethernet(frame));
}

TEST(Ethernet, Addresses) {
    EXPECT_TRUE(MacAddr::broadcast().is_multicast());
    const MacAddr group =
        MacAddr::v4_multicast(0xefffff01);  // 239.255.255.1: only 23 bits are mapped
    EXPECT_EQ(group, (MacAddr{{0x01, 0x00, 0x5e, 0x7f, 0xff, 0x01}}));
    EXPECT_TRUE(group.is_multicast());
    EXPECT_FALSE((MacAddr{{0x02, 0, 0, 0, 0, 1}}).is_multicast());
    EXPECT_TRUE(MacAddr{}.is_zero());
}

TEST(Arp, ReadsARequestAndRefusesOthers) {
    uint8_t p[28] = {0,  1, 8, 0, 6, 4, 0, 1, 2, 0, 0,  0, 0, 1,
                     10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2};
    auto v = parse_arp(p);
    ASSERT_TRUE(v);
    EXPECT_EQ(v->operation, 1);
    EXPECT_EQ(v->sender_ip, 0x0a000001u);
    EXPECT_EQ(v->target_ip, 0x0a000002u);
    EXPECT_EQ(v->sender_mac, (MacAddr{{2, 0, 0, 0, 0, 1}}));
    EXPECT_TRUE(v->target_mac.is_zero());
    for (size_t n = 0; n < 28; n++)
        EXPECT_EQ(parse_arp(ByteView(p, n)).why(), DropReason::truncated);
    for (size_t at : {0u, 2u, 4u, 5u}) {
        p[at] ^= 0x40;
        EXPECT_EQ(parse_arp(p).why(), DropReason::not_ip) << at;
        p[at] ^= 0x40;
    }
}

TEST(Ipv4, RoundTripWithOptionsAndPadding) {
    Rng rng(0x2002);
    for (int i = 0; i < kRounds; i++) {
        const std::vector<uint8_t> options = any_bytes(rng, 4 * rng.below(11));
        const uint32_t payload = rng.below(100), padding = rng.below(20);
        Ipv4Header h;
        h.src = any32(rng);
        h.dst = any32(rng);
        h.header_len = uint8_t(20 + options.size());
        h.total_len = uint16_t(h.header_len + payload);
        h.id = uint16_t(any32(rng));
        h.fragment_offset = uint16_t(rng.below(8192) * 8);
        h.dont_fragment = rng.chance(1, 2);
        h.more_fragments = rng.chance(1, 2);
        h.tos = uint8_t(any32(rng));
        h.ttl = uint8_t(any32(rng));
        h.protocol = uint8_t(any32(rng));
        std::vector<uint8_t> packet = any_bytes(rng, h.total_len + padding);
        ASSERT_EQ(emit_ipv4(h, packet, options), h.header_len);
        auto v = parse_ipv4(packet);
        ASSERT_TRUE(v) << "seed 0x2002 round " << i << " " << drop_name(v.why());
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(std::vector<uint8_t>(v->options.begin(), v->options.end()), options);
        EXPECT_EQ(v->payload.data(), packet.data() + h.header_len);
        EXPECT_EQ(v->payload.size(), payload);
        EXPECT_EQ(h.is_fragment(), h.more_fragments || h.fragment_offset > 0);
        // Any single changed bit of the header is noticed one way or another.
        packet[rng.below(h.header_len)] ^= uint8_t(1u << rng.below(8));
        EXPECT_FALSE(parse_ipv4(packet)) << "seed 0x2002 round " << i;
    }
}

TEST(Ipv4, LyingLengths) {
    std::vector<uint8_t> p(60);
    Ipv4Header h;
    h.total_len = 60;
    ASSERT_EQ(emit_ipv4(h, p), 20u);
    EXPECT_TRUE(parse_ipv4(p));
    for (size_t n = 0; n < 20; n++)
        EXPECT_EQ(parse_ipv4(ByteView(p).first(n)).why(), DropReason::truncated);
    EXPECT_EQ(parse_ipv4(ByteView(p).first(59)).why(), DropReason::ip_total_length);
    for (uint16_t total : {0, 19, 61, 65535}) {
        h.total_len = total;
        ASSERT_EQ(emit_ipv4(h, p), 20u);
        EXPECT_EQ(parse_ipv4(p).why(), DropReason::ip_total_length) << total;
    }
    p[0] = 0x44;
    EXPECT_EQ(parse_ipv4(p).why(), DropReason::ip_header_length);
    p[0] = 0x4f;
    EXPECT_EQ(parse_ipv4(ByteView(p).first(59)).why(), DropReason::ip_header_length);
    p[0] = 0x65;
    EXPECT_EQ(parse_ipv4(p).why(), DropReason::ip_version);
}

TEST(Ipv4, EmitRefusesWhatItCannotWrite) {
    uint8_t p[80];
    Ipv4Header h;
    EXPECT_EQ(emit_ipv4(h, ByteSpan(p, 19)), 0u);
    h.header_len = 24;
    EXPECT_EQ(emit_ipv4(h, p), 0u);  // no options given
    uint8_t options[44] = {};
    h.header_len = 64;
    EXPECT_EQ(emit_ipv4(h, p, options), 0u);
    h.header_len = 20;
    h.fragment_offset = 4;
    EXPECT_EQ(emit_ipv4(h, p), 0u);
}

TEST(Ipv6, RoundTripAndLengths) {
    Rng rng(0x2003);
    for (int i = 0; i < kRounds; i++) {
        Ipv6Header h;
        h.src = IpAddr::v6_bytes(any_bytes(rng, 16).data());
        h.dst = IpAddr::v6_bytes(any_bytes(rng, 16).data());
        h.flow_label = any32(rng) & 0xfffff;
        h.traffic_class = uint8_t(any32(rng));
        h.next_header = uint8_t(any32(rng));
        h.hop_limit = uint8_t(any32(rng));
        h.payload_len = uint16_t(rng.below(40));
        uint8_t p[80] = {};
        ASSERT_EQ(emit_ipv6(h, p), 40u);
        auto v = parse_ipv6(p);
        ASSERT_TRUE(v) << "seed 0x2003 round " << i;
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(v->payload.size(), h.payload_len);
        EXPECT_EQ(parse_ipv6(ByteView(p, 40u + h.payload_len)).ok(), true);
        if (h.payload_len > 0) {
            EXPECT_EQ(parse_ipv6(ByteView(p, 39u + h.payload_len)).why(),
                      DropReason::ip_total_length);
        }
        p[0] = 0x45;
        EXPECT_EQ(parse_ipv6(p).why(), DropReason::ip_version);
    }
    uint8_t shorter[39] = {0x60};
    EXPECT_EQ(parse_ipv6(shorter).why(), DropReason::truncated);
    EXPECT_EQ(emit_ipv6({}, shorter), 0u);
}

TEST(Udp, RoundTripAndLengths) {
    Rng rng(0x2004);
    for (int i = 0; i < kRounds; i++) {
        std::vector<uint8_t> p = any_bytes(rng, 8 + rng.below(50));
        const UdpHeader h = {uint16_t(any32(rng)), uint16_t(any32(rng)),
                             uint16_t(8 + rng.below(uint32_t(p.size() - 7))), uint16_t(any32(rng))};
        ASSERT_EQ(emit_udp(h, p), 8u);
        auto v = parse_udp(p);
        ASSERT_TRUE(v) << "seed 0x2004 round " << i;
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(v->datagram.size(), h.length);
        EXPECT_EQ(v->payload.size(), h.length - 8u);
    }
    uint8_t p[20] = {};
    for (uint16_t bad : {0, 7, 21, 65535}) {
        ASSERT_EQ(emit_udp({1, 2, bad, 0}, p), 8u);
        EXPECT_EQ(parse_udp(p).why(), DropReason::udp_length) << bad;
    }
    EXPECT_EQ(parse_udp(ByteView(p, 7)).why(), DropReason::truncated);
    EXPECT_EQ(emit_udp({}, ByteSpan(p, 7)), 0u);
}

TEST(Tcp, RoundTripAndLengths) {
    Rng rng(0x2005);
    for (int i = 0; i < kRounds; i++) {
        TcpHeader h;
        h.src_port = uint16_t(any32(rng));
        h.dst_port = uint16_t(any32(rng));
        h.seq = {any32(rng)};
        h.ack = {any32(rng)};
        h.flags = uint8_t(any32(rng));
        h.reserved = any32(rng) & 15;
        h.header_len = uint8_t(20 + 4 * rng.below(11));
        h.window = uint16_t(any32(rng));
        h.checksum = uint16_t(any32(rng));
        h.urgent = uint16_t(any32(rng));
        uint8_t p[80] = {};
        ASSERT_EQ(emit_tcp(h, p), 20u);
        const size_t size = h.header_len + rng.below(81u - h.header_len);
        auto v = parse_tcp(ByteView(p, size));
        ASSERT_TRUE(v) << "seed 0x2005 round " << i;
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(v->options.size(), h.header_len - 20u);
        EXPECT_EQ(v->payload.size(), size - h.header_len);
        EXPECT_EQ(v->seg_len(),
                  v->payload.size() + ((h.flags & 2) ? 1 : 0) + ((h.flags & 1) ? 1 : 0));
        EXPECT_EQ(parse_tcp(ByteView(p, h.header_len - 1u)).why(),
                  h.header_len == 20 ? DropReason::truncated : DropReason::tcp_header);
    }
    uint8_t p[60] = {};
    for (uint8_t offset = 0; offset < 5; offset++) {
        p[12] = uint8_t(offset << 4);
        EXPECT_EQ(parse_tcp(p).why(), DropReason::tcp_header);
    }
    for (uint8_t bad : {0, 16, 22, 64}) {
        TcpHeader h;
        h.header_len = bad;
        EXPECT_EQ(emit_tcp(h, p), 0u);
    }
    EXPECT_EQ(emit_tcp({}, ByteSpan(p, 19)), 0u);
}

std::vector<uint8_t> quoted_packet(Rng& rng, size_t options, size_t l4) {
    std::vector<uint8_t> q = any_bytes(rng, 20 + options + l4);
    Ipv4Header h;
    h.src = any32(rng);
    h.dst = any32(rng);
    h.protocol = rng.chance(1, 2) ? 6 : 17;
    h.total_len = 1500;  // more than is quoted: that is the normal case
    h.header_len = uint8_t(20 + options);
    emit_ipv4(h, q, any_bytes(rng, options));
    return q;
}

TEST(Icmp, RoundTrip) {
    Rng rng(0x2006);
    for (int i = 0; i < kRounds; i++) {
        const std::vector<uint8_t> quoted =
            quoted_packet(rng, 4 * rng.below(11), 8 + rng.below(30));
        IcmpErrorHeader h;
        h.type = std::array<uint8_t, 3>{3, 11, 12}[rng.below(3)];
        h.code = uint8_t(rng.below(16));
        if (h.type == 3 && h.code == 4) h.mtu = uint16_t(any32(rng));
        if (h.type == 12) h.pointer = uint8_t(any32(rng));
        std::vector<uint8_t> p(8 + quoted.size());
        ASSERT_EQ(emit_icmp_error(h, quoted, p), p.size());
        auto v = parse_icmp_error(p);
        ASSERT_TRUE(v) << "seed 0x2006 round " << i << " " << drop_name(v.why());
        EXPECT_EQ(v->header, h);
        EXPECT_EQ(v->quoted.header.total_len, 1500);
        const uint8_t* l4 = quoted.data() + v->quoted.header.header_len;
        EXPECT_EQ(v->quoted_src_port(), load_be16(l4));
        EXPECT_EQ(v->quoted_dst_port(), load_be16(l4 + 2));
        EXPECT_EQ(v->quoted_seq(), load_be32(l4 + 4));
    }
}

TEST(Icmp, Refusals) {
    Rng rng(0x2007);
    std::vector<uint8_t> quoted = quoted_packet(rng, 0, 8);
    std::vector<uint8_t> p(8 + quoted.size());
    auto emit = [&](uint8_t type) {
        return emit_icmp_error({.type = type, .code = 4, .mtu = 1400}, quoted, p);
    };
    for (unsigned type = 0; type < 256; type++) {
        ASSERT_NE(emit(uint8_t(type)), 0u);
        const bool error = type == 3 || type == 11 || type == 12;
        EXPECT_EQ(parse_icmp_error(p).why(), error ? DropReason::none : DropReason::icmp_type)
            << type;
    }
    emit(3);
    p[6] ^= 1;
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::icmp_checksum);
    for (size_t n = 0; n < 8; n++)
        EXPECT_EQ(parse_icmp_error(ByteView(p).first(n)).why(), DropReason::truncated);

    quoted.resize(27);  // 7 bytes of L4
    p.resize(35);
    emit(3);
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::truncated);
    quoted.resize(19);
    p.resize(27);
    emit(3);
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::truncated);
    quoted = quoted_packet(rng, 0, 8);
    p.resize(36);
    quoted[0] = 0x46;  // header 24, so only 4 bytes of L4
    emit(3);
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::truncated);
    quoted[0] = 0x4f;
    emit(3);
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::ip_header_length);
    quoted[0] = 0x65;
    emit(3);
    EXPECT_EQ(parse_icmp_error(p).why(), DropReason::ip_version);
    EXPECT_EQ(emit_icmp_error({}, quoted, ByteSpan(p).first(35)), 0u);
}

}  // namespace
}  // namespace vma
