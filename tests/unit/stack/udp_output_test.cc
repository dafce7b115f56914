// Headers we send, read back with the wire parsers, which check every sum.
#include "stack/udp_output.h"

#include <set>

#include "stack/ip_id.h"
#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

UdpTemplateParams params() {
    UdpTemplateParams p;
    p.dst_mac = kPeerMac;
    p.src_mac = kOurMac;
    p.src = kOurIp;
    p.dst = kPeerIp;
    p.src_port = kOurPort;
    p.dst_port = kPeerPort;
    p.ttl = 9;
    p.tos = 0x2e;
    return p;
}

// The bytes as iovecs of random lengths, empty ones included.
std::vector<iovec> cut(Bytes& b, Rng& rng) {
    std::vector<iovec> iov;
    for (size_t at = 0; at < b.size();) {
        const size_t n = std::min<size_t>(b.size() - at, rng.below(rng.chance(1, 3) ? 3 : 4000));
        iov.push_back({b.data() + at, n});
        at += n;
    }
    if (rng.chance(1, 4)) iov.push_back({nullptr, 0});
    return iov;
}

Bytes join(ByteView head, std::span<const iovec> pieces) {
    Bytes f(head.begin(), head.end());
    for (const iovec& v : pieces) {
        const auto* p = static_cast<const uint8_t*>(v.iov_base);
        f.insert(f.end(), p, p + v.iov_len);
    }
    return f;
}

bool sum_right(const Ipv4View& ip) {
    Checksum c;
    c.add_pseudo_v4(ip.header.src, ip.header.dst, 17, uint16_t(ip.payload.size()));
    c.add(ip.payload);
    return c.finish() == 0;
}

TEST(UdpOutput, CompleteDatagramsReadBack) {
    const uint64_t seed = 0x4001;
    Rng rng(seed);
    for (int round = 0; round < 2000; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        UdpTemplateParams p = params();
        p.has_vlan = rng.chance(1, 3);
        p.vlan_tci = uint16_t(p.has_vlan ? rng.below(65536) : 0);
        p.src = uint32_t(rng.next() >> 8);
        p.dst = uint32_t(rng.next() >> 8);
        p.src_port = uint16_t(rng.below(65536));
        p.dont_fragment = rng.chance(1, 2);
        const UdpTemplate t(p);
        Bytes payload = pattern(rng.chance(1, 50) ? 65507 : rng.below(2000), rng.next());
        const std::vector<iovec> iov = cut(payload, rng);
        const auto id = uint16_t(rng.below(65536));
        uint8_t head[kUdpMaxHead];
        auto h =
            emit_udp_datagram(t, UdpChecksum::complete, iov, uint32_t(payload.size()), id, head);
        ASSERT_TRUE(h);
        EXPECT_EQ(h->size, p.has_vlan ? 46u : 42u);
        EXPECT_EQ(h->csum_start, 0);
        const Bytes frame = join(ByteView(head, h->size), iov);
        auto eth = parse_ethernet(frame);
        ASSERT_TRUE(eth);
        EXPECT_EQ(eth->header.dst, kPeerMac);
        EXPECT_EQ(eth->header.src, kOurMac);
        EXPECT_EQ(eth->header.type, ethertype::ipv4);
        EXPECT_EQ(eth->header.has_vlan, p.has_vlan);
        EXPECT_EQ(eth->header.vlan_tci, p.vlan_tci);
        auto ip = parse_ipv4(eth->payload);
        ASSERT_TRUE(ip) << drop_name(ip.why());
        EXPECT_EQ(ip->header.src, p.src);
        EXPECT_EQ(ip->header.dst, p.dst);
        EXPECT_EQ(ip->header.id, id);
        EXPECT_EQ(ip->header.ttl, 9);
        EXPECT_EQ(ip->header.tos, 0x2e);
        EXPECT_EQ(ip->header.dont_fragment, p.dont_fragment);
        EXPECT_FALSE(ip->header.is_fragment());
        auto udp = parse_udp(ip->payload);
        ASSERT_TRUE(udp);
        EXPECT_EQ(udp->header.src_port, p.src_port);
        EXPECT_EQ(udp->header.dst_port, kPeerPort);
        EXPECT_EQ(Bytes(udp->payload.begin(), udp->payload.end()), payload);
        EXPECT_NE(udp->header.checksum, 0);
        EXPECT_TRUE(sum_right(*ip));
    }
}

TEST(UdpOutput, OffloadedSumFinishedByTheDeviceIsTheCompleteOne) {
    Rng rng(0x4002);
    for (int round = 0; round < 500; round++) {
        const UdpTemplate t(params());
        Bytes payload = pattern(rng.below(3000), rng.next());
        const std::vector<iovec> iov = cut(payload, rng);
        uint8_t soft[kUdpMaxHead], hard[kUdpMaxHead];
        const auto len = uint32_t(payload.size());
        auto s = emit_udp_datagram(t, UdpChecksum::complete, iov, len, 1, soft);
        auto h = emit_udp_datagram(t, UdpChecksum::offload, iov, len, 1, hard);
        ASSERT_TRUE(s && h);
        ASSERT_EQ(h->csum_start, 34);
        ASSERT_EQ(h->csum_offset, 6);
        // What a device does: sum from csum_start to the end, the field included, store the complement.
        Bytes frame = join(ByteView(hard, h->size), iov);
        uint16_t sum = checksum(ByteView(frame).subspan(h->csum_start));
        store_be16(&frame[h->csum_start + h->csum_offset], sum ? sum : 0xffff);
        ASSERT_EQ(frame, join(ByteView(soft, s->size), iov)) << "seed 0x4002 round " << round;
    }
}

TEST(UdpOutput, SumOfZeroIsSentAsOnes) {
    // Two payload bytes chosen so that the sum comes out as zero.
    const UdpTemplate t(params());
    uint8_t payload[2] = {0, 0};
    const iovec iov{payload, 2};
    uint8_t head[kUdpMaxHead];
    ASSERT_TRUE(emit_udp_datagram(t, UdpChecksum::complete, {&iov, 1}, 2, 0, head));
    store_be16(payload, load_be16(head + 40));
    ASSERT_TRUE(emit_udp_datagram(t, UdpChecksum::complete, {&iov, 1}, 2, 0, head));
    EXPECT_EQ(load_be16(head + 40), 0xffff);
}

TEST(UdpOutput, NoChecksumOption) {
    UdpTemplateParams p = params();
    p.no_checksum = true;
    const UdpTemplate t(p);
    uint8_t head[kUdpMaxHead];
    for (UdpChecksum mode : {UdpChecksum::complete, UdpChecksum::offload}) {
        auto h = emit_udp_datagram(t, mode, {}, 0, 0, head);
        ASSERT_TRUE(h);
        EXPECT_EQ(h->csum_start, 0);
        EXPECT_EQ(load_be16(head + 40), 0);
    }
}

TEST(UdpOutput, LimitsAndANeighbourThatMoved) {
    UdpTemplate t(params());
    uint8_t head[kUdpMaxHead];
    EXPECT_EQ(emit_udp_datagram(t, UdpChecksum::offload, {}, 65508, 0, head).error(), EMSGSIZE);
    EXPECT_TRUE(emit_udp_datagram(t, UdpChecksum::offload, {}, 65507, 0, head));
    EXPECT_EQ(emit_udp_datagram(t, UdpChecksum::offload, {}, 0, 0, ByteSpan(head, 41)).error(),
              ENOBUFS);
    t.set_dst_mac({{2, 2, 2, 2, 2, 2}});
    ASSERT_TRUE(emit_udp_datagram(t, UdpChecksum::offload, {}, 0, 0, head));
    EXPECT_EQ(parse_ethernet(head)->header.dst, (MacAddr{{2, 2, 2, 2, 2, 2}}));
}

std::vector<Bytes> fragment(const UdpTemplate& t, std::span<const iovec> iov, uint32_t len,
                            uint32_t mtu, uint16_t id) {
    std::vector<Bytes> frames;
    UdpFragmenter f(t, iov, len, mtu, id);
    std::vector<iovec> pieces(iov.size());
    uint8_t head[kUdpMaxHead];
    while (true) {
        auto r = f.next(head, pieces);
        if (!r) {
            EXPECT_EQ(r.error(), ENODATA);
            EXPECT_EQ(f.produced(), f.count());
            return frames;
        }
        frames.push_back(
            join(ByteView(head, r->head_size), std::span(pieces).first(r->piece_count)));
        EXPECT_EQ(frames.back().size(), r->head_size + r->payload_len);
    }
}

TEST(UdpFragmenter, FragmentsCoverTheDatagram) {
    const uint64_t seed = 0x4003;
    Rng rng(seed);
    for (int round = 0; round < 400; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        const uint32_t mtu =
            std::vector<uint32_t>{68, 69, 576, 1280, 1499, 1500, 9000, 65535}[rng.below(8)];
        Bytes payload = pattern(rng.chance(1, 10) ? 65507 : rng.below(9000), rng.next());
        const std::vector<iovec> iov = cut(payload, rng);
        const UdpTemplate t(params());
        const auto len = uint32_t(payload.size());
        const std::vector<Bytes> frames = fragment(t, iov, len, mtu, 99);
        EXPECT_EQ(frames.size() > 1, UdpFragmenter::needed(len, mtu));
        Bytes l4;
        for (size_t k = 0; k < frames.size(); k++) {
            auto ip = parse_ipv4(ByteView(frames[k]).subspan(14));
            ASSERT_TRUE(ip) << drop_name(ip.why());
            ASSERT_LE(ip->header.total_len, mtu);
            EXPECT_EQ(ip->header.total_len, frames[k].size() - 14);
            EXPECT_EQ(ip->header.id, 99);
            EXPECT_FALSE(ip->header.dont_fragment);
            EXPECT_EQ(ip->header.fragment_offset, l4.size());
            EXPECT_EQ(ip->header.more_fragments, k + 1 < frames.size());
            if (k + 1 < frames.size()) {
                EXPECT_GT(ip->header.total_len + 8u, mtu) << "not as long as the MTU allows";
            }
            l4.insert(l4.end(), ip->payload.begin(), ip->payload.end());
        }
        auto udp = parse_udp(l4);
        ASSERT_TRUE(udp);
        EXPECT_EQ(udp->header.length, l4.size());
        EXPECT_EQ(Bytes(udp->payload.begin(), udp->payload.end()), payload);
        Checksum c;
        c.add_pseudo_v4(kOurIp, kPeerIp, 17, uint16_t(l4.size()));
        c.add(l4);
        EXPECT_EQ(c.finish(), 0);
    }
}

// The layout kernel 6.18 sends for 4000 bytes at MTU 1500 (seen on lo): 1480, 1480, 1048.
TEST(UdpFragmenter, SameLayoutAsTheKernel) {
    Bytes payload(4000);
    const iovec iov{payload.data(), payload.size()};
    const std::vector<Bytes> frames = fragment(UdpTemplate(params()), {&iov, 1}, 4000, 1500, 1);
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].size(), 1514u);
    EXPECT_EQ(frames[1].size(), 1514u);
    EXPECT_EQ(frames[2].size(), 1082u);
    EXPECT_EQ(load_be16(&frames[0][20]), 0x2000);
    EXPECT_EQ(load_be16(&frames[1][20]), 0x20b9);
    EXPECT_EQ(load_be16(&frames[2][20]), 0x0172);
}

TEST(UdpFragmenter, Errors) {
    const UdpTemplate t(params());
    Bytes payload(3000);
    const iovec iov[2] = {{payload.data(), 1000}, {payload.data() + 1000, 2000}};
    uint8_t head[kUdpMaxHead];
    iovec pieces[2];
    UdpFragmenter big(t, iov, 65508, 1500, 1);
    EXPECT_EQ(big.count(), 0u);
    EXPECT_EQ(big.next(head, pieces).error(), EMSGSIZE);
    UdpFragmenter f(t, iov, 3000, 1500, 1);
    EXPECT_EQ(f.next(ByteSpan(head, kUdpMaxHead - 1), pieces).error(), ENOBUFS);
    EXPECT_EQ(f.next(head, std::span(pieces, 1)).error(), ENOBUFS);
    EXPECT_EQ(f.produced(), 0u);
    EXPECT_TRUE(f.next(head, pieces));  // and goes on as if nothing had been
    UdpFragmenter lie(t, iov, 4000, 5000, 1);
    EXPECT_EQ(lie.next(head, pieces).error(), EINVAL);
}

TEST(IpId, PolicyOfKernel618) {
    auto shared = std::make_unique<IpIdCounters>(5);
    const Instant now{0};
    uint16_t own = 0xfffe;
    EXPECT_EQ(choose_ip_id(&own, false, *shared, 1, 2, 17, now), 0xffff);
    EXPECT_EQ(choose_ip_id(&own, true, *shared, 1, 2, 17, now), 0);
    EXPECT_EQ(choose_ip_id(&own, true, *shared, 1, 2, 17, now), 1);
    EXPECT_EQ(choose_ip_id(nullptr, true, *shared, 1, 2, 17, now), 0);
    const uint16_t first = choose_ip_id(nullptr, false, *shared, 1, 2, 17, now);
    EXPECT_EQ(choose_ip_id(nullptr, false, *shared, 1, 2, 17, now), uint16_t(first + 1));
    EXPECT_EQ(choose_ip_id(nullptr, false, *shared, 1, 2, 17, now), uint16_t(first + 2));
}

TEST(IpId, UnusedCountersMoveAndRangesDoNotOverlap) {
    auto shared = std::make_unique<IpIdCounters>(6);
    Instant now{0};
    const uint16_t a = shared->take(1, 2, 17, now, 10);
    EXPECT_EQ(shared->take(1, 2, 17, now), uint16_t(a + 10));
    std::set<uint16_t> steps;
    uint16_t last = shared->take(1, 2, 17, now);
    for (int i = 0; i < 20; i++) {
        now = now + Duration::seconds(1);
        const uint16_t id = shared->take(1, 2, 17, now);
        const auto step = uint16_t(id - last);
        EXPECT_GE(step, 1);
        EXPECT_LE(step, 1000);
        steps.insert(step);
        last = id;
    }
    EXPECT_GT(steps.size(), 5u);
}

TEST(IpId, PeersSeeDifferentStreams) {
    auto shared = std::make_unique<IpIdCounters>(7);
    std::set<uint16_t> first;
    for (uint32_t dst = 0; dst < 100; dst++) first.insert(shared->take(1, dst, 17, Instant{0}));
    EXPECT_GT(first.size(), 80u);
}

}  // namespace
}  // namespace vma::test
