// The short way of reading and writing a TCP frame against the parsers of each header.
#include "wire/tcp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "support/frames.h"

namespace vma {
namespace {

// What the parsers of each header make of `frame`, if it has the form of which tcp4.h speaks.
bool by_each_header(ByteView frame, Tcp4View& out) {
    const auto ethernet = parse_ethernet(frame);
    if (!ethernet || ethernet->header.has_vlan || ethernet->header.type != ethertype::ipv4)
        return false;
    const auto ip = parse_ipv4(ethernet->payload);
    if (!ip || ip->header.is_fragment() || ip->header.header_len != kIpv4Size ||
        ip->header.protocol != ip_protocol::tcp)
        return false;
    const auto tcp = parse_tcp(ip->payload);
    if (!tcp) return false;
    out.ip = ethernet->payload.data();
    out.tcp = ip->payload.data();
    out.tcp_len = uint16_t(ip->payload.size());
    out.header_len = tcp->header.header_len;
    return true;
}

TEST(Tcp4, ReadsWhatTheParsersOfEachHeaderRead) {
    const uint64_t seed = 0x7c94;
    Rng rng(seed);
    unsigned taken = 0, refused = 0;
    for (unsigned round = 0; round < 50000; round++) {
        test::FrameSpec spec;
        spec.src = {IpAddr::v4(10, 0, 0, 1), uint16_t(rng.next())};
        spec.dst = {IpAddr::v4(10, 0, 0, 2), uint16_t(rng.next())};
        spec.protocol = rng.chance(1, 16) ? IPPROTO_UDP : IPPROTO_TCP;
        spec.payload = uint32_t(rng.below(100));
        spec.seed = round;
        spec.tcp_flags = uint8_t(rng.next());
        spec.ip_option_words = rng.chance(1, 8) ? unsigned(rng.below(11)) : 0;
        spec.fragment = rng.chance(1, 8) ? uint16_t(rng.next()) : 0;
        std::vector<uint8_t> bytes = test::build_frame(spec).bytes;
        // Some of the header changed, with the IP checksum or without; cut, or with padding behind it.
        for (uint64_t i = rng.below(3); i > 0; i--) {
            const size_t at = 12 + rng.below(std::min<size_t>(42, bytes.size() - 12));
            bytes[at] = uint8_t(rng.chance(1, 2) ? bytes[at] ^ 1u << rng.below(8) : rng.next());
        }
        if (rng.chance(1, 2)) {
            store_be16(&bytes[24], 0);
            store_be16(&bytes[24], checksum(ByteView(&bytes[14], 20)));
        }
        if (rng.chance(1, 4)) bytes.resize(rng.below(bytes.size() + 1));
        if (rng.chance(1, 4)) bytes.resize(bytes.size() + rng.below(20), 0xee);
        Tcp4View short_way, long_way;
        const bool is = by_each_header(bytes, long_way);
        ASSERT_EQ(read_tcp4(bytes, short_way), is) << "seed " << seed << " round " << round;
        (is ? taken : refused)++;
        if (!is) continue;
        ASSERT_EQ(short_way.ip, long_way.ip);
        ASSERT_EQ(short_way.tcp, long_way.tcp);
        ASSERT_EQ(short_way.tcp_len, long_way.tcp_len);
        ASSERT_EQ(short_way.header_len, long_way.header_len);
    }
    EXPECT_GT(taken, 5000u);
    EXPECT_GT(refused, 5000u);
}

TEST(Tcp4, WritesWhatTheEmittersOfEachHeaderWrite) {
    const uint64_t seed = 0x7c95;
    Rng rng(seed);
    for (unsigned round = 0; round < 20000; round++) {
        EthernetHeader ethernet;
        for (uint8_t& b : ethernet.dst.bytes) b = uint8_t(rng.next());
        for (uint8_t& b : ethernet.src.bytes) b = uint8_t(rng.next());
        ethernet.type = ethertype::ipv4;
        Tcp4Head h;
        h.to = ethernet.dst;
        h.from = ethernet.src;
        const IpAddr src = IpAddr::v4(uint32_t(rng.next())), dst = IpAddr::v4(uint32_t(rng.next()));
        h.src = src.v4_data();
        h.dst = dst.v4_data();
        h.tos = uint8_t(rng.next());
        h.ttl = uint8_t(rng.next());
        h.ip_id = uint16_t(rng.next());
        h.src_port = uint16_t(rng.next());
        h.dst_port = uint16_t(rng.next());
        h.seq = {uint32_t(rng.next())};
        h.ack = {uint32_t(rng.next())};
        h.flags = uint8_t(rng.next());
        h.window = uint16_t(rng.next());
        h.urgent = uint16_t(rng.next());
        h.options = uint32_t(rng.below(11)) * 4;
        h.payload = uint32_t(rng.below(65536 - 20 - 20 - 40));
        uint8_t got[kTcp4Head], want[kTcp4Head];
        emit_tcp4(h, got);

        emit_ethernet(ethernet, want);
        Ipv4Header ip;
        ip.src = src.v4_host();
        ip.dst = dst.v4_host();
        ip.total_len = uint16_t(40 + h.options + h.payload);
        ip.id = h.ip_id;
        ip.dont_fragment = true;
        ip.tos = h.tos;
        ip.ttl = h.ttl;
        ip.protocol = ip_protocol::tcp;
        ASSERT_EQ(emit_ipv4(ip, ByteSpan(want + 14, 20)), 20u);
        TcpHeader tcp;
        tcp.src_port = h.src_port;
        tcp.dst_port = h.dst_port;
        tcp.seq = h.seq;
        tcp.ack = h.ack;
        tcp.flags = h.flags;
        tcp.header_len = uint8_t(kTcpSize + h.options);
        tcp.window = h.window;
        tcp.urgent = h.urgent;
        Checksum pseudo;
        pseudo.add_pseudo_v4(ip.src, ip.dst, ip.protocol, uint16_t(ip.total_len - 20));
        tcp.checksum = pseudo.sum();
        ASSERT_EQ(emit_tcp(tcp, ByteSpan(want + 34, 20)), 20u);
        ASSERT_EQ(std::memcmp(got, want, sizeof want), 0) << "seed " << seed << " round " << round;
    }
}

// A super-frame's length does not fit the field; whoever cuts it writes the right one.
TEST(Tcp4, TotalLengthOfASuperFrame) {
    Tcp4Head h;
    const IpAddr a = IpAddr::v4(10, 0, 0, 1);
    h.src = h.dst = a.v4_data();
    h.payload = 70000;
    uint8_t bytes[kTcp4Head];
    emit_tcp4(h, bytes);
    EXPECT_EQ(load_be16(bytes + 16), 65535);
    EXPECT_EQ(checksum(ByteView(bytes + 14, 20)), 0);
}

}  // namespace
}  // namespace vma
