// Received Ethernet frame -> datagram in an endpoint's queue. Sans-io: bytes, time and tables in, queue out.
#pragma once

#include "pkt/pool.h"
#include "stack/reassembly4.h"
#include "stack/udp_endpoint.h"
#include "wire/ethernet.h"

namespace vma {

// UDP of one shard. Lives in the arena, used under the shard lease; what the pointers name is borrowed.
struct UdpStack {
    UdpStack(DemuxMemory memory, uint64_t secret) : demux(memory, secret) {}

    UdpDemux demux;
    UdpGroups groups;
    PacketPool* pool =
        nullptr;  // of copies: each receiver but one of a multicast datagram gets one
    // Endpoints that something arrived for, each once, in order of arrival; the engine empties it after a batch and
    // tells the sockets (fresh.pop_front()).
    UdpFreshList fresh;
    Reassembly4* reassembly = nullptr;  // null: fragments are refused with ip_fragment
    MacAddr mac{};  // of the interface; frames that carry it as source are dropped. Zero: not known
    DropCounters drops;  // every frame that udp_input did not deliver, by reason
};

// Consumes `frame` (not empty). none: it was queued (or it is a fragment that waits for the others). Ethernet, at most one 802.1Q tag
// (VLAN id 0 only), IPv4, UDP. The UDP checksum is verified unless meta.checksum_good; 0 means none was sent (RFC 768).
// A frame with meta.gso_size > 0 holds several datagrams of one flow.
// `now`: when it was taken from the ring; `realtime_ns`: the receive stamp that readers see.
DropReason udp_input(UdpStack& stack, Packet frame, Instant now, int64_t realtime_ns);

}  // namespace vma
