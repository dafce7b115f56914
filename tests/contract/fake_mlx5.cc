// A libmlx5.so.1 that takes every device for one of its own and tells made-up addresses, for verbs_ring_test.cc.
#include <infiniband/mlx5dv.h>

#include <cstdint>

namespace {
template <class T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}
uint32_t g_queues = 0;  // completion queues that were asked for
}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED bool mlx5dv_is_supported(ibv_device*) { return true; }

EXPORTED int mlx5dv_init_obj(mlx5dv_obj* object, uint64_t type) {
    if (type & MLX5DV_OBJ_QP) {
        mlx5dv_qp& qp = *object->qp.out;
        qp.dbrec = at<__be32>(0x3000);
        qp.sq = {at<void>(0x1000), 256, 64};
        qp.rq = {at<void>(0x2000), 512, 16};
        qp.bf = {at<void>(0x4000), 512};
    }
    if (type & MLX5DV_OBJ_CQ) {
        mlx5dv_cq& cq = *object->cq.out;
        cq.buf = at<void>(0x5000);
        cq.dbrec = at<__be32>(0x6000);
        cq.cqe_cnt = 128;
        cq.cqe_size = 64;
        cq.cq_uar = at<void>(0x7000);
        cq.cqn = 5 + g_queues++;
    }
    return 0;
}
