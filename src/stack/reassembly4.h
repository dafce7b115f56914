// Reassembly4: IPv4 fragments -> whole datagrams (RFC 791 section 3.2, RFC 815), bounded in number, bytes and time.
//
// Rules, those of Linux since 4.20 unless noted:
//   overlap        a fragment that overlaps received bytes, or contradicts the datagram's length, drops the whole datagram
//                  (RFC 5722). One that lies within what came in one run, each fragment behind all before it, is a duplicate
//                  and ignored alone; the length that it may tell counts, but completes nothing.
//   age            30 s from the first fragment (net.ipv4.ipfrag_time), then dropped
//   memory         charged like udp_charge() (udp_endpoint.h). Above `source_bytes` the source's oldest datagram goes, above
//                  `total_bytes` (4 MiB, ipfrag_high_thresh) or kMaxDatagrams the oldest of all. (Linux refuses the new
//                  datagram instead; then lost fragments of one peer block everybody for 30 s.)
//   shape          a fragment without payload or beyond 64 KiB drops the datagram; one before the last is cut to a multiple
//                  of 8. ECN: CE wins over ECT; Not-ECT mixed with ECT or CE drops the datagram (RFC 3168 section 5.3).
//
// No malloc: datagrams are records of this object (it lives in the shard arena), fragments wait in their own packets;
// fragments in memory lent by a ring are copied to the pool first, as they may wait long. Used under the shard lease.
#pragma once

#include <cstdint>

#include "base/drop.h"
#include "base/list.h"
#include "base/time.h"
#include "pkt/pool.h"
#include "wire/ipv4.h"

namespace vma {

struct ReassemblyLimits {
    uint32_t total_bytes = 4u << 20;
    uint32_t source_bytes =
        1u << 20;  // of one source address: 1365 smallest fragments, a 64 KiB datagram at MTU 68
    Duration lifetime = Duration::seconds(30);
};

struct ReassemblyCounters {
    uint64_t fragments = 0;   // given to add()
    uint64_t datagrams = 0;   // completed
    uint64_t timeouts = 0;    // datagrams dropped by age
    uint64_t evicted = 0;     // datagrams dropped for memory or number
    uint64_t overlaps = 0;    // datagrams dropped for overlap or contradiction
    uint64_t duplicates = 0;  // fragments ignored
};

class Reassembly4 {
  public:
    static constexpr uint32_t kMaxDatagrams = 256;

    // `secret`: random per process (hash of the table).
    Reassembly4(PacketPool& pool, uint64_t secret, ReassemblyLimits limits = {});
    ~Reassembly4() { purge(); }
    Reassembly4(const Reassembly4&) = delete;
    Reassembly4& operator=(const Reassembly4&) = delete;

    // Takes a frame whose IPv4 packet `ip` (a view into it, header verified) is a fragment. Returns the whole datagram when
    // this fragment completes one: one linear packet of the pool, 14 bytes of Ethernet without tag, the first fragment's IP
    // header with length, flags and checksum put right, the payload; meta of the first, checksum_good false. Else an empty
    // packet, with `why` none (kept) or the reason why this fragment, or its datagram, was dropped (the caller counts it).
    Packet add(Packet fragment, const Ipv4View& ip, Instant now, DropReason& why);

    // When deadline_reached() has something to do; never() while nothing waits.
    Instant deadline() const;
    // Drops what is too old; returns how many datagrams (reassembly_timeout).
    uint32_t deadline_reached(Instant now);
    void purge();

    const ReassemblyCounters& counters() const { return counters_; }
    uint32_t bytes() const { return bytes_; }          // charged now
    uint32_t datagrams() const { return datagrams_; }  // waiting now

  private:
    struct Piece;  // a fragment's place, in PacketBuf::scratch
    struct Datagram {
        ListHook bucket_hook, age_hook;
        uint64_t addresses = 0;  // source << 32 | destination
        uint32_t id_protocol = 0;
        uint32_t total = 0;     // payload bytes of the datagram; 0: last fragment not seen
        uint32_t received = 0;  // bytes of payload that are there
        uint32_t charge = 0;
        uint8_t ecn_seen = 0;  // bit per ECN value
        Instant expires;
        PacketBuf* first = nullptr;  // pieces in order of offset, disjoint
        PacketBuf* last = nullptr;
        uint32_t source() const { return uint32_t(addresses >> 32); }
    };
    using BucketList = List<Datagram, &Datagram::bucket_hook>;
    using AgeList = List<Datagram, &Datagram::age_hook>;
    static constexpr uint32_t kBuckets = 64;

    static Piece& piece(PacketBuf& buf);
    BucketList& bucket(uint64_t addresses, uint32_t id_protocol);
    Datagram* find(uint64_t addresses, uint32_t id_protocol);
    Datagram& open(uint64_t addresses, uint32_t id_protocol, Instant now);
    void close(Datagram& d);  // frees its packets and the record
    bool make_room(Datagram& keep, uint32_t charge);
    Datagram* oldest_of(uint32_t source, const Datagram& except);
    DropReason place(Datagram& d, Packet& fragment, const Ipv4View& ip, uint32_t size);
    Packet assemble(Datagram& d, DropReason& why);

    PacketPool& pool_;
    ReassemblyLimits limits_;
    uint64_t secret_;
    uint32_t bytes_ = 0, datagrams_ = 0;
    ReassemblyCounters counters_;
    AgeList age_;  // oldest first: every datagram has the same lifetime
    AgeList spare_;
    BucketList buckets_[kBuckets];
    Datagram records_[kMaxDatagrams];
};

// add(), and what it drops beside this fragment counted: datagrams too old, datagrams evicted. The caller counts `why`.
Packet reassemble(Reassembly4& reassembly, Packet fragment, const Ipv4View& ip, Instant now,
                  DropCounters& drops, DropReason& why);

}  // namespace vma
