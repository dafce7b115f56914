// property_udp_day HOURS [SEED]: HOURS of virtual time of one UdpStack: datagrams whole and in fragments (lost, repeated,
// overlapping, late, out of order) to a unicast address and to groups, while endpoints join, leave and change their source
// filters. What each frame must make readable, and where, comes from a second, naive account of it; memory stays within its
// bounds all the time, and nothing is left at the end. A failure prints the seed and the virtual time.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "stack/udp_input.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

using namespace vma;

namespace {

constexpr uint32_t kUs = 0x0a000001, kFirstGroup = 0xef010100;
constexpr uint16_t kPort = 7000;
constexpr uint32_t kGroups = 6, kSources = 5, kEndpoints = 8;
constexpr int64_t kLifetime = Duration::seconds(30).ns;
// Tight, so that eviction is a daily event: a large datagram of small fragments fills a source's share.
constexpr ReassemblyLimits kLimits{256 * 1024, 96 * 1024};

uint64_t g_seed = 0;
Instant g_now{Duration::seconds(1).ns};

[[noreturn]] void fail(const char* what, int line) {
    std::printf("FAILED: seed %" PRIu64 ", at %.6f s: %s (line %d)\n", g_seed,
                double(g_now.ns) * 1e-9, what, line);
    std::exit(1);
}
#define CHECK(condition) \
    if (!(condition)) fail(#condition, __LINE__)

using Bytes = std::vector<uint8_t>;

DemuxMemory heap_memory() {
    DemuxMemory m;
    m.take = [](void*, size_t n) -> void* { return std::malloc(n); };
    m.give = [](void*, void* p, size_t) { std::free(p); };
    return m;
}

// A datagram of the wire and what the naive account knows about it.
struct Datagram {
    uint32_t src = 0, dst = 0;
    uint16_t id = 0;
    Bytes udp;  // header and payload
    // Fragments that contradict others, or room made for others while it waited: what becomes of it is not predicted.
    bool uncertain = false;
    std::set<uint32_t> there;  // offsets of the fragments that have come
    uint32_t fragments = 0;
    int64_t opened = -1;
    uint64_t evicted_before = 0;  // of all, when this was opened
};
struct Piece {
    std::shared_ptr<Datagram> of;
    uint32_t begin = 0, end = 0;
    bool more = false;
};

struct Listener {
    UdpEndpoint endpoint;
    std::map<uint32_t, GroupFilter::Membership> groups;
    std::map<uint32_t, std::vector<uint32_t>> sources;
};

class Day {
  public:
    Day(Arena& arena, uint64_t seed)
        : arena_(arena),
          pool_(*arena.make<PacketPool>(arena)),
          reassembly_(std::make_unique<Reassembly4>(pool_, seed, kLimits)),
          stack_(heap_memory(), seed),
          rng_(seed) {
        stack_.pool = &pool_;
        stack_.reassembly = reassembly_.get();
        for (uint32_t i = 0; i < kEndpoints; i++) {
            Listener& l = listeners_[i];
            // Any address on a port of their own each (two share one for groups), the last two bound to a group.
            const bool bound = i + 2 >= kEndpoints;
            l.endpoint.local = {bound ? IpAddr::v4(kFirstGroup) : IpAddr::any_v4(),
                                uint16_t(kPort + i / 2)};
            if (!bound && i % 2 == 0)
                CHECK(stack_.demux.insert(l.endpoint.tuple(), l.endpoint).ok());
        }
    }

    ~Day() {
        reassembly_.reset();
        arena_.destroy(&pool_);
    }

    void run(double hours) {
        const Instant end = g_now + Duration{int64_t(hours * 3600e9)};
        while (g_now < end) step();
        // Nobody joins any more, and what waits is given up in time.
        for (auto& [at, piece] : pending_) CHECK(at > g_now.ns);
        pending_.clear();
        for (Listener& l : listeners_) {
            l.groups.clear();
            apply(l);
        }
        g_now = g_now + Duration::seconds(31);
        reassembly_->deadline_reached(g_now);
        CHECK(reassembly_->datagrams() == 0 && reassembly_->bytes() == 0);
        CHECK(pool_.counters().in_use == 0);
        const ReassemblyCounters& c = reassembly_->counters();
        const auto say = [](const char* what, uint64_t n) {
            std::printf(", %" PRIu64 " %s", n, what);
        };
        std::printf("%.0f h, seed %" PRIu64, hours, g_seed);
        say("datagrams", datagrams_);
        say("fragments", c.fragments);
        say("put together", c.datagrams);
        say("of these predicted", predicted_);
        say("too old", c.timeouts);
        say("evicted", c.evicted);
        say("overlapping", c.overlaps);
        say("read", read_);
        say("joins and leaves", changes_);
        say("packets at most", pool_.counters().high_water);
        std::puts("");
        CHECK(c.datagrams > 0 && c.timeouts > 0);
        CHECK(c.overlaps > 0 && c.evicted > 0);
        CHECK(2 * predicted_ > c.datagrams && read_ > 0 && changes_ > 0);
    }

  private:
    void step() {
        g_now = g_now + Duration{rng_.chance(1, 2000) ? Duration::seconds(40).ns
                                                      : int64_t(rng_.below(200'000'000))};
        // What the wire brought meanwhile, each at its time.
        const Instant until = g_now;
        while (!pending_.empty() && pending_.begin()->first <= until.ns) {
            auto node = pending_.extract(pending_.begin());
            g_now = {node.key()};
            arrives(node.mapped());
        }
        g_now = until;
        if (rng_.chance(1, 5)) change();
        if (rng_.chance(1, 50)) reassembly_->deadline_reached(g_now);
        for (uint32_t n = rng_.below(3); n > 0; n--) send();
        CHECK(reassembly_->bytes() <= kLimits.total_bytes);
        CHECK(reassembly_->datagrams() <= Reassembly4::kMaxDatagrams);
        CHECK(pool_.counters().in_use <= reassembly_->bytes() / udp_charge(0));
    }

    void send() {
        auto d = std::make_shared<Datagram>();
        d->src = 0x0a000100 + rng_.below(kSources);
        d->dst = rng_.chance(1, 2) ? kUs : kFirstGroup + rng_.below(kGroups);
        d->id = ++id_;
        const uint32_t size = rng_.chance(1, 20) ? rng_.below(65508) : rng_.below(9000);
        d->udp.resize(8 + size);
        for (uint32_t i = 0; i < size; i++) d->udp[8 + i] = uint8_t(i * 131 + d->id * 29 + d->src);
        emit_udp({4000, uint16_t(kPort + rng_.below(kEndpoints / 2 + 1)), uint16_t(8 + size), 0},
                 d->udp);
        Checksum sum;
        sum.add_pseudo_v4(d->src, d->dst, 17, uint16_t(d->udp.size()));
        sum.add(d->udp);
        store_be16(&d->udp[6], sum.finish() ? sum.finish() : 0xffff);
        datagrams_++;

        std::vector<Piece> pieces;
        const uint32_t total = uint32_t(d->udp.size());
        const uint32_t mtu =
            rng_.chance(1, 8) ? 8 * (1 + rng_.below(20)) : 8 * (60 + rng_.below(126));
        for (uint32_t at = 0; at < total;) {
            const uint32_t n = std::min(total - at, mtu);
            pieces.push_back({d, at, at + n, at + n < total});
            at += n;
        }
        d->fragments = uint32_t(pieces.size());
        if (pieces.size() > 1) {
            if (rng_.chance(1, 8))
                pieces.erase(pieces.begin() + rng_.below(uint32_t(pieces.size())));
            if (rng_.chance(1, 8)) pieces.push_back(pieces[rng_.below(uint32_t(pieces.size()))]);
            if (rng_.chance(1, 10) && pieces[0].end >= 16) {
                d->uncertain = true;
                pieces.push_back({d, 8, std::min(total, pieces[0].end + 8), true});
            }
        }
        // Most come at once, some out of order, some so late that the first are given up.
        const uint32_t spread = rng_.chance(1, 20) ? 60 : rng_.chance(1, 2) ? 1 : 0;
        int64_t at = g_now.ns;
        for (const Piece& piece : pieces) {
            at += 1 + (spread ? int64_t(rng_.below(1'000'000)) : 1000);
            const int64_t late = spread ? int64_t(rng_.below(spread * 1000)) * 1'000'000 : 0;
            pending_.emplace(at + late, piece);
        }
    }

    void arrives(const Piece& p) {
        Datagram& d = *p.of;
        const bool fragment = p.begin != 0 || p.more;
        const uint32_t bytes = p.end - p.begin;
        Packet frame = pool_.take(34 + bytes);
        CHECK(bool(frame));
        EthernetHeader ethernet;
        ethernet.type = ethertype::ipv4;
        emit_ethernet(ethernet, {frame->data, 14});
        Ipv4Header ip;
        ip.src = d.src;
        ip.dst = d.dst;
        ip.id = d.id;
        ip.protocol = 17;
        ip.ttl = 9;
        ip.total_len = uint16_t(20 + bytes);
        ip.fragment_offset = uint16_t(p.begin);
        ip.more_fragments = p.more;
        emit_ipv4(ip, {frame->data + 14, 20});
        std::memcpy(frame->data + 34, d.udp.data() + p.begin, bytes);
        frame->len = 34 + bytes;

        const uint64_t wholes = reassembly_->counters().datagrams;
        (void)udp_input(stack_, std::move(frame), g_now, g_now.ns);
        const uint64_t evicted = reassembly_->counters().evicted;
        bool whole = !fragment;
        if (fragment) {
            whole = reassembly_->counters().datagrams != wholes;
            account(p, whole, evicted);
        }
        hand_out(d, whole);
        while (UdpEndpoint* e = stack_.fresh.pop_front()) CHECK(!e->readable());
    }

    // Does the naive account agree that the datagram is complete with this fragment?
    void account(const Piece& p, bool whole, uint64_t evicted) {
        Datagram& d = *p.of;
        if (d.opened >= 0 && evicted != d.evicted_before) d.uncertain = true;
        if (d.opened >= 0 && g_now.ns - d.opened >= kLifetime) {
            d.opened = -1;
            d.there.clear();
        }
        if (d.opened < 0) {
            d.opened = g_now.ns;
            d.evicted_before = evicted;
        }
        d.there.insert(p.begin);
        const bool complete = d.there.size() == d.fragments;
        if (!d.uncertain) {
            CHECK(whole == complete);
            predicted_ += complete;
        }
        if (whole || complete) {
            d.opened = -1;
            d.there.clear();
        }
    }

    // Every endpoint that should have the datagram has it, once and unchanged; the others have nothing.
    void hand_out(const Datagram& d, bool whole) {
        const uint16_t port = load_be16(&d.udp[2]);
        for (Listener& l : listeners_) {
            const UdpEndpoint& e = l.endpoint;
            bool expected = whole && e.local.port == port;
            if (d.dst == kUs) {
                expected = expected && stack_.demux.find_exact(e.tuple()) == &e;
            } else {
                const auto in = l.groups.find(d.dst);
                expected = expected && in != l.groups.end() &&
                           (e.local.addr.is_any() || e.local.addr.v4_host() == d.dst);
                if (expected) {
                    const auto& named = l.sources[d.dst];
                    const bool listed = std::find(named.begin(), named.end(), d.src) != named.end();
                    expected = listed != in->second.exclude;
                }
            }
            UdpDatagram got;
            CHECK(l.endpoint.peek(got) == expected);
            if (!expected) continue;
            CHECK(got.info->source.addr.v4_host() == d.src && got.info->source.port == 4000);
            CHECK(got.payload.size() == d.udp.size() - 8 &&
                  std::equal(got.payload.begin(), got.payload.end(), d.udp.begin() + 8));
            l.endpoint.consume();
            CHECK(!l.endpoint.readable() && l.endpoint.charged() == 0);
            read_++;
        }
    }

    // One endpoint joins a group, changes its source filter there, or leaves it.
    void change() {
        Listener& l = listeners_[rng_.below(kEndpoints)];
        const uint32_t group = kFirstGroup + rng_.below(kGroups);
        changes_++;
        if (rng_.chance(2, 5)) {
            l.groups.erase(group);
        } else {
            GroupFilter::Membership& m = l.groups[group];
            m.group = group;
            m.exclude = rng_.chance(2, 3);
            auto& named = l.sources[group];
            named.clear();
            for (uint32_t i = 0; i < kSources; i++)
                if (rng_.chance(1, 2)) named.push_back(0x0a000100 + kSources - 1 - i);
        }
        apply(l);
    }

    // The endpoint's filter anew, in the arena as the shard keeps it.
    void apply(Listener& l) {
        UdpGroups::remove(l.endpoint);
        if (l.endpoint.groups)
            arena_.free(const_cast<GroupFilter*>(l.endpoint.groups), l.endpoint.groups_bytes);
        l.endpoint.groups = nullptr;
        if (l.groups.empty()) return;
        std::vector<GroupFilter::Membership> memberships;
        size_t sources = 0;
        for (auto& [group, m] : l.groups) {
            memberships.push_back({group, m.exclude, l.sources[group]});
            sources += l.sources[group].size();
        }
        l.endpoint.groups_bytes = uint32_t(GroupFilter::bytes(memberships.size(), sources));
        void* block = arena_.allocate(l.endpoint.groups_bytes);
        CHECK(block != nullptr);
        l.endpoint.groups = GroupFilter::make(block, memberships);
        stack_.groups.insert(l.endpoint);
    }

    Arena& arena_;
    PacketPool& pool_;
    std::unique_ptr<Reassembly4> reassembly_;
    UdpStack stack_;
    Rng rng_;
    Listener listeners_[kEndpoints];
    std::multimap<int64_t, Piece> pending_;
    uint16_t id_ = 0;
    uint64_t datagrams_ = 0, predicted_ = 0, read_ = 0, changes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fputs("property_udp_day HOURS [SEED]\n", stderr);
        return 2;
    }
    g_seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    Arena* arena = *Arena::create(size_t(256) << 20);
    const size_t before = arena->in_use();
    Day(*arena, g_seed).run(std::atof(argv[1]));
    CHECK(arena->in_use() == before);
    Arena::unmap(arena);
}
