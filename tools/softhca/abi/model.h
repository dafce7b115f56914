// What libibverbs.so.1 of the software HCA has for libmlx5.so.1 beside it, and for tests.
#pragma once

#include <infiniband/mlx5dv.h>

extern "C" {
bool softhca_is_mlx5(ibv_device* device);
int softhca_show_qp(ibv_qp* qp, mlx5dv_qp* out);  // the errors of mlx5dv_init_obj(3)
int softhca_show_cq(ibv_cq* cq, mlx5dv_cq* out);
// The device looks at its doorbells now, in this thread; how much there was to do. For a device with engine=kick, which looks at
// no other time: after each write to a UAR page, and to see what has arrived.
unsigned softhca_kick(ibv_context* context);
}
