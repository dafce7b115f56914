// A sequence of frames with time steps into one UdpStack with reassembly; endpoints read, peek and skip in between.
// Input: records of [kind][step][length low][length high][bytes]. kind bit 0: mend the IPv4 header checksum, bit 1: vouch
// for the UDP checksum, bits 2..4: gso_size / 16, bit 5: read one datagram after, bit 6: read a train. step: 16 ms each.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "base/arena.h"
#include "fuzz/fuzz_check.h"
#include "stack/udp_input.h"

using namespace vma;

namespace {

DemuxMemory heap_memory() {
    DemuxMemory m;
    m.take = [](void*, size_t n) -> void* { return ::operator new(n, std::nothrow); };
    m.give = [](void*, void* p, size_t) { ::operator delete(p); };
    return m;
}

void mend(uint8_t* frame, size_t size) {
    if (size < 34) return;
    uint8_t* ip = frame + 14;
    const size_t header = std::min<size_t>((ip[0] & 15) * 4, size - 14);
    if (header < 20) return;
    store_be16(ip + 10, 0);
    store_be16(ip + 10, checksum(ByteView(ip, header)));
}

// `whole`: super-frames that come after it are read at once.
void read_one(UdpEndpoint& e, bool whole) {
    e.set_whole_trains(whole);
    UdpDatagram d;
    if (!e.peek(d)) return;
    FUZZ_CHECK(d.info->next + d.payload.size() <= d.info->end && d.payload.size() == e.next_size());
    uint32_t sum = 0;
    for (uint8_t b : d.payload) sum += b;  // every byte must be readable
    FUZZ_CHECK(sum <= d.payload.size() * 255);
    e.consume();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static Arena* arena = *Arena::create(size_t(64) << 20);
    static PacketPool* pool = arena->make<PacketPool>(*arena, PoolLimits{200, 8u << 20});
    {
        const auto reassembly =
            std::make_unique<Reassembly4>(*pool, 1, ReassemblyLimits{64 * 1024, 16 * 1024});
        UdpStack stack(heap_memory(), 1);
        stack.reassembly = reassembly.get();
        UdpEndpoint any({IpAddr::any_v4(), 7777}), connected({IpAddr::v4(10, 0, 0, 1), 7777});
        connected.remote = {IpAddr::v4(10, 0, 0, 2), 5555};
        any.set_receive_limit(4096);
        FUZZ_CHECK(stack.demux.insert(any.tuple(), any).ok());
        FUZZ_CHECK(stack.demux.insert(connected.tuple(), connected).ok());
        Instant now{0};
        while (size >= 4) {
            const uint8_t kind = data[0];
            now = now + Duration::millis(16 * data[1]);
            const size_t n = std::min<size_t>(size - 4, size_t(data[2]) | size_t(data[3]) << 8);
            Packet p = pool->take(n);
            FUZZ_CHECK(bool(p) || pool->counters().in_use > 0);
            if (p) {
                if (n > 0) std::memcpy(p->data, data + 4, n);
                p->len = uint32_t(n);
                if ((kind & 1) != 0) mend(p->data, n);
                p->meta.checksum_good = (kind & 2) != 0;
                p->meta.gso_size = uint16_t((kind >> 2 & 7) * 16);
                (void)udp_input(stack, std::move(p), now, 0);
            }
            for (UdpEndpoint* e : {&any, &connected}) {
                if ((kind & 0x60) != 0) read_one(*e, (kind & 0x40) != 0);
            }
            data += 4 + n;
            size -= 4 + n;
        }
        reassembly->deadline_reached(now);
        FUZZ_CHECK(reassembly->deadline() > now);
    }
    FUZZ_CHECK(pool->counters().in_use == 0);
    return 0;
}
