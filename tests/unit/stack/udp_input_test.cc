// Frames into a UdpStack: what is delivered, to whom, and the reason of each refusal.
#include "stack/udp_input.h"

#include <functional>

#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

class UdpInput : public UdpFixture {};

TEST_F(UdpInput, DeliversWithAddressesAndStamps) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    FrameSpec spec;
    spec.payload = pattern(33, 1);
    EXPECT_EQ(input(udp_frame(spec)), DropReason::none);
    ASSERT_TRUE(e.readable());
    UdpDatagram d;
    ASSERT_TRUE(e.peek(d));
    EXPECT_EQ(text(d.payload), spec.payload);
    EXPECT_EQ(d.info->source, (Endpoint{IpAddr::v4(kPeerIp), kPeerPort}));
    EXPECT_EQ(d.info->destination, (Endpoint{IpAddr::v4(kOurIp), kOurPort}));
    EXPECT_EQ(d.info->ttl, 63);
    EXPECT_EQ(d.info->arrival, now);
    EXPECT_EQ(d.info->realtime_ns, 1234);
    EXPECT_EQ(e.next_size(), 33u);
    EXPECT_EQ(stack.fresh.pop_front(), &e);
    EXPECT_EQ(stack.fresh.pop_front(), nullptr);
    e.consume();
    EXPECT_FALSE(e.readable());
    EXPECT_FALSE(e.peek(d));
    EXPECT_EQ(e.charged(), 0u);
    EXPECT_EQ(e.counters.rx_datagrams, 1u);
    EXPECT_EQ(e.counters.rx_bytes, 33u);
}

TEST_F(UdpInput, FreshListHoldsEachEndpointOnceInOrder) {
    UdpEndpoint a({IpAddr::v4(kOurIp), 1}), b({IpAddr::any_v4(), 2});
    ASSERT_TRUE(stack.demux.insert(a.tuple(), a));
    ASSERT_TRUE(stack.demux.insert(b.tuple(), b));
    FrameSpec spec;
    for (uint16_t port : {2, 1, 2, 1}) {
        spec.dst_port = port;
        ASSERT_EQ(input(udp_frame(spec)), DropReason::none);
    }
    EXPECT_EQ(stack.fresh.pop_front(), &b);
    EXPECT_EQ(stack.fresh.pop_front(), &a);
    EXPECT_TRUE(stack.fresh.empty());
    spec.dst_port = 1;  // unread data before, and yet new: an edge for EPOLLET
    ASSERT_EQ(input(udp_frame(spec)), DropReason::none);
    EXPECT_EQ(stack.fresh.pop_front(), &a);
}

TEST_F(UdpInput, AnEndpointThatDiesLeavesTheFreshList) {
    {
        UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
        ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
        ASSERT_EQ(input(udp_frame({})), DropReason::none);
        EXPECT_FALSE(stack.fresh.empty());
        stack.demux.remove(e.tuple());
    }
    EXPECT_TRUE(stack.fresh.empty());
}

struct Row {
    const char* name;
    DropReason want;
    std::function<void(FrameSpec&)> change;
    std::function<void(Bytes&)> damage = {};
};

TEST_F(UdpInput, Reasons) {
    using R = DropReason;
    const Row rows[] = {
        {"good", R::none, [](FrameSpec&) {}},
        {"empty datagram", R::none, [](FrameSpec& s) { s.payload.clear(); }},
        {"no checksum", R::none, [](FrameSpec& s) { s.checksum = false; }},
        {"padding", R::none, [](FrameSpec& s) { s.padding = 30; }},
        {"ip options", R::none,
         [](FrameSpec& s) {
             s.ip_options = {1, 1, 1, 0};
         }},
        {"vlan 0", R::none, [](FrameSpec& s) { s.vlan = true, s.vlan_tci = 0x6000; }},
        {"vlan 5", R::vlan_other, [](FrameSpec& s) { s.vlan = true, s.vlan_tci = 5; }},
        {"own source mac", R::own_source, [](FrameSpec& s) { s.src_mac = kOurMac; }},
        {"multicast source", R::ip_source, [](FrameSpec& s) { s.src = 0xe0000001; }},
        {"broadcast source", R::ip_source, [](FrameSpec& s) { s.src = 0xffffffff; }},
        {"zero source", R::ip_source, [](FrameSpec& s) { s.src = 0; }},
        {"loopback source", R::ip_source, [](FrameSpec& s) { s.src = 0x7f000001; }},
        {"nobody's port", R::no_endpoint, [](FrameSpec& s) { s.dst_port = 9; }},
        {"nobody's address", R::no_endpoint, [](FrameSpec& s) { s.dst = kOurIp + 9; }},
        {"tcp", R::ip_protocol, [](FrameSpec& s) { s.protocol = 6; }},
        {"bad udp checksum", R::udp_checksum, [](FrameSpec&) {}, [](Bytes& f) { f[45] ^= 1; }},
        {"bad ip checksum", R::ip_checksum, [](FrameSpec&) {}, [](Bytes& f) { f[22] ^= 1; }},
        {"arp", R::not_ip, [](FrameSpec&) {}, [](Bytes& f) { f[13] = 6; }},
        {"ip version 6 under ethertype 0800", R::ip_version, [](FrameSpec&) {},
         [](Bytes& f) { f[14] = 0x65; }},
        {"cut in the payload", R::ip_total_length, [](FrameSpec&) {},
         [](Bytes& f) { f.pop_back(); }},
        {"udp length beyond", R::udp_length, [](FrameSpec&) {}, [](Bytes& f) { f[38] = 0xff; }},
        {"udp length below 8", R::udp_length, [](FrameSpec&) {},
         [](Bytes& f) { f[38] = 0, f[39] = 7; }},
        {"13 bytes", R::truncated, [](FrameSpec&) {}, [](Bytes& f) { f.resize(13); }},
        {"no ip header", R::truncated, [](FrameSpec&) {}, [](Bytes& f) { f.resize(20); }},
    };
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    DropCounters want;
    for (const Row& row : rows) {
        FrameSpec spec;
        spec.payload = {1, 2, 3, 4, 5};
        row.change(spec);
        Bytes f = udp_frame(spec);
        if (row.damage) row.damage(f);
        EXPECT_EQ(drop_name(input(f)), drop_name(row.want)) << row.name;
        if (row.want != R::none) {
            want.add(row.want);
            EXPECT_FALSE(e.readable()) << row.name;
            continue;
        }
        UdpDatagram d;
        ASSERT_TRUE(e.peek(d)) << row.name;
        EXPECT_EQ(text(d.payload), spec.payload) << row.name;
        e.consume();
    }
    for (unsigned i = 0; i < unsigned(R::count); i++)
        EXPECT_EQ(stack.drops[R(i)], want[R(i)]) << drop_name(R(i));
}

TEST_F(UdpInput, StrippedVlanTagCountsToo) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    for (uint16_t tci : {0x0000, 0xe000, 0x0001, 0x0fff}) {
        Packet p = packet(udp_frame({}));
        p->meta.has_vlan = true;
        p->meta.vlan_tci = tci;
        EXPECT_EQ(udp_input(stack, std::move(p), now, 0),
                  (tci & 0xfff) ? DropReason::vlan_other : DropReason::none);
    }
}

TEST_F(UdpInput, VouchedChecksumIsNotVerified) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    FrameSpec spec;
    spec.payload = {9, 9};
    Bytes f = udp_frame(spec);
    f[40] ^= 0xff;  // an unfinished sum, as a veth peer leaves it
    Packet p = packet(f);
    p->meta.checksum_good = true;
    EXPECT_EQ(udp_input(stack, std::move(p), now, 0), DropReason::none);
    EXPECT_EQ(input(f), DropReason::udp_checksum);
}

TEST_F(UdpInput, ConnectedEndpointTakesItsPeerOnly) {
    UdpEndpoint mine({IpAddr::v4(kOurIp), kOurPort}), any({IpAddr::any_v4(), kOurPort});
    mine.remote = {IpAddr::v4(kPeerIp), kPeerPort};
    // In the table by its bound name only, as between bind and connect.
    ASSERT_TRUE(stack.demux.insert({mine.local, {}}, mine));
    FrameSpec stranger;
    stranger.src_port = 1;
    EXPECT_EQ(input(udp_frame({})), DropReason::none);
    EXPECT_EQ(input(udp_frame(stranger)), DropReason::peer_mismatch);
    stranger.src_port = kPeerPort;
    stranger.src = kPeerIp + 1;
    EXPECT_EQ(input(udp_frame(stranger)), DropReason::peer_mismatch);
    EXPECT_EQ(mine.counters.dropped_peer, 2u);
    EXPECT_EQ(mine.queued(), 1u);
    // With a wildcard endpoint on the port, that one gets the stranger's datagrams, as in Linux.
    ASSERT_TRUE(stack.demux.insert(any.tuple(), any));
    EXPECT_EQ(input(udp_frame(stranger)), DropReason::none);
    EXPECT_EQ(any.queued(), 1u);
    // In the table by its 4-tuple.
    stack.demux.remove({mine.local, {}});
    ASSERT_TRUE(stack.demux.insert(mine.tuple(), mine));
    EXPECT_EQ(input(udp_frame({})), DropReason::none);
    EXPECT_EQ(mine.queued(), 2u);
}

TEST_F(UdpInput, SuperFrameIsReadInPieces) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    for (uint32_t bytes : {1u, 999u, 1000u, 1001u, 2000u, 9500u, 65000u}) {
        FrameSpec spec;
        spec.payload = pattern(bytes, bytes);
        Packet p = packet(udp_frame(spec));
        p->meta.gso_size = 1000;
        ASSERT_EQ(udp_input(stack, std::move(p), now, 0), DropReason::none);
        const uint32_t count = (bytes + 999) / 1000;
        EXPECT_EQ(e.queued(), count);
        EXPECT_EQ(e.charged(), count * udp_charge(std::min(bytes, 1000u) + 42));
        Bytes all;
        UdpDatagram d;
        for (uint32_t i = 0; i < count; i++) {
            ASSERT_TRUE(e.peek(d));
            EXPECT_EQ(d.payload.size(), std::min(1000u, bytes - i * 1000));
            EXPECT_EQ(e.next_size(), d.payload.size());
            all.insert(all.end(), d.payload.begin(), d.payload.end());
            e.consume();
        }
        EXPECT_EQ(all, spec.payload);
        EXPECT_FALSE(e.readable());
        EXPECT_EQ(e.charged(), 0u);
    }
    EXPECT_EQ(pool.counters().in_use, 0u);
}

// UDP_GRO: what is queued while it is on is read as it came, and charged as the datagrams that it is; what was queued before is not.
TEST_F(UdpInput, SuperFramesAreReadWholeFromThenOn) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    FrameSpec spec;
    const auto arrives = [&](size_t bytes) {
        spec.payload = pattern(bytes, bytes);
        Packet p = packet(udp_frame(spec));
        p->meta.gso_size = 100;
        ASSERT_EQ(udp_input(stack, std::move(p), now, 0), DropReason::none);
    };
    arrives(150);
    e.set_whole_trains(true);
    arrives(350);
    arrives(100);
    EXPECT_EQ(e.queued(), 7u);
    UdpDatagram d;
    for (const uint32_t piece : {100u, 50u}) {
        ASSERT_TRUE(e.peek(d));
        EXPECT_FALSE(d.info->whole);
        EXPECT_EQ(d.payload.size(), piece);
        e.consume();
    }
    ASSERT_TRUE(e.peek(d));
    EXPECT_TRUE(d.info->whole);
    EXPECT_EQ(d.info->segment_size, 100);
    EXPECT_EQ(text(d.payload), pattern(350, 350));
    EXPECT_EQ(e.next_size(), 350u);
    e.consume();
    EXPECT_EQ(e.queued(), 1u);
    EXPECT_EQ(e.charged(), udp_charge(142));
    // A single datagram is no train.
    ASSERT_TRUE(e.peek(d));
    EXPECT_FALSE(d.info->whole);
    e.consume();
    EXPECT_FALSE(e.readable());
    EXPECT_EQ(e.queued(), 0u);
    EXPECT_EQ(e.charged(), 0u);
}

TEST_F(UdpInput, FragmentsAreRefusedWithoutReassembly) {
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    Ipv4Header ip;
    ip.more_fragments = true;
    EXPECT_EQ(input(ip_frame({}, Bytes(16), ip)), DropReason::ip_fragment);
    ip.more_fragments = false;
    ip.fragment_offset = 64;
    EXPECT_EQ(input(ip_frame({}, Bytes(16), ip)), DropReason::ip_fragment);
}

TEST_F(UdpInput, FragmentsBecomeADatagram) {
    auto reassembly = std::make_unique<Reassembly4>(pool, 1);
    stack.reassembly = reassembly.get();
    UdpEndpoint e({IpAddr::v4(kOurIp), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    FrameSpec spec;
    spec.payload = pattern(3000, 4);
    const Bytes l4 = udp_bytes(spec);
    for (bool damage : {false, true}) {
        Ipv4Header ip;
        ip.id = 77;
        for (uint32_t at = 0; at < l4.size(); at += 1000) {
            const uint32_t n = std::min<uint32_t>(1000, uint32_t(l4.size()) - at);
            ip.fragment_offset = uint16_t(at);
            ip.more_fragments = at + n < l4.size();
            Bytes part(l4.begin() + at, l4.begin() + at + n);
            if (damage && at > 0) part[0] ^= 1;
            const bool last = !ip.more_fragments;
            EXPECT_EQ(input(ip_frame(spec, part, ip)),
                      last && damage ? DropReason::udp_checksum : DropReason::none);
        }
        UdpDatagram d;
        ASSERT_EQ(e.peek(d), !damage);
        if (damage) continue;
        EXPECT_EQ(text(d.payload), spec.payload);
        EXPECT_EQ(d.info->source.port, kPeerPort);
        e.consume();
    }
    // One that never completes is counted when the next fragment comes after its time.
    Ipv4Header ip;
    ip.more_fragments = true;
    EXPECT_EQ(input(ip_frame(spec, Bytes(8), ip)), DropReason::none);
    now = now + Duration::seconds(31);
    ip.id = 5;
    EXPECT_EQ(input(ip_frame(spec, Bytes(8), ip)), DropReason::none);
    EXPECT_EQ(stack.drops[DropReason::reassembly_timeout], 1u);
    EXPECT_EQ(reassembly->datagrams(), 1u);
}

TEST_F(UdpInput, EvictedDatagramsAreCounted) {
    ReassemblyLimits limits;
    limits.total_bytes = 4 * udp_charge(100);
    auto reassembly = std::make_unique<Reassembly4>(pool, 1, limits);
    stack.reassembly = reassembly.get();
    Ipv4Header ip;
    ip.more_fragments = true;
    for (uint16_t id = 0; id < 10; id++) {
        ip.id = id;
        EXPECT_EQ(input(ip_frame({}, Bytes(8), ip)), DropReason::none);
    }
    EXPECT_EQ(stack.drops[DropReason::reassembly_memory], 6u);
}

TEST_F(UdpInput, GarbageNeverGetsThroughAndNothingLeaks) {
    auto reassembly = std::make_unique<Reassembly4>(pool, 1);
    stack.reassembly = reassembly.get();
    UdpEndpoint e({IpAddr::any_v4(), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    const uint64_t seed = 0x9a7ba6e;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    uint64_t passed = 0, dropped = 0;
    for (int i = 0; i < 20000; i++) {
        FrameSpec spec;
        spec.payload = pattern(rng.below(64), rng.next());
        spec.vlan = rng.chance(1, 8);
        Ipv4Header ip;
        if (rng.chance(1, 4)) {
            ip.more_fragments = rng.chance(1, 2);
            ip.fragment_offset = uint16_t(8 * rng.below(rng.chance(1, 2) ? 8 : 8192));
            ip.id = uint16_t(rng.below(4));
        }
        Bytes f = ip_frame(spec, udp_bytes(spec), ip);
        for (uint32_t k = rng.below(4); k > 0; k--)
            f[rng.below(uint32_t(f.size()))] = uint8_t(rng.next());
        if (rng.chance(1, 3)) f.resize(rng.below(uint32_t(f.size()) + 1));
        f.shrink_to_fit();
        Packet p = packet(f);
        p->meta.gso_size = uint16_t(rng.chance(1, 8) ? rng.below(30) : 0);
        p->meta.checksum_good = rng.chance(1, 4);
        now = now + Duration::millis(rng.below(200));
        (udp_input(stack, std::move(p), now, 0) == DropReason::none ? passed : dropped)++;
        UdpDatagram d;
        while (e.peek(d)) {
            ASSERT_LE(d.info->next + d.payload.size(), d.info->end);
            e.set_whole_trains(rng.chance(1, 2));
            e.consume();
        }
    }
    uint64_t counted = 0;
    for (unsigned i = 1; i < unsigned(DropReason::count); i++)
        counted += stack.drops[DropReason(i)];
    EXPECT_GE(counted, dropped);  // evictions and timeouts come on top
    EXPECT_GT(passed, 1000u);
    EXPECT_GT(dropped, 1000u);
    EXPECT_EQ(e.charged(), 0u);
}

}  // namespace
}  // namespace vma::test
