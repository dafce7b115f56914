// A neighbour that owns the shared memory of its pair, against a ring that also has an honest one. Input: records of
// [op][a][b][length][bytes]. op % 8: 0 writes the bytes at a * 256 + b of the control page; 1 writes them into its records at
// place a * 256 + b; 2 stores eight of them as the word of its next record; 3 puts them as a frame (flags a, gso_size b);
// 4 puts them as the payload and options of a datagram that is addressed well; 5 lets the ring receive; 6 send a frame of
// a * 256 + b bytes; 7 sleep.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/arena.h"
#include "dev/shm/shm_ring.h"
#include "fuzz/fuzz_check.h"
#include "support/frames.h"
#include "support/shm_pair.h"

using namespace vma;
using namespace vma::test;
using namespace vma::shm;

namespace {

constexpr uint16_t kPort = 7000;
const IpAddr kVictim = IpAddr::v4(10, 0, 0, 1), kHonest = IpAddr::v4(10, 0, 0, 2),
             kBad = IpAddr::v4(10, 0, 0, 3);

FlowKey key(const IpAddr& local, const IpAddr& remote, uint8_t protocol) {
    FlowKey k;
    if (!local.is_any()) k.local = {local, kPort};
    if (!remote.is_any()) k.remote = {remote, kPort};
    k.protocol = protocol;
    return k;
}

struct Setting {
    Setting() {
        FUZZ_CHECK(victim && honest);
        ShmParts parts;
        const auto a = victim->add_pair(parts.end[0], nullptr);
        const auto b = honest->add_pair(parts.end[1], nullptr);
        FUZZ_CHECK(a && b);
        FUZZ_CHECK(victim->route(key(IpAddr::any_v4(), kHonest, IPPROTO_UDP), *a));
        FUZZ_CHECK(honest->route(key(IpAddr::any_v4(), kVictim, IPPROTO_UDP), *b));
        for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP})
            FUZZ_CHECK(victim->steer(key(kVictim, IpAddr::any_v4(), protocol)));
    }
    static ShmRing* open(PacketPool* pool) {
        const auto ring = ShmRing::open({pool, 1, 5, 6});
        return ring ? *ring : nullptr;
    }
    Arena* arena = *Arena::create(size_t(64) << 20);
    PacketPool* pool = arena->make<PacketPool>(*arena, PoolLimits{100, 8u << 20});
    ShmRing *victim = open(pool), *honest = open(pool);
};

Frame datagram(const IpAddr& from, uint8_t protocol, uint32_t payload) {
    FrameSpec s;
    s.src = {from, kPort};
    s.dst = {kVictim, kPort};
    s.protocol = protocol;
    s.payload = payload;
    return build_frame(s);
}

// How many were the honest neighbour's.
unsigned receive(ShmRing& ring) {
    Packet batch[8];
    const unsigned n = ring.recv(batch);
    unsigned honest = 0, sum = 0;
    FUZZ_CHECK(n <= 8);
    for (unsigned i = 0; i < n; ++i) {
        PackedFlow flow;
        FUZZ_CHECK(flow_of_frame(batch[i]->view(), batch[i]->len - 14, Toward::us, flow));
        FUZZ_CHECK(flow.addresses >> 32 == kVictim.v4_host());
        const uint32_t from = uint32_t(flow.addresses);
        FUZZ_CHECK(from == kBad.v4_host() || from == kHonest.v4_host());
        honest += from == kHonest.v4_host();
        for (uint8_t b : batch[i]->view()) sum += b;  // every byte must be readable
    }
    FUZZ_CHECK(sum <= n * kMostFrameBytes * 255);
    return honest;
}

void write(uint8_t* at, size_t room, ByteView bytes) {
    const size_t n = std::min(room, bytes.size());
    if (n > 0) std::memcpy(at, bytes.data(), n);
}

void act(Setting& s, BadNeighbor& bad, uint8_t op, uint32_t place, ByteView bytes) {
    switch (op % 8) {
        case 0:
            place %= kControlBytes;
            return write(bad.memory() + place, kControlBytes - place, bytes);
        case 1:
            return write(bad.records() + place, bad.ring_bytes() - place, bytes);
        case 2: {
            uint64_t word = 0;
            write(reinterpret_cast<uint8_t*>(&word), sizeof word, bytes);
            return bad.store_word(bad.produced(), word);
        }
        case 3:
            return bad.put(bytes, uint8_t(place >> 8), uint16_t(place & 255));
        case 4: {
            Frame f = datagram(kBad, place & 1 ? IPPROTO_TCP : IPPROTO_UDP, uint32_t(bytes.size()));
            write(f.bytes.data() + f.head, bytes.size(), bytes);
            return bad.put(f.view(), kChecksumVouched, uint16_t(place));
        }
        case 5:
            FUZZ_CHECK(receive(*s.victim) == 0);
            return;
        case 6: {
            FrameSpec spec;
            spec.src = {kVictim, kPort};
            spec.dst = {kBad, kPort};
            spec.payload = std::min<uint32_t>(place, 60000);
            Frame f = build_frame(spec);
            const TxFrame t = f.plain(true);
            int why = 0;
            if (s.victim->send({&t, 1}, &why) == 0) FUZZ_CHECK(why == EAGAIN || why == ENETDOWN);
            return;
        }
        default:
            (void)s.victim->arm();
            s.victim->disarm();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static Setting s;
    ShmParts parts;
    const auto pair = s.victim->add_pair(parts.end[0], nullptr);
    FUZZ_CHECK(pair);
    {
        BadNeighbor bad(parts.end[1]);
        FUZZ_CHECK(bad.ok());
        for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP})
            FUZZ_CHECK(s.victim->route(key(IpAddr::any_v4(), kBad, protocol), *pair));
        while (size >= 4) {
            const size_t n = std::min<size_t>(size - 4, data[3]);
            act(s, bad, data[0], uint32_t(data[1]) << 8 | data[2], {data + 4, n});
            data += 4 + n;
            size -= 4 + n;
        }
        // The honest neighbour's frame gets through whatever is in the other's memory.
        Frame f = datagram(kHonest, IPPROTO_UDP, 20);
        const TxFrame t = f.plain();
        int why = 0;
        FUZZ_CHECK(s.honest->send({&t, 1}, &why) == 1);
        unsigned calls = 0;
        while (receive(*s.victim) == 0) FUZZ_CHECK(++calls < 300);
    }
    s.victim->remove_pair(*pair);
    FUZZ_CHECK(s.pool->counters().in_use == 0);
    return 0;
}
