// libibverbs, found when it is first wanted (dlopen): libvma.so itself needs libc and nothing else. Only the calls that are
// exported symbols are here; the rest of the verbs are inline functions of verbs.h over the context's own table, and must
// be those that name no symbol. Source: the man pages of rdma-core 44, symbol version IBVERBS_1.1 and later.
#pragma once

#include <infiniband/verbs.h>

namespace vma {

struct VerbsLibrary {
    ibv_device** (*get_device_list)(int*);
    void (*free_device_list)(ibv_device**);
    ibv_context* (*open_device)(ibv_device*);
    int (*close_device)(ibv_context*);
    int (*query_device)(ibv_context*, ibv_device_attr*);
    int (*query_gid_ex)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t);
    ibv_pd* (*alloc_pd)(ibv_context*);
    int (*dealloc_pd)(ibv_pd*);
    ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int);
    int (*dereg_mr)(ibv_mr*);
    ibv_comp_channel* (*create_comp_channel)(ibv_context*);
    int (*destroy_comp_channel)(ibv_comp_channel*);
    ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
    int (*destroy_cq)(ibv_cq*);
    int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**);
    void (*ack_cq_events)(ibv_cq*, unsigned);
    int (*get_async_event)(ibv_context*, ibv_async_event*);
    void (*ack_async_event)(ibv_async_event*);
    int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
    int (*destroy_qp)(ibv_qp*);
    int (*read_sysfs_file)(const char*, const char*, char*, size_t);
    // The software HCA's alone, else null: a device of kind mlx5 looks at its queues at once (docs/SOFTHCA.md).
    unsigned (*kick)(ibv_context*);

    // Loaded by the first caller and kept to the process's end; null when it is not installed or too old. Any thread.
    static const VerbsLibrary* get();
};

}  // namespace vma
