// Queue pairs: making them, and the state machine of ibv_modify_qp(3).
#include <algorithm>
#include <cstring>

#include "softhca/hca/objects.h"
#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"
#include "softhca/mlx5/engine.h"
#include "softhca/raw/raw.h"

namespace softhca {
namespace {

QpUse use_of(ibv_qp_type type) {
    switch (type) {
        case IBV_QPT_RC:
            return QpUse::rc;
        case IBV_QPT_UC:
            return QpUse::uc;
        case IBV_QPT_UD:
            return QpUse::ud;
        case IBV_QPT_RAW_PACKET:
            return QpUse::raw;
        default:
            return QpUse::free;
    }
}

// What a transition needs and what it may have besides, from the man page.
struct Transition {
    QpUse use;
    ibv_qp_state from, to;
    int required, optional;
};
constexpr int kAddress = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
constexpr int kRtsMay =
    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kRcRts =
    IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
const Transition kTransitions[] = {
    {QpUse::rc, IBV_QPS_RESET, IBV_QPS_INIT, kInit | IBV_QP_ACCESS_FLAGS, 0},
    {QpUse::rc, IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit | IBV_QP_ACCESS_FLAGS},
    {QpUse::rc, IBV_QPS_INIT, IBV_QPS_RTR,
     kAddress | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {QpUse::rc, IBV_QPS_RTR, IBV_QPS_RTS, kRcRts, kRtsMay | IBV_QP_MIN_RNR_TIMER},
    {QpUse::rc, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsMay | IBV_QP_MIN_RNR_TIMER},
    {QpUse::uc, IBV_QPS_RESET, IBV_QPS_INIT, kInit | IBV_QP_ACCESS_FLAGS, 0},
    {QpUse::uc, IBV_QPS_INIT, IBV_QPS_RTR, kAddress,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {QpUse::uc, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kRtsMay},
    {QpUse::ud, IBV_QPS_RESET, IBV_QPS_INIT, kInit | IBV_QP_QKEY, 0},
    {QpUse::ud, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {QpUse::ud, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {QpUse::raw, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {QpUse::raw, IBV_QPS_INIT, IBV_QPS_RTR, 0, 0},
    {QpUse::raw, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_RATE_LIMIT},
    {QpUse::raw, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_RATE_LIMIT},
};

bool is_legal(QpUse use, ibv_qp_state from, ibv_qp_state to, int mask) {
    mask &= ~IBV_QP_STATE;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
    for (const Transition& t : kTransitions)
        if (t.use == use && t.from == from && t.to == to)
            return (mask & t.required) == t.required && !(mask & ~(t.required | t.optional));
    return false;
}

uint64_t timeout_of(const ibv_qp_attr& a) {
    // InfiniBand: 4.096 us * 2^timeout per try, 0 for ever.
    return a.timeout ? (4096ull << (a.timeout & 31)) * (a.retry_cnt + 1u) : 0;
}

// The attributes that the data path looks at. EINVAL when one makes no sense.
int apply(Context& c, QpShared& s, const ibv_qp_attr& a, int mask) {
    if ((mask & IBV_QP_PORT) && a.port_num != 1) return EINVAL;
    if ((mask & IBV_QP_PKEY_INDEX) && a.pkey_index != 0) return EINVAL;
    if (mask & IBV_QP_AV) {
        const bool known = a.ah_attr.is_global && a.ah_attr.grh.sgid_index < c.station().gid_count;
        if (!known || a.ah_attr.port_num != 1) return EINVAL;  // Ethernet ports need a global route
        s.dgid = a.ah_attr.grh.dgid;
        s.sgid = c.station().gids[a.ah_attr.grh.sgid_index];
        s.sl = a.ah_attr.sl;
    }
    if (mask & IBV_QP_PATH_MTU) {
        if (a.path_mtu < IBV_MTU_256 || a.path_mtu > c.station().mtu) return EINVAL;
        s.path_mtu = a.path_mtu;
    }
    if (mask & IBV_QP_ACCESS_FLAGS) s.access = a.qp_access_flags;
    if (mask & IBV_QP_QKEY) s.qkey = a.qkey;
    if (mask & IBV_QP_DEST_QPN) s.dest_qpn = a.dest_qp_num;
    if (mask & IBV_QP_RNR_RETRY) s.rnr_retry = a.rnr_retry;
    if (mask & IBV_QP_MIN_RNR_TIMER) s.rnr_timer = a.min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT) s.timeout_ns = timeout_of(a);
    return 0;
}

void remember(ibv_qp_attr& to, const ibv_qp_attr& a, int mask) {
    if (mask & IBV_QP_PATH_MTU) to.path_mtu = a.path_mtu;
    if (mask & IBV_QP_QKEY) to.qkey = a.qkey;
    if (mask & IBV_QP_RQ_PSN) to.rq_psn = a.rq_psn;
    if (mask & IBV_QP_SQ_PSN) to.sq_psn = a.sq_psn;
    if (mask & IBV_QP_DEST_QPN) to.dest_qp_num = a.dest_qp_num;
    if (mask & IBV_QP_ACCESS_FLAGS) to.qp_access_flags = a.qp_access_flags;
    if (mask & IBV_QP_AV) to.ah_attr = a.ah_attr;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to.max_rd_atomic = a.max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to.max_dest_rd_atomic = a.max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER) to.min_rnr_timer = a.min_rnr_timer;
    if (mask & IBV_QP_PORT) to.port_num = a.port_num;
    if (mask & IBV_QP_TIMEOUT) to.timeout = a.timeout;
    if (mask & IBV_QP_RETRY_CNT) to.retry_cnt = a.retry_cnt;
    if (mask & IBV_QP_RNR_RETRY) to.rnr_retry = a.rnr_retry;
    if (mask & IBV_QP_RATE_LIMIT) to.rate_limit = a.rate_limit;
}

void reset_queues(Context& c, QpShared& s) {
    s.posted = s.executed = s.retired = 0;
    s.waiting_since = 0;
    s.recv.head = s.recv.tail = 0;
    if (!s.frames) return;
    FrameRing& ring = *c.own->at<FrameRing>(s.frames);
    ring.head = ring.tail.load();
}

uint64_t frames_bytes(const Context& c) { return sizeof(FrameRing) + c.device->config.frame_ring; }

bool make_queues(Context& c, QpShared& s, const ibv_qp_init_attr_ex& a) {
    s.send_capacity = a.cap.max_send_wr;
    s.send_mask = ring_slots(a.cap.max_send_wr) - 1;
    s.send_sge = std::max(a.cap.max_send_sge, 1u);
    s.send_inline = a.cap.max_inline_data;
    s.send_stride = uint32_t(sizeof(SendWqe)) +
                    std::max(s.send_sge * uint32_t(sizeof(ibv_sge)), (s.send_inline + 7) & ~7u);
    s.send_ring = 0;
    s.frames = 0;
    if (!make_recv_queue(c, s.recv, a.cap.max_recv_wr, std::max(a.cap.max_recv_sge, 1u),
                         domain(a.pd)))
        return false;
    if (s.use != QpUse::raw) {
        s.send_ring = c.heap.take(uint64_t(s.send_mask + 1) * s.send_stride);
        return s.send_ring != 0;
    }
    s.frames = c.heap.take(frames_bytes(c));
    if (!s.frames) return false;
    FrameRing* ring = new (c.own->at<void>(s.frames)) FrameRing{};
    ring->bytes = c.device->config.frame_ring;
    return true;
}

void free_queues(Context& c, QpShared& s) {
    free_recv_queue(c, s.recv);
    if (s.send_ring) c.heap.give(s.send_ring, uint64_t(s.send_mask + 1) * s.send_stride);
    if (s.frames) c.heap.give(s.frames, frames_bytes(c));
    s.send_ring = s.frames = 0;
}

int check(const Context& c, const ibv_qp_init_attr_ex& a) {
    const DeviceConfig& limits = c.device->config;
    constexpr uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
                                IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if ((a.comp_mask & ~kKnown) || use_of(a.qp_type) == QpUse::free) return EOPNOTSUPP;
    if ((a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
        (a.create_flags & ~IBV_QP_CREATE_BLOCK_SELF_MCAST_LB))
        return EOPNOTSUPP;
    if (!(a.comp_mask & IBV_QP_INIT_ATTR_PD) || !a.pd || !a.send_cq || !a.recv_cq) return EINVAL;
    if ((a.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && a.max_tso_header && !limits.max_tso)
        return EOPNOTSUPP;
    if (a.cap.max_send_wr > limits.max_qp_wr || a.cap.max_recv_wr > limits.max_qp_wr ||
        a.cap.max_send_sge > limits.max_sge || a.cap.max_recv_sge > limits.max_sge ||
        a.cap.max_inline_data > limits.max_inline)
        return EINVAL;
    return 0;
}

void fill_shared(QpShared& s, const Qp& qp, const ibv_qp_init_attr_ex& a) {
    s.state = IBV_QPS_RESET;
    s.posted = s.executed = s.retired = 0;
    s.send_cq = reinterpret_cast<Cq*>(a.send_cq)->index;
    s.recv_cq = reinterpret_cast<Cq*>(a.recv_cq)->index;
    s.srq = a.srq ? reinterpret_cast<Srq*>(a.srq)->index + 1 : 0;
    s.pd = domain(a.pd);
    s.qkey = s.access = s.dest_qpn = 0;
    s.rnr_retry = s.rnr_timer = s.sl = 0;
    s.signal_all = a.sq_sig_all;
    s.block_multicast_loop = (a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
                             (a.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
    s.waiting_since = s.timeout_ns = 0;
    s.fail_send = s.fail_recv = 0;
    s.group_count = 0;
    s.cookie = uint64_t(&qp);
}

}  // namespace

ibv_qp* create_qp(ibv_context* ibv, ibv_qp_init_attr_ex* a) {
    Context& c = context_of(ibv);
    errno = c.station().fatal ? EIO : check(c, *a);
    if (errno) return nullptr;
    auto qp = std::make_unique<Qp>();
    std::lock_guard locked(c.control);
    uint32_t i = kFirstQp;
    while (i < kMaxQps && c.qps[i]) i++;
    errno = ENOMEM;
    if (i == kMaxQps) return nullptr;
    QpShared& s = c.station().qps[i];
    s.use = use_of(a->qp_type);
    qp->index = i;
    fill_shared(s, *qp, *a);
    if (!make_queues(c, s, *a)) {
        free_queues(c, s);
        s.use = QpUse::free;
        errno = ENOMEM;
        return nullptr;
    }
    ibv_qp& q = qp->ibv.qp_base;
    q = {ibv, a->qp_context,         a->pd,         a->send_cq, a->recv_cq, a->srq,
         i,   qp_number(c.index, i), IBV_QPS_RESET, a->qp_type, {},         {},
         0};
    pthread_mutex_init(&q.mutex, nullptr);
    pthread_cond_init(&q.cond, nullptr);
    std::memcpy(&qp->init, a,
                sizeof(qp->init));  // the extended structure begins with the plain one
    if (a->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER) qp->max_tso_header = a->max_tso_header;
    if ((a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)) {
        qp->extended = true;
        set_wr_calls(qp->ibv);
    }
    if (s.use == QpUse::raw) {
        Cq* cq = reinterpret_cast<Cq*>(a->recv_cq);
        std::lock_guard raw(cq->raw_mutex);
        cq->raw_qps.push_back(qp.get());
    }
    c.qps[i] = qp.get();
    return &qp.release()->ibv.qp_base;
}

int destroy_qp(ibv_qp* ibv) {
    Qp& qp = qp_of(ibv);
    Context& c = context_of(ibv->context);
    {
        std::lock_guard locked(c.control);
        QpShared& s = shared(qp, c);
        for (const FlowRule& rule : c.station().flows)
            if (rule.qp == qp.index + 1) return EBUSY;
        if (s.use == QpUse::raw) {
            Cq* cq = reinterpret_cast<Cq*>(ibv->recv_cq);
            std::lock_guard raw(cq->raw_mutex);
            std::erase(cq->raw_qps, &qp);
        }
        if (c.engine) c.engine->forget(qp);
        SharedLocked sending(s.send_lock);
        s.state = IBV_QPS_RESET;
        s.use = QpUse::free;
        free_queues(c, s);
        c.qps[qp.index] = nullptr;
    }
    delete &qp;
    return 0;
}

int modify_qp(ibv_qp* ibv, ibv_qp_attr* attr, int mask) {
    Qp& qp = qp_of(ibv);
    Context& c = context_of(ibv->context);
    QpShared& s = shared(qp, c);
    if (c.station().fatal) return EIO;
    const ibv_qp_state from = s.state, to = mask & IBV_QP_STATE ? attr->qp_state : from;
    if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from) return EINVAL;
    if (!is_legal(s.use, from, to, mask)) return EINVAL;
    if (const int error = apply(c, s, *attr, mask)) return error;
    remember(qp.attr, *attr, mask);
    if (to == IBV_QPS_RESET) reset_queues(c, s);
    if (to == IBV_QPS_RESET && c.engine) c.engine->reset(qp);
    s.state.store(to, std::memory_order_release);
    ibv->state = to;
    if (to == IBV_QPS_ERR) flush(c, *c.own, qp.index);
    if (to == IBV_QPS_RTR) serve_waiters(c);
    return 0;
}

int query_qp(ibv_qp* ibv, ibv_qp_attr* attr, ibv_qp_init_attr* init) {
    const Qp& qp = qp_of(ibv);
    const QpShared& s = shared(qp, context_of(ibv->context));
    *attr = qp.attr;
    attr->qp_state = attr->cur_qp_state = ibv->state = s.state;
    attr->cap = qp.init.cap;
    *init = qp.init;
    return 0;
}

int attach_group(ibv_qp* ibv, const ibv_gid* gid) {
    QpShared& s = shared(qp_of(ibv), context_of(ibv->context));
    const uint32_t n = s.group_count;
    if (s.use != QpUse::ud || gid->raw[0] != 0xff) return EINVAL;
    if (n == kMaxGroups) return ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (!std::memcmp(&s.groups[i], gid, sizeof(*gid))) return 0;
    s.groups[n] = *gid;
    s.group_count.store(n + 1, std::memory_order_release);
    return 0;
}

int detach_group(ibv_qp* ibv, const ibv_gid* gid) {
    QpShared& s = shared(qp_of(ibv), context_of(ibv->context));
    const uint32_t n = s.group_count;
    for (uint32_t i = 0; i < n; i++) {
        if (std::memcmp(&s.groups[i], gid, sizeof(*gid)) != 0) continue;
        s.groups[i] = s.groups[n - 1];
        s.group_count.store(n - 1, std::memory_order_release);
        return 0;
    }
    return EINVAL;
}

}  // namespace softhca
