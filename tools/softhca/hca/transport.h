// RC, UC and UD: sends, RDMA writes and reads, atomics, carried out by whoever starts them on the memory and the queues of
// both ends.
#pragma once

#include "softhca/hca/context.h"

namespace softhca {

// Carries out the posted requests of QP `index` of `from`, in order, until none is left or one waits for its peer (no
// receive request there, or the peer is not ready). Takes the QP's send lock. `by` is one of the two ends.
void execute(Context& by, StationMap& from, uint32_t index);

// Of this process: requests that wait are tried again; those whose time is up complete in error.
void retry_waiting(Context& c);
// Of others: somebody waits for a receive request or a state of one of our QPs, and there is news.
void serve_waiters(Context& c);

// Completes all outstanding requests of a QP with IBV_WC_WR_FLUSH_ERR. State is ERR already.
void flush(Context& by, StationMap& station, uint32_t index);
// The QP failed: state ERR, flush.
void fail_qp(Context& by, StationMap& station, uint32_t index);

}  // namespace softhca
