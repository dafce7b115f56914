// The exported functions of libibverbs: objects. Contracts: their man pages.
#include "softhca/hca/objects.h"

#include <endian.h>
#include <unistd.h>

#include "softhca/abi/exported.h"
#include "softhca/hca/grh.h"

using namespace softhca;

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

EXPORTED ibv_pd* ibv_alloc_pd(ibv_context* ibv) {
    Context& c = context_of(ibv);
    std::lock_guard locked(c.control);
    Pd* pd = new Pd;
    pd->ibv = {ibv, ++c.pds};
    return &pd->ibv;
}
EXPORTED int ibv_dealloc_pd(ibv_pd* pd) {
    Context& c = context_of(pd->context);
    {
        std::lock_guard locked(c.control);
        if (!reinterpret_cast<Pd*>(pd)->parent) {
            for (const MrEntry& e : c.station().mrs)
                if (e.key && e.pd == pd->handle) return EBUSY;
            for (const Qp* qp : c.qps)
                if (qp && qp->ibv.qp_base.pd == pd) return EBUSY;
        }
    }
    delete reinterpret_cast<Pd*>(pd);
    return 0;
}

EXPORTED ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                  unsigned access) {
    return register_memory(pd, addr, length, iova, access);
}
EXPORTED ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
    return register_memory(pd, addr, length, iova, unsigned(access));
}
EXPORTED ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
    return register_memory(pd, addr, length, uint64_t(addr), unsigned(access));
}
EXPORTED int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
    return IBV_REREG_MR_ERR_INPUT;
}
EXPORTED int ibv_dereg_mr(ibv_mr* mr) { return deregister_memory(mr); }

EXPORTED ibv_comp_channel* ibv_create_comp_channel(ibv_context* c) { return create_channel(c); }
EXPORTED int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
    return destroy_channel(channel);
}
EXPORTED ibv_cq* ibv_create_cq(ibv_context* c, int cqe, void* cookie, ibv_comp_channel* channel,
                               int vector) {
    ibv_cq_init_attr_ex attr{};
    if (cqe <= 0 || vector < 0) return errno = EINVAL, nullptr;
    attr.cqe = uint32_t(cqe);
    attr.cq_context = cookie;
    attr.channel = channel;
    attr.comp_vector = uint32_t(vector);
    return ibv_cq_ex_to_cq(create_cq(c, &attr));
}
EXPORTED int ibv_resize_cq(ibv_cq* cq, int cqe) { return resize_cq(cq, cqe); }
EXPORTED int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cookie) {
    uint64_t which;
    ssize_t n;
    do n = read(channel->fd, &which, sizeof(which));
    while (n < 0 && errno == EINTR);
    if (n != sizeof(which)) return -1;
    *cq = reinterpret_cast<ibv_cq*>(which);
    *cookie = (*cq)->cq_context;
    return 0;
}
EXPORTED void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_mutex_unlock(&cq->mutex);
}
EXPORTED int ibv_destroy_cq(ibv_cq* cq) { return destroy_cq(cq); }

EXPORTED ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
    return create_srq(pd, attr);
}
EXPORTED int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
    return modify_srq(srq, attr, mask);
}
EXPORTED int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) { return query_srq(srq, attr); }
EXPORTED int ibv_destroy_srq(ibv_srq* srq) { return destroy_srq(srq); }

EXPORTED ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
    ibv_qp_init_attr_ex ex{};
    std::memcpy(&ex, attr, sizeof(*attr));  // it begins with the same members
    ex.comp_mask = IBV_QP_INIT_ATTR_PD;
    ex.pd = pd;
    ibv_qp* qp = create_qp(pd->context, &ex);
    if (qp) attr->cap = ex.cap;
    return qp;
}
EXPORTED ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
    return qp_of(qp).extended ? reinterpret_cast<ibv_qp_ex*>(qp) : nullptr;
}
EXPORTED int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    return modify_qp(qp, attr, mask);
}
EXPORTED int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
    return query_qp(qp, attr, init);
}
EXPORTED int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }
EXPORTED int ibv_destroy_qp(ibv_qp* qp) { return destroy_qp(qp); }
EXPORTED int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
    return attach_group(qp, gid);
}
EXPORTED int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
    return detach_group(qp, gid);
}

EXPORTED ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
    const Station& s = context_of(pd->context).station();
    if (!attr->is_global || attr->port_num != 1 || attr->grh.sgid_index >= s.gid_count)
        return errno = EINVAL, nullptr;
    Ah* ah = new Ah;
    ah->ibv.context = pd->context;
    ah->ibv.pd = pd;
    ah->attr = *attr;
    return &ah->ibv;
}
EXPORTED int ibv_destroy_ah(ibv_ah* ah) {
    delete reinterpret_cast<Ah*>(ah);
    return 0;
}
EXPORTED int ibv_init_ah_from_wc(ibv_context* c, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                                 ibv_ah_attr* attr) {
    const Station& s = context_of(c).station();
    if (!(wc->wc_flags & IBV_WC_GRH)) return -1;  // Ethernet has no other address
    *attr = {};
    attr->port_num = port;
    attr->sl = wc->sl;
    attr->is_global = 1;
    ibv_gid mine{};
    const uint8_t* p = reinterpret_cast<const uint8_t*>(grh);
    if (p[0] >> 4 == 6) {
        attr->grh.dgid = grh->sgid;
        mine = grh->dgid;
    } else {  // RoCE v2: an IPv4 header in the last 20 bytes
        for (ibv_gid* g : {&attr->grh.dgid, &mine}) g->raw[10] = g->raw[11] = 0xff;
        std::memcpy(attr->grh.dgid.raw + 12, p + 32, 4);
        std::memcpy(mine.raw + 12, p + 36, 4);
    }
    attr->grh.hop_limit = 255;
    for (uint32_t i = 0; i < s.gid_count; i++) {
        if (std::memcmp(&s.gids[i], &mine, sizeof(mine)) != 0) continue;
        attr->grh.sgid_index = uint8_t(i);
        return 0;
    }
    return -1;
}
EXPORTED ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
    ibv_ah_attr attr;
    if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr)) return nullptr;
    return ibv_create_ah(pd, &attr);
}
EXPORTED int ibv_resolve_eth_l2_from_gid(ibv_context* c, ibv_ah_attr* attr, uint8_t* mac,
                                         uint16_t* vid) {
    const Context& context = context_of(c);
    for (uint32_t i = 0; i < kMaxStations; i++) {
        StationMap* s = context.wire->station(i);
        for (uint32_t g = 0; s && g < (*s)->gid_count; g++) {
            if (std::memcmp(&(*s)->gids[g], &attr->grh.dgid, sizeof(ibv_gid)) != 0) continue;
            std::memcpy(mac, (*s)->mac, 6);
            if (vid) *vid = 0xffff;  // untagged
            return 0;
        }
    }
    return errno = EHOSTUNREACH, -1;
}
