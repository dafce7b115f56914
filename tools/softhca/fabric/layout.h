// What the processes of one wire share: everything that a host channel adapter keeps in its own memory. A station is one
// opened device; its file holds its queues, keys and flow rules, so that whoever starts an operation also carries it out on
// the other side, as hardware would: there is no thread, and nobody has to wake up to be written to.
//
// Plain data only: every offset is from the start of the station's file, 0 is none, all times are CLOCK_MONOTONIC in
// nanoseconds. Queue and key tables are written by the owner; queue contents by whoever holds the queue's lock.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "softhca/fabric/shared_lock.h"

namespace softhca {

constexpr uint32_t kLayoutVersion = 2;
constexpr uint32_t kMaxStations = 128;  // opened devices per wire
constexpr uint32_t kQpBits = 12;        // a QP number is station << kQpBits | index
constexpr uint32_t kFirstQp = 16;  // 0 and 1 are special in InfiniBand; small numbers hide bugs
constexpr uint32_t kMaxQps = 1024, kMaxCqs = 1024, kMaxMrs = 4096, kMaxSrqs = 256, kMaxFlows = 8192;
constexpr uint32_t kMaxGids = 16, kMaxGroups = 64, kMaxWaiters = 64;
constexpr uint64_t kStationBytes = uint64_t(1) << 30;  // sparse: costs what is touched

// One slot per station in the wire's directory file.
struct StationSlot {
    std::atomic<uint32_t> pid;         // owner, 0: free
    std::atomic<uint32_t> generation;  // grows with every owner: a mapping of an older one is stale
    std::atomic<uint64_t> started;     // start time of the owner (/proc/PID/stat field 22)
    uint8_t mac[6];                    // its port's, for the switch
    std::atomic<bool> raw;             // has flow rules: the switch looks at them
    std::atomic<bool> ready;           // the rest of the slot and the station's file are filled in
};

struct Directory {
    std::atomic<uint32_t> version;          // kLayoutVersion once it is usable
    SharedLock lock;                        // claiming and freeing slots
    std::atomic<uint32_t> flow_generation;  // grows with every change of any station's rules
    StationSlot slots[kMaxStations];
};

struct MrEntry {
    std::atomic<uint32_t> key;  // lkey and rkey; 0: free. Written last
    uint32_t pd;
    uint32_t access;  // ibv_access_flags
    uint32_t
        uses;  // how often the entry was taken: a key of an earlier region is not one of a later
    uint64_t iova;  // address that work requests name
    uint64_t addr;  // address in the owner's process
    uint64_t length;
};

// A completion. `wqe` is the sender's position after this request, with which its slots are freed when it is polled.
struct Cqe {
    uint64_t wr_id;
    uint64_t timestamp;
    uint32_t status, opcode, vendor_err, byte_len;
    uint32_t imm;  // network order, or the invalidated key
    uint32_t qp_num, src_qp, wc_flags;
    uint32_t flow_tag;
    uint32_t wqe;
    uint16_t vlan;
    uint8_t is_send, sl;
};

// Nanoseconds of CLOCK_MONOTONIC, which is the device's clock.
inline uint64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000 + uint64_t(t.tv_nsec);
}

enum class Armed : uint32_t { no, any, solicited };

struct CqShared {
    SharedLock lock;
    std::atomic<uint32_t> head, tail;  // consumer and producer, free running
    uint32_t capacity, mask;           // entries a program may rely on; slots - 1
    uint64_t ring;                     // Cqe[mask + 1]
    std::atomic<Armed> armed;
    std::atomic<bool> overrun;
    bool timestamps;
    uint32_t channel;  // of the owner's process, 0: none
    uint64_t cookie;   // the owner's ibv_cq, as an event carries it
    uint16_t moderation_count, moderation_period;
};

struct RecvWqe {
    uint64_t wr_id;
    uint32_t sges, reserved;
    ibv_sge sge[];  // max_sge of the queue
};

// A receive queue: of a QP, of a WQ or shared.
struct RecvQueue {
    SharedLock lock;
    std::atomic<uint32_t> head, tail;  // taken and posted, free running
    uint32_t capacity, mask, max_sge, stride;
    uint64_t ring;
    uint32_t pd;
    uint32_t limit;   // SRQ: event below this many, 0: off
    uint64_t cookie;  // SRQ: the owner's ibv_srq
};

struct SendWqe {
    uint64_t wr_id, remote_addr, compare_add, swap;
    uint32_t opcode, flags, imm, rkey;
    uint32_t remote_qpn, remote_qkey;
    ibv_gid dgid;  // UD
    uint32_t sges, inline_len;
    uint8_t sl, sgid_index;  // UD
    uint8_t reserved[6];
    // ibv_sge[send_sge] or the inline bytes follow
};

enum class QpUse : uint32_t { free, rc, uc, ud, raw };

struct QpShared {
    QpUse use;
    std::atomic<ibv_qp_state> state;
    SharedLock send_lock;
    std::atomic<uint32_t> posted, executed, retired;  // of the send queue, free running
    uint32_t send_capacity, send_mask, send_sge, send_inline, send_stride;
    uint64_t send_ring;
    uint32_t send_cq, recv_cq;  // indices
    uint32_t srq;               // index + 1, 0: own receive queue
    RecvQueue recv;
    uint32_t pd, qkey, access, dest_qpn;
    uint8_t sl, rnr_retry, rnr_timer;
    bool signal_all, block_multicast_loop;
    ibv_gid dgid, sgid;
    ibv_mtu path_mtu;
    uint64_t waiting_since;  // first failed try of the request at `executed`, 0: none
    uint64_t timeout_ns;     // before a silent peer is an error
    uint64_t cookie;         // the owner's ibv_qp
    uint64_t frames;         // raw: FrameRing
    // Raw, injected (faults.h): ibv_wc_status with which the next request completes; 0: as it comes out.
    std::atomic<uint32_t> fail_send, fail_recv;
    ibv_gid groups[kMaxGroups];
    std::atomic<uint32_t> group_count;
};

// Frames that the switch has delivered and the owner has not yet put into its receive queue. Byte ring of FrameSlot, each
// 64-byte aligned; a slot never wraps, length kWrap says go on at the start.
struct FrameRing {
    SharedLock lock;                         // producers
    alignas(64) std::atomic<uint64_t> tail;  // bytes written, free running
    alignas(64) std::atomic<uint64_t> head;  // bytes taken
    alignas(64) uint64_t bytes;              // of `data`, a power of two
};

struct FrameSlot {
    static constexpr uint32_t kWrap = 0xffffffff;
    uint32_t length;
    uint32_t tag;
    uint32_t checksum_good;  // the sender's offload made the sums
    uint32_t reserved;
    uint8_t bytes[];
};

// One flow rule, flattened: a frame's fields under `mask` equal `value`.
struct FlowFields {
    uint8_t dst_mac[6], src_mac[6];
    uint16_t ether_type, vlan;  // network order
    uint8_t has_vlan, ip_version, protocol, tos;
    uint8_t ttl, reserved[3];
    uint8_t src_ip[16], dst_ip[16];  // IPv4 in the first four
    uint16_t src_port, dst_port;     // network order
    uint32_t vni;                    // VXLAN, network order
};

struct FlowRule {
    std::atomic<uint32_t> qp;  // index + 1, 0: free. Written last
    uint32_t type;             // ibv_flow_attr_type
    uint32_t tag;
    uint16_t priority;
    bool drop, dont_trap;

    FlowFields value, mask;
};

struct Station {
    uint32_t version, pid;
    uint64_t started;
    char device[64];
    uint8_t mac[6];
    std::atomic<uint16_t> gid_count;
    uint32_t ifindex, index;
    ibv_mtu mtu;
    std::atomic<bool> port_up, fatal;
    ibv_gid gids[kMaxGids];
    uint8_t gid_types[kMaxGids];
    SharedLock atomics;  // RDMA atomics on this station's memory exclude each other
    std::atomic<uint32_t>
        waiters[kMaxWaiters];  // QP numbers that wait for a receive request here, 0: none
    std::atomic<uint32_t> waiter_count;
    MrEntry mrs[kMaxMrs];
    QpShared qps[kMaxQps];
    CqShared cqs[kMaxCqs];
    RecvQueue srqs[kMaxSrqs];
    std::atomic<uint64_t> dropped;   // frames for which a raw QP had no room
    std::atomic<uint32_t> flow_end;  // rules beyond are free
    FlowRule flows[kMaxFlows];
    uint64_t heap;  // the owner allocates from here
};

inline uint32_t qp_number(uint32_t station, uint32_t index) { return station << kQpBits | index; }

}  // namespace softhca
