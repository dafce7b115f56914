// VerbsRing: one raw Ethernet QP of an RDMA device with a completion queue each way, made by libibverbs. Frames that no flow
// rule of ours takes go on to the kernel, which is the device's business. Requests go by the calls of libibverbs, or on an mlx5
// device straight into its queues (`mlx5`, dev/mlx5): the mlx5 ring, which differs in nothing else.
//
// Received packets are lent buffers of the shard's arena; each is posted again when its packet comes back, so one that nobody
// reads costs its own buffer only. Descriptors: those of libibverbs (up to three) and none of our own.
// Thread rules: ring.h. A forked child neither uses nor destroys it; arena memory is shared, so registering it needs no
// ibv_fork_init(3). docs/decisions/0013-verbs-ring.md says why things are as they are.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/arena.h"
#include "base/result.h"
#include "dev/ring.h"
#include "dev/ring_memory.h"
#include "dev/verbs/moderation.h"
#include "pkt/pool.h"

struct ibv_context;

namespace vma {

struct VerbsRingConfig {
    int ifindex = 0;
    std::array<uint8_t, 6> mac{};
    uint32_t mtu = 1500;
    uint32_t rx_requests = 4096, tx_requests = 2048;  // bounded by the device
    uint32_t rx_batching =
        64;  // receive requests given to the device at a time, at most half of them
    uint32_t tx_batching = 64;  // requests per completion
    uint32_t poll_batch = 16;   // completions per look, at most kVerbsMostPolled
    uint32_t max_inline = 204;
    uint32_t prefetch_bytes = 256;            // of a frame that has arrived
    uint32_t prefetch_bytes_before_poll = 0;  // of the buffer that the next frame will be in
    Moderation moderation;                    // of wake-ups
    AdaptiveModeration adaptive;              // what becomes of it with the traffic
    bool drop_without_packet =
        false;  // pool exhausted: a frame that arrives is dropped, else it waits
    bool tcp_by_local = false,
         udp_by_local = false;  // steer connected flows by their local end alone
    bool stamps = false;        // frames get the device's receive stamps, where it has a clock
    bool mlx5 = false;          // its queues are driven in memory
    bool blueflame =
        true;  // mlx5: small frames are written to the device itself, where it takes them
    // mlx5: called after each doorbell and before each look, for a device in software; null: what the library has for that.
    unsigned (*kick)(ibv_context*) = nullptr;
    RingMemory receive_memory, send_memory;  // of frames
    Arena* arena = nullptr;  // both of the shard; outlive the ring and every packet it gave out
    PacketPool* pool = nullptr;
};

// Opens the device of the interface. On failure *why says what is missing, in words for the user. Errors: ENOSYS (no
// libibverbs), ENODEV (no device with such a port), EOPNOTSUPP (with `mlx5`: it is no such device), EPERM (raw QPs need CAP_NET_RAW), ENOMEM, those of the verbs. The
// caller deletes the ring when all its packets have come back.
Result<Ring*> open_verbs_ring(const VerbsRingConfig& config, std::string* why);

}  // namespace vma
