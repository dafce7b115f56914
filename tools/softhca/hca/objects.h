// What the program's pointers are besides contexts and completion queues.
#pragma once

#include <vector>

#include "softhca/hca/context.h"
#include "softhca/raw/switch.h"

namespace softhca {

struct Pd {
    ibv_pd ibv{};
    ibv_pd* parent = nullptr;  // of a parent domain: the real one
};

// The protection domain that keys are compared by.
inline uint32_t domain(const ibv_pd* pd) {
    const Pd& p = *reinterpret_cast<const Pd*>(pd);
    return p.parent ? p.parent->handle : pd->handle;
}

struct Mr {
    ibv_mr ibv{};
    uint32_t index = 0;
};

struct Channel {
    ibv_comp_channel ibv{};
    uint32_t number = 0;
    std::string path;
};

struct Srq {
    ibv_srq ibv{};
    uint32_t index = 0;
};

struct Ah {
    ibv_ah ibv{};
    ibv_ah_attr attr{};
};

struct Flow {
    ibv_flow ibv{};
    uint32_t index = 0;
};

struct Dm {
    ibv_dm ibv{};
    uint64_t offset = 0, bytes = 0;  // in the station's heap
};

// Requests that ibv_wr_*() calls have described and ibv_wr_complete() posts.
struct WrBatch {
    std::vector<ibv_send_wr> requests;
    std::vector<std::vector<ibv_sge>> lists;
    std::vector<std::vector<uint8_t>> inlined;
    int error = 0;
};

struct Qp {
    ibv_qp_ex ibv{};
    uint32_t index = 0;
    ibv_qp_init_attr init{};
    ibv_qp_attr attr{};  // as last modified
    uint16_t max_tso_header = 0;
    WrBatch batch;
    RouteCache routes;  // raw
    uint32_t rate_kbps = 0;
    std::atomic<bool> receives_directly{false};  // mlx5: by its queue in memory
    bool extended = false;                       // made with send_ops_flags
};

inline Qp& qp_of(ibv_qp* qp) { return *reinterpret_cast<Qp*>(qp); }
inline QpShared& shared(const Qp& qp, const Context& c) { return c.station().qps[qp.index]; }

// The calls behind the exported symbols and the tables (their contracts are those of the man pages).
ibv_mr* register_memory(ibv_pd* pd, void* addr, uint64_t length, uint64_t iova, unsigned access);
int deregister_memory(ibv_mr* mr);
ibv_dm* allocate_dm(ibv_context* c, ibv_alloc_dm_attr* attr);
int free_dm(ibv_dm* dm);
ibv_mr* register_dm(ibv_pd* pd, ibv_dm* dm, uint64_t offset, size_t length, unsigned access);

ibv_cq_ex* create_cq(ibv_context* c, ibv_cq_init_attr_ex* attr);
int destroy_cq(ibv_cq* cq);
int resize_cq(ibv_cq* cq, int entries);
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr);
ibv_comp_channel* create_channel(ibv_context* c);
int destroy_channel(ibv_comp_channel* channel);

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr);
int destroy_srq(ibv_srq* srq);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attr);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

ibv_qp* create_qp(ibv_context* c, ibv_qp_init_attr_ex* attr);
int destroy_qp(ibv_qp* qp);
int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask);
int query_qp(ibv_qp* qp, ibv_qp_attr* attr, ibv_qp_init_attr* init);
int attach_group(ibv_qp* qp, const ibv_gid* gid);
int detach_group(ibv_qp* qp, const ibv_gid* gid);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
void set_wr_calls(ibv_qp_ex& qp);

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr);
int destroy_flow(ibv_flow* flow);

int query_device(ibv_context* c, ibv_device_attr_ex* attr);
int query_port(ibv_context* c, uint8_t port, ibv_port_attr* attr);

}  // namespace softhca
