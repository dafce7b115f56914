// The arena of a dead process that the broker reads, after the process has overwritten words of it. Input: records of (record of
// the arena, word in it, how, value of eight bytes); how: 0 the value itself, else an address in the arena.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/salvage.h"
#include "engine/shard.h"
#include "fuzz/fuzz_check.h"
#include "support/quiet_ring.h"

using namespace vma;

namespace {

constexpr size_t kConnections = 4, kText = 5000;

// A shard with connections that have text in both queues. Never taken down: its records are lies now and then.
struct Victim {
    Arena* arena = nullptr;
    Shard* shard = nullptr;
    QuietRing* ring = new QuietRing;
    std::vector<uint8_t> before;
    struct Target {
        uint8_t* at;
        size_t bytes;
    };
    std::vector<Target> targets;
    OwnFd memory;

    Victim() {
        auto made = Arena::create(Arena::kMinReserve, &memory);
        FUZZ_CHECK(made.ok());
        arena = *made;
        Shard::Parts parts;
        parts.arena = arena;
        parts.pool = arena->make<PacketPool>(*arena, PoolLimits{});
        parts.ring = ring;
        parts.secret = 1;
        shard = Shard::make(parts);
        FUZZ_CHECK(shard != nullptr);
        add_target(const_cast<ArenaRoot*>(shard->root()), sizeof(ArenaRoot));
        add_target(&shard->tcp(), 512);
        for (uint16_t i = 0; i < kConnections; i++) add(uint16_t(2000 + i), *parts.pool);
        before.resize(arena->file_size());
        std::memcpy(before.data(), static_cast<const void*>(arena), before.size());
    }

    void add_target(void* at, size_t bytes) {
        targets.push_back({static_cast<uint8_t*>(at), bytes});
    }

    void add(uint16_t port, PacketPool& pool) {
        auto* c = arena->make<TcpConnection>();
        std::vector<uint8_t> text(kText);
        std::iota(text.begin(), text.end(), uint8_t(port));
        tcp::Snapshot s;
        s.local = {IpAddr::v4(10, 0, 0, 2), 80};
        s.remote = {IpAddr::v4(10, 0, 0, 1), port};
        s.state = tcp::State::ESTABLISHED;
        s.snd_una = {1000};
        s.snd_nxt = s.snd_una + uint32_t(kText / 2);
        s.snd_end = s.snd_una + uint32_t(kText);
        s.rcv_nxt = {9000};
        s.unread = uint32_t(kText);
        s.rcv_wup = s.rcv_nxt;
        FUZZ_CHECK(
            tcp::import_snapshot(c->tcb, s, text, text, {}, shard->tcp().memory(), pool, {}));
        c->tuple = {s.local, s.remote};
        FUZZ_CHECK(const_cast<Demux<TcpTarget>&>(shard->tcp().table()).insert(c->tuple, *c).ok());
        add_target(c, sizeof *c);
        add_target(c->tcb.out.head, 32);
        add_target(c->tcb.in.front(), sizeof(PacketBuf));
    }
};

// Everything that the broker does with the arena; how many connections it found there.
unsigned look(const Victim& victim) {
    Salvage salvage;
    unsigned count = 0;
    if (!salvage.open(victim.arena, victim.before.size(),
                      reinterpret_cast<uintptr_t>(victim.shard->root()), {}))
        return count;
    (void)salvage.was_held();
    std::vector<uint8_t> out(1 << 16);
    salvage.for_each({}, [&](const Salvage::Found& found) {
        count++;
        FUZZ_CHECK(salvage.inside(found.address, sizeof *found.address));
        const tcp::Snapshot& s = found.snapshot;
        const size_t unacked = std::min<size_t>(uint32_t(s.snd_end - s.snd_una), out.size());
        const size_t unread = std::min<size_t>(s.unread, out.size());
        (void)salvage.coherent(found);
        (void)salvage.copy_unacked(found, s.snd_una, out.data(), unacked);
        (void)salvage.copy_unread(found, out.data(), unread);
    });
    return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static Victim& victim = *new Victim;
    const uint64_t base = reinterpret_cast<uintptr_t>(victim.arena);
    constexpr size_t kRecord = 11;
    for (size_t at = 0; size - at >= kRecord; at += kRecord) {
        const Victim::Target& target = victim.targets[data[at] % victim.targets.size()];
        uint64_t value = 0;
        std::memcpy(&value, data + at + 3, sizeof value);
        if (data[at + 2] != 0) value = base + value % (victim.before.size() + 4096);
        std::memcpy(target.at + data[at + 1] % (target.bytes / 8) * 8, &value, sizeof value);
    }
    const unsigned found = look(victim);
    FUZZ_CHECK(size >= kRecord || found == kConnections);  // an arena without lies is read
    std::memcpy(static_cast<void*>(victim.arena), victim.before.data(), victim.before.size());
    return 0;
}
