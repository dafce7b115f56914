/* What the BPF programs (rx.bpf.c) and user space share: map keys and values. C and C++; fixed sizes. Any change of meaning
 * needs a new VMA_HOOK_VERSION, so that processes with different libraries never share a hook. */
#pragma once

#include <linux/types.h>

#define VMA_HOOK_MAGIC 0x766d6172u /* "vmar" */
#define VMA_HOOK_VERSION 9u

/* Slots 1..VMA_SLOTS-1 are rings; entry 0 of the slot table is the hook's head. */
#define VMA_SLOTS 512
#define VMA_FLOWS 131072
/* Entry 2*slot of the ring table is the data ring, 2*slot+1 its doorbell. */
#define VMA_RING_TABLE (2 * VMA_SLOTS)

/* Gates of one ring's owner page: how many flows a ring can have that somebody else writes for it. A power of two. */
#define VMA_GATES 16384

#define VMA_FLOW_GUARDED 1u /* the egress guard drops what the kernel sends for this tuple */
#define VMA_FLOW_GATED \
    2u /* counts only while its gate, in the owner page of the slot, has the value gate_value */

/* Addresses in the form of IpAddr::bytes (IPv4 mapped into IPv6), ports in network order. remote all zero: any. */
struct vma_flow_key {
    __u8 local[16];
    __u8 remote[16];
    __u16 local_port;
    __u16 remote_port;
    __u8 protocol;
    __u8 zero[3];
};

/* A flow counts only while the slot still has this generation. */
struct vma_flow {
    __u32 slot;
    __u32 generation;
    __u32 flags;
    __u32 gate; /* the last three: of gated flows */
    __u32 gate_value;
    __u32 zero;
};

/* Multicast: who gets a copy of what comes to a group and port on an interface. Group and port in network order. With port 0
 * the group is an address of the host, and what is copied is every fragment of that protocol that comes to it, of TCP but the
 * first of a datagram. */
#define VMA_GROUPS 16384
#define VMA_GROUP_RINGS 16 /* most rings of one interface with the same group and port */
struct vma_group_key {
    __u32 group;
    __u32 ifindex;
    __u16 port;
    __u16 protocol;
};
/* Filled from the front; slot 0: none. One counts only while its slot has this generation. Written under the hook's lock. */
struct vma_group {
    struct {
        __u32 slot;
        __u32 generation;
    } rings[VMA_GROUP_RINGS];
};

/* What a twin (by socket cookie) must not queue, because its owner has it from the ring in `slot`: datagrams to the group that
 * came in on the interface and that vma_rx has marked as copied. */
#define VMA_TWINS 65536
struct vma_twin_key {
    __u64 cookie;
    __u32 group;
    __u32 ifindex;
};
struct vma_twin {
    __u32 slot;
    __u32
        kept; /* how many the filter has kept from it: the kernel counts them as drops of the socket */
};
/* The mark: sk_buff's tc_index, which nothing else uses between ingress and a socket. "vm" */
#define VMA_COPIED 0x766d

/* One per slot. The two halves are written by different sides: `sleeping` and the owner's fields by user space, the
 * counters by the BPF program. */
struct vma_slot {
    __u32 sleeping; /* 1: ring the doorbell at the next frame; whoever rings sets it back to 0 */
    __u32 generation;
    __u32 owner; /* map id of the owner's life token; 0: free. Claimed by compare and swap */
    __u32 pid;   /* as the owner sees it: for people, not for decisions */
    /* The XDP socket of the ring (src/dev/xdp), written by the owner, xsk_ifindex last. */
    __u32 xsk_ifindex; /* 0: it has none */
    __u32 xsk_queue;
    __u32 xsk_room; /* longest frame that it takes */
    __u8 xsk_mac[6];
    __u8 zero[2];
    __u64 zero1[3];
    __u64 dropped_full;
    __u64 dropped_long;
    __u64 doorbells;
    __u64
        read; /* by the owner, now and then: data ring position behind what it has taken, whether it is free or not */
    __u32 order; /* of the next frame that is marked */
    __u32 zero2;
    __u64 zero3[3];
};

/* In front of a frame as XDP metadata: its place among all that the generic XDP program found to be the slot's,
 * whichever way each goes. */
struct vma_mark {
    __u32 slot; /* VMA_MARKED + slot */
    __u32 order;
};
#define VMA_MARKED 0x766d0000u

/* What the owner of a ring has in place of the tables when it may not write them (it has given up its privileges, or never
 * had them; a broker writes the flows): a map of its own, by slot in vma_owners. It takes a flow back by changing the gate's
 * value, without asking anybody. The other fields are the slot's. */
struct vma_owner {
    __u32 sleeping;
    __u32 zero[15];
    __u64 dropped_full;
    __u64 dropped_long;
    __u64 doorbells;
    __u64 read;
    __u64 zero2[4];
    __u32 gates[VMA_GATES];
};

/* Lies over entry 0 of the slot table. */
struct vma_hook_head {
    __u32 magic; /* written last by the creator */
    __u32 version;
    __u32 guarded; /* 1: a guarded flow has existed; every holder keeps the egress guard attached */
    __u32 lock;    /* life token of the process that sweeps or attaches; 0: free */
    __u32 rx_program; /* ids */
    __u32 tx_program;
    __u32 twin_program;
};

/* Flows per local port: [0] TCP, [1] UDP, index is the port in host order. A hint only: a count that stays too high after a
 * crash costs one look-up per frame to that port, never a frame. */
struct vma_ports {
    __u32 flows[2][65536];
};

/* In front of every frame in a data ring. The frame starts VMA_FRAME_OFFSET bytes after this, which puts the IP header
 * behind the ring's own 8 byte header and the Ethernet header on a multiple of 8. */
struct vma_frame_meta {
    __u32 len;
    __u32 ifindex;
    __u16 gso_size;
    __u16 vlan_tci;
    __u8 ip_summed; /* VMA_SUM_* */
    __u8 has_vlan;
    __u8 copied; /* the kernel has this frame too (ICMP errors, multicast) */
    __u8 zero;
    __u64
        stamp; /* CLOCK_REALTIME when the kernel received it, in ns; 0: it stamps nothing at the moment */
    __u64 device_stamp; /* of the driver, as it gives it to programs; 0: none */
    __u32 order;        /* of vma_mark, if it has one for this slot */
    __u32 ordered;      /* 1: it has */
};
#define VMA_FRAME_OFFSET 42
#define VMA_FRAME_MAX 66560

/* sk_buff's ip_summed. */
#define VMA_SUM_NONE 0
#define VMA_SUM_UNNECESSARY 1
#define VMA_SUM_COMPLETE 2
#define VMA_SUM_PARTIAL 3

#ifdef __cplusplus
static_assert(sizeof(vma_flow_key) == 40 && sizeof(vma_flow) == 24 && sizeof(vma_slot) == 128 &&
              sizeof(vma_hook_head) <= sizeof(vma_slot) && sizeof(vma_group_key) == 12 &&
              sizeof(vma_group) == 8 * VMA_GROUP_RINGS && sizeof(vma_twin_key) == 16 &&
              sizeof(vma_owner) == 128 + 4 * VMA_GATES && sizeof(vma_mark) == 8 &&
              sizeof(vma_frame_meta) == 40);
#endif
