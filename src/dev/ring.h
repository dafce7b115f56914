// Ring: the one interface of every device kind (packet, xdp, shm, verbs, mlx5, and the tests' virtual wire).
//
// Thread rules: every call on one ring is serialised by its shard's lease, except where it says "any thread", wake_fd() and counters().
// A ring knows no socket and no protocol state; it moves frames and steers flows. tests/contract checks every kind.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/drop.h"
#include "base/ip_addr.h"
#include "base/result.h"
#include "base/time.h"
#include "pkt/packet.h"

namespace vma {

class DeviceQueues;

struct RingCaps {
    uint32_t mtu = 1500;         // largest L3 packet
    uint32_t max_gso_bytes = 0;  // largest L3 packet of a segmentation-offload frame; 0: none
    uint16_t max_gso_segments = 0;
    bool tx_checksum = false;  // finishes TxFrame::csum_start/offset
    bool rx_checksum = false;  // fills PacketMeta::checksum_good
    bool udp_gso = false;
    // > 0: PacketMeta::hw_time_ns is a reading of a counter of the device, of so many ticks a second, that wraps at the mask
    // (one less than a power of two). 0: it is time already, or not there.
    uint64_t counter_hz = 0, counter_mask = 0;
    bool copies_on_send = true;  // payload memory is free again when send() returns
    bool zero_copy_receive = false;
    bool has_neighbors = true;  // frames need the link address of the next hop
    // A receiver that has no room makes send() refuse with EAGAIN: nothing that was taken is lost. Else it is dropped there.
    bool pushes_back = false;
};

enum class Gso : uint8_t { none, tcp_v4, tcp_v6, udp_l4 };

// One frame to send. `head` holds Ethernet, IP and L4 headers back to back; the payload follows from `payload`. All memory
// is the caller's and, on rings with copies_on_send, free again when send() returns.
struct TxFrame {
    ByteView head;
    const iovec* payload = nullptr;
    uint16_t payload_count = 0;
    uint32_t payload_len = 0;  // sum of the iovecs
    uint16_t csum_start =
        0;  // offset of the L4 header from the frame start; 0: checksum is complete
    uint16_t csum_offset =
        0;  // of the checksum field from csum_start; the field holds the pseudo-header sum
    uint16_t gso_size = 0;  // payload bytes per segment when gso != none
    Gso gso = Gso::none;
    bool cwr = false;  // TCP CWR set: only the first segment carries it

    uint32_t bytes() const { return uint32_t(head.size()) + payload_len; }
    // Of the frames that it becomes.
    uint32_t wire_bytes() const {
        if (gso == Gso::none || payload_len <= gso_size) return bytes();
        return payload_len + (payload_len + gso_size - 1) / gso_size * uint32_t(head.size());
    }
};

// What a flow matches: local (destination of received frames) address and port, and for a connected flow the remote ones
// (remote.port 0: any remote). protocol: IPPROTO_TCP or IPPROTO_UDP.
struct FlowKey {
    Endpoint local;
    Endpoint remote;
    uint8_t protocol = 0;
    bool connected() const { return remote.port != 0; }
    auto operator<=>(const FlowKey&) const = default;
};

struct RingCounters {
    uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;
    DropCounters drops;       // received frames, by the ring itself
    uint64_t tx_refused = 0;  // frames the device did not take
    uint64_t wakeups = 0;
};

// What outlives the process that owned a ring, for whoever cleans up after it. All zero: nothing does.
struct RingEstate {
    uint32_t slot = 0;   // of the packet hook
    uint32_t token = 0;  // its owner's life token
    uint64_t data =
        0;  // address in the owner of the memory that received packets are lent from, mapped twice in a row
    uint32_t bytes = 0;  // of that memory, once
};

// Counts that only grow: where recv() is, and behind the last that has arrived. In whatever the ring counts in.
struct RingBacklog {
    uint64_t at = 0, end = 0;
    // Has recv(), now at `now`, seen all that had arrived when this was taken?
    bool is_through(const RingBacklog& now) const { return int64_t(end - now.at) <= 0; }
};

class Ring {
  public:
    virtual ~Ring() = default;

    virtual const RingCaps& caps() const = 0;
    // Fills `out` from the front with frames that have arrived; never blocks; returns how many. The packets are the caller's.
    virtual unsigned recv(std::span<Packet> out) = 0;
    virtual RingBacklog backlog() const = 0;
    // Sends from the front; never blocks; returns how many were taken. When fewer than given, *why tells: EAGAIN (try again
    // later), EMSGSIZE (frame too large), ENETDOWN, ENOBUFS ...
    virtual unsigned send(std::span<const TxFrame> frames, int* why) = 0;
    // Of a ring that pushes back: would send() take a frame of this flow, however large it is? Also true when it would fail for
    // another reason than EAGAIN.
    virtual bool has_room(const FlowKey&) const { return true; }

    // After steer() returned, every matching frame reaches this ring and none the kernel; after unsteer() returned, the
    // reverse. EEXIST: the tuple belongs to another ring or process. ENOSPC: table full. `twin`: descriptor of the kernel
    // socket that the tuple is for, bound to its local end; a ring that somebody else steers for has to show it. ENOLINK: that
    // somebody is gone; EACCES: he refuses; EKEYREJECTED: the kernel's own policy says no; EDQUOT: his. -1: there is no twin.
    virtual Status steer(const FlowKey& key, int twin) = 0;
    Status steer(const FlowKey& key) { return steer(key, -1); }
    virtual void unsteer(const FlowKey& key) = 0;
    // A flow of `from`, a ring of this process on the same interface: what comes from now on reaches this ring, and at no moment the
    // kernel or both. What `from` has by then, or is just given, stays there. ENOENT: it is not that ring's. EOPNOTSUPP: not with
    // these rings.
    virtual Status take_flow(const FlowKey& key, const Ring& from) {
        (void)key, (void)from;
        return Errno{EOPNOTSUPP};
    }

    // Multicast: after join() returned, this ring gets a copy of every whole datagram to the group and port `local` that
    // arrives on its interface, and `twin`, the kernel socket of the caller that is a member, queues none of these; all other
    // sockets of the host go on getting theirs from the kernel. Once per twin and group; leave() with the same undoes it, and
    // needs the twin to be open. What arrives while join() runs may come by both. EOPNOTSUPP: not with this ring; ENOSPC.
    // An address of the host in place of the group, and port 0: the same with every fragment of UDP that arrives for it, and
    // with the datagrams that the kernel makes of them.
    virtual Status join(const Endpoint& local, int twin) {
        (void)local, (void)twin;
        return Errno{EOPNOTSUPP};
    }
    // How many datagrams that has kept `twin` from queueing, as the drops that the kernel counts for it; leave() gives the last
    // word.
    virtual uint32_t kept_from(const Endpoint& local, int twin) const {
        return (void)local, (void)twin, 0;
    }
    virtual uint32_t leave(const Endpoint& local, int twin) { return (void)local, (void)twin, 0; }

    // Sleep protocol: arm(), and if it returns true (nothing pending) wait until wake_fd() polls readable, then disarm().
    // arm() false: frames are there already, do not sleep. While disarmed the fd's readiness means nothing.
    virtual int wake_fd() const = 0;
    virtual bool arm() = 0;
    virtual void disarm() = 0;

    // Has the device told something beside the data path (it failed, it is gone)? Then tend(). Any thread.
    virtual bool has_news() const { return false; }
    virtual void tend() {}
    // The device failed for good: nothing arrives any more and send() refuses. Any thread.
    virtual bool lost() const { return false; }

    // What a ring makes of the traffic as a whole, in such intervals, `time` after the last or the beginning; 0: nothing.
    virtual Duration adapts_every() const { return {}; }
    virtual void adapt(Duration time) { (void)time; }
    // The counter of RingCaps::counter_hz, now. False: it cannot be read.
    virtual bool read_counter(uint64_t* ticks) {
        (void)ticks;
        return false;
    }

    // The queues of its device (device_queues.h); null: it has none.
    virtual DeviceQueues* queues() { return nullptr; }

    virtual RingCounters counters() const = 0;
    virtual RingEstate estate() const { return {}; }

    // The process is about to lose the privileges that steer() needs: from now on somebody else steers for this ring. An
    // error: nobody does, and nothing has changed.
    virtual Status lose_privileges() { return {}; }
};

}  // namespace vma
