// Salvage: reads the TCP connections of a shard whose process is dead, out of its arena. For the broker, which maps the
// memfd at the address that the dead process had.
//
// The dead process may have been corrupted, or may have wanted to deceive: every pointer is checked to lie inside the arena
// before it is followed, every count is bounded, every record is copied before its fields are believed. What cannot be
// checked is the sense of the numbers; the kernel does that when they are restored. A file shorter than the mapping raises
// SIGBUS, so this runs in a process that may die.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "stack/tcp/snapshot.h"

namespace vma {

class Arena;
class Lease;
class Shard;
class TcpEngine;
struct TcpConnection;

inline constexpr uint64_t kArenaRootMagic = 0x61746f6f72616d76;  // "vmaroota"

// In the arena; where everything else is found from.
struct ArenaRoot {
    uint64_t magic = kArenaRootMagic;
    uint32_t layout = 0;  // layout_identity() of the process that wrote the arena
    uint32_t zero = 0;
    Lease* lease = nullptr;
    TcpEngine* tcp = nullptr;
};

// A number that two builds have in common only if they lay out the records of an arena alike.
uint32_t layout_identity();

// The ring memory that received packets may still point into, as the dead process and as this one have it.
struct LentMemory {
    uint64_t theirs = 0;
    const uint8_t* ours = nullptr;
    size_t bytes = 0;
};

class Salvage {
  public:
    // `base`: where the arena is mapped, at its own address; `bytes` that may be touched. EPROTO: there is no root record
    // of this build.
    Status open(const void* base, size_t bytes, uint64_t root, const LentMemory& lent);

    // Was a thread inside the stack when the process died? Then the record it worked on may be half changed.
    bool was_held() const;

    struct Found {
        const TcpConnection* address = nullptr;
        tcp::Snapshot snapshot;
        bool waiting = false;  // in an accept queue: the program never saw it
        bool steered = false;  // has a flow of its own, else its listener's covers it
    };
    // Calls found(const Found&) for every connection that the kernel could carry on. How many records were nonsense.
    template <class Fn>
    unsigned for_each(Instant now, Fn&& fn) const {
        struct Call {
            static void one(void* context, const Found& found) {
                (*static_cast<Fn*>(context))(found);
            }
        };
        return walk(now, &Call::one, &fn);
    }
    // Do the numbers of the connection agree with its queues, byte for byte? The stack writes them in an order in which
    // they do not agree while it is half way (order_stores(), base/order.h); bytes that were not written out yet, or are
    // counted twice, are never taken for sound.
    bool coherent(const Found& found) const;
    // Exactly n bytes of the queues, or false. From the sequence number `from`; from the front.
    bool copy_unacked(const Found& found, Seq from, uint8_t* to, size_t n) const;
    bool copy_unread(const Found& found, uint8_t* to, size_t n) const;

    // [p, p + n) lies in the arena and p is a multiple of 8.
    bool inside(const void* p, size_t n) const;

  private:
    template <class Each>
    bool walk_unread(const Found& found, Each&& each) const;
    unsigned walk(Instant now, void (*fn)(void*, const Found&), void* context) const;

    const uint8_t* base_ = nullptr;
    size_t bytes_ = 0;
    ArenaRoot root_;
    LentMemory lent_;
};

}  // namespace vma
