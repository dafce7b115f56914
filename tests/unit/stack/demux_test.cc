#include "stack/demux.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

struct Thing {
    int name = 0;
};

struct Memory {
    size_t out = 0;  // bytes taken and not given back
    size_t limit = SIZE_MAX;
    DemuxMemory get() {
        return {this,
                [](void* self, size_t n) -> void* {
                    auto* m = static_cast<Memory*>(self);
                    if (m->out + n > m->limit) return nullptr;
                    m->out += n;
                    return ::operator new(n);
                },
                [](void* self, void* p, size_t n) {
                    static_cast<Memory*>(self)->out -= n;
                    ::operator delete(p);
                }};
    }
};

Endpoint ep(uint32_t addr, uint16_t port) { return {IpAddr::v4(addr), port}; }

TEST(Demux, EmptyTableFindsNothing) {
    Memory memory;
    Demux<Thing> table(memory.get(), 1);
    EXPECT_EQ(table.lookup(ep(1, 2), ep(3, 4)), nullptr);
    EXPECT_FALSE(table.remove({ep(1, 2), {}}));
    EXPECT_EQ(memory.out, 0u);
}

TEST(Demux, OrderIsExactThenLocalThenAny) {
    Memory memory;
    Demux<Thing> table(memory.get(), 1);
    Thing exact, local, any;
    ASSERT_TRUE(table.insert({ep(0, 80), {}}, any));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), &any);
    ASSERT_TRUE(table.insert({ep(1, 80), {}}, local));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), &local);
    EXPECT_EQ(table.lookup(ep(2, 80), ep(9, 9)), &any);
    ASSERT_TRUE(table.insert({ep(1, 80), ep(9, 9)}, exact));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), &exact);
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 8)), &local);
    EXPECT_EQ(table.lookup(ep(1, 80), ep(8, 9)), &local);
    EXPECT_EQ(table.lookup(ep(1, 81), ep(9, 9)), nullptr);

    // A candidate that does not accept is passed over.
    auto not_local = [&](Thing& t) { return &t != &local; };
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 8), not_local), &any);
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9), [](Thing&) { return false; }), nullptr);

    EXPECT_TRUE(table.remove({ep(1, 80), ep(9, 9)}));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), &local);
    EXPECT_TRUE(table.remove({ep(1, 80), {}}));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), &any);
    EXPECT_TRUE(table.remove({ep(0, 80), {}}));
    EXPECT_EQ(table.lookup(ep(1, 80), ep(9, 9)), nullptr);
    EXPECT_EQ(table.size(), 0u);
}

TEST(Demux, AnAnyEndpointMayBeConnected) {
    Memory memory;
    Demux<Thing> table(memory.get(), 1);
    Thing t;
    ASSERT_TRUE(table.insert({ep(1, 80), {IpAddr::v4(7, 7, 7, 7), 0}},
                             t));  // remote address without port: any remote
    EXPECT_EQ(table.find_exact({ep(1, 80), {}}), &t);
    EXPECT_EQ(table.insert({ep(1, 80), {}}, t).error(), EEXIST);
}

TEST(Demux, FamiliesAndScopesAreApart) {
    Memory memory;
    Demux<Thing> table(memory.get(), 1);
    Thing any4, any6, link1, link2;
    uint8_t ll[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    ASSERT_TRUE(table.insert({{IpAddr::any_v4(), 53}, {}}, any4));
    ASSERT_TRUE(table.insert({{IpAddr{}, 53}, {}}, any6));
    ASSERT_TRUE(table.insert({{IpAddr::v6_bytes(ll, 1), 53}, {}}, link1));
    ASSERT_TRUE(table.insert({{IpAddr::v6_bytes(ll, 2), 53}, {}}, link2));
    EXPECT_EQ(table.lookup(ep(1, 53), ep(2, 2)), &any4);
    const Endpoint peer6{IpAddr::v6_bytes(ll, 9), 1};
    EXPECT_EQ(table.lookup({IpAddr::v6_bytes(ll, 1), 53}, peer6), &link1);
    EXPECT_EQ(table.lookup({IpAddr::v6_bytes(ll, 2), 53}, peer6), &link2);
    EXPECT_EQ(table.lookup({IpAddr::v6_bytes(ll, 3), 53}, peer6), &any6);
}

TEST(Demux, OutOfMemoryLeavesTheTableAsItWas) {
    Memory memory;
    Demux<Thing> table(memory.get(), 1);
    std::vector<Thing> things(200);
    unsigned n = 0;
    for (; n < 48; n++) ASSERT_TRUE(table.insert({ep(1, uint16_t(n + 1)), {}}, things[n]));
    memory.limit = memory.out;  // the next growth fails
    Status s = table.insert({ep(1, 1000), {}}, things[n]);
    EXPECT_EQ(s.error(), ENOMEM);
    EXPECT_EQ(table.size(), 48u);
    for (unsigned i = 0; i < 48; i++)
        EXPECT_EQ(table.lookup(ep(1, uint16_t(i + 1)), ep(5, 5)), &things[i]);
    EXPECT_EQ(table.lookup(ep(1, 1000), ep(5, 5)), nullptr);
    memory.limit = SIZE_MAX;
    EXPECT_TRUE(table.insert({ep(1, 1000), {}}, things[n]));
}

// Against std::map: random inserts, removes and lookups over a small key space, so that runs collide and wrap around.
TEST(Demux, EqualsAMapUnderRandomUse) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Memory memory;
        {
            Rng rng(seed);
            Demux<Thing> table(memory.get(), seed);
            std::map<std::pair<Endpoint, Endpoint>, Thing*> oracle;
            std::vector<Thing> things(3000);
            size_t next = 0;
            for (int step = 0; step < 3000; step++) {
                const Endpoint local = ep(rng.below(3), uint16_t(1 + rng.below(60)));
                const Endpoint remote = rng.chance(1, 3)
                                            ? Endpoint{}
                                            : ep(100 + rng.below(3), uint16_t(1 + rng.below(5)));
                const auto key = std::make_pair(local, remote);
                if (rng.chance(3, 5)) {
                    Thing& t = things[next++ % things.size()];
                    const bool fresh = oracle.emplace(key, &t).second;
                    ASSERT_EQ(table.insert({local, remote}, t).error(), fresh ? 0 : EEXIST) << step;
                } else {
                    ASSERT_EQ(table.remove({local, remote}), oracle.erase(key) == 1) << step;
                }
                ASSERT_EQ(table.size(), oracle.size());
                const Endpoint to = ep(1 + rng.below(2), uint16_t(1 + rng.below(60)));
                const Endpoint from = ep(100 + rng.below(3), uint16_t(1 + rng.below(5)));
                Thing* want = nullptr;
                for (const auto& k : {std::make_pair(to, from), std::make_pair(to, Endpoint{}),
                                      std::make_pair(ep(0, to.port), Endpoint{})}) {
                    if (auto it = oracle.find(k); want == nullptr && it != oracle.end())
                        want = it->second;
                }
                ASSERT_EQ(table.lookup(to, from), want) << step;
            }
            size_t visited = 0;
            table.for_each([&](Thing&) { visited++; });
            EXPECT_EQ(visited, oracle.size());
        }
        EXPECT_EQ(memory.out, 0u);
    }
}

}  // namespace
}  // namespace vma
