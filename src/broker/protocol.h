// The protocol between the library and its broker (and later vmad): what a process asks of somebody who kept the
// capabilities. One message is one packet of a SOCK_SEQPACKET unix socket; descriptors travel beside it (SCM_RIGHTS).
//
// Two kinds of socket. The *door* is inherited by forked children; the only thing that comes through it is one end of a fresh
// socketpair per process, a *session*. On a session every packet is a Head and the body of its op. Ops that answer are
// answered by a Reply with the same serial, in order; the others are not. Both sides are of one build: another version
// or layout is refused, never translated.
//
// Nothing here is trusted: decode() checks every length and value, so that what it accepts can be used as it is.
// Host byte order: both ends are on one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/descriptor_message.h"
#include "base/ip_addr.h"
#include "base/result.h"
#include "repair/repair.h"
#include "stack/tcp/snapshot.h"

namespace vma::broker {

inline constexpr uint32_t kMagic = 0x766d6162;  // "vmab"
inline constexpr uint16_t kVersion = 4;
inline constexpr uint32_t kMostQueueBytes = 64 << 20;  // unacked, unsent and unread each
inline constexpr size_t kMostMessage = 32 * 1024;      // bytes of one packet
inline constexpr uint32_t kMostRingBytes = 1u << 30;
inline constexpr uint32_t kLeastLentBytes = 256 * 1024;  // of a ring that is asked for
inline constexpr uint32_t kMostLentBytes = 256u << 20;   // of all rings that one session asks for
inline constexpr uint32_t kSlots = 512;                  // of a hook; dev/packet/layout.h
inline constexpr uint32_t kGates = 16384;                // of an owner page; dev/packet/layout.h
inline constexpr unsigned kRingFds = 7;                  // of an opened ring

enum class Op : uint16_t {
    none,
    hello,    // identity; one descriptor less than everything else needs. No answer
    restore,  // fds: the twin, then a memfd with the queues if there are any
    cancel,   // fds: the twin; undo of restore
    finish,   // restore's message again after the flow left the ring
    checkpoint,  // fds: the twin. The answer has the image and a memfd with the bytes, if there are any
    resume,      // fds: the twin; undo of checkpoint
    release,  // fds: the twin
    // fds: the arena's memfd. Answered: from then on the connections are rescued if this process dies.
    watch,
    hold,             // fds: twins of connections that a forked child shares. No answer
    drop,             // twins that are held no longer. No answer
    prove,            // fds: a socket bound to a port: tuples of that port are this process's
    drop_privileges,  // from now on this process is not believed more than any other. No answer
    leaving,          // exec comes: when the session ends, the connections have no owner. No answer
    staying,          // exec failed. No answer
    open_ring,        // the answer has slot, token and kRingFds descriptors, in the order of RingFd
    show_ring,  // fds: the doorbell of a ring that this process has opened itself: it is kept from now on
    steer,    // fds: the twin
    unsteer,  // No answer
    // fds: one end of a socket pair, by which the process meets others in other network namespaces (dev/shm/introduction.h). A new
    // one ends the old one, and what was published by that.
    share,
    publish,  // of that: the process accepts connections at an address of its namespace
    reply,
    count
};

// What the owner of a ring maps; none of them reaches the tables that rings share.
enum RingFd : unsigned {
    kDataRing,
    kDoorbell,
    kOwnerPage,
    kLifeToken,
    kTransmitter,
    kIngressLink,  // that the programs stay on the interface when the broker is gone
    kEgressLink
};

struct Head {
    uint32_t magic = kMagic;
    uint16_t version = kVersion;
    Op op = Op::none;
    uint32_t bytes = 0;  // of the body
    uint32_t serial = 0;
};

struct WireEndpoint {
    uint8_t address[16] = {};  // IpAddr::bytes
    uint32_t scope = 0;
    uint16_t port = 0;
    uint16_t zero = 0;
    bool operator==(const WireEndpoint&) const = default;
};
WireEndpoint to_wire(const Endpoint& endpoint);
Endpoint from_wire(const WireEndpoint& endpoint);

struct Hello {
    uint32_t layout = 0;  // layout_identity() of the sender's build
    uint32_t zero = 0;
    uint64_t netns_cookie = 0;
};

// tcp::Snapshot with fixed sizes.
struct WireSnapshot {
    WireEndpoint local, remote;
    uint8_t state = 0;
    uint8_t flags = 0;  // WireFlag
    uint8_t snd_wscale = 0, rcv_wscale = 0;
    uint16_t peer_mss = 0;
    uint16_t zero = 0;
    uint32_t snd_una = 0, snd_nxt = 0, snd_end = 0, rcv_nxt = 0, unread = 0;
    uint32_t snd_wl1 = 0, snd_wnd = 0, max_window = 0, rcv_wnd = 0, rcv_wup = 0;
    uint32_t ts_value = 0, ts_recent = 0;
    uint32_t cwnd = 0, ssthresh = 0;
    int64_t srtt_ns = 0, rttvar_ns = 0;
};
enum WireFlag : uint8_t {
    kPassive = 1,
    kFinQueued = 2,
    kFinSent = 4,
    kPeerFin = 8,
    kScaling = 16,
    kSack = 32,
    kTimestamps = 64
};
WireSnapshot to_wire(const tcp::Snapshot& snapshot);
// EINVAL: cannot be a connection that the kernel could carry on.
Result<tcp::Snapshot> from_wire(const WireSnapshot& snapshot);

// RepairImage with fixed sizes.
struct WireImage {
    WireSnapshot snapshot;
    RepairOptions options;
    uint32_t to_send = 0, sent = 0;
    uint32_t path_mtu = 0;
};
WireImage to_wire(const RepairImage& image);
Result<RepairImage> from_wire(const WireImage& image);

// Body of restore to release; each uses what the function of its name in repair.h takes. The memfd of restore and finish
// holds unacked, unsent and unread back to back.
struct Repair {
    WireImage image;
    uint32_t unacked = 0, unsent = 0, unread = 0;  // bytes
};

struct Watch {
    uint64_t arena = 0;    // address of the mapping in the sender
    uint64_t reserve = 0;  // bytes of address space
    uint64_t root = 0;     // address of the ArenaRoot in it
    uint64_t ring_data =
        0;  // where the sender maps the ring's data area (twice in a row); 0: nothing is lent
    uint32_t ring_bytes = 0;
    uint32_t slot = 0;   // of the hook
    uint32_t token = 0;  // life token
    int32_t ifindex = 0;
};

struct Held {
    uint64_t connection = 0;  // address of its record in the arena
    uint64_t share =
        0;  // address in the arena of the word that tells the child "it is yours"; 0 in drop
    WireEndpoint local, remote;
};
// Body of hold and drop: `count` entries follow.
struct HeldList {
    uint32_t count = 0;
    uint32_t zero = 0;
    Held items[kMostFds];
    static constexpr size_t bytes(uint32_t n) {
        return offsetof(HeldList, items) + n * sizeof(Held);
    }
};

struct OpenRing {
    int32_t ifindex = 0;
    uint32_t bytes = 0;  // a power of two
};

struct ShowRing {
    uint32_t slot = 0;
    uint32_t token = 0;
    int32_t ifindex = 0;
    uint32_t zero = 0;
};

// Body of steer and unsteer: a flow of the ring in `slot`, which counts while its gate has the value.
struct Steer {
    WireEndpoint local, remote;  // remote all zero: any
    uint32_t slot = 0;
    uint32_t gate = 0, gate_value = 0;
    uint8_t protocol = 0;         // IPPROTO_TCP, IPPROTO_UDP
    uint8_t ignore_firewall = 0;  // 1: VMA_IGNORE_FIREWALL
    uint16_t zero = 0;
};

struct Publish {
    WireEndpoint local;
};

struct Reply {
    int32_t error = 0;   // 0 or an errno
    uint32_t slot = 0;   // open_ring
    WireImage image;     // restore: options. checkpoint: all of it
    uint32_t token = 0;  // open_ring: of the ring's owner
    uint32_t zero = 0;
};

union Body {
    Body() : reply() {}
    Hello hello;
    Repair repair;
    Watch watch;
    HeldList held;
    OpenRing open_ring;
    ShowRing show_ring;
    Steer steer;
    Publish publish;
    Reply reply;
};

bool answered(Op op);
// Would decode() accept it? Otherwise the session would end.
bool can_be_asked(const Steer& steer);

// Checks a packet with `fds` descriptors and copies its body out. EPROTO: not a message of this protocol; EINVAL: values
// that cannot be. The caller closes the descriptors in any case.
Result<Head> decode(ByteView packet, unsigned fds, Body& body);
// Bytes of the body of an op, `count` entries for the lists; 0 for ops without one.
size_t body_bytes(Op op, uint32_t count = 0);

}  // namespace vma::broker
