// Polling: what the other side has pushed, then frames that the switch has delivered to raw QPs.
#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"
#include "softhca/raw/raw.h"

namespace softhca {
namespace {

Cq& cq_of(void* cq) { return *static_cast<Cq*>(cq); }

// Sending slots are the program's again once their completion has been seen.
void retire(Context& c, const Cqe& e) {
    if (!e.is_send) return;
    QpShared& qp = c.station().qps[e.qp_num & ((1u << kQpBits) - 1)];
    qp.retired.store(e.wqe, std::memory_order_release);
}

void to_wc(const Cqe& e, ibv_wc* wc) {
    wc->wr_id = e.wr_id;
    wc->status = ibv_wc_status(e.status);
    wc->opcode = ibv_wc_opcode(e.opcode);
    wc->vendor_err = e.vendor_err;
    wc->byte_len = e.byte_len;
    wc->imm_data = e.imm;
    wc->qp_num = e.qp_num;
    wc->src_qp = e.src_qp;
    wc->wc_flags = e.wc_flags;
    wc->pkey_index = 0;
    wc->slid = 0;
    wc->sl = e.sl;
    wc->dlid_path_bits = 0;
}

unsigned take(Context& c, Cq& cq, unsigned count, Cqe* out) {
    CqShared& shared = c.station().cqs[cq.index];
    unsigned n = 0;
    if (shared.head.load(std::memory_order_relaxed) !=
        shared.tail.load(std::memory_order_acquire)) {
        SharedLocked locked(shared.lock);
        uint32_t head = shared.head.load(std::memory_order_relaxed);
        const uint32_t tail = shared.tail.load(std::memory_order_relaxed);
        while (n < count && head != tail) {
            out[n] = c.own->at<Cqe>(shared.ring)[head++ & shared.mask];
            retire(c, out[n++]);
        }
        shared.head.store(head, std::memory_order_release);
    }
    if (n < count && !cq.raw_qps.empty()) n += receive_frames(c, cq, count - n, out + n);
    return n;
}

// Requests of this process that wait for their peer are tried again by who polls.
void progress(Context& c) {
    if (c.waiting.load(std::memory_order_relaxed)) retry_waiting(c);
}

int start_poll(ibv_cq_ex* ex, ibv_poll_cq_attr* attr) {
    if (attr && attr->comp_mask) return EINVAL;
    Cq& cq = cq_of(ex);
    Context& c = context_of(ex->context);
    progress(c);
    if (c.station().cqs[cq.index].overrun.load(std::memory_order_relaxed)) return EOVERFLOW;
    if (!take(c, cq, 1, &cq.current)) return ENOENT;
    ex->wr_id = cq.current.wr_id;
    ex->status = ibv_wc_status(cq.current.status);
    return 0;
}

int next_poll(ibv_cq_ex* ex) {
    Cq& cq = cq_of(ex);
    if (!take(context_of(ex->context), cq, 1, &cq.current)) return ENOENT;
    ex->wr_id = cq.current.wr_id;
    ex->status = ibv_wc_status(cq.current.status);
    return 0;
}

}  // namespace

int poll_cq(ibv_cq* ibv, int count, ibv_wc* wc) {
    Cq& cq = cq_of(ibv);
    Context& c = context_of(ibv->context);
    progress(c);
    if (c.station().cqs[cq.index].overrun.load(std::memory_order_relaxed)) return -EOVERFLOW;
    Cqe batch[16];
    int done = 0;
    while (done < count) {
        const unsigned room = unsigned(count - done < 16 ? count - done : 16);
        const unsigned n = take(c, cq, room, batch);
        for (unsigned i = 0; i < n; i++) to_wc(batch[i], wc++);
        done += int(n);
        if (n < room) break;
    }
    return done;
}

int request_notify(ibv_cq* ibv, int solicited_only) {
    CqShared& shared = context_of(ibv->context).station().cqs[cq_of(ibv).index];
    shared.armed.store(solicited_only ? Armed::solicited : Armed::any, std::memory_order_seq_cst);
    return 0;
}

void set_extended_poll(ibv_cq_ex& cq) {
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = [](ibv_cq_ex*) {};
    cq.read_opcode = [](ibv_cq_ex* q) { return ibv_wc_opcode(cq_of(q).current.opcode); };
    cq.read_vendor_err = [](ibv_cq_ex* q) { return cq_of(q).current.vendor_err; };
    cq.read_byte_len = [](ibv_cq_ex* q) { return cq_of(q).current.byte_len; };
    cq.read_imm_data = [](ibv_cq_ex* q) { return __be32(cq_of(q).current.imm); };
    cq.read_qp_num = [](ibv_cq_ex* q) { return cq_of(q).current.qp_num; };
    cq.read_src_qp = [](ibv_cq_ex* q) { return cq_of(q).current.src_qp; };
    cq.read_wc_flags = [](ibv_cq_ex* q) -> unsigned { return cq_of(q).current.wc_flags; };
    cq.read_slid = [](ibv_cq_ex*) -> uint32_t { return 0; };
    cq.read_sl = [](ibv_cq_ex* q) { return cq_of(q).current.sl; };
    cq.read_dlid_path_bits = [](ibv_cq_ex*) -> uint8_t { return 0; };
    cq.read_completion_ts = [](ibv_cq_ex* q) { return cq_of(q).current.timestamp; };
    cq.read_cvlan = [](ibv_cq_ex* q) { return cq_of(q).current.vlan; };
    cq.read_flow_tag = [](ibv_cq_ex* q) { return cq_of(q).current.flow_tag; };
}

}  // namespace softhca
