// libmlx5.so.1: what devices of kind mlx5 show of themselves; the model is in this folder's libibverbs (abi/model.cc). Of other
// devices every call says what the real library says of a stranger's. Besides, the symbols that programs which are linked with
// it import (perftest), for what no device here has.
#include <infiniband/mlx5dv.h>

#include "softhca/abi/exported.h"
#include "softhca/abi/model.h"

namespace {
template <class T = void>
T* none() {
    errno = EOPNOTSUPP;
    return nullptr;
}
}  // namespace

EXPORTED bool mlx5dv_is_supported(ibv_device* device) { return softhca_is_mlx5(device); }
EXPORTED ibv_context* mlx5dv_open_device(ibv_device* device, mlx5dv_context_attr*) {
    return softhca_is_mlx5(device) ? ibv_open_device(device) : none<ibv_context>();
}
// No command interface to firmware, no compressed completions, no tunnels: what is asked for beyond the flags is not there.
EXPORTED int mlx5dv_query_device(ibv_context* context, mlx5dv_context* out) {
    if (!softhca_is_mlx5(context->device)) return EOPNOTSUPP;
    *out = {};
    out->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
    return 0;
}
EXPORTED int mlx5dv_init_obj(mlx5dv_obj* o, uint64_t type) {
    if (type & ~uint64_t(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ)) return EOPNOTSUPP;
    int error = type & MLX5DV_OBJ_QP ? softhca_show_qp(o->qp.in, o->qp.out) : 0;
    if (error == 0 && (type & MLX5DV_OBJ_CQ)) error = softhca_show_cq(o->cq.in, o->cq.out);
    return error;
}
EXPORTED ibv_qp* mlx5dv_create_qp(ibv_context*, ibv_qp_init_attr_ex*, mlx5dv_qp_init_attr*) {
    return none<ibv_qp>();
}
EXPORTED mlx5dv_qp_ex* mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_ex*) { return none<mlx5dv_qp_ex>(); }
EXPORTED mlx5dv_mkey* mlx5dv_create_mkey(mlx5dv_mkey_init_attr*) { return none<mlx5dv_mkey>(); }
EXPORTED int mlx5dv_destroy_mkey(mlx5dv_mkey*) { return EOPNOTSUPP; }
EXPORTED mlx5dv_dek* mlx5dv_dek_create(ibv_context*, mlx5dv_dek_init_attr*) {
    return none<mlx5dv_dek>();
}
EXPORTED int mlx5dv_dek_destroy(mlx5dv_dek*) { return EOPNOTSUPP; }
EXPORTED int mlx5dv_crypto_login(ibv_context*, mlx5dv_crypto_login_attr*) { return EOPNOTSUPP; }
EXPORTED int mlx5dv_devx_general_cmd(ibv_context*, const void*, size_t, void*, size_t) {
    return EOPNOTSUPP;
}
