// Packet: move-only handle of one received (or pooled) frame. One owner at any time; destroying it gives the memory back
// to where it came from: the pool's free list or, for memory that a ring lends, the ring.
//
// PacketBuf is the record behind the handle. It lives in the shard arena (plain pointers are valid in a forked child) and
// is what queues link together. All operations on packets of one pool happen under that pool's shard lease.
#pragma once

#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/list.h"

namespace vma {

class PacketPool;
struct PacketBuf;

// Memory lent by somebody else than the pool (a ring's receive area). give_back is called exactly once per loan, in any
// order, by the thread that holds the shard.
class PacketLender {
  public:
    virtual void give_back(PacketBuf& buf) = 0;

  protected:
    ~PacketLender() = default;
};

struct PacketMeta {
    uint32_t ifindex = 0;   // interface the frame arrived on; 0 unknown
    uint32_t flow_tag = 0;  // ring's flow tag; 0 none
    uint16_t gso_size = 0;  // > 0: super-frame, payload bytes per segment
    uint16_t vlan_tci = 0;  // valid if has_vlan
    bool has_vlan = false;
    bool checksum_good =
        false;  // L4 checksum verified or vouched for (also: "unfinished but trusted" of virtual links)
    bool to_us = true;  // unicast to our MAC; false: multicast or broadcast
    int64_t hw_time_ns =
        0;  // the device's receive stamp; 0 none. As a ring gives it: RingCaps::counter_hz
    int64_t realtime_ns = 0;  // when the kernel received it, CLOCK_REALTIME; 0 not stamped
};

struct PacketBuf {
    ListHook hook;
    uint8_t* data = nullptr;  // start of the frame (Ethernet header)
    uint32_t len = 0;         // bytes of the frame
    uint32_t room = 0;        // bytes available at `data` (0 for lent, read-only memory)
    PacketMeta meta;
    PacketPool* pool = nullptr;      // owner of this record
    PacketLender* lender = nullptr;  // not null: `data` is lent
    uint64_t lender_cookie = 0;
    uint32_t pool_room =
        0;  // the pool's own: bytes of room behind this record, whatever the holder did to data and room
    uint8_t pool_class = 0;  // the pool's own
    // For the layer that holds the packet (parsed addresses, offsets ...); meaning changes with the holder,
    // so its contents are undefined when a packet is taken from the pool.
    alignas(8) uint8_t scratch[112] = {};

    ByteView view() const { return {data, len}; }
    template <class T>
    T& as() {
        static_assert(sizeof(T) <= sizeof(scratch));
        return *reinterpret_cast<T*>(scratch);
    }
};

void release_packet(PacketBuf* buf);  // pool.cc

class Packet {
  public:
    Packet() = default;
    explicit Packet(PacketBuf* buf) : buf_(buf) {}
    Packet(Packet&& o) noexcept : buf_(std::exchange(o.buf_, nullptr)) {}
    Packet& operator=(Packet&& o) noexcept {
        if (this != &o) {
            reset();
            buf_ = std::exchange(o.buf_, nullptr);
        }
        return *this;
    }
    Packet(const Packet&) = delete;
    Packet& operator=(const Packet&) = delete;
    ~Packet() { reset(); }

    explicit operator bool() const { return buf_ != nullptr; }
    PacketBuf* operator->() const { return buf_; }
    PacketBuf& operator*() const { return *buf_; }
    // Gives the record up to a queue; the queue must wrap it into a Packet again to free it.
    PacketBuf* detach() { return std::exchange(buf_, nullptr); }
    void reset() {
        if (buf_) release_packet(std::exchange(buf_, nullptr));
    }

  private:
    PacketBuf* buf_ = nullptr;
};

using PacketQueue = List<PacketBuf, &PacketBuf::hook>;

}  // namespace vma
