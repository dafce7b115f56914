/* The BPF programs and maps of rx.bpf.c, loaded into the kernel. C, because the generated skeleton is. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct vma_programs {
    int rx, tx, twin;                                      /* programs */
    int flows, slots, ports, rings, owners, groups, twins; /* maps */
};

/* 0 and ten descriptors (all CLOEXEC, the caller's), or -errno and none. One call at a time in a process. Needs CAP_BPF,
 * CAP_NET_ADMIN and CAP_PERFMON (reading sk_buff), or CAP_SYS_ADMIN for all of them. Takes about 15 ms. */
int vma_programs_load(struct vma_programs* out);

#ifdef __cplusplus
}
#endif
