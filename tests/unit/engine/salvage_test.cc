// Salvage: what is found in the arena of a dead process, and that nothing in there can lead out of it.
#include "engine/salvage.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/own_fd.h"
#include "base/rng.h"
#include "engine/shard.h"
#include "support/quiet_ring.h"

namespace vma {
namespace {

constexpr uint64_t kSeed = 20261121;

class Lender final : public PacketLender {
  public:
    void give_back(PacketBuf&) override {}
};

std::vector<uint8_t> bytes_of(size_t n, uint8_t from) {
    std::vector<uint8_t> b(n);
    std::iota(b.begin(), b.end(), from);
    return b;
}

class SalvageTest : public testing::Test {
  protected:
    void SetUp() override {
        auto made = Arena::create(Arena::kMinReserve, &memory_);
        ASSERT_TRUE(made.ok());
        arena_ = *made;
        pool_ = arena_->make<PacketPool>(*arena_, PoolLimits{});
        Shard::Parts parts;
        parts.arena = arena_;
        parts.pool = pool_;
        parts.ring = new QuietRing;
        parts.secret = 1;
        shard_ = Shard::make(parts);
        ASSERT_NE(shard_, nullptr);
    }
    void TearDown() override {
        shard_->close_ring();
        Arena::unmap(arena_);
    }

    // A connection of that remote port in the shard's table, with its queues.
    TcpConnection* add(uint16_t port, const std::vector<uint8_t>& to_send,
                       const std::vector<uint8_t>& unread) {
        auto* c = arena_->make<TcpConnection>();
        tcp::Snapshot s;
        s.local = {IpAddr::v4(10, 0, 0, 2), 80};
        s.remote = {IpAddr::v4(10, 0, 0, 1), port};
        s.state = tcp::State::ESTABLISHED;
        s.snd_una = {0xffffff00};
        s.snd_nxt = s.snd_una + uint32_t(to_send.size() / 2);
        s.snd_end = s.snd_una + uint32_t(to_send.size());
        s.rcv_nxt = {1000};
        s.unread = uint32_t(unread.size());
        s.rcv_wup = s.rcv_nxt;
        EXPECT_TRUE(tcp::import_snapshot(c->tcb, s, to_send, unread, {}, shard_->tcp().memory(),
                                         *pool_, {}));
        c->tuple = {s.local, s.remote};
        auto& table = const_cast<Demux<TcpTarget>&>(shard_->tcp().table());
        EXPECT_TRUE(table.insert(c->tuple, *c));
        return c;
    }
    Status open(Salvage& salvage, const LentMemory& lent = {}) {
        return salvage.open(arena_, arena_->file_size(),
                            reinterpret_cast<uintptr_t>(shard_->root()), lent);
    }
    std::vector<Salvage::Found> all(const Salvage& salvage) {
        std::vector<Salvage::Found> found;
        nonsense_ = salvage.for_each({}, [&](const Salvage::Found& f) { found.push_back(f); });
        return found;
    }

    OwnFd memory_;
    Arena* arena_ = nullptr;
    PacketPool* pool_ = nullptr;
    Shard* shard_ = nullptr;
    unsigned nonsense_ = 0;
};

TEST_F(SalvageTest, FindsConnectionsWithTheirBytes) {
    const auto to_send = bytes_of(70'000, 3), unread = bytes_of(100'000, 9);
    add(1000, to_send, unread);
    add(1001, {}, {});
    Salvage salvage;
    ASSERT_TRUE(open(salvage));
    EXPECT_FALSE(salvage.was_held());
    const auto found = all(salvage);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(nonsense_, 0u);
    const auto& full = found[0].snapshot.remote.port == 1000 ? found[0] : found[1];
    EXPECT_EQ(full.snapshot.unread, unread.size());
    std::vector<uint8_t> back(to_send.size());
    ASSERT_TRUE(salvage.copy_unacked(full, full.snapshot.snd_una, back.data(), back.size()));
    EXPECT_EQ(back, to_send);
    back.assign(unread.size(), 0);
    ASSERT_TRUE(salvage.copy_unread(full, back.data(), back.size()));
    EXPECT_EQ(back, unread);
    EXPECT_FALSE(salvage.copy_unread(full, back.data(), back.size() + 1)) << "more than there is";
}

TEST_F(SalvageTest, LentMemoryIsTranslated) {
    TcpConnection* c = add(1000, {}, {});
    const auto theirs = bytes_of(300, 1);
    std::vector<uint8_t> ours = theirs;
    Lender lender;
    Packet p = pool_->lend(const_cast<uint8_t*>(theirs.data()), 300, &lender, 0);
    tcp::text_of(*p) = {{1000}, 54, 200};
    c->tcb.in.append(std::move(p));
    Salvage salvage;
    ASSERT_TRUE(open(salvage));
    std::vector<uint8_t> back(200);
    EXPECT_FALSE(salvage.copy_unread(all(salvage).at(0), back.data(), 200));
    LentMemory lent{reinterpret_cast<uintptr_t>(theirs.data()), ours.data(), 300};
    ours[54] = 0xee;  // to see whose bytes are read
    ASSERT_TRUE(open(salvage, lent));
    ASSERT_TRUE(salvage.copy_unread(all(salvage).at(0), back.data(), 200));
    EXPECT_EQ(back[0], 0xee);
    EXPECT_EQ(back[199], theirs[253]);
    lent.bytes = 253;  // the text ends behind it
    ASSERT_TRUE(open(salvage, lent));
    EXPECT_FALSE(salvage.copy_unread(all(salvage).at(0), back.data(), 200));
    c->tcb.in.clear();
}

TEST_F(SalvageTest, SeesThatSomebodyWasInside) {
    Salvage salvage;
    ASSERT_TRUE(open(salvage));
    {
        LeaseGuard inside(shard_->lease());
        EXPECT_TRUE(salvage.was_held());
    }
    EXPECT_FALSE(salvage.was_held());
}

// A thread that dies inside the stack leaves at most the connection it worked on half changed, and that is seen.
TEST_F(SalvageTest, HalfChangedConnectionsAreNotCoherent) {
    const auto to_send = bytes_of(70'000, 3), unread = bytes_of(100'000, 9);
    TcpConnection* c = add(1000, to_send, unread);
    add(1001, {}, {});
    tcp::Tcb& t = c->tcb;
    Salvage salvage;
    ASSERT_TRUE(open(salvage));
    const auto sound = [&] {
        unsigned n = 0;
        for (const Salvage::Found& f : all(salvage)) n += salvage.coherent(f);
        return n;
    };
    EXPECT_EQ(sound(), 2u);
    const auto expect_torn = [&](const char* what, auto&& change, auto&& undo) {
        change();
        EXPECT_EQ(sound(), 1u) << what;
        undo();
        ASSERT_EQ(sound(), 2u) << what;
    };
    // Each step of the ways through SendBuffer and ReceiveQueue, as it is when the next one has not happened.
    expect_torn(
        "written, not counted", [&] { t.out.tail->end += 5; }, [&] { t.out.tail->end -= 5; });
    expect_torn(
        "acknowledged: begin", [&] { t.out.head->begin += 9; }, [&] { t.out.head->begin -= 9; });
    expect_torn(
        "acknowledged: start", [&] { t.out.head->begin += 9, t.out.start += 9; },
        [&] { t.out.head->begin -= 9, t.out.start += uint32_t(-9); });
    expect_torn(
        "acknowledged: not SND.UNA",
        [&] { t.out.head->begin += 9, t.out.start += 9, t.out.bytes -= 9; },
        [&] { t.out.head->begin -= 9, t.out.start += uint32_t(-9), t.out.bytes += 9; });
    tcp::RxText& first = tcp::text_of(*t.in.front());
    tcp::RxText& last = tcp::text_of(*t.in.packets.back());
    expect_torn(
        "read: length", [&] { first.len -= 7; }, [&] { first.len += 7; });
    expect_torn(
        "read: not counted", [&] { first.len -= 7, first.offset += 7, first.seq += 7; },
        [&] { first.len += 7, first.offset -= 7, first.seq += uint32_t(-7); });
    expect_torn(
        "received: counted", [&] { t.in.bytes += 11; }, [&] { t.in.bytes -= 11; });
    expect_torn(
        "received: not RCV.NXT", [&] { t.in.bytes += 11, last.len += 11; },
        [&] { t.in.bytes -= 11, last.len -= 11; });
    t.rcv.fin_seen = true;
    t.rcv.fin = t.rcv.nxt;
    expect_torn(
        "FIN: not RCV.NXT", [&] { t.rcv.fin_done = true; }, [&] { t.rcv.fin_done = false; });
}

TEST_F(SalvageTest, AnotherBuildOrNoRoot) {
    Salvage salvage;
    const auto root = reinterpret_cast<uintptr_t>(shard_->root());
    const auto base = reinterpret_cast<uintptr_t>(arena_);
    EXPECT_EQ(salvage.open(arena_, arena_->file_size(), root + 8, {}).error(), EPROTO);
    EXPECT_EQ(salvage.open(arena_, arena_->file_size(), base - 4096, {}).error(), EPROTO);
    EXPECT_EQ(salvage.open(arena_, root - base, root, {}).error(), EPROTO) << "behind the end";
    const_cast<ArenaRoot*>(shard_->root())->layout++;
    EXPECT_EQ(open(salvage).error(), EPROTO);
}

// Words of the records are overwritten with pointers, sizes and noise. Whatever is found then, nothing outside the arena is
// read: that would be a fault, because the arena ends at pages that may not be touched.
TEST_F(SalvageTest, NothingLeadsOutOfTheArena) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed);
    std::vector<TcpConnection*> connections;
    for (uint16_t i = 0; i < 8; i++)
        connections.push_back(add(uint16_t(2000 + i), bytes_of(5000, 1), bytes_of(5000, 2)));
    const size_t used = arena_->file_size();
    std::vector<uint8_t> before(used);
    std::memcpy(before.data(), arena_, used);
    auto* words = reinterpret_cast<uint64_t*>(arena_);
    Rng rng(kSeed);
    Salvage salvage;
    ASSERT_TRUE(open(salvage));
    unsigned found = 0;
    std::vector<uint8_t> out;
    for (unsigned round = 0; round < 400; round++) {
        for (unsigned hit = 0; hit < 4; hit++) {
            const TcpConnection* c = connections[rng.below(8)];
            const void* targets[] = {c, c->tcb.out.head,
                                     const_cast<tcp::ReceiveQueue&>(c->tcb.in).front(),
                                     &shard_->tcp()};
            const uint64_t sizes[] = {sizeof *c, 32, sizeof(PacketBuf), 512};
            const auto which = rng.below(4);
            const auto at = reinterpret_cast<uintptr_t>(targets[which]) +
                            rng.below(uint32_t(sizes[which] / 8)) * 8;
            const auto base = reinterpret_cast<uintptr_t>(arena_);
            if (at < base || at - base >= used - 8) continue;  // hit before
            const uint64_t values[] = {uint64_t(rng.next()) << 32 | rng.next(),
                                       base + used - 8 * rng.below(64),
                                       base + 8 * rng.below(uint32_t(used / 8)),
                                       0,
                                       8,
                                       UINT64_MAX,
                                       reinterpret_cast<uintptr_t>(&rng)};
            words[(at - base) / 8] = values[rng.below(7)];
        }
        salvage.for_each({}, [&](const Salvage::Found& f) {
            found++;
            const uint32_t n = uint32_t(f.snapshot.snd_end - f.snapshot.snd_una);
            out.resize(std::min<size_t>(n, 1 << 20) + std::min<size_t>(f.snapshot.unread, 1 << 20));
            (void)salvage.copy_unacked(f, f.snapshot.snd_una, out.data(),
                                       std::min<size_t>(n, 1 << 20));
            (void)salvage.copy_unread(f, out.data(), std::min<size_t>(f.snapshot.unread, 1 << 20));
        });
        std::memcpy(static_cast<void*>(arena_), before.data(), used);
    }
    EXPECT_GT(found, 1000u);
    EXPECT_EQ(all(salvage).size(), 8u);
}

}  // namespace
}  // namespace vma
