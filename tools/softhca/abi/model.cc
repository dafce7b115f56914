#include "softhca/abi/model.h"

#include "softhca/abi/exported.h"
#include "softhca/mlx5/engine.h"

using softhca::mlx5::engine_of;

EXPORTED bool softhca_is_mlx5(ibv_device* device) {
    return reinterpret_cast<softhca::Device*>(device)->config.mlx5;
}
EXPORTED int softhca_show_qp(ibv_qp* qp, mlx5dv_qp* out) {
    softhca::mlx5::Engine* const engine = engine_of(qp->context);
    return engine ? engine->show(qp, out) : EOPNOTSUPP;
}
EXPORTED int softhca_show_cq(ibv_cq* cq, mlx5dv_cq* out) {
    softhca::mlx5::Engine* const engine = engine_of(cq->context);
    return engine ? engine->show(cq, out) : EOPNOTSUPP;
}
EXPORTED unsigned softhca_kick(ibv_context* context) {
    softhca::mlx5::Engine* const engine = engine_of(context);
    return engine ? engine->kick() : 0;
}
