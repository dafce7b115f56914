// The completion queues of an mlx5 device, as programs see them in memory.
#include <cstdio>
#include <cstring>

#include "softhca/hca/queues.h"
#include "softhca/mlx5/engine.h"
#include "softhca/mlx5/registers.h"
#include "softhca/raw/fields.h"
#include "softhca/raw/offload.h"

namespace softhca::mlx5 {

using vma::ByteView;
using vma::load_be32;
using vma::store_be16;
using vma::store_be32;

CompletionQueue* Engine::queue_of(ibv_cq* ibv) {
    Cq& cq = *reinterpret_cast<Cq*>(ibv);
    if (CompletionQueue* known = find(cq)) return known;
    auto q = std::make_unique<CompletionQueue>();
    q->cq = &cq;
    q->entries = c_.station().cqs[cq.index].mask + 1;
    q->memory = make_pages(size_t(q->entries) * sizeof(mlx5_cqe64));
    q->doorbells = make_pages(kPage);
    q->uar = make_pages(kPage);
    if (!q->memory || !q->doorbells || !q->uar) return nullptr;
    auto* const cqes = reinterpret_cast<mlx5_cqe64*>(q->memory.get());
    for (uint32_t i = 0; i < q->entries; i++)
        cqes[i].op_own = MLX5_CQE_INVALID << 4 | MLX5_CQE_OWNER_MASK;
    queues_.push_back(std::move(q));
    return queues_.back().get();
}

void Engine::complete_send(QueuePair& q, const SendRequest& request, uint16_t at,
                           uint8_t syndrome) {
    if (syndrome == 0 && !request.signalled) return;
    mlx5_cqe64 e{};
    const uint32_t operation = uint32_t(request.opcode) << 24 | number_of(c_, *q.qp);
    store_be16(&e.wqe_counter, at);
    if (syndrome != 0) {
        auto& error = reinterpret_cast<mlx5_err_cqe&>(e);
        error.syndrome = syndrome;
        store_be32(&error.s_wqe_opcode_qpn, operation);
        e.op_own = MLX5_CQE_REQ_ERR << 4;
    } else {
        store_be32(&e.byte_cnt, uint32_t(request.bytes));
        store_be32(&e.sop_drop_qpn, operation);
        e.timestamp = htobe64(clock_ns());
        e.op_own = MLX5_CQE_REQ << 4;
    }
    if (CompletionQueue* const cq = queue_of(q.qp->ibv.qp_base.send_cq)) push(*cq, e);
}

// Of the receive entry whose turn it is.
void Engine::complete_receive(QueuePair& q, const FrameSlot* slot, uint8_t syndrome) {
    mlx5_cqe64 e{};
    const uint32_t number = number_of(c_, *q.qp);
    store_be16(&e.wqe_counter, q.received++);
    if (syndrome != 0) {
        auto& error = reinterpret_cast<mlx5_err_cqe&>(e);
        error.syndrome = syndrome;
        store_be32(&error.s_wqe_opcode_qpn, number);
        e.op_own = MLX5_CQE_RESP_ERR << 4;
    } else {
        FlowFields fields;
        uint32_t l4 = 0;
        const ByteView frame(slot->bytes, slot->length);
        read_fields(frame, &fields, &l4);
        const bool good =
            c_.device->config.rx_checksum && (slot->checksum_good || checksums_good(frame));
        const uint32_t l3 = fields.ip_version == 4   ? MLX5_CQE_L3_HDR_TYPE_IPV4
                            : fields.ip_version == 6 ? MLX5_CQE_L3_HDR_TYPE_IPV6
                                                     : MLX5_CQE_L3_HDR_TYPE_NONE;
        e.l4_hdr_type_etc = uint8_t(l3 << 2);
        if (good) e.hds_ip_ext = MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
        store_be32(&e.byte_cnt, slot->length);
        store_be32(&e.sop_drop_qpn, slot->tag & 0xffffff);
        e.timestamp = htobe64(clock_ns());
        e.op_own = MLX5_CQE_RESP_SEND << 4;
    }
    if (CompletionQueue* const cq = queue_of(q.qp->ibv.qp_base.recv_cq)) push(*cq, e);
}

void Engine::push(CompletionQueue& q, const mlx5_cqe64& cqe) {
    CqShared& s = c_.station().cqs[q.cq->index];
    const uint32_t consumed = read_record(q.doorbells.get());
    if (((q.produced - consumed) & 0xffffff) >= q.entries) {
        if (!s.overrun.exchange(true)) push_async(c_, c_.index, IBV_EVENT_CQ_ERR, s.cookie);
    }
    if (s.overrun.load(std::memory_order_relaxed)) return;
    auto& slot = reinterpret_cast<mlx5_cqe64*>(q.memory.get())[q.produced & (q.entries - 1)];
    std::memcpy(static_cast<void*>(&slot), &cqe, offsetof(mlx5_cqe64, op_own));
    // The owner bit changes with each lap, and is what the program looks at.
    const uint8_t owner = (q.produced & q.entries) != 0;
    __atomic_store_n(&slot.op_own, uint8_t(cqe.op_own | owner), __ATOMIC_RELEASE);
    q.produced++;
    wake_armed(c_, *c_.own, s, false);
}

// A completion queue is armed for what comes behind the entry that the program names; if that is there, it is told at once.
unsigned Engine::hear(CompletionQueue& q) {
    const uint64_t written = read_register(q.uar.get() + MLX5_CQ_DOORBELL);
    if (written == 0) return 0;
    uint8_t words[8];
    std::memcpy(words, &written, sizeof words);
    if (c_.device->config.strict && load_be32(words + 4) != q.cq->index) {
        std::fprintf(stderr, "softhca: %s: completion queue 0x%x is armed by the number 0x%x\n",
                     c_.device->config.name.c_str(), q.cq->index, load_be32(words + 4));
        return 1;
    }
    request_notify(ibv_cq_ex_to_cq(&q.cq->ibv), 0);
    if (((q.produced ^ load_be32(words)) & 0xffffff) != 0)
        wake_armed(c_, *c_.own, c_.station().cqs[q.cq->index], false);
    return 1;
}

}  // namespace softhca::mlx5
