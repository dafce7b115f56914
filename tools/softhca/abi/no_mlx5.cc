// libmlx5.so.1 for programs that are linked with it (perftest): none of the devices is an mlx5 one, and every call says so
// as the real library does for a stranger's device. The symbols are those that such programs import.
#include <infiniband/mlx5dv.h>

#include "softhca/abi/exported.h"

namespace {
template <class T = void>
T* none() {
    errno = EOPNOTSUPP;
    return nullptr;
}
}  // namespace

EXPORTED bool mlx5dv_is_supported(ibv_device*) { return false; }
EXPORTED ibv_context* mlx5dv_open_device(ibv_device*, mlx5dv_context_attr*) {
    return none<ibv_context>();
}
EXPORTED int mlx5dv_query_device(ibv_context*, mlx5dv_context*) { return EOPNOTSUPP; }
EXPORTED int mlx5dv_init_obj(mlx5dv_obj*, uint64_t) { return EOPNOTSUPP; }
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
