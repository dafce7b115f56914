// Posting: work requests into the queues, and the ibv_wr_*() way of describing them.
#include <cstring>

#include "softhca/hca/objects.h"
#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"
#include "softhca/raw/raw.h"

namespace softhca {
namespace {

bool suits(QpUse use, unsigned opcode) {
    const bool send = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
    if (use == QpUse::ud || opcode > IBV_WR_ATOMIC_FETCH_AND_ADD) return send;
    return use == QpUse::rc || send || opcode <= IBV_WR_RDMA_WRITE_WITH_IMM;
}

// Copies the program's request into its slot; EINVAL when it is none for this QP.
int write_wqe(const QpShared& s, const ibv_send_wr& wr, SendWqe* w) {
    if (!suits(s.use, wr.opcode) || wr.num_sge < 0 || uint32_t(wr.num_sge) > s.send_sge)
        return EINVAL;
    w->wr_id = wr.wr_id;
    w->opcode = wr.opcode;
    w->flags = wr.send_flags;
    w->imm = wr.imm_data;
    w->sges = uint32_t(wr.num_sge);
    w->inline_len = 0;
    if (s.use == QpUse::ud) {
        if (!wr.wr.ud.ah) return EINVAL;
        const Ah& ah = *reinterpret_cast<Ah*>(wr.wr.ud.ah);
        w->dgid = ah.attr.grh.dgid;
        w->sgid_index = ah.attr.grh.sgid_index;
        w->remote_qpn = wr.wr.ud.remote_qpn;
        w->remote_qkey = wr.wr.ud.remote_qkey;
    } else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        w->remote_addr = wr.wr.atomic.remote_addr;
        w->rkey = wr.wr.atomic.rkey;
        w->compare_add = wr.wr.atomic.compare_add;
        w->swap = wr.wr.atomic.swap;
    } else {
        w->remote_addr = wr.wr.rdma.remote_addr;
        w->rkey = wr.wr.rdma.rkey;
    }
    if (!(wr.send_flags & IBV_SEND_INLINE)) {
        if (wr.num_sge) std::memcpy(w + 1, wr.sg_list, size_t(wr.num_sge) * sizeof(ibv_sge));
        return 0;
    }
    if (wr.opcode > IBV_WR_SEND_WITH_IMM) return EINVAL;
    char* to = reinterpret_cast<char*>(w + 1);
    for (int i = 0; i < wr.num_sge; i++) {
        if (wr.sg_list[i].length > s.send_inline - w->inline_len) return EINVAL;
        std::memcpy(to + w->inline_len, reinterpret_cast<void*>(wr.sg_list[i].addr),
                    wr.sg_list[i].length);
        w->inline_len += wr.sg_list[i].length;
    }
    return 0;
}

Qp& extended(ibv_qp_ex* ex) { return *reinterpret_cast<Qp*>(ex); }

ibv_send_wr& start(ibv_qp_ex* ex, ibv_wr_opcode opcode) {
    WrBatch& b = extended(ex).batch;
    ibv_send_wr& wr = b.requests.emplace_back();
    wr = {};
    wr.wr_id = ex->wr_id;
    wr.send_flags = ex->wr_flags;
    wr.opcode = opcode;
    b.lists.emplace_back();
    b.inlined.emplace_back();
    return wr;
}

void remote(ibv_qp_ex* ex, ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr, __be32 imm = 0) {
    ibv_send_wr& wr = start(ex, opcode);
    wr.wr.rdma = {addr, rkey};
    wr.imm_data = imm;
}

void add_list(ibv_qp_ex* ex, size_t count, const ibv_sge* list) {
    WrBatch& b = extended(ex).batch;
    if (b.lists.empty()) return void(b.error = EINVAL);
    b.lists.back().assign(list, list + count);
}

void add_inline(ibv_qp_ex* ex, size_t count, const ibv_data_buf* list) {
    WrBatch& b = extended(ex).batch;
    if (b.lists.empty()) return void(b.error = EINVAL);
    for (size_t i = 0; i < count; i++) {
        const uint8_t* p = static_cast<const uint8_t*>(list[i].addr);
        b.inlined.back().insert(b.inlined.back().end(), p, p + list[i].length);
    }
    b.requests.back().send_flags |= IBV_SEND_INLINE;
}

void abandon(ibv_qp_ex* ex) {
    WrBatch& b = extended(ex).batch;
    b.requests.clear();
    b.lists.clear();
    b.inlined.clear();
    b.error = 0;
}

// All of the batch or nothing: room for it is looked for first.
int complete(ibv_qp_ex* ex) {
    Qp& qp = extended(ex);
    WrBatch& b = qp.batch;
    const QpShared& s = shared(qp, context_of(ex->qp_base.context));
    int error = b.error;
    if (s.posted - s.retired + b.requests.size() > s.send_capacity) error = ENOMEM;
    for (size_t i = 0; i < b.requests.size(); i++) {
        if (!b.inlined[i].empty())
            b.lists[i] = {{uint64_t(b.inlined[i].data()), uint32_t(b.inlined[i].size()), 0}};
        b.requests[i].sg_list = b.lists[i].data();
        b.requests[i].num_sge = int(b.lists[i].size());
        b.requests[i].next = i + 1 < b.requests.size() ? &b.requests[i + 1] : nullptr;
    }
    ibv_send_wr* bad;
    if (!error && !b.requests.empty()) error = post_send(&ex->qp_base, &b.requests[0], &bad);
    abandon(ex);
    return error;
}

}  // namespace

int post_send(ibv_qp* ibv, ibv_send_wr* wr, ibv_send_wr** bad) {
    Qp& qp = qp_of(ibv);
    Context& c = context_of(ibv->context);
    QpShared& s = shared(qp, c);
    if (s.use == QpUse::raw) return post_raw(c, qp, wr, bad);
    int error = 0;
    {
        SharedLocked locked(s.send_lock);
        const ibv_qp_state state = s.state.load(std::memory_order_acquire);
        uint32_t posted = s.posted.load(std::memory_order_relaxed);
        for (; wr && !error; wr = error ? wr : wr->next) {
            if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR)
                error = EINVAL;
            else if (posted - s.retired.load(std::memory_order_acquire) >= s.send_capacity)
                error = ENOMEM;
            else
                error = write_wqe(s, *wr, send_wqe(*c.own, s, posted));
            if (!error) posted++;
        }
        s.posted.store(posted, std::memory_order_release);
    }
    if (error) *bad = wr;
    execute(c, *c.own, qp.index);
    return error;
}

int post_recv(ibv_qp* ibv, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Qp& qp = qp_of(ibv);
    Context& c = context_of(ibv->context);
    QpShared& s = shared(qp, c);
    if (s.srq || s.state == IBV_QPS_RESET) {
        *bad = wr;
        return EINVAL;
    }
    const int error = post_receives(c, s.recv, wr, bad);
    if (s.state == IBV_QPS_ERR) flush(c, *c.own, qp.index);
    serve_waiters(c);
    return error;
}

int post_srq_recv(ibv_srq* ibv, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Context& c = context_of(ibv->context);
    const int error =
        post_receives(c, c.station().srqs[reinterpret_cast<Srq*>(ibv)->index], wr, bad);
    serve_waiters(c);
    return error;
}

void set_wr_calls(ibv_qp_ex& q) {
    q.wr_start = abandon;
    q.wr_abort = abandon;
    q.wr_complete = complete;
    q.wr_send = [](ibv_qp_ex* x) { start(x, IBV_WR_SEND); };
    q.wr_send_imm = [](ibv_qp_ex* x, __be32 imm) { start(x, IBV_WR_SEND_WITH_IMM).imm_data = imm; };
    q.wr_send_tso = [](ibv_qp_ex* x, void* hdr, uint16_t size, uint16_t mss) {
        start(x, IBV_WR_TSO).tso = {hdr, size, mss};
    };
    q.wr_rdma_write = [](ibv_qp_ex* x, uint32_t key, uint64_t to) {
        remote(x, IBV_WR_RDMA_WRITE, key, to);
    };
    q.wr_rdma_write_imm = [](ibv_qp_ex* x, uint32_t key, uint64_t to, __be32 imm) {
        remote(x, IBV_WR_RDMA_WRITE_WITH_IMM, key, to, imm);
    };
    q.wr_rdma_read = [](ibv_qp_ex* x, uint32_t key, uint64_t from) {
        remote(x, IBV_WR_RDMA_READ, key, from);
    };
    q.wr_atomic_cmp_swp = [](ibv_qp_ex* x, uint32_t key, uint64_t to, uint64_t compare,
                             uint64_t swap) {
        start(x, IBV_WR_ATOMIC_CMP_AND_SWP).wr.atomic = {to, compare, swap, key};
    };
    q.wr_atomic_fetch_add = [](ibv_qp_ex* x, uint32_t key, uint64_t to, uint64_t add) {
        start(x, IBV_WR_ATOMIC_FETCH_AND_ADD).wr.atomic = {to, add, 0, key};
    };
    q.wr_set_ud_addr = [](ibv_qp_ex* x, ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
        WrBatch& b = extended(x).batch;
        if (!b.requests.empty()) b.requests.back().wr.ud = {ah, qpn, qkey};
    };
    q.wr_set_sge = [](ibv_qp_ex* x, uint32_t key, uint64_t at, uint32_t n) {
        const ibv_sge one = {at, n, key};
        add_list(x, 1, &one);
    };
    q.wr_set_sge_list = add_list;
    q.wr_set_inline_data = [](ibv_qp_ex* x, void* at, size_t n) {
        const ibv_data_buf one = {at, n};
        add_inline(x, 1, &one);
    };
    q.wr_set_inline_data_list = add_inline;
}

}  // namespace softhca
