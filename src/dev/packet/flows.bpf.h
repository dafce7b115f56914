// SPDX-License-Identifier: (BSD-3-Clause OR GPL-2.0-only)
// Which ring a packet is for: the look-up that the TCX programs (rx.bpf.c) and the XDP program (src/dev/xdp) have in common. The
// tables are arguments because the XDP program, which is loaded later, reaches the same ones through maps of maps.
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
// after the kernel's types, which these use
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

struct ipv4 {
    __u8 version_ihl, tos;
    __be16 total_len, id, frag;
    __u8 ttl, protocol;
    __be16 check;
    __be32 src, dst;
};
struct ports {
    __be16 src, dst;
};

struct tables {
    void *flows, *slots, *ports;
    void* owners; /* null: flows with a gate do not count */
};

static __always_inline int port_index(__u8 protocol) {
    return protocol == IPPROTO_TCP ? 0 : protocol == IPPROTO_UDP ? 1 : -1;
}

// A flow that counts, and whose it is.
struct hit {
    const struct vma_flow* flow;
    struct vma_slot* slot;
    struct vma_owner* owner; /* the owner page; null when the owner has the slot itself */
    __u32 number;            /* of the slot */
    int connected;           /* the flow is of one remote */
};

// Does it count? Not after its ring went, nor after its owner took it back.
static __always_inline int is_live(const struct tables* tables, const struct vma_flow* flow,
                                   struct hit* hit) {
    const __u32 slot = flow->slot, zero = 0;
    struct vma_slot* s = bpf_map_lookup_elem(tables->slots, &slot);
    if (!s || slot == 0 || *(volatile __u32*)&s->generation != flow->generation) return 0;
    hit->flow = flow;
    hit->slot = s;
    hit->owner = 0;
    hit->number = slot;
    if (!(flow->flags & VMA_FLOW_GATED)) return 1;
    if (!tables->owners) return 0;
    void* page = bpf_map_lookup_elem(tables->owners, &slot);
    if (!page) return 0;
    struct vma_owner* owner = bpf_map_lookup_elem(page, &zero);
    if (!owner) return 0;
    const __u32 gate = flow->gate & (VMA_GATES - 1);
    if (*(volatile __u32*)&owner->gates[gate] != flow->gate_value) return 0;
    hit->owner = owner;
    return 1;
}

// The flow of a tuple, in the order connected, unconnected; 0 when there is none.
static __always_inline int find_flow(const struct tables* tables, __u8 protocol, __be32 local,
                                     __be16 local_port, __be32 remote, __be16 remote_port,
                                     struct hit* hit) {
    __u32 zero = 0;
    const int index = port_index(protocol);
    if (index < 0) return 0;
    struct vma_ports* ports = bpf_map_lookup_elem(tables->ports, &zero);
    if (!ports) return 0;
    const __u32 used =
        index ? ports->flows[1][bpf_ntohs(local_port)] : ports->flows[0][bpf_ntohs(local_port)];
    if (!used) return 0;

    struct vma_flow_key key = {};
    *(__u16*)&key.local[10] = 0xffff;
    *(__be32*)&key.local[12] = local;
    key.local_port = local_port;
    *(__u16*)&key.remote[10] = 0xffff;
    *(__be32*)&key.remote[12] = remote;
    key.remote_port = remote_port;
    key.protocol = protocol;
    struct vma_flow* flow = bpf_map_lookup_elem(tables->flows, &key);
    hit->connected = 1;
    if (flow && is_live(tables, flow, hit)) return 1;
    __builtin_memset(key.remote, 0, sizeof(key.remote));
    key.remote_port = 0;
    flow = bpf_map_lookup_elem(tables->flows, &key);
    hit->connected = 0;
    return flow && is_live(tables, flow, hit);
}
