// A pool in a real arena, frames built by hand, and a UdpStack on top: what the UDP tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "pkt/pool.h"
#include "stack/udp_input.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma::test {

using Bytes = std::vector<uint8_t>;

inline DemuxMemory heap_memory() {
    DemuxMemory m;
    m.take = [](void*, size_t n) -> void* { return ::operator new(n, std::nothrow); };
    m.give = [](void*, void* p, size_t) { ::operator delete(p); };
    return m;
}

inline Bytes pattern(size_t n, uint64_t seed) {
    Rng rng(seed);
    Bytes b(n);
    for (auto& x : b) x = uint8_t(rng.next() >> 40);
    return b;
}

constexpr uint32_t kPeerIp = 0x0a000002, kOurIp = 0x0a000001;
constexpr uint16_t kPeerPort = 5555, kOurPort = 7777;
inline const MacAddr kPeerMac{{2, 0, 0, 0, 0, 2}}, kOurMac{{2, 0, 0, 0, 0, 1}};

struct FrameSpec {
    uint32_t src = kPeerIp, dst = kOurIp;
    uint16_t src_port = kPeerPort, dst_port = kOurPort;
    Bytes payload;
    bool checksum = true;
    bool vlan = false;
    uint16_t vlan_tci = 0;
    uint32_t padding = 0;
    Bytes ip_options;
    uint8_t protocol = 17;
    MacAddr src_mac = kPeerMac;
};

// UDP header and payload with a checksum.
inline Bytes udp_bytes(const FrameSpec& s) {
    Bytes b(8);
    b.insert(b.end(), s.payload.begin(), s.payload.end());
    emit_udp({s.src_port, s.dst_port, uint16_t(b.size()), 0}, b);
    if (s.checksum) {
        Checksum c;
        c.add_pseudo_v4(s.src, s.dst, 17, uint16_t(b.size()));
        c.add(b);
        store_be16(&b[6], c.finish() ? c.finish() : 0xffff);
    }
    return b;
}

// Ethernet and IPv4 around `l4`; `ip` gives fragment fields and id.
inline Bytes ip_frame(const FrameSpec& s, const Bytes& l4, Ipv4Header ip = {}) {
    EthernetHeader eth;
    eth.dst = kOurMac;
    eth.src = s.src_mac;
    eth.type = ethertype::ipv4;
    eth.has_vlan = s.vlan;
    eth.vlan_tci = s.vlan_tci;
    ip.src = s.src;
    ip.dst = s.dst;
    ip.protocol = s.protocol;
    ip.ttl = 63;
    ip.header_len = uint8_t(20 + s.ip_options.size());
    ip.total_len = uint16_t(ip.header_len + l4.size());
    Bytes f(eth.size() + ip.header_len);
    emit_ethernet(eth, f);
    EXPECT_NE(emit_ipv4(ip, ByteSpan(f).subspan(eth.size()), s.ip_options), 0u);
    f.insert(f.end(), l4.begin(), l4.end());
    f.resize(f.size() + s.padding, 0xee);
    return f;
}

inline Bytes udp_frame(const FrameSpec& s) { return ip_frame(s, udp_bytes(s)); }

class UdpFixture : public testing::Test {
  protected:
    UdpFixture()
        : arena(*Arena::create(256u << 20)),
          pool(*arena->make<PacketPool>(*arena)),
          stack(heap_memory(), 42) {
        stack.mac = kOurMac;
        stack.pool = &pool;
    }
    ~UdpFixture() override {
        EXPECT_EQ(pool.counters().in_use, out_at_end) << "packets that did not come home";
        arena->destroy(&pool);
        Arena::unmap(arena);
    }
    Packet packet(const Bytes& bytes) {
        Packet p = pool.take(bytes.size());
        EXPECT_TRUE(p);
        if (!bytes.empty()) std::memcpy(p->data, bytes.data(), bytes.size());
        p->len = uint32_t(bytes.size());
        return p;
    }
    DropReason input(const Bytes& bytes) { return udp_input(stack, packet(bytes), now, 1234); }
    static Bytes text(ByteView v) { return Bytes(v.begin(), v.end()); }

    Arena* arena;
    PacketPool& pool;
    UdpStack stack;
    Instant now{1000000000};
    uint64_t out_at_end = 0;
};

}  // namespace vma::test
