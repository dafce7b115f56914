// SPDX-License-Identifier: (BSD-3-Clause OR GPL-2.0-only)
// The xdp ring's program, one per interface for all processes: a frame that the ring's XDP socket can carry whole goes there,
// everything else on to the kernel, where the packet ring's program takes what is a ring's (docs/decisions/0025-xdp-ring.md).
//
// Both ways together keep the order of arrival by a mark in front of each frame. Generic XDP runs before TCX for the same frame and
// one frame after the other, so who sees a frame in one way sees all earlier ones in the other.
#include <linux/bpf.h>
#include <linux/in.h>
// after the kernel's types, which these use
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flows.bpf.h"
#include "layout.h"

#define IPV4_ETHERTYPE 0x0800
#define ETHERNET_BYTES 14
#define CACHE_LINE 64

char program_license[] SEC("license") = "Dual BSD/GPL";

// Found by name in the running kernel's types.
struct xdp_buff {
    void* data_hard_start;
    __u32 frame_sz;
} __attribute__((preserve_access_index));
struct skb_shared_info {
    unsigned short gso_size;
} __attribute__((preserve_access_index));
extern void* bpf_cast_to_kern_ctx(void*) __ksym;

// The hook's tables, one map of one entry for each.
struct flows_shape {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(struct vma_flow_key));
    __uint(value_size, sizeof(struct vma_flow));
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 1);
    __type(key, __u32);
    __array(values, struct flows_shape);
} xdp_flows SEC(".maps") = {};

struct slots_shape {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, VMA_SLOTS);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(struct vma_slot));
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 1);
    __type(key, __u32);
    __array(values, struct slots_shape);
} xdp_slots SEC(".maps") = {};

struct ports_shape {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(struct vma_ports));
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 1);
    __type(key, __u32);
    __array(values, struct ports_shape);
} xdp_ports SEC(".maps") = {};

// By slot.
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, VMA_SLOTS);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(__u32));
} xdp_sockets SEC(".maps");

// Generic XDP: is it a segmentation-offload frame, of whatever size? What follows the frame's memory is the packet's.
static __always_inline int is_super_frame(struct xdp_md* ctx) {
    const struct xdp_buff* frame = bpf_cast_to_kern_ctx(ctx);
    const __u32 info =
        (bpf_core_type_size(struct skb_shared_info) + CACHE_LINE - 1) & ~(CACHE_LINE - 1);
    const void* at = frame->data_hard_start + frame->frame_sz - info +
                     bpf_core_field_offset(struct skb_shared_info, gso_size);
    __u16 gso_size = 1;
    if (bpf_probe_read_kernel(&gso_size, sizeof(gso_size), at)) return 1;
    return gso_size != 0;
}

static __always_inline int mark(struct xdp_md* ctx, __u32 slot, __u32 order) {
    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct vma_mark))) return 0;
    struct vma_mark* at = (void*)(long)ctx->data_meta;
    if ((void*)(at + 1) > (void*)(long)ctx->data) return 0;
    at->slot = VMA_MARKED + slot;
    at->order = order;
    return 1;
}

// The ring of this frame, if it has an XDP socket for where the frame came in.
static __always_inline int find_ring(struct xdp_md* ctx, struct hit* hit, __u8* protocol) {
    const __u8 *data = (void*)(long)ctx->data, *end = (void*)(long)ctx->data_end;
    const struct ipv4* ip = (const void*)(data + ETHERNET_BYTES);
    if ((const void*)(ip + 1) > (const void*)end) return 0;
    if (*(const __be16*)(data + 12) != bpf_htons(IPV4_ETHERTYPE)) return 0;
    const __u32 header = (ip->version_ihl & 15) * 4;
    if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip)) return 0;
    // Ports are in the first fragment only; the kernel and the packet ring see to fragments.
    if (ip->frag & bpf_htons(0x3fff) || ip->src == ip->dst || port_index(ip->protocol) < 0)
        return 0;
    const struct ports* l4 = (const void*)(data + ETHERNET_BYTES + header);
    if ((const void*)(l4 + 1) > (const void*)end) return 0;

    const __u32 zero = 0;
    struct tables tables = {};
    tables.flows = bpf_map_lookup_elem(&xdp_flows, &zero);
    tables.slots = bpf_map_lookup_elem(&xdp_slots, &zero);
    tables.ports = bpf_map_lookup_elem(&xdp_ports, &zero);
    if (!tables.flows || !tables.slots || !tables.ports) return 0;
    if (!find_flow(&tables, ip->protocol, ip->dst, l4->dst, ip->src, l4->src, hit)) return 0;
    const struct vma_slot* s = hit->slot;
    if (*(volatile __u32*)&s->xsk_ifindex != ctx->ingress_ifindex ||
        s->xsk_queue != ctx->rx_queue_index)
        return 0;
    *protocol = ip->protocol;
    // Groups and what is another host's have other addresses.
    return *(const __u32*)data == *(const __u32*)s->xsk_mac &&
           *(const __u16*)(data + 4) == *(const __u16*)(s->xsk_mac + 4);
}

static __always_inline int steer(struct xdp_md* ctx, int generic) {
    struct hit hit = {};
    __u8 protocol = 0;
    if (!find_ring(ctx, &hit, &protocol)) return XDP_PASS;
    struct vma_slot* s = hit.slot;
    const __u32 slot = hit.number;
    const __u32 len = bpf_xdp_get_buff_len(ctx);
    // Also of what goes on: from then on both ways are of the same ring.
    if (generic && !mark(ctx, slot, __sync_fetch_and_add(&s->order, 1))) return XDP_PASS;
    // How many segments a frame is, an XDP socket cannot tell. And who asks for a connection is looked at closer there.
    if (len > s->xsk_room || (generic && is_super_frame(ctx))) return XDP_PASS;
    if (protocol == IPPROTO_TCP && !hit.connected) return XDP_PASS;
    return bpf_redirect_map(&xdp_sockets, slot, XDP_PASS);
}

// In front of the kernel's own reception. Without frags: of a frame in pieces the kernel then makes one piece, not a new packet, which
// TCX would see without its Ethernet header (Linux 6.18: its mac_len is 0).
SEC("xdp") int vma_xdp_generic(struct xdp_md* ctx) { return steer(ctx, 1); }

SEC("xdp.frags") int vma_xdp_native(struct xdp_md* ctx) { return steer(ctx, 0); }
