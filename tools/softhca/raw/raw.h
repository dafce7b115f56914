// Raw Ethernet QPs: offloads of the sending side, the switch, and frames into receive requests.
#pragma once

#include "softhca/hca/context.h"

namespace softhca {

// The error of ibv_post_send, *bad at the first request that was not taken. Requests are carried out at once.
int post_raw(Context& c, Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad);

// Up to `count` completions of frames that wait for raw QPs of `cq`.
unsigned receive_frames(Context& c, Cq& cq, unsigned count, Cqe* out);

}  // namespace softhca
