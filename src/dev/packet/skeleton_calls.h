/* What the light skeleton that bpftool writes (packet_rx.lskel.h) expects of <bpf/skel_internal.h>, over our own system calls:
 * the generated header is included after this file, whose guard keeps libbpf's out. The two structs and the order of the calls
 * are the loader's interface (libbpf, gen_loader): a program of type SYSCALL is loaded and run once; it loads the rest. */
#ifndef __SKEL_INTERNAL_H
#define __SKEL_INTERNAL_H

#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <string.h>

struct bpf_map_desc {
    int map_fd;
    __u32 max_entries;
    __aligned_u64 initial_value;
};
struct bpf_prog_desc {
    int prog_fd;
};
struct bpf_loader_ctx {
    __u32 sz, flags, log_level, log_size;
    __u64 log_buf;
};
struct bpf_load_and_run_opts {
    struct bpf_loader_ctx* ctx;
    const void* data;
    const void* insns;
    __u32 data_sz, insns_sz;
    const char* errstr;
};

/* bpf_calls.cc: raw system calls, value or -errno. */
long vma_bpf(int command, void* attributes, unsigned size);
void vma_bpf_close(int fd);

/* The skeleton object is the caller's (programs.c), so nothing is allocated. */
static void* g_skeleton_memory;
static inline void* skel_alloc(size_t size) {
    memset(g_skeleton_memory, 0, size);
    return g_skeleton_memory;
}
static inline void skel_free(const void* p) { (void)p; }
static inline int skel_closenz(int fd) {
    if (fd > 0) vma_bpf_close(fd);
    return 0;
}

static inline int bpf_load_and_run(struct bpf_load_and_run_opts* opts) {
    union bpf_attr attr;
    int key = 0, error;
    memset(&attr, 0, sizeof(attr));
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = sizeof(key);
    attr.value_size = opts->data_sz;
    attr.max_entries = 1;
    const int data = (int)vma_bpf(BPF_MAP_CREATE, &attr, sizeof(attr));
    if (data < 0) return data;

    memset(&attr, 0, sizeof(attr));
    attr.map_fd = (__u32)data;
    attr.key = (unsigned long)&key;
    attr.value = (unsigned long)opts->data;
    error = (int)vma_bpf(BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr));
    int program = -1;
    if (error >= 0) {
        memset(&attr, 0, sizeof(attr));
        attr.prog_type = BPF_PROG_TYPE_SYSCALL;
        attr.insns = (unsigned long)opts->insns;
        attr.insn_cnt = opts->insns_sz / sizeof(struct bpf_insn);
        attr.license = (unsigned long)"Dual BSD/GPL";
        attr.fd_array = (unsigned long)&data;
        attr.prog_flags = BPF_F_SLEEPABLE;
        program = error = (int)vma_bpf(BPF_PROG_LOAD, &attr, sizeof(attr));
    }
    if (error >= 0) {
        memset(&attr, 0, sizeof(attr));
        attr.test.prog_fd = (__u32)program;
        attr.test.ctx_in = (unsigned long)opts->ctx;
        attr.test.ctx_size_in = opts->ctx->sz;
        error = (int)vma_bpf(BPF_PROG_TEST_RUN, &attr, sizeof(attr));
        if (error >= 0) error = (int)attr.test.retval;
    }
    if (program >= 0) vma_bpf_close(program);
    vma_bpf_close(data);
    return error < 0 ? error : 0;
}

#endif
