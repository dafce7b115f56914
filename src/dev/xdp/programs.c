#include "dev/xdp/programs.h"

#include "dev/packet/skeleton_calls.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#include "xdp_rx.lskel.h"

int vma_xdp_load(struct vma_xdp_program* out) {
    struct xdp_rx skeleton;
    g_skeleton_memory = &skeleton;
    xdp_rx__open();
    const int error = xdp_rx__load(&skeleton);
    if (error < 0) return error;
    out->generic = skeleton.progs.vma_xdp_generic.prog_fd;
    out->native = skeleton.progs.vma_xdp_native.prog_fd;
    out->flows = skeleton.maps.xdp_flows.map_fd;
    out->slots = skeleton.maps.xdp_slots.map_fd;
    out->ports = skeleton.maps.xdp_ports.map_fd;
    out->sockets = skeleton.maps.xdp_sockets.map_fd;
    return 0;
}
