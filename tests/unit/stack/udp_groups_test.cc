// Multicast in a UdpStack: who gets a copy, source filters, and memory.
#include <memory>

#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

constexpr uint32_t kGroup = 0xef010203, kOtherGroup = 0xef010204;

// A filter as Shard::set_groups makes them.
class OwnFilter {
  public:
    OwnFilter(UdpEndpoint& e, std::span<const GroupFilter::Membership> memberships) {
        size_t sources = 0;
        for (const auto& m : memberships) sources += m.sources.size();
        block_ = std::make_unique<uint64_t[]>(
            GroupFilter::bytes(memberships.size(), sources) / sizeof(uint64_t) + 1);
        e.groups = GroupFilter::make(block_.get(), memberships);
    }

  private:
    std::unique_ptr<uint64_t[]> block_;
};

class UdpGroupInput : public UdpFixture {
  protected:
    FrameSpec to_group(uint32_t group = kGroup) {
        FrameSpec spec;
        spec.dst = group;
        spec.payload = pattern(50, group);
        return spec;
    }
};

TEST_F(UdpGroupInput, EveryMemberOfThePortGetsACopyOfItsOwn) {
    UdpEndpoint any({IpAddr::any_v4(), kOurPort}), bound({IpAddr::v4(kGroup), kOurPort});
    UdpEndpoint port({IpAddr::any_v4(), kOurPort + 1}), other({IpAddr::v4(kOtherGroup), kOurPort});
    const GroupFilter::Membership in[] = {{kOtherGroup, true, {}}, {kGroup, true, {}}};
    std::vector<OwnFilter> filters;
    for (UdpEndpoint* e : {&any, &bound, &port, &other}) {
        filters.emplace_back(*e, in);
        stack.groups.insert(*e);
    }
    const FrameSpec spec = to_group();
    ASSERT_EQ(input(udp_frame(spec)), DropReason::none);
    for (UdpEndpoint* e : {&any, &bound}) {
        UdpDatagram d;
        ASSERT_TRUE(e->peek(d));
        EXPECT_EQ(text(d.payload), spec.payload);
        EXPECT_EQ(d.info->destination.addr, IpAddr::v4(kGroup));
        EXPECT_EQ(e->queued(), 1u);
    }
    EXPECT_FALSE(port.readable());
    EXPECT_FALSE(other.readable());
    // One reader's end is not the other's.
    any.consume();
    UdpDatagram d;
    ASSERT_TRUE(bound.peek(d));
    EXPECT_EQ(text(d.payload), spec.payload);
}

TEST_F(UdpGroupInput, SourceFiltersDecidePerMember) {
    const uint32_t sources[] = {kPeerIp + 3, kPeerIp, kPeerIp + 7};
    UdpEndpoint wants({IpAddr::any_v4(), kOurPort}), refuses({IpAddr::any_v4(), kOurPort});
    const GroupFilter::Membership include[] = {{kGroup, false, sources}};
    const GroupFilter::Membership exclude[] = {{kGroup, true, sources}};
    const OwnFilter one(wants, include), two(refuses, exclude);
    stack.groups.insert(wants);
    stack.groups.insert(refuses);
    FrameSpec spec = to_group();
    EXPECT_EQ(input(udp_frame(spec)), DropReason::none);
    EXPECT_EQ(wants.queued(), 1u);
    EXPECT_EQ(refuses.queued(), 0u);
    spec.src = kPeerIp + 1;
    EXPECT_EQ(input(udp_frame(spec)), DropReason::none);
    EXPECT_EQ(wants.queued(), 1u);
    EXPECT_EQ(refuses.queued(), 1u);
}

TEST_F(UdpGroupInput, WithoutAMemberItIsCountedAndNotUnicast) {
    UdpEndpoint e({IpAddr::any_v4(), kOurPort});
    ASSERT_TRUE(stack.demux.insert(e.tuple(), e));
    EXPECT_EQ(input(udp_frame(to_group())), DropReason::multicast_filter);
    EXPECT_FALSE(e.readable());
}

TEST_F(UdpGroupInput, AConnectedMemberHearsItsPeerOnly) {
    UdpEndpoint e({IpAddr::v4(kGroup), kOurPort});
    e.remote = {IpAddr::v4(kPeerIp), kPeerPort};
    const GroupFilter::Membership in[] = {{kGroup, true, {}}};
    const OwnFilter filter(e, in);
    stack.groups.insert(e);
    FrameSpec spec = to_group();
    EXPECT_EQ(input(udp_frame(spec)), DropReason::none);
    spec.src_port++;
    EXPECT_EQ(input(udp_frame(spec)), DropReason::multicast_filter);
    EXPECT_EQ(e.queued(), 1u);
}

TEST_F(UdpGroupInput, AFullMemberDoesNotCostTheOthersTheirs) {
    const GroupFilter::Membership in[] = {{kGroup, true, {}}};
    UdpEndpoint small({IpAddr::any_v4(), kOurPort}), large({IpAddr::any_v4(), kOurPort});
    small.set_receive_limit(1);
    const OwnFilter one(small, in), two(large, in);
    stack.groups.insert(small);
    stack.groups.insert(large);
    for (int i = 0; i < 5; i++) input(udp_frame(to_group()));
    EXPECT_EQ(small.queued() + small.counters.dropped_full, 5u);
    EXPECT_LT(small.queued(), 5u);
    EXPECT_EQ(large.queued(), 5u);
}

// Random filters against the definition (RFC 3376 section 3.2), written down naively.
TEST(GroupFilterProperty, AdmitsWhatTheDefinitionDoes) {
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        std::vector<std::vector<uint32_t>> sources(rng.next() % 6);
        std::vector<GroupFilter::Membership> memberships;
        size_t total = 0;
        for (auto& list : sources) {
            for (uint64_t n = rng.next() % 5; n > 0; n--) list.push_back(uint32_t(rng.next() % 8));
            total += list.size();
        }
        for (size_t i = 0; i < sources.size(); i++)
            memberships.push_back({uint32_t((i * 5 + 3) % 7), rng.next() % 2 == 0, sources[i]});
        std::vector<uint64_t> block(GroupFilter::bytes(memberships.size(), total) / 8 + 1);
        const GroupFilter* filter = GroupFilter::make(block.data(), memberships);
        for (uint32_t group = 0; group < 8; group++) {
            for (uint32_t source = 0; source < 8; source++) {
                bool expected = false;
                for (const auto& m : memberships) {
                    if (m.group != group) continue;
                    const bool listed = std::count(m.sources.begin(), m.sources.end(), source) > 0;
                    expected = m.exclude ? !listed : listed;
                }
                ASSERT_EQ(filter->admits(group, source), expected);
            }
        }
    }
}

// A day of fragments, whole datagrams, joins and leaves in virtual time: what is held never passes the limits, what came whole
// and what was complete is there, and at the end everything is home.
TEST_F(UdpGroupInput, ADayOfFragmentsJoinsAndLeaves) {
    constexpr uint64_t seed = 24;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    ReassemblyLimits limits;
    limits.total_bytes = 256u << 10;
    limits.source_bytes = 64u << 10;
    auto reassembly = std::make_unique<Reassembly4>(pool, 7, limits);
    stack.reassembly = reassembly.get();
    constexpr unsigned kMembers = 6, kGroups = 4;
    UdpEndpoint members[kMembers];
    std::unique_ptr<OwnFilter> filters[kMembers];
    std::vector<uint32_t> joined[kMembers];
    uint64_t delivered = 0, most_bytes = 0, changes = 0;
    for (UdpEndpoint& e : members) e.local = {IpAddr::any_v4(), kOurPort};
    const Instant end = now + Duration::seconds(24 * 3600);
    for (uint16_t id = 1; now < end; id++) {
        now = now + Duration::millis(int64_t(rng.next() % 2000));
        const unsigned i = unsigned(rng.next() % kMembers);
        if (rng.chance(1, 8)) {  // another set of memberships, perhaps none
            UdpGroups::remove(members[i]);
            joined[i].clear();
            std::vector<GroupFilter::Membership> memberships;
            for (uint32_t g = 0; g < kGroups; g++) {
                if (rng.chance(1, 2)) continue;
                joined[i].push_back(kGroup + g);
                memberships.push_back({kGroup + g, true, {}});
            }
            members[i].groups = nullptr;
            filters[i] = std::make_unique<OwnFilter>(members[i], memberships);
            if (!memberships.empty()) stack.groups.insert(members[i]);
            changes++;
        }
        FrameSpec spec;
        spec.dst = kGroup + uint32_t(rng.next() % kGroups);
        spec.src = kPeerIp + uint32_t(rng.next() % 50);
        spec.payload = pattern(16 + rng.next() % 3000, id);
        const Bytes udp = udp_bytes(spec);
        std::vector<Bytes> frames;
        if (rng.chance(1, 3)) {
            frames.push_back(ip_frame(spec, udp));
        } else {
            for (size_t at = 0; at < udp.size();) {
                const size_t n = std::min<size_t>(8 * (1 + rng.next() % 100), udp.size() - at);
                Ipv4Header ip;
                ip.id = id;
                ip.fragment_offset = uint16_t(at);
                ip.more_fragments = at + n < udp.size();
                frames.push_back(
                    ip_frame(spec, Bytes(udp.begin() + long(at), udp.begin() + long(at + n)), ip));
                at += n;
            }
        }
        const bool lost = rng.chance(1, 3);
        if (lost) frames.erase(frames.begin() + long(rng.next() % frames.size()));
        for (size_t k = frames.size(); k > 1; k--) std::swap(frames[k - 1], frames[rng.next() % k]);
        uint32_t before[kMembers];
        for (unsigned m = 0; m < kMembers; m++) before[m] = members[m].queued();
        for (const Bytes& frame : frames) input(frame);
        ASSERT_LE(reassembly->bytes(), limits.total_bytes);
        ASSERT_LE(reassembly->datagrams(), Reassembly4::kMaxDatagrams);
        most_bytes = std::max<uint64_t>(most_bytes, reassembly->bytes());
        for (unsigned m = 0; m < kMembers; m++) {
            const bool member = std::count(joined[m].begin(), joined[m].end(), spec.dst) > 0;
            ASSERT_EQ(members[m].queued() - before[m], member && !lost ? 1u : 0u)
                << "datagram " << id;
            delivered += member && !lost;
        }
        for (UdpEndpoint& e : members)
            if (rng.chance(1, 4)) e.purge();
    }
    EXPECT_GT(delivered, 10000u);
    EXPECT_GT(changes, 1000u);
    EXPECT_GT(reassembly->counters().timeouts, 1000u);
    EXPECT_GT(most_bytes, 10000u);
    stack.reassembly = nullptr;
    reassembly.reset();
    for (UdpEndpoint& e : members) e.purge();
    EXPECT_EQ(pool.counters().in_use, 0u);
}

}  // namespace
}  // namespace vma::test
