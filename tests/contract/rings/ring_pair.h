// Two rings that can reach each other, of any kind: what the contract suite runs over.
#pragma once

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/arena.h"
#include "dev/packet/packet_ring.h"
#include "dev/shm/shm_ring.h"
#include "dev/verbs/verbs_ring.h"
#include "dev/xdp/xdp_ring.h"
#include "support/frames.h"
#include "support/shm_pair.h"
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

// Two shm rings of this process with one pair between them.
class ShmPair final : public RingPair {
  public:
    explicit ShmPair(uint32_t ring_bytes = shm::kLeastRingBytes) {
        ShmParts parts(ring_bytes);
        for (int i : {0, 1}) {
            const auto opened =
                shm::ShmRing::open({&pools[i].pool, 1, 0x1234567812345678u, 0x8765432187654321u});
            if (!opened) return;
            owned[i].reset(*opened);
            const auto added = owned[i]->add_pair(parts.end[i], &why);
            if (!added) return;
            id[i] = *added;
        }
        // Side 0 speaks for the ports that the tests send from, side 1 for those that they send to.
        for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP}) {
            for (uint16_t port : {7000, 7001, 7100}) route(0, protocol, {addr[1], port});
            for (uint16_t port : {9000, 9001}) route(1, protocol, {addr[0], port});
        }
        for (int i : {0, 1}) ring[i] = owned[i].get();
    }
    void route(int end, uint8_t protocol, const Endpoint& remote) {
        FlowKey k;
        k.protocol = protocol;
        k.remote = remote;
        EXPECT_TRUE(owned[end]->route(k, id[end]));
    }
    std::string why;
    std::unique_ptr<shm::ShmRing> owned[2];
    shm::PairId id[2] = {};
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

// Xdp rings in the same place.
class XdpPair final : public RingPair {
  public:
    explicit XdpPair(XdpMode mode = XdpMode::automatic, uint32_t ring_bytes = 4u << 20) {
        if (!veth.ok()) {
            why = veth.error();
            return;
        }
        for (int i : {0, 1}) {
            const Veth::Side& side = i ? veth.b() : veth.a();
            mac[i] = side.mac;
            Inside here(side);
            XdpRingConfig c;
            c.packet.ifindex = side.ifindex;
            c.packet.pool = &pools[i].pool;
            c.packet.ring_bytes = ring_bytes;
            c.mac = side.mac;
            c.mode = mode;
            c.arena = pools[i].arena.get();
            auto r = open_xdp_ring(c, &why);
            if (!r) return;
            owned[i].reset(*r);
            ring[i] = *r;
        }
    }
    Veth veth;
    std::string why;
    std::unique_ptr<Ring> owned[2];
};

// What makes devices with engine=kick work: all that have ever asked for it, since a frame that one sends is for the other to
// take in.
class Kicked {
  public:
    static unsigned kick(ibv_context* context) {
        std::lock_guard locked(mutex());
        all().insert(context);
        times()++;
        unsigned done = 0;
        for (ibv_context* c : all()) done += device()(c);
        return done;
    }
    // So often somebody asked.
    static uint64_t count() {
        std::lock_guard locked(mutex());
        return times();
    }
    static void forget() {
        std::lock_guard locked(mutex());
        all().clear();
    }

  private:
    using Function = unsigned (*)(ibv_context*);
    static Function device() {
        static void* const library = dlopen("libibverbs.so.1", RTLD_NOW);
        static const auto f = reinterpret_cast<Function>(dlsym(library, "softhca_kick"));
        return f;
    }
    static std::set<ibv_context*>& all() {
        static std::set<ibv_context*> contexts;
        return contexts;
    }
    static uint64_t& times() {
        static uint64_t n = 0;
        return n;
    }
    static std::mutex& mutex() {
        static std::mutex m;
        return m;
    }
};

// Rings on two devices of the software HCA, which the test's RUNPATH finds before rdma-core: a and b by verbs, c and d as mlx5
// devices, which check everything that the ring writes to their queues and work when it calls them. Interface numbers that no
// machine has, so it needs no namespace and no privilege.
class VerbsPair final : public RingPair {
  public:
    static constexpr int kFirstInterface = 900001;

    explicit VerbsPair(VerbsRingConfig c = {}) {
        static const Wire wire;
        setenv("SOFTHCA",
               "name=a mac=02:00:00:00:00:0a ifindex=900001;"
               "name=b mac=02:00:00:00:00:0b ifindex=900002;"
               "name=c mac=02:00:00:00:00:0c ifindex=900003 kind=mlx5 engine=kick strict=1;"
               "name=d mac=02:00:00:00:00:0d ifindex=900004 kind=mlx5 engine=kick strict=1",
               1);
        if (c.mlx5) c.kick = Kicked::kick;
        for (int i : {0, 1}) {
            if (c.mlx5) mac[i][5] = uint8_t(0x0c + i);
            c.ifindex = kFirstInterface + (c.mlx5 ? 2 : 0) + i;
            c.mac = mac[i];
            c.arena = pools[i].arena.get();
            c.pool = &pools[i].pool;
            auto r = open_verbs_ring(c, &why);
            if (!r) return;
            owned[i].reset(*r);
            ring[i] = *r;
        }
    }
    ~VerbsPair() override { Kicked::forget(); }
    std::string why;
    std::unique_ptr<Ring> owned[2];

  private:
    // The devices of a process are read once, and so is its wire.
    struct Wire {
        std::string path = "/dev/shm/softhca-contract-" + std::to_string(getpid());
        Wire() { setenv("SOFTHCA_WIRE", path.c_str(), 1); }
        ~Wire() { std::filesystem::remove_all(path); }
    };
};

}  // namespace vma::test
