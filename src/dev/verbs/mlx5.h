// Where the queues of an mlx5 device are in memory, as its library tells (mlx5dv_init_obj(3)).
#pragma once

#include <infiniband/verbs.h>

#include "dev/device_queues.h"

namespace vma {

// Fills what facts.has_queues announces; `receive` null: nothing of receiving. Of another device, or without its library, nothing is changed.
void describe_mlx5_queues(ibv_qp* qp, ibv_cq* send, ibv_cq* receive, DeviceFacts& facts);

}  // namespace vma
