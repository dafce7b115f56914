#include "dev/packet/programs.h"

#include "dev/packet/skeleton_calls.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#include "packet_rx.lskel.h"

int vma_programs_load(struct vma_programs* out) {
    struct packet_rx skeleton;
    g_skeleton_memory = &skeleton;
    packet_rx__open();
    const int error = packet_rx__load(&skeleton);
    if (error < 0) return error;
    out->rx = skeleton.progs.vma_rx.prog_fd;
    out->tx = skeleton.progs.vma_tx.prog_fd;
    out->twin = skeleton.progs.vma_twin.prog_fd;
    out->flows = skeleton.maps.vma_flows.map_fd;
    out->slots = skeleton.maps.vma_slots.map_fd;
    out->ports = skeleton.maps.vma_ports.map_fd;
    out->rings = skeleton.maps.vma_rings.map_fd;
    out->owners = skeleton.maps.vma_owners.map_fd;
    out->groups = skeleton.maps.vma_groups.map_fd;
    out->twins = skeleton.maps.vma_twins.map_fd;
    return 0;
}
