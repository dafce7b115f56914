/* The program and maps of xdp.bpf.c, loaded into the kernel. C, because the generated skeleton is. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct vma_xdp_program {
    int generic, native;     /* programs: one for each way to attach */
    int flows, slots, ports; /* maps of one map each: the hook's tables are to be put there */
    int sockets;             /* XSKMAP by slot */
};

/* 0 and six descriptors (all CLOEXEC, the caller's), or -errno and none. One call at a time in a process. Needs what
 * vma_programs_load() needs, and a kernel with XDP sockets. */
int vma_xdp_load(struct vma_xdp_program* out);

#ifdef __cplusplus
}
#endif
