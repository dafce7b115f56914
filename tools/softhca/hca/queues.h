// Completion and receive queues in shared memory, as both ends of an operation use them.
#pragma once

#include "softhca/hca/context.h"

namespace softhca {

// Rings of `slots` entries: rounded up to a power of two.
inline uint32_t ring_slots(uint32_t wanted) {
    uint32_t n = 1;
    while (n < wanted) n *= 2;
    return n;
}

// Appends a completion to queue `cq` of `station` and wakes who sleeps on its channel, if armed for it. A full queue is an
// overrun: the completion is lost and its owner gets IBV_EVENT_CQ_ERR. `by`: who carries the operation out.
void push_completion(Context& by, StationMap& station, uint32_t cq, const Cqe& cqe, bool solicited);
// Only the wake-up: frames wait in a ring from which the owner makes completions when it polls.
void wake_armed(Context& by, StationMap& station, CqShared& cq, bool solicited);
void push_async(Context& by, uint32_t station, ibv_event_type type, uint64_t element,
                uint32_t port = 1);

inline RecvWqe* recv_wqe(const StationMap& station, const RecvQueue& q, uint32_t at) {
    return station.at<RecvWqe>(q.ring + uint64_t(at & q.mask) * q.stride);
}
// Makes room for `capacity` requests of `max_sge` elements; false: no memory.
bool make_recv_queue(Context& c, RecvQueue& q, uint32_t capacity, uint32_t max_sge, uint32_t pd);
void free_recv_queue(Context& c, RecvQueue& q);
// Zero, or the error of ibv_post_recv with *bad at the first that was not taken. The queue's lock is taken.
int post_receives(Context& c, RecvQueue& q, ibv_recv_wr* wr, ibv_recv_wr** bad);
RecvQueue& recv_queue_of(Station& station, QpShared& qp);

inline SendWqe* send_wqe(const StationMap& station, const QpShared& qp, uint32_t at) {
    return station.at<SendWqe>(qp.send_ring + uint64_t(at & qp.send_mask) * qp.send_stride);
}

// The program's side of a completion queue (completion.cc).
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int request_notify(ibv_cq* cq, int solicited_only);
void set_extended_poll(ibv_cq_ex& cq);

}  // namespace softhca
