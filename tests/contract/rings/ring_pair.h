// Two rings that can reach each other, of any kind: what the contract suite runs over.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "dev/packet/packet_ring.h"
#include "support/frames.h"
#include "support/veth.h"
#include "support/virtual_wire.h"

namespace vma::test {

struct UnmapArena {
    void operator()(Arena* a) const { Arena::unmap(a); }
};

// A packet pool with its arena.
struct Pool {
    std::unique_ptr<Arena, UnmapArena> arena{*Arena::create(Arena::kMinReserve * 8)};
    PacketPool pool{*arena};
};

struct RingPair {
    virtual ~RingPair() = default;
    Pool pools[2];
    Ring* ring[2] = {};
    Mac mac[2] = {{2, 0, 0, 0, 0, 0x0a}, {2, 0, 0, 0, 0, 0x0b}};
    IpAddr addr[2] = {IpAddr::v4(10, 99, 0, 1), IpAddr::v4(10, 99, 0, 2)};

    // A frame from side 0 to side 1, both ports given.
    FrameSpec spec(uint16_t from_port, uint16_t to_port, uint32_t payload = 18) const {
        FrameSpec s;
        s.from = mac[0];
        s.to = mac[1];
        s.src = {addr[0], from_port};
        s.dst = {addr[1], to_port};
        s.payload = payload;
        return s;
    }
    FlowKey flow(uint16_t local_port, uint16_t remote_port = 0,
                 uint8_t protocol = IPPROTO_UDP) const {
        FlowKey k;
        k.local = {addr[1], local_port};
        if (remote_port) k.remote = {addr[0], remote_port};
        k.protocol = protocol;
        return k;
    }
};

class VirtualPair final : public RingPair {
  public:
    VirtualPair() : wire_({}, pools[0].pool, pools[1].pool) {
        ring[0] = &wire_.end(0);
        ring[1] = &wire_.end(1);
    }

  private:
    VirtualWire wire_;
};

// Packet rings in the two namespaces of a veth pair.
class PacketPair final : public RingPair {
  public:
    explicit PacketPair(uint32_t ring_bytes = 4u << 20) {
        if (!veth.ok()) {
            why = veth.error();
            return;
        }
        for (int i : {0, 1}) {
            Inside here(i ? veth.b() : veth.a());
            PacketRingConfig c;
            c.ifindex = (i ? veth.b() : veth.a()).ifindex;
            c.pool = &pools[i].pool;
            c.ring_bytes = ring_bytes;
            auto r = open_packet_ring(c, &why);
            if (!r) return;
            owned[i].reset(*r);
            ring[i] = *r;
        }
    }
    Veth veth;
    std::string why;
    std::unique_ptr<Ring> owned[2];
};

}  // namespace vma::test
