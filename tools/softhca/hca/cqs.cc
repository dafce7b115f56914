// Completion queues and channels: the control side.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "softhca/hca/objects.h"
#include "softhca/hca/queues.h"
#include "softhca/mlx5/engine.h"

namespace softhca {
namespace {

constexpr uint32_t kMaxCqe = 1 << 20;

Cq& cq_of(ibv_cq* cq) { return *reinterpret_cast<Cq*>(cq); }

}  // namespace

ibv_cq_ex* create_cq(ibv_context* ibv, ibv_cq_init_attr_ex* attr) {
    Context& c = context_of(ibv);
    const uint64_t known =
        IBV_CREATE_CQ_SUP_WC_FLAGS &
        ~uint64_t(IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    const bool timestamps = attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    errno = 0;
    if ((attr->wc_flags & ~known) || (timestamps && !c.device->config.timestamps) ||
        ((attr->wc_flags & IBV_WC_EX_WITH_FLOW_TAG) && !c.device->config.flow_tag))
        errno = EOPNOTSUPP;
    else if (c.station().fatal)
        errno = EIO;
    else if (attr->cqe == 0 || attr->cqe > kMaxCqe ||
             attr->comp_vector >= uint32_t(ibv->num_comp_vectors))
        errno = EINVAL;
    if (errno) return nullptr;
    std::lock_guard locked(c.control);
    for (uint32_t i = 1; i < kMaxCqs; i++) {
        if (c.cqs[i]) continue;
        CqShared& s = c.station().cqs[i];
        s.head = s.tail = 0;
        s.capacity = attr->cqe;
        s.mask = ring_slots(attr->cqe) - 1;
        s.ring = c.heap.take(uint64_t(s.mask + 1) * sizeof(Cqe));
        if (!s.ring) break;
        s.armed = Armed::no;
        s.overrun = false;
        s.timestamps = timestamps;
        s.moderation_count = s.moderation_period = 0;
        auto cq = std::make_unique<Cq>();
        cq->index = i;
        cq->ibv.context = ibv;
        cq->ibv.channel = attr->channel;
        cq->ibv.cq_context = attr->cq_context;
        cq->ibv.handle = i;
        cq->ibv.cqe = int(s.mask + 1);
        pthread_mutex_init(&cq->ibv.mutex, nullptr);
        pthread_cond_init(&cq->ibv.cond, nullptr);
        set_extended_poll(cq->ibv);
        s.cookie = uint64_t(cq.get());
        s.channel = 0;
        if (attr->channel) {
            s.channel = reinterpret_cast<Channel*>(attr->channel)->number;
            attr->channel->refcnt++;
        }
        c.cqs[i] = cq.get();
        return &cq.release()->ibv;
    }
    errno = ENOMEM;
    return nullptr;
}

int destroy_cq(ibv_cq* ibv) {
    Cq& cq = cq_of(ibv);
    Context& c = context_of(ibv->context);
    {
        std::lock_guard locked(c.control);
        for (const Qp* qp : c.qps)
            if (qp && (qp->ibv.qp_base.send_cq == ibv || qp->ibv.qp_base.recv_cq == ibv))
                return EBUSY;
        if (c.engine) c.engine->forget(cq);
        CqShared& s = c.station().cqs[cq.index];
        s.channel = 0;
        c.cqs[cq.index] = nullptr;
        c.heap.give(s.ring, uint64_t(s.mask + 1) * sizeof(Cqe));
        if (ibv->channel) ibv->channel->refcnt--;
    }
    delete &cq;
    return 0;
}

int resize_cq(ibv_cq* ibv, int entries) {
    Cq& cq = cq_of(ibv);
    Context& c = context_of(ibv->context);
    if (entries <= 0 || uint32_t(entries) > kMaxCqe) return EINVAL;
    std::lock_guard locked(c.control);
    CqShared& s = c.station().cqs[cq.index];
    SharedLocked queue(s.lock);
    const uint32_t waiting = s.tail - s.head, mask = ring_slots(uint32_t(entries)) - 1;
    if (waiting > mask) return EINVAL;
    const uint64_t ring = c.heap.take(uint64_t(mask + 1) * sizeof(Cqe));
    if (!ring) return ENOMEM;
    for (uint32_t i = 0; i < waiting; i++)
        c.own->at<Cqe>(ring)[i] = c.own->at<Cqe>(s.ring)[(s.head + i) & s.mask];
    c.heap.give(s.ring, uint64_t(s.mask + 1) * sizeof(Cqe));
    s.ring = ring;
    s.mask = mask;
    s.capacity = uint32_t(entries);
    s.head = 0;
    s.tail = waiting;
    ibv->cqe = int(mask + 1);
    return 0;
}

// Moderation is a permission to interrupt less often; this device has no timer and makes no use of it.
int modify_cq(ibv_cq* ibv, ibv_modify_cq_attr* attr) {
    if (attr->attr_mask != IBV_CQ_ATTR_MODERATE) return EINVAL;
    CqShared& s = context_of(ibv->context).station().cqs[cq_of(ibv).index];
    s.moderation_count = attr->moderate.cq_count;
    s.moderation_period = attr->moderate.cq_period;
    return 0;
}

ibv_comp_channel* create_channel(ibv_context* ibv) {
    Context& c = context_of(ibv);
    std::lock_guard locked(c.control);
    auto channel = std::make_unique<Channel>();
    channel->number = ++c.channels;
    channel->path = Notifier::channel_path(*c.wire, c.index, c.own->generation, channel->number);
    channel->ibv.context = ibv;
    channel->ibv.fd = Notifier::make(channel->path);
    if (channel->ibv.fd < 0) return nullptr;
    return &channel.release()->ibv;
}

int destroy_channel(ibv_comp_channel* ibv) {
    Channel* channel = reinterpret_cast<Channel*>(ibv);
    if (ibv->refcnt) return EBUSY;
    Notifier::drop(channel->path, ibv->fd);
    delete channel;
    return 0;
}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    Context& c = context_of(pd->context);
    const DeviceConfig& limits = c.device->config;
    if (!init->attr.max_wr || init->attr.max_wr > limits.max_qp_wr ||
        init->attr.max_sge > limits.max_sge) {
        errno = EINVAL;
        return nullptr;
    }
    std::lock_guard locked(c.control);
    for (uint32_t i = 0; i < kMaxSrqs; i++) {
        RecvQueue& q = c.station().srqs[i];
        if (q.ring) continue;
        auto srq = std::make_unique<Srq>();
        if (!make_recv_queue(c, q, init->attr.max_wr, std::max(init->attr.max_sge, 1u), domain(pd)))
            break;
        q.cookie = uint64_t(srq.get());
        srq->index = i;
        srq->ibv.context = pd->context;
        srq->ibv.pd = pd;
        srq->ibv.srq_context = init->srq_context;
        srq->ibv.handle = i + 1;
        pthread_mutex_init(&srq->ibv.mutex, nullptr);
        pthread_cond_init(&srq->ibv.cond, nullptr);
        return &srq.release()->ibv;
    }
    errno = ENOMEM;
    return nullptr;
}

int destroy_srq(ibv_srq* ibv) {
    Srq* srq = reinterpret_cast<Srq*>(ibv);
    Context& c = context_of(ibv->context);
    {
        std::lock_guard locked(c.control);
        for (const Qp* qp : c.qps)
            if (qp && qp->ibv.qp_base.srq == ibv) return EBUSY;
        free_recv_queue(c, c.station().srqs[srq->index]);
    }
    delete srq;
    return 0;
}

int modify_srq(ibv_srq* ibv, ibv_srq_attr* attr, int mask) {
    RecvQueue& q = context_of(ibv->context).station().srqs[reinterpret_cast<Srq*>(ibv)->index];
    if (mask & IBV_SRQ_MAX_WR) return EOPNOTSUPP;  // IBV_DEVICE_SRQ_RESIZE is not claimed
    if (!(mask & IBV_SRQ_LIMIT)) return 0;
    if (attr->srq_limit >= q.capacity) return EINVAL;
    SharedLocked locked(q.lock);
    q.limit = attr->srq_limit;
    return 0;
}

int query_srq(ibv_srq* ibv, ibv_srq_attr* attr) {
    const RecvQueue& q =
        context_of(ibv->context).station().srqs[reinterpret_cast<Srq*>(ibv)->index];
    *attr = {q.capacity, q.max_sge, q.limit};
    return 0;
}

}  // namespace softhca
