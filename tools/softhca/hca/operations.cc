// The table through which the inline functions of verbs.h call. What is not set here this device does not have; verbs.h
// answers EOPNOTSUPP for it.
#include <cerrno>
#include <cstring>
#include <ctime>

#include "softhca/hca/objects.h"
#include "softhca/hca/queues.h"

namespace softhca {
namespace {

ibv_pd* parent_domain(ibv_context* c, ibv_parent_domain_init_attr* attr) {
    if (attr->comp_mask & ~uint32_t(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                                    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)) {
        errno = EINVAL;
        return nullptr;
    }
    Pd* pd = new Pd;
    pd->ibv.context = c;
    pd->ibv.handle = attr->pd->handle;
    pd->parent = attr->pd;
    return &pd->ibv;
}

int query_clock(ibv_context*, ibv_values_ex* values) {
    const uint32_t asked = values->comp_mask;
    values->comp_mask = 0;
    if (!(asked & IBV_VALUES_MASK_RAW_CLOCK)) return 0;
    if (clock_gettime(CLOCK_MONOTONIC, &values->raw_clock) < 0) return errno;
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    return 0;
}

// Newer programs ask with a longer structure than an older caller has: never more than it has is written.
int query_device_ex(ibv_context* c, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size) {
    if (input && input->comp_mask) return EINVAL;
    ibv_device_attr_ex all;
    const int error = query_device(c, &all);
    std::memset(attr, 0, size);
    std::memcpy(attr, &all, size < sizeof(all) ? size : sizeof(all));
    return error;
}

int query_port_sized(ibv_context* c, uint8_t port, ibv_port_attr* attr, size_t size) {
    ibv_port_attr all;
    const int error = query_port(c, port, &all);
    if (error) return error;
    std::memset(attr, 0, size);
    std::memcpy(attr, &all, size < sizeof(all) ? size : sizeof(all));
    return 0;
}

}  // namespace

void set_operations(Context& context) {
    ibv_context_ops& o = context.ibv()->ops;
    o.poll_cq = poll_cq;
    o.req_notify_cq = request_notify;
    o.post_send = post_send;
    o.post_recv = post_recv;
    o.post_srq_recv = post_srq_recv;
    verbs_context& v = context.verbs;
    v.query_port = query_port_sized;
    v.query_device_ex = query_device_ex;
    v.query_rt_values = query_clock;
    v.create_cq_ex = create_cq;
    v.modify_cq = modify_cq;
    v.create_qp_ex = create_qp;
    v.ibv_create_flow = create_flow;
    v.ibv_destroy_flow = destroy_flow;
    v.alloc_dm = allocate_dm;
    v.free_dm = free_dm;
    v.reg_dm_mr = register_dm;
    v.alloc_parent_domain = parent_domain;
    v.alloc_td = [](ibv_context* c, ibv_td_init_attr* attr) -> ibv_td* {
        if (attr->comp_mask) return errno = EINVAL, nullptr;
        return new ibv_td{c};
    };
    v.dealloc_td = [](ibv_td* td) {
        delete td;
        return 0;
    };
}

}  // namespace softhca
