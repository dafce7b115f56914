// PacketRing: the ring of any Ethernet interface, virtual or not. Receives through a BPF ring buffer that the hook's program
// fills (hook.h), sends through a packet socket (transmit.h). docs/decisions/0001-packet-ring-receive.md says why.
//
// Received packets are lent ring memory (read only) and may come back in any order; space is free again up to the oldest one
// that is still out. So that a packet that nobody reads cannot stop the ring, recv() moves it: when more than half of the
// ring lies behind the oldest loan, that packet's bytes are copied into pooled memory and its PacketBuf::data changes.
// Hence the rule for holders: keep offsets into a lent packet, not pointers, across a call of recv(); memory that an
// application may look at is a copy (PacketPool::copy_of). When the pool has nothing left for that, recv() copies nothing and
// the ring fills and drops, counted.
//
// Thread rules: ring.h. Objects are private to the process; a forked child neither uses nor destroys them. Descriptors:
// two (wake-up and packet socket) plus those of the hook. Memory: ring_bytes, unswappable, charged to the memory cgroup.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "dev/packet/keeper.h"
#include "dev/ring.h"
#include "pkt/pool.h"

namespace vma {

struct PacketRingConfig {
    int ifindex = 0;
    uint32_t mtu = 1500;
    uint32_t ring_bytes = 8u << 20;  // rounded up to a power of two, at least kLeastRingBytes
    bool drop_without_packet =
        false;                   // pool exhausted: a frame that arrives is dropped, else it waits
    PacketPool* pool = nullptr;  // of the shard; outlives the ring and every packet it gave out
};
inline constexpr uint32_t kLeastRingBytes = 256 * 1024;

// Opens in the calling thread's network namespace. On failure *why says what is missing, in words for the user. Errors:
// EPERM (capabilities), EOPNOTSUPP (kernel without TCX), ENODEV, EINVAL (not an Ethernet interface), ENOSPC (no slot),
// those of bpf(2), mmap(2), socket(2). The caller deletes the ring when all its packets have come back.
Result<Ring*> open_packet_ring(const PacketRingConfig& config, std::string* why);

// The same by somebody else (keeper.h). open_packet_ring() does this itself where it lacks a capability.
Result<Ring*> open_lent_packet_ring(const PacketRingConfig& config, std::string* why);

// For whoever lends: opens a ring on interface `ifindex` for another process, with `hook`. Errors: as open_packet_ring().
class Hook;
Result<LentRing> lend_packet_ring(Hook& hook, int ifindex, uint32_t bytes);

// Gives the tuples of dead processes back to the kernel and puts the egress guard onto interfaces that came up since; for
// the internal thread, every half second. How many rings of dead processes were found. Any thread. `bereaved`: as of
// Hook::sweep_all().
unsigned sweep_packet_rings(std::vector<FlowKey>* bereaved = nullptr);

// The egress guard onto every interface now: steering TCP later then needs no privilege. For a process that is about to give
// its privileges up.
void guard_packet_rings();

}  // namespace vma
