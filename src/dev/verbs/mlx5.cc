#include "dev/verbs/mlx5.h"

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>

namespace vma {
namespace {

CompletionQueueFacts completions_of(const mlx5dv_cq& cq) {
    return {cq.buf, cq.dbrec, cq.cqe_cnt, cq.cqe_size, cq.cqn, cq.cq_uar};
}

}  // namespace

void describe_mlx5_queues(ibv_qp* qp, ibv_cq* send, ibv_cq* receive, DeviceFacts& facts) {
    // The driver of such a device is this library, so it is loaded already.
    void* const handle = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) return;
    const auto is_supported =
        reinterpret_cast<bool (*)(ibv_device*)>(dlsym(handle, "mlx5dv_is_supported"));
    const auto init =
        reinterpret_cast<int (*)(mlx5dv_obj*, uint64_t)>(dlsym(handle, "mlx5dv_init_obj"));
    mlx5dv_qp q{};
    mlx5dv_cq sends{}, receives{};
    mlx5dv_obj queues{}, second{};
    queues.qp = {qp, &q};
    queues.cq = {send, &sends};
    second.cq = {receive, &receives};
    const bool known = is_supported != nullptr && init != nullptr &&
                       is_supported(qp->context->device) &&
                       init(&queues, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0 &&
                       (receive == nullptr || init(&second, MLX5DV_OBJ_CQ) == 0);
    dlclose(handle);
    if (!known) return;
    // The doorbell record of a queue pair: receive counter, send counter (MLX5_RCV_DBR, MLX5_SND_DBR).
    facts.has_queues = true;
    facts.send = {q.sq.buf, q.sq.wqe_cnt, q.sq.stride, q.dbrec + 1, completions_of(sends)};
    facts.has_receive = receive != nullptr;
    if (facts.has_receive)
        facts.receive = {q.rq.buf, q.rq.wqe_cnt, q.rq.stride, q.dbrec, completions_of(receives)};
    facts.send_number = qp->qp_num;
    facts.blueflame = q.bf.reg;
    facts.blueflame_bytes = q.bf.size;
}

}  // namespace vma
