// PacketPool: packet records, with or without data room, out of a shard arena.
//
// Three sizes of room (kSmallRoom, kMediumRoom, kLargeRoom) are carved from slabs and recycled in O(1) through one free
// list each; rooms above kLargeRoom are taken from the arena one by one and go back to it; records for lent memory have no
// room. A slab stays with its pool until the pool is destroyed. Thread rules: everything, release included, happens under
// the shard lease. Lives in the arena itself (arena.make<PacketPool>(arena)), so that plain pointers hold after a fork.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "pkt/packet.h"

namespace vma {

struct PoolLimits {
    uint64_t packets = UINT64_MAX;  // records in use at once, lent ones included
    uint64_t bytes = UINT64_MAX;    // sum of the rooms in use, as rounded to their class
};

struct PoolCounters {
    uint64_t in_use = 0;        // records out, lent ones included
    uint64_t lent = 0;          // of these, records of lent memory
    uint64_t bytes_in_use = 0;  // rooms out, rounded to their class
    uint64_t free = 0;          // records on the free lists
    uint64_t created = 0;       // records that exist: in_use + free
    uint64_t failed_takes = 0;  // take, lend or copy_of refused: limit reached or arena full
    uint64_t high_water = 0;    // largest in_use so far
};

class PacketPool {
  public:
    static constexpr uint32_t kSmallRoom = 256;
    static constexpr uint32_t kMediumRoom = 2048;
    static constexpr uint32_t kLargeRoom = 68 * 1024;
    static constexpr size_t kDataAlign = 64;  // alignment of a pooled packet's room

    explicit PacketPool(Arena& arena, PoolLimits limits = {}) : arena_(arena), limits_(limits) {}
    // Every packet must have come back. Slabs return to the arena; if packets are still out, the slabs are left to the
    // arena's end instead of under their feet.
    ~PacketPool();
    PacketPool(const PacketPool&) = delete;
    PacketPool& operator=(const PacketPool&) = delete;

    // A packet with at least `room` bytes at `data`, len 0, meta default, scratch undefined. Empty when a limit is reached
    // or the arena is full (counted).
    Packet take(size_t room);
    // A packet over memory of `lender`, which gets it back through give_back(). Empty as for take(), in which case
    // nothing was lent and the memory is still the caller's.
    Packet lend(uint8_t* data, uint32_t len, PacketLender* lender, uint64_t cookie);
    // A pooled packet with the bytes, meta and scratch of `from`: lets a lent area go back early. Pointers inside scratch
    // that refer to the frame still point to the old one. Empty as for take(); `from` is unchanged in any case.
    Packet copy_of(const PacketBuf& from);

    // Limits below what is in use are allowed: takes fail until enough came back.
    void set_limits(PoolLimits limits) { limits_ = limits; }
    const PoolLimits& limits() const { return limits_; }
    const PoolCounters& counters() const { return counters_; }

  private:
    friend void release_packet(PacketBuf* buf);
    // Order of PacketBuf::pool_class.
    enum Class : uint8_t { kLent, kSmall, kMedium, kLarge, kExact, kClassCount };
    struct Slab {
        Slab* next;
        size_t bytes;
    };

    static uint8_t* room_of(PacketBuf* buf);
    PacketBuf* acquire(Class c, size_t room);
    PacketBuf* fresh(Class c);
    bool add_slab(Class c);
    void release(PacketBuf* buf);

    Arena& arena_;
    PoolLimits limits_;
    PoolCounters counters_;
    ListHook* free_[kClassCount] = {};  // singly linked through PacketBuf::hook.next
    uint8_t* fresh_[kClassCount] = {};  // rest of the newest slab: pages that were never touched
    uint8_t* fresh_end_[kClassCount] = {};
    Slab* slabs_ = nullptr;
};

}  // namespace vma
