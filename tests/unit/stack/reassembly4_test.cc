#include "stack/reassembly4.h"

#include <map>
#include <optional>

#include "stack/udp_output.h"
#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

struct Cut {
    uint32_t begin, end;
    bool more;
};

class Reassembly : public UdpFixture {
  protected:
    void make(ReassemblyLimits limits = {}) { r = std::make_unique<Reassembly4>(pool, 3, limits); }
    void SetUp() override { make(); }
    void TearDown() override { r.reset(); }

    Bytes fragment_frame(const Bytes& data, Cut c, uint16_t id = 1, uint32_t src = kPeerIp,
                         uint8_t tos = 0) {
        FrameSpec spec;
        spec.src = src;
        Ipv4Header ip;
        ip.id = id;
        ip.tos = tos;
        ip.fragment_offset = uint16_t(c.begin);
        ip.more_fragments = c.more;
        return ip_frame(spec, Bytes(data.begin() + c.begin, data.begin() + c.end), ip);
    }
    Packet add(const Bytes& frame) {
        Packet p = packet(frame);
        auto ip = parse_ipv4(p->view().subspan(14));
        EXPECT_TRUE(ip) << drop_name(ip.why());
        return r->add(std::move(p), *ip, now, why);
    }
    Packet add(const Bytes& data, Cut c, uint16_t id = 1, uint32_t src = kPeerIp, uint8_t tos = 0) {
        return add(fragment_frame(data, c, id, src, tos));
    }
    static void expect_whole(const Packet& p, const Bytes& data) {
        ASSERT_TRUE(p);
        auto ip = parse_ipv4(p->view().subspan(14));
        ASSERT_TRUE(ip) << drop_name(ip.why());
        EXPECT_FALSE(ip->header.is_fragment());
        EXPECT_EQ(text(ip->payload), data);
        EXPECT_EQ(p->len, 14u + ip->header.total_len);
    }

    std::unique_ptr<Reassembly4> r;
    DropReason why = DropReason::none;
};

TEST_F(Reassembly, InOrderAndReversed) {
    const Bytes data = pattern(3500, 1);
    EXPECT_FALSE(add(data, {0, 1480, true}));
    EXPECT_FALSE(add(data, {1480, 2960, true}));
    EXPECT_EQ(why, DropReason::none);
    EXPECT_EQ(r->datagrams(), 1u);
    EXPECT_EQ(r->bytes(), 2 * udp_charge(1514));
    expect_whole(add(data, {2960, 3500, false}), data);
    EXPECT_EQ(r->datagrams(), 0u);
    EXPECT_EQ(r->bytes(), 0u);
    EXPECT_FALSE(add(data, {2960, 3500, false}));
    EXPECT_FALSE(add(data, {1480, 2960, true}));
    expect_whole(add(data, {0, 1480, true}), data);
    EXPECT_EQ(r->counters().datagrams, 2u);
}

TEST_F(Reassembly, TheHeaderIsTheFirstFragments) {
    FrameSpec spec;
    spec.vlan = true;  // the tag does not survive
    spec.ip_options = {1, 1, 1, 0};
    Ipv4Header ip;
    ip.more_fragments = true;
    ip.id = 9;
    ip.tos = 0x10;
    const Bytes data = pattern(24, 2);
    FrameSpec plain;
    Ipv4Header last;
    last.id = 9;
    last.fragment_offset = 8;
    last.tos = 0x20;
    EXPECT_FALSE(add(ip_frame(plain, Bytes(data.begin() + 8, data.end()), last)));
    Packet p = packet(ip_frame(spec, Bytes(data.begin(), data.begin() + 8), ip));
    p->meta.ifindex = 7;
    p->meta.checksum_good = true;
    auto view = parse_ipv4(p->view().subspan(18));
    ASSERT_TRUE(view);
    Packet whole = r->add(std::move(p), *view, now, why);
    expect_whole(whole, data);
    auto out = parse_ipv4(whole->view().subspan(14));
    EXPECT_EQ(text(out->options), spec.ip_options);
    EXPECT_EQ(out->header.tos, 0x10);
    EXPECT_EQ(out->header.id, 9);
    EXPECT_EQ(out->header.ttl, 63);
    EXPECT_EQ(parse_ethernet(whole->view())->header.src, kPeerMac);
    EXPECT_EQ(whole->meta.ifindex, 7u);
    EXPECT_FALSE(whole->meta.checksum_good);
}

TEST_F(Reassembly, ATinyFirstFragmentSplitsTheHeader) {
    const Bytes data = pattern(100, 3);
    EXPECT_FALSE(add(data, {0, 8, true}));
    expect_whole(add(data, {8, 100, false}), data);
}

TEST_F(Reassembly, LargestDatagramAndOneByteMore) {
    const Bytes data = pattern(65528, 4);
    EXPECT_FALSE(add(data, {0, 32768, true}));
    expect_whole(add(data, {32768, 65515, false}), Bytes(data.begin(), data.begin() + 65515));
    EXPECT_FALSE(add(data, {65512, 65516, false}));
    EXPECT_EQ(why, DropReason::fragment_shape);
    EXPECT_EQ(r->datagrams(), 0u);
}

TEST_F(Reassembly, OptionsThatMakeTheWholeTooLarge) {
    const Bytes data = pattern(65515, 5);
    EXPECT_FALSE(add(data, {32768, 65515, false}));
    FrameSpec spec;
    spec.ip_options = {1, 1, 1, 0};
    Ipv4Header ip;
    ip.id = 1;
    ip.more_fragments = true;
    EXPECT_FALSE(add(ip_frame(spec, Bytes(data.begin(), data.begin() + 32768), ip)));
    EXPECT_EQ(why, DropReason::fragment_shape);
    EXPECT_EQ(r->datagrams(), 0u);
}

TEST_F(Reassembly, ShapesThatNoSenderMakes) {
    const Bytes data = pattern(100, 6);
    for (Cut c : {Cut{0, 0, true}, Cut{8, 8, false}, Cut{0, 7, true}}) {
        EXPECT_FALSE(add(data, c));
        EXPECT_EQ(why, DropReason::fragment_shape);
    }
    EXPECT_EQ(r->datagrams(), 0u);
    EXPECT_FALSE(add(data, {0, 8, true}));  // one such, and what has come is dropped
    EXPECT_FALSE(add(data, {8, 8, true}));
    EXPECT_EQ(why, DropReason::fragment_shape);
    EXPECT_EQ(r->datagrams(), 0u);
    EXPECT_FALSE(add(data, {0, 21, true}));  // cut to 16, as Linux does
    EXPECT_FALSE(add(data, {24, 100, false}));
    expect_whole(add(data, {16, 24, true}), data);
}

TEST_F(Reassembly, DuplicatesAreIgnored) {
    const Bytes data = pattern(100, 7);
    EXPECT_FALSE(add(data, {0, 40, true}));
    const uint32_t before = r->bytes();
    for (Cut c : {Cut{0, 40, true}, Cut{8, 16, true}, Cut{0, 8, true}, Cut{32, 40, true}}) {
        EXPECT_FALSE(add(data, c));
        EXPECT_EQ(why, DropReason::fragment_duplicate);
    }
    EXPECT_EQ(r->bytes(), before);
    EXPECT_EQ(r->counters().duplicates, 4u);
    EXPECT_FALSE(add(data, {48, 100, false}));
    EXPECT_FALSE(add(data, {48, 100, false}));
    EXPECT_EQ(why, DropReason::fragment_duplicate);
    expect_whole(add(data, {40, 48, true}), data);
    // A last fragment whose bytes are known already tells the length, by which others are judged, and completes nothing.
    EXPECT_FALSE(add(data, {0, 48, true}, 2));
    EXPECT_FALSE(add(data, {40, 48, false}, 2));
    EXPECT_EQ(why, DropReason::fragment_duplicate);
    EXPECT_FALSE(add(data, {48, 56, true}, 2));
    EXPECT_EQ(why, DropReason::reassembly_overlap);
}

TEST_F(Reassembly, OverlapsAndContradictionsDropTheDatagram) {
    const Bytes data = pattern(200, 8);
    const std::vector<std::vector<Cut>> cases = {
        {{0, 40, true}, {32, 48, true}},                // half new
        {{32, 48, true}, {0, 40, true}},                // half new, the other way round
        {{8, 16, true}, {0, 24, true}},                 // around
        {{0, 8, true}, {16, 24, true}, {0, 24, true}},  // over a gap
        {{0, 8, true}, {16, 24, true}, {8, 24, true}},  // gap and more
        {{32, 40, false}, {40, 48, true}},              // beyond the end
        {{0, 40, true}, {8, 16, false}},                // an end before known bytes
        {{40, 48, false}, {48, 56, false}},             // two ends
        {{40, 48, false}, {32, 40, false}},             // two ends, the other way round
        {{8, 16, true}, {0, 8, true}, {0, 16, true}},   // known, but from two runs
    };
    uint16_t id = 100;
    for (const auto& cuts : cases) {
        id++;
        for (size_t i = 0; i < cuts.size(); i++) {
            EXPECT_FALSE(add(data, cuts[i], id));
            EXPECT_EQ(
                drop_name(why),
                drop_name(i + 1 < cuts.size() ? DropReason::none : DropReason::reassembly_overlap))
                << "case " << id - 100 << " fragment " << i;
        }
        EXPECT_EQ(r->datagrams(), 0u) << "case " << id - 100;
        EXPECT_EQ(pool.counters().in_use, 0u);
    }
    EXPECT_EQ(r->counters().overlaps, cases.size());
}

TEST_F(Reassembly, KeysAreApart) {
    const Bytes data = pattern(64, 9);
    EXPECT_FALSE(add(data, {0, 32, true}, 1, kPeerIp));
    EXPECT_FALSE(add(data, {32, 64, false}, 2, kPeerIp));
    EXPECT_FALSE(add(data, {32, 64, false}, 1, kPeerIp + 1));
    EXPECT_EQ(r->datagrams(), 3u);
    expect_whole(add(data, {32, 64, false}, 1, kPeerIp), data);
}

TEST_F(Reassembly, DeadlineThirtySecondsAfterTheFirstFragment) {
    const Bytes data = pattern(64, 10);
    EXPECT_TRUE(r->deadline().is_never());
    const Instant start = now;
    EXPECT_FALSE(add(data, {0, 32, true}, 1));
    now = start + Duration::seconds(10);
    EXPECT_FALSE(add(data, {0, 32, true}, 2));
    EXPECT_FALSE(add(data, {40, 64, false}, 1));  // does not prolong
    EXPECT_EQ(r->deadline(), start + Duration::seconds(30));
    EXPECT_EQ(r->deadline_reached(start + Duration::seconds(30) - Duration{1}), 0u);
    EXPECT_EQ(r->deadline_reached(start + Duration::seconds(30)), 1u);
    EXPECT_EQ(r->counters().timeouts, 1u);
    EXPECT_EQ(r->datagrams(), 1u);
    EXPECT_EQ(r->deadline(), start + Duration::seconds(40));
    // A late fragment starts anew and completes nothing.
    now = start + Duration::seconds(41);
    EXPECT_FALSE(add(data, {32, 64, false}, 2));
    EXPECT_EQ(r->counters().timeouts, 2u);
    EXPECT_EQ(r->datagrams(), 1u);
    r->purge();
    EXPECT_EQ(pool.counters().in_use, 0u);
    EXPECT_TRUE(r->deadline().is_never());
}

TEST_F(Reassembly, EcnBitsAreCombined) {
    constexpr uint8_t not_ect = 0, ect1 = 1, ect0 = 2, ce = 3;
    const struct {
        uint8_t first, second;
        int want;  // -1: dropped
    } rows[] = {{not_ect, not_ect, not_ect},
                {ect0, ect0, ect0},
                {ect0, ce, ce},
                {ce, ect1, ce},
                {ce, ce, ce},
                {not_ect, ce, -1},
                {ect0, not_ect, -1},
                {ect0, ect1, ect0}};
    const Bytes data = pattern(64, 11);
    for (auto row : rows) {
        EXPECT_FALSE(add(data, {0, 32, true}, 1, kPeerIp, row.first));
        Packet p = add(data, {32, 64, false}, 1, kPeerIp, row.second);
        ASSERT_EQ(bool(p), row.want >= 0) << int(row.first) << int(row.second);
        if (row.want >= 0) {
            EXPECT_EQ(parse_ipv4(p->view().subspan(14))->header.ecn(), row.want);
        } else {
            EXPECT_EQ(why, DropReason::fragment_shape);
        }
    }
}

TEST_F(Reassembly, ASourceAboveItsShareLosesItsOldest) {
    ReassemblyLimits limits;
    limits.source_bytes = 3 * 768;
    make(limits);
    const Bytes data = pattern(64, 12);
    EXPECT_FALSE(add(data, {0, 8, true}, 1, kPeerIp + 1));  // somebody else's stays
    for (uint16_t id = 1; id <= 5; id++) EXPECT_FALSE(add(data, {0, 8, true}, id));
    EXPECT_EQ(r->datagrams(), 4u);
    EXPECT_EQ(r->counters().evicted, 2u);
    expect_whole(add(data, {8, 64, false}, 1, kPeerIp + 1), data);
    expect_whole(add(data, {8, 64, false}, 5), data);
    EXPECT_FALSE(add(data, {8, 64, false}, 1));  // its first half is gone
    // One datagram alone above the share goes itself.
    make(limits);
    for (uint32_t at = 0; at < 24; at += 8) EXPECT_FALSE(add(data, {at, at + 8, true}, 1));
    EXPECT_EQ(why, DropReason::none);
    EXPECT_FALSE(add(data, {24, 32, true}, 1));
    EXPECT_EQ(why, DropReason::reassembly_memory);
    EXPECT_EQ(r->datagrams(), 0u);
    EXPECT_EQ(r->bytes(), 0u);
}

TEST_F(Reassembly, TotalLimitAndNumberDropTheOldestOfAll) {
    ReassemblyLimits limits;
    limits.total_bytes = 3 * 768;
    make(limits);
    const Bytes data = pattern(64, 13);
    for (uint16_t id = 1; id <= 5; id++) EXPECT_FALSE(add(data, {0, 8, true}, id, kPeerIp + id));
    EXPECT_EQ(r->datagrams(), 3u);
    EXPECT_EQ(r->bytes(), 3 * 768u);
    make();
    for (uint32_t i = 0; i < Reassembly4::kMaxDatagrams + 10; i++)
        EXPECT_FALSE(add(data, {0, 8, true}, 1, kPeerIp + i));
    EXPECT_EQ(r->datagrams(), Reassembly4::kMaxDatagrams);
    EXPECT_EQ(r->counters().evicted, 10u);
    expect_whole(add(data, {8, 64, false}, 1, kPeerIp + 10), data);
}

TEST_F(Reassembly, PoolExhausted) {
    const Bytes data = pattern(64, 14);
    EXPECT_FALSE(add(data, {0, 32, true}));
    Packet last = packet(fragment_frame(data, {32, 64, false}));
    pool.set_limits({.packets = 2});
    auto ip = parse_ipv4(last->view().subspan(14));
    EXPECT_FALSE(r->add(std::move(last), *ip, now, why));
    EXPECT_EQ(why, DropReason::no_buffer);
    EXPECT_EQ(pool.counters().in_use, 0u);
    pool.set_limits({});
}

class Lender final : public PacketLender {
  public:
    void give_back(PacketBuf&) override { out--; }
    int out = 0;
};

TEST_F(Reassembly, LentMemoryGoesBackAtOnce) {
    Lender lender;
    const Bytes data = pattern(3000, 15);
    Packet whole;
    for (Cut c : {Cut{0, 1480, true}, Cut{1480, 2960, true}, Cut{2960, 3000, false}}) {
        Bytes frame = fragment_frame(data, c);
        Packet p = pool.lend(frame.data(), uint32_t(frame.size()), &lender, 0);
        lender.out++;
        auto ip = parse_ipv4(p->view().subspan(14));
        ASSERT_TRUE(ip);
        whole = r->add(std::move(p), *ip, now, why);
        EXPECT_EQ(lender.out, 0);
        std::fill(frame.begin(), frame.end(), 0);  // the ring writes the next frame there
    }
    expect_whole(whole, data);
}

// The rules, byte by byte, without any cleverness.
struct Oracle {
    struct Byte {
        uint8_t value;
        uint32_t run;
    };
    struct Item {
        std::map<uint32_t, Byte> bytes;
        uint32_t total = 0, runs = 0;
    };
    std::map<uint16_t, Item> items;

    // The datagram if it completes; `why` as Reassembly4 gives it.
    std::optional<Bytes> add(uint16_t id, Cut c, const Bytes& data, DropReason& why) {
        Item& it = items[id];
        why = DropReason::reassembly_overlap;
        const bool known = it.total != 0;
        const uint32_t reached = it.bytes.empty() ? 0 : it.bytes.rbegin()->first + 1;
        if ((known && !c.more && c.end != it.total) || (known && c.end > it.total) ||
            (!c.more && reached > c.end)) {
            items.erase(id);
            return {};
        }
        if (!c.more) it.total = c.end;
        std::map<uint32_t, uint32_t> there;  // bytes of each run
        for (uint32_t i = c.begin; i < c.end; i++)
            if (const auto b = it.bytes.find(i); b != it.bytes.end()) there[b->second.run]++;
        if (!there.empty()) {
            why = DropReason::fragment_duplicate;
            if (there.begin()->second == c.end - c.begin) return {};
            why = DropReason::reassembly_overlap;
            items.erase(id);
            return {};
        }
        why = DropReason::none;
        const bool appended = reached != 0 && c.begin == reached;
        const uint32_t run = appended ? it.bytes.rbegin()->second.run : ++it.runs;
        for (uint32_t i = c.begin; i < c.end; i++) it.bytes.emplace(i, Byte{data[i], run});
        if (it.total == 0 || it.bytes.size() != it.total) return {};
        Bytes whole;
        for (auto& [at, b] : it.bytes) whole.push_back(b.value);
        items.erase(id);
        return whole;
    }
};

TEST_F(Reassembly, EqualsTheOracle) {
    uint64_t completed = 0, dropped = 0, duplicates = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        make();
        Oracle oracle;
        const bool hostile = seed % 3 == 0;
        std::vector<std::pair<uint16_t, Cut>> queue;
        std::map<uint16_t, Bytes> content;
        for (uint16_t id = 0; id < 8; id++) {
            const uint32_t size = 1 + rng.below(600);
            content[id] = pattern(1024, seed * 100 + id);
            for (uint32_t at = 0; at < size;) {
                uint32_t n = 8 * (1 + rng.below(10));
                if (at + n > size) n = size - at;
                if (n % 8 != 0 && at + n < size) n &= ~7u;
                queue.push_back({id, {at, at + n, at + n < size}});
                at += n;
            }
            if (queue.back().second.begin == 0) queue.pop_back();  // a whole packet is no fragment
        }
        const size_t honest = queue.size();
        for (size_t i = 0; i < honest / 3; i++) queue.push_back(queue[rng.below(uint32_t(honest))]);
        for (int i = 0; hostile && i < 12; i++) {
            const uint32_t begin = 8 * rng.below(60);
            Cut c{begin, begin + 8 * (1 + rng.below(12)), !rng.chance(1, 4)};
            if (c.begin == 0) c.more = true;
            queue.push_back({uint16_t(rng.below(8)), c});
        }
        for (size_t i = queue.size(); i > 1; i--)
            std::swap(queue[i - 1], queue[rng.below(uint32_t(i))]);
        for (auto& [id, cut] : queue) {
            DropReason want_why;
            const auto want = oracle.add(id, cut, content[id], want_why);
            Packet got = add(content[id], cut, id);
            ASSERT_EQ(drop_name(why), drop_name(want_why))
                << "id " << id << " " << cut.begin << "-" << cut.end;
            ASSERT_EQ(bool(got), want.has_value())
                << "id " << id << " " << cut.begin << "-" << cut.end;
            completed += bool(got);
            dropped += why == DropReason::reassembly_overlap;
            duplicates += why == DropReason::fragment_duplicate;
            if (got) expect_whole(got, *want);
        }
        ASSERT_EQ(r->datagrams(), oracle.items.size());
        r->purge();
        ASSERT_EQ(pool.counters().in_use, 0u);
    }
    EXPECT_GT(completed, 300u);
    EXPECT_GT(dropped, 100u);
    EXPECT_GT(duplicates, 300u);
}

// What we send in fragments is what we put together, any MTU, any order.
TEST_F(Reassembly, UndoesTheFragmenter) {
    const uint64_t seed = 0x5001;
    Rng rng(seed);
    for (int round = 0; round < 60; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        UdpTemplateParams params;
        params.src = kPeerIp;
        params.dst = kOurIp;
        params.src_port = kPeerPort;
        params.dst_port = kOurPort;
        Bytes payload = pattern(2000 + rng.below(63508), rng.next());
        const iovec iov{payload.data(), payload.size()};
        const UdpTemplate t(params);
        UdpFragmenter f(t, {&iov, 1}, uint32_t(payload.size()), rng.chance(1, 4) ? 68 : 1500,
                        uint16_t(round));
        std::vector<Bytes> frames;
        for (uint32_t k = 0; k < f.count(); k++) {
            uint8_t head[kUdpMaxHead];
            iovec piece;
            auto r1 = f.next(head, {&piece, 1});
            ASSERT_TRUE(r1);
            Bytes frame(head, head + r1->head_size);
            const auto* p = static_cast<const uint8_t*>(piece.iov_base);
            frame.insert(frame.end(), p, p + r1->payload_len);
            frames.push_back(frame);
        }
        for (size_t i = frames.size(); i > 1; i--)
            std::swap(frames[i - 1], frames[rng.below(uint32_t(i))]);
        Packet whole;
        for (const Bytes& frame : frames) {
            ASSERT_FALSE(whole);
            whole = add(frame);
            ASSERT_EQ(why, DropReason::none);
        }
        ASSERT_TRUE(whole);
        auto udp = parse_udp(parse_ipv4(whole->view().subspan(14))->payload);
        ASSERT_TRUE(udp);
        EXPECT_EQ(text(udp->payload), payload);
    }
}

}  // namespace
}  // namespace vma::test
