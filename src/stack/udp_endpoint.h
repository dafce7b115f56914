// UdpEndpoint: the protocol half of a UDP socket: addresses, receive queue, limit, counters. It knows no fd and no lock;
// it lives in the shard arena and is used under the shard lease.
//
// Receive limit, as Linux's sk_rcvbuf (the value getsockopt(SO_RCVBUF) shows): each queued datagram is charged what a
// kernel socket buffer of its size would cost at least, and one datagram is admitted while the charge so far is not above
// the limit. So a program that sets SO_RCVBUF to N loses no datagram earlier than on the kernel:
//     charge(frame bytes incl. Ethernet) = max(768, 576 + frame rounded up to 64)
// Linux charges skb->truesize: 768 for the smallest skb on x86-64; over veth and lo, kernel 6.18, we saw 832 up to ~200 bytes
// of payload, 1280 up to ~650 and 2304 up to 1472. Ours is at or below those. Linux 6.18 refuses the datagram that would
// pass the limit, older kernels the first one after it was passed: we do the latter, the more generous.
#pragma once

#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/drop.h"
#include "base/ip_addr.h"
#include "base/list.h"
#include "base/time.h"
#include "pkt/pool.h"
#include "stack/demux.h"
#include "stack/group_filter.h"
#include "stack/tx_stamp.h"

namespace vma {

constexpr uint32_t udp_charge(uint32_t frame_bytes) {
    const uint32_t c = 576 + ((frame_bytes + 63) & ~63u);
    return c < 768 ? 768 : c;
}

// What udp_input() knows about a datagram; while it is queued this is PacketBuf::scratch.
// A UDP_GRO super-frame is one packet that holds several datagrams: [next, end) is what is unread, cut every
// `segment_size` bytes; no byte is copied.
struct UdpRxInfo {
    Endpoint source, destination;
    uint32_t next = 0, end = 0;  // payload offsets from PacketBuf::data
    uint32_t charge = 0;         // of one datagram
    uint32_t drops = 0;  // dropped_full when it was queued, of an endpoint that tells drops; wraps
    uint16_t segment_size = 0;  // 0: a single datagram
    bool whole = false;         // the super-frame is read at once (UDP_GRO)
    uint8_t ttl = 0, tos = 0;
    Instant arrival;  // when the frame was taken from the ring
    int64_t realtime_ns =
        0;  // when the host received it, CLOCK_REALTIME: SO_TIMESTAMP, and the order among paths
};

// One unread datagram as a reader sees it. Views are valid until it is consumed.
struct UdpDatagram {
    const UdpRxInfo* info = nullptr;
    const PacketMeta* meta = nullptr;  // ifindex, hardware stamp
    ByteView payload;
};

struct UdpCounters {
    uint64_t rx_datagrams = 0, rx_bytes = 0;  // queued; payload bytes
    uint64_t dropped_full = 0, dropped_peer = 0;
    uint64_t dropped_full_bytes = 0;          // payload
    uint64_t tx_datagrams = 0, tx_bytes = 0;  // counted by the sender of the frames
    uint32_t queued_max = 0,
             charged_max = 0;  // most datagrams waiting at once, and the most they were charged
};

class UdpEndpoint {
  public:
    UdpEndpoint() = default;
    explicit UdpEndpoint(const Endpoint& local_endpoint) : local(local_endpoint) {}
    UdpEndpoint(const UdpEndpoint&) = delete;
    UdpEndpoint& operator=(const UdpEndpoint&) = delete;
    ~UdpEndpoint();  // frees what is queued and leaves the fresh list; it must be out of every Demux

    // Bound address (any: every address) and peer (port 0: not connected). Whoever changes them re-keys the Demux.
    Endpoint local, remote;
    bool connected() const { return remote.port != 0; }
    FlowTuple tuple() const { return {local, remote}; }
    // Connected sockets take datagrams of their peer only; what was queued before connect() stays, as in Linux.
    bool admits(const Endpoint& source) const { return !connected() || source == remote; }

    // Queues the datagrams of `packet` (info filled, scratch is overwritten). none: at least the first one was queued; of a
    // super-frame the tail that does not fit is counted in dropped_full. Else the packet is freed and the reason says why.
    DropReason deliver(Packet packet, const UdpRxInfo& info);

    // Does it take what came to this multicast group and port from `source`?
    bool admits_group(const Endpoint& group, const Endpoint& source) const {
        return local.port == group.port && (local.addr.is_any() || local.addr == group.addr) &&
               admits(source) && groups->admits(group.addr.v4_host(), source.addr.v4_host());
    }

    bool readable() const { return !passed_.empty() || (!screened && !queue_.empty()); }
    // Oldest unread datagram; false when there is none.
    bool peek(UdpDatagram& out);
    // Removes it. Memory goes home with the last piece.
    void consume();
    // Zero copy: what would be read next becomes the caller's, in memory of `pool` that stays where it is whatever the ring does
    // (a lent frame or a part of a super-frame is copied there); `info` says where its payload is in it, as one datagram, and
    // what it is charged until kept_returned(). Empty: there is none, or no memory, and it stays in the queue.
    Packet keep_front(PacketPool& pool, UdpRxInfo& info);
    void kept_returned(uint32_t charge) { charged_ -= charge; }
    // Payload bytes of the oldest datagram (FIONREAD), 0 when there is none or it is empty.
    uint32_t next_size();
    void purge();  // drops everything that is queued
    // Shows what peek() and consume() would give, oldest first, until `visit` says false: visit(info, meta, bytes).
    template <class Visit>
    void for_each_unread(Visit&& visit) {
        for (PacketQueue* queue : {&passed_, &queue_}) {
            if (queue == &queue_ && screened) return;
            for (PacketBuf* buf = queue->front(); buf; buf = queue->next(*buf)) {
                UdpRxInfo info = buf->as<UdpRxInfo>();
                do {
                    const uint32_t bytes = first_size(info);
                    if (!visit(std::as_const(info), std::as_const(buf->meta), bytes)) return;
                    info.next += bytes;
                } while (info.next < info.end);
            }
        }
    }

    // Stamps of what it sent, until the program reads them; charged as what it receives. False: there is no room.
    bool queue_stamp(Packet frame, const TxStamp& stamp);
    // The oldest, whose scratch is a TxStamp; null: there is none.
    PacketBuf* first_stamp() { return stamps_.front(); }
    void consume_stamp();

    // SO_RXQ_OVFL: each datagram that is queued from here on knows how many were dropped before it.
    void set_tells_drops(bool on) { tells_drops_ = on; }

    // UDP_GRO: super-frames that are queued from here on are read as they are, not cut into their datagrams.
    void set_whole_trains(bool on) { whole_trains_ = on; }

    void set_receive_limit(uint32_t bytes) { receive_limit_ = bytes; }
    uint32_t receive_limit() const { return receive_limit_; }
    uint32_t charged() const {
        return charged_;
    }                                            // what is queued or kept, in the unit of the limit
    uint32_t queued() const { return queued_; }  // datagrams

    // ---- A screen: readers see only what was let through. What arrives waits for screen_front() until pass() or
    // kept_returned().
    bool screened = false;
    bool unscreened() const { return screened && !queue_.empty(); }
    // As keep_front(), of those that wait for the screen.
    Packet screen_front(PacketPool& pool, UdpRxInfo& info) {
        return take_front(queue_, pool, info);
    }
    // Readable from now on, behind those before it; `info` as screen_front() gave it.
    void pass(Packet packet, const UdpRxInfo& info);
    uint32_t passed() const { return passed_count_; }  // datagrams, and their payload
    uint32_t passed_bytes() const { return passed_bytes_; }

    UdpCounters counters;
    uint16_t ip_id = 0;     // last IPv4 id of a connected endpoint (ip_id.h); random at connect
    void* owner = nullptr;  // of the layer above (its socket record); not touched here
    ListHook fresh_hook;    // in UdpStack::fresh since something arrived
    // Memberships on the interface of this shard; null: none, and it is in no UdpGroups. The memory is of whoever sets it.
    const GroupFilter* groups = nullptr;
    uint32_t groups_bytes = 0;  // of that memory, for its owner
    ListHook group_hook;        // in UdpGroups

  private:
    // Payload bytes of the first datagram, and of what is read of it at once.
    static uint32_t segment_bytes(const UdpRxInfo& info);
    static uint32_t first_size(const UdpRxInfo& info);
    // Where the next reader looks.
    PacketQueue& head() { return passed_.empty() ? queue_ : passed_; }
    Packet take_front(PacketQueue& from, PacketPool& pool, UdpRxInfo& info);
    void advance(PacketQueue& from);
    void consume_from(PacketQueue& from);

    PacketQueue passed_;  // by the screen; single datagrams
    uint32_t passed_count_ = 0, passed_bytes_ = 0;
    PacketQueue queue_, stamps_;
    bool whole_trains_ = false;
    bool tells_drops_ = false;
    uint32_t receive_limit_ = 212992;  // net.core.rmem_default
    uint32_t charged_ = 0, queued_ = 0;
};

using UdpFreshList = List<UdpEndpoint, &UdpEndpoint::fresh_hook>;
using UdpDemux = Demux<UdpEndpoint>;

// The endpoints that are in multicast groups, found by the address and port they are bound to (a group or any). Used under the
// shard lease.
class UdpGroups {
  public:
    void insert(UdpEndpoint& e) { bucket(e.local).push_back(e); }
    static void remove(UdpEndpoint& e) { e.group_hook.unlink(); }
    // visit(UdpEndpoint&) for each that takes what came to `group` from `source`.
    template <class Visit>
    void for_each(const Endpoint& group, const Endpoint& source, Visit visit) {
        Bucket& bound = bucket(group);
        Bucket& any = bucket({IpAddr::any_v4(), group.port});
        for (Bucket* bucket : {&bound, &any}) {
            for (UdpEndpoint* e = bucket->front(); e; e = bucket->next(*e))
                if (e->admits_group(group, source)) visit(*e);
            if (&any == &bound) return;
        }
    }

  private:
    using Bucket = List<UdpEndpoint, &UdpEndpoint::group_hook>;
    static constexpr uint32_t kBuckets = 256;
    Bucket& bucket(const Endpoint& e) {
        return buckets_[(e.addr.v4_host() * 0x9e3779b1u >> 16 ^ e.port) % kBuckets];
    }
    Bucket buckets_[kBuckets];
};

}  // namespace vma
