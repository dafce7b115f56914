// SPDX-License-Identifier: (BSD-3-Clause OR GPL-2.0-only)
// The packet ring's programs: two for TCX (tcx ingress and egress, Linux 6.6) and a socket filter.
//
// vma_rx   one per interface for all processes: frames of a steered flow are copied into that ring's BPF ring buffer and end
//          there; multicast is copied to every ring that has the group and goes on to the kernel, marked, and so are
//          fragments for the rings that put them together themselves; everything else goes on to the kernel untouched.
// vma_tx   the guard: what the kernel itself sends for a guarded tuple (RST and ACK of a twin that knows nothing) ends here.
//          The rings' own frames leave by PACKET_QDISC_BYPASS and pass it only on an interface below their own.
// vma_twin the filter of a twin that is in a group, or whose ring has the fragments: what its ring has a copy of is not queued
//          a second time. What the kernel puts together has the mark of the first fragment.
#include <linux/bpf.h>
#include <linux/in.h>
// after the kernel's types, which these use
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flows.bpf.h"
#include "layout.h"

#define TCX_PASS_ON (-1)  // TCX_NEXT
#define TCX_DROP 2
#define FOR_THIS_HOST 0  // PACKET_HOST
#define FOR_A_GROUP 2    // PACKET_MULTICAST
#define STREAM_SOCKET 1  // SOCK_STREAM
#ifndef BPF_F_CURRENT_NETNS
#define BPF_F_CURRENT_NETNS (-1L)
#endif
#define IPV4_ETHERTYPE 0x0800
#define ETHERNET_BYTES 14
#define FAMILY_PACKET 17
#define TCP_SYN 2
#define TCP_ACK 16

char program_license[] SEC("license") = "Dual BSD/GPL";

// Only the one field that __sk_buff does not have; found by name in the running kernel's types.
struct sk_buff {
    __u8 ip_summed : 2;
} __attribute__((preserve_access_index));
extern void* bpf_cast_to_kern_ctx(void*) __ksym;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, VMA_FLOWS);
    __type(key, struct vma_flow_key);
    __type(value, struct vma_flow);
} vma_flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, VMA_SLOTS);
    __type(key, __u32);
    __type(value, struct vma_slot);
} vma_slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct vma_ports);
} vma_ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, VMA_GROUPS);
    __type(key, struct vma_group_key);
    __type(value, struct vma_group);
} vma_groups SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, VMA_TWINS);
    __type(key, struct vma_twin_key);
    __type(value, struct vma_twin);
} vma_twins SEC(".maps");

struct ring_shape {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, VMA_RING_TABLE);
    __type(key, __u32);
    __array(values, struct ring_shape);
} vma_rings SEC(".maps") = {};

struct owner_shape {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(struct vma_owner));
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, VMA_SLOTS);
    __type(key, __u32);
    __array(values, struct owner_shape);
} vma_owners SEC(".maps") = {};

static __always_inline int flow_of(__u8 protocol, __be32 local, __be16 local_port, __be32 remote,
                                   __be16 remote_port, struct hit* hit) {
    const struct tables tables = {&vma_flows, &vma_slots, &vma_ports, &vma_owners};
    return find_flow(&tables, protocol, local, local_port, remote, remote_port, hit);
}

// A listener's flow covers every remote. Connections of the same port that the kernel has (made before the flow, handed back,
// or come by another interface) stay the kernel's: does it have one for this tuple?
static __always_inline int kernel_has_connection(struct __sk_buff* skb, __be32 src, __be16 sport,
                                                 __be32 dst, __be16 dport) {
    struct bpf_sock_tuple tuple = {};
    tuple.ipv4.saddr = src;
    tuple.ipv4.sport = sport;
    tuple.ipv4.daddr = dst;
    tuple.ipv4.dport = dport;
    struct bpf_sock* sk =
        bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
    if (!sk) return 0;
    const int listener = sk->state == BPF_TCP_LISTEN;
    bpf_sk_release(sk);
    return !listener;
}

// The XDP program's mark of a frame that goes to the ring of `slot`; 0: there is none.
static __always_inline int find_mark(struct __sk_buff* skb, __u32 slot, __u32* order) {
    const void *data = (void*)(long)skb->data, *meta = (void*)(long)skb->data_meta;
    const struct vma_mark* mark = meta;
    if (meta + sizeof(*mark) > data || mark->slot != VMA_MARKED + slot) return 0;
    *order = mark->order;
    return 1;
}

static __always_inline void fill_meta(struct __sk_buff* skb, struct vma_frame_meta* meta, __u32 len,
                                      int copied, int ordered, __u32 order) {
    struct sk_buff* kernel_skb = bpf_cast_to_kern_ctx(skb);
    meta->len = len;
    meta->ifindex = skb->ifindex;
    meta->gso_size = skb->gso_size;
    meta->vlan_tci = skb->vlan_tci;
    meta->has_vlan = skb->vlan_present;
    meta->ip_summed = BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed);
    meta->copied = copied;
    meta->zero = 0;
    meta->stamp = skb->tstamp;
    meta->device_stamp = skb->hwtstamp;
    meta->order = order;
    meta->ordered = ordered;
}

// Wakes the reader if it sleeps. Called after the submit, whose atomic exchange of the record header is a full barrier: either
// we see `sleeping` or the reader, which looks at the producer position after setting it, sees the record.
static __always_inline void wake(__u32* sleeping, __u64* doorbells, __u32 slot) {
    if (!*(volatile __u32*)sleeping) return;
    if (!__sync_lock_test_and_set(sleeping, 0)) return;  // another CPU rings
    const __u32 door = 2 * slot + 1;
    void* bell = bpf_map_lookup_elem(&vma_rings, &door);
    if (!bell) return;
    __u64* ring = bpf_ringbuf_reserve(bell, sizeof(*ring), 0);
    if (!ring) return;  // full: an unread doorbell keeps the descriptor readable
    *ring = 0;
    bpf_ringbuf_submit(ring, BPF_RB_FORCE_WAKEUP);
    __sync_fetch_and_add(doorbells, 1);
}

// bpf_ringbuf_reserve takes constant sizes only.
#define SIZE_CLASS(room)                                                             \
    if (len <= room) {                                                               \
        __u8* record = bpf_ringbuf_reserve(ring, VMA_FRAME_OFFSET + room, 0);        \
        if (!record) goto full;                                                      \
        fill_meta(skb, (struct vma_frame_meta*)record, len, copied, ordered, order); \
        if (bpf_skb_load_bytes(skb, 0, record + VMA_FRAME_OFFSET, len)) {            \
            bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);                           \
            return TCX_PASS_ON;                                                      \
        }                                                                            \
        bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);                                \
        goto done;                                                                   \
    }

static __always_inline int drop_full(const struct hit* hit) {
    if (hit->owner)
        __sync_fetch_and_add(&hit->owner->dropped_full, 1);
    else
        __sync_fetch_and_add(&hit->slot->dropped_full, 1);
    return TCX_DROP;
}

// Copies the frame to the flow's ring. A full ring drops it, as a full socket buffer would. `copied`: the kernel has it too.
static __always_inline int deliver(struct __sk_buff* skb, const struct hit* hit, int copied) {
    struct vma_slot* s = hit->slot;
    struct vma_owner* owner = hit->owner;
    const __u32 slot = hit->number, data = 2 * slot;
    void* ring = bpf_map_lookup_elem(&vma_rings, &data);
    if (!ring) return TCX_PASS_ON;
    __u32 len = skb->len;
    barrier_var(len);
    if (len < ETHERNET_BYTES) return TCX_PASS_ON;
    __u32 order = 0;
    const int ordered = find_mark(skb, slot, &order);
    SIZE_CLASS(64)
    SIZE_CLASS(128)
    SIZE_CLASS(256)
    SIZE_CLASS(512)
    SIZE_CLASS(1024)
    SIZE_CLASS(2048)
    SIZE_CLASS(4096)
    SIZE_CLASS(9216)
    SIZE_CLASS(16384)
    SIZE_CLASS(32768)
    SIZE_CLASS(VMA_FRAME_MAX)
    if (copied) return TCX_PASS_ON;
    if (owner)
        __sync_fetch_and_add(&owner->dropped_long, 1);
    else
        __sync_fetch_and_add(&s->dropped_long, 1);
    return TCX_DROP;
full:
    drop_full(hit);
    return copied ? TCX_PASS_ON : TCX_DROP;
done:
    if (owner)
        wake(&owner->sleeping, &owner->doorbells, slot);
    else
        wake(&s->sleeping, &s->doorbells, slot);
    return copied ? TCX_PASS_ON : TCX_DROP;
}

// Is an eighth of the ring unread? What anybody can send without being connected may fill no more: the rest is for those who
// are, whose frames would else be lost in, or wait behind, as many as a flood brings.
static __always_inline int is_crowded(const struct hit* hit) {
    const __u32 data = 2 * hit->number;
    void* ring = bpf_map_lookup_elem(&vma_rings, &data);
    if (!ring) return 0;
    // What the owner has taken and not given back is not counted: an application may leave it for as long as it likes.
    const __u64 unread = bpf_ringbuf_query(ring, BPF_RB_PROD_POS) -
                         (hit->owner ? hit->owner->read : hit->slot->read);
    return unread > bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 8;
}

// A connection request that finds no room in its eighth is dropped and comes again, as with a full backlog.
static __always_inline int crowds_out(struct __sk_buff* skb, const struct hit* hit, __u32 header) {
    __u8 flags = 0;
    if (bpf_skb_load_bytes(skb, ETHERNET_BYTES + header + 13, &flags, 1)) return 0;
    return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN && is_crowded(hit);
}

// Unreachable, time exceeded, parameter problem: what they quote is a packet that we sent.
static __always_inline int icmp_error(struct __sk_buff* skb, __u32 offset) {
    struct {
        __u8 type, code;
        __be16 check;
        __be32 rest;
        struct ipv4 ip;
    } __attribute__((packed)) quote;
    struct ports l4;
    if (bpf_skb_load_bytes(skb, offset, &quote, sizeof(quote))) return TCX_PASS_ON;
    if (quote.type != 3 && quote.type != 11 && quote.type != 12) return TCX_PASS_ON;
    if (quote.ip.protocol != IPPROTO_TCP || quote.ip.version_ihl >> 4 != 4) return TCX_PASS_ON;
    const __u32 header = (quote.ip.version_ihl & 15) * 4;
    if (header < 20 || quote.ip.frag & bpf_htons(0x1fff)) return TCX_PASS_ON;
    if (bpf_skb_load_bytes(skb, offset + 8 + header, &l4, sizeof(l4))) return TCX_PASS_ON;
    struct hit hit;
    if (!flow_of(IPPROTO_TCP, quote.ip.src, l4.src, quote.ip.dst, l4.dst, &hit)) return TCX_PASS_ON;
    return deliver(skb, &hit, 1);
}

// One ring's copy of a multicast frame or fragment; 1 when the ring is one that counts. Its twins do not get what it had no
// room for, but a fragment that finds no room in its eighth of the ring is not the ring's: of a first one the twin has the datagram.
static __noinline int copy_to(struct __sk_buff* skb, __u32 slot, __u32 generation, int fragment) {
    struct vma_slot* s = bpf_map_lookup_elem(&vma_slots, &slot);
    if (!s || *(volatile __u32*)&s->generation != generation) return 0;
    struct hit hit = {};
    hit.slot = s;
    hit.number = slot;
    if (fragment && is_crowded(&hit)) return 0;
    deliver(skb, &hit, 1);
    return 1;
}

// Every ring with the group gets a copy; other processes, and the kernel's own members, get theirs from the kernel. Port 0: of
// a fragment, every ring that wants those to an address.
static __always_inline int to_group(struct __sk_buff* skb, __u8 protocol, __be32 group,
                                    __be16 port) {
    // A mark from elsewhere (another namespace, of which this interface is the peer) means nothing here.
    if (skb->tc_index == VMA_COPIED) skb->tc_index = 0;
    const __u32 zero = 0;
    struct vma_ports* ports = bpf_map_lookup_elem(&vma_ports, &zero);
    const int index = port_index(protocol);
    if (!ports || index < 0) return TCX_PASS_ON;
    if (!(index ? ports->flows[1][bpf_ntohs(port)] : ports->flows[0][bpf_ntohs(port)]))
        return TCX_PASS_ON;
    struct vma_group_key key = {
        .group = group, .ifindex = skb->ifindex, .port = port, .protocol = protocol};
    const struct vma_group* members = bpf_map_lookup_elem(&vma_groups, &key);
    if (!members) return TCX_PASS_ON;
    for (int i = 0; i < VMA_GROUP_RINGS; i++) {
        const __u32 slot = members->rings[i].slot;
        if (!slot) break;
        if (copy_to(skb, slot, members->rings[i].generation, port == 0)) skb->tc_index = VMA_COPIED;
    }
    return TCX_PASS_ON;
}

SEC("tc") int vma_rx(struct __sk_buff* skb) {
    struct {
        struct ipv4 ip;
        struct ports l4;
    } __attribute__((packed)) head;
    // What this host's own multicast loops back to it (pkt_type 5) comes without an Ethernet header, and is the kernel's.
    const int grouped = skb->pkt_type == FOR_A_GROUP;
    if ((skb->pkt_type != FOR_THIS_HOST && !grouped) || skb->protocol != bpf_htons(IPV4_ETHERTYPE))
        return TCX_PASS_ON;
    if (skb->vlan_present && (skb->vlan_tci & 0xfff)) return TCX_PASS_ON;
    const void *data = (void*)(long)skb->data, *end = (void*)(long)skb->data_end;
    if (data + ETHERNET_BYTES + sizeof(head) <= end)
        __builtin_memcpy(&head, data + ETHERNET_BYTES, sizeof(head));
    else if (bpf_skb_load_bytes(skb, ETHERNET_BYTES, &head, sizeof(head)) &&  // zeroes it then
             bpf_skb_load_bytes(skb, ETHERNET_BYTES, &head.ip, sizeof(head.ip)))
        return TCX_PASS_ON;  // a fragment may be shorter than ports are
    const __u32 header = (head.ip.version_ihl & 15) * 4;
    if (head.ip.version_ihl >> 4 != 4 || header < 20) return TCX_PASS_ON;
    // Ports are in the first fragment only. So a ring that puts datagrams together itself has asked for a copy of each fragment that
    // comes to its address, a group with port 0; the kernel puts them together for everybody else. Of TCP the first one
    // goes where its connection is, and the kernel, which has no such connection then, cannot answer it.
    const __be16 fragment = head.ip.frag & bpf_htons(0x3fff);
    if (fragment && (head.ip.protocol != IPPROTO_TCP || fragment & bpf_htons(0x1fff)))
        return grouped ? TCX_PASS_ON : to_group(skb, head.ip.protocol, head.ip.dst, 0);
    if (head.ip.src == head.ip.dst) return TCX_PASS_ON;
    if (grouped && head.ip.protocol != IPPROTO_UDP) return TCX_PASS_ON;
    if (head.ip.protocol == IPPROTO_ICMP) return icmp_error(skb, ETHERNET_BYTES + header);
    if (port_index(head.ip.protocol) < 0) return TCX_PASS_ON;
    if (header > 20 && bpf_skb_load_bytes(skb, ETHERNET_BYTES + header, &head.l4, sizeof(head.l4)))
        return TCX_PASS_ON;
    if (grouped) return to_group(skb, IPPROTO_UDP, head.ip.dst, head.l4.dst);
    struct hit hit;
    if (!flow_of(head.ip.protocol, head.ip.dst, head.l4.dst, head.ip.src, head.l4.src, &hit))
        return TCX_PASS_ON;
    if (!hit.connected && head.ip.protocol == IPPROTO_TCP) {
        if (kernel_has_connection(skb, head.ip.src, head.l4.src, head.ip.dst, head.l4.dst))
            return TCX_PASS_ON;
        if (crowds_out(skb, &hit, header)) return drop_full(&hit);
    }
    return deliver(skb, &hit, 0);
}

// Did a connection of the kernel's send this? A RST that its program asked for (SO_LINGER, unread data) comes from the socket,
// unhashed already but with its tuple; the answer to a segment of nobody comes from a socket of the kernel's own, which is raw.
static __always_inline int is_from_connection(struct __sk_buff* skb) {
    struct bpf_sock* sk = skb->sk;
    if (!sk) return 0;
    sk = bpf_sk_fullsock(sk);
    return sk && sk->type == STREAM_SOCKET && sk->dst_port != 0;
}

SEC("tc") int vma_tx(struct __sk_buff* skb) {
    struct {
        struct ipv4 ip;
        struct ports l4;
    } __attribute__((packed)) head;
    if (skb->protocol != bpf_htons(IPV4_ETHERTYPE)) return TCX_PASS_ON;
    if (bpf_skb_load_bytes(skb, ETHERNET_BYTES, &head, sizeof(head))) return TCX_PASS_ON;
    const __u32 header = (head.ip.version_ihl & 15) * 4;
    if (head.ip.protocol != IPPROTO_TCP || header < 20 || head.ip.frag & bpf_htons(0x1fff))
        return TCX_PASS_ON;
    if (header > 20 && bpf_skb_load_bytes(skb, ETHERNET_BYTES + header, &head.l4, sizeof(head.l4)))
        return TCX_PASS_ON;
    struct hit hit;
    if (!flow_of(IPPROTO_TCP, head.ip.src, head.l4.src, head.ip.dst, head.l4.dst, &hit) ||
        !(hit.flow->flags & VMA_FLOW_GUARDED))
        return TCX_PASS_ON;
    // The ring's own, which come by when their interface is on top of another one (bridge, macvlan).
    if (skb->sk && skb->sk->family == FAMILY_PACKET) return TCX_PASS_ON;
    if (!hit.connected) {
        // Under a listener's flow the kernel may have connections of its own; of ours it knows nothing, and what it
        // says about those is a RST.
        __u8 flags = 0;
        bpf_skb_load_bytes(skb, ETHERNET_BYTES + header + 13, &flags, 1);
        if (!(flags & 4) || is_from_connection(skb)) return TCX_PASS_ON;
    }
    return TCX_DROP;
}

#define KEEP_ALL (-1)
#define KEEP_NONE 0

SEC("socket") int vma_twin(struct __sk_buff* skb) {
    if (skb->tc_index != VMA_COPIED) return KEEP_ALL;
    struct vma_twin_key key = {.cookie = bpf_get_socket_cookie(skb), .ifindex = skb->ifindex};
    if (bpf_skb_load_bytes_relative(skb, offsetof(struct ipv4, dst), &key.group, sizeof(key.group),
                                    BPF_HDR_START_NET))
        return KEEP_ALL;
    struct vma_twin* twin = bpf_map_lookup_elem(&vma_twins, &key);
    if (!twin) return KEEP_ALL;
    __sync_fetch_and_add(&twin->kept, 1);
    return KEEP_NONE;
}
