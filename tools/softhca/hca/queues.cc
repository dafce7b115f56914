#include "softhca/hca/queues.h"

#include <cstring>

namespace softhca {

uint64_t Heap::take(uint64_t bytes) {
    bytes = rounded(bytes);
    for (auto at = free_.begin(); at != free_.end(); ++at) {
        if (at->second < bytes) continue;
        const uint64_t offset = at->first, left = at->second - bytes;
        free_.erase(at);
        if (left) free_[offset + bytes] = left;
        return offset;
    }
    return 0;
}

void Heap::give(uint64_t offset, uint64_t bytes) {
    if (!offset) return;
    auto at = free_.emplace(offset, rounded(bytes)).first;
    if (auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
        at->second += next->second;
        free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (auto before = std::prev(at); before->first + before->second == at->first) {
        before->second += at->second;
        free_.erase(at);
    }
}

void wake_armed(Context& by, StationMap& station, CqShared& cq, bool solicited) {
    Armed armed = cq.armed.load(std::memory_order_seq_cst);
    if (armed == Armed::no || (armed == Armed::solicited && !solicited)) return;
    if (!cq.armed.compare_exchange_strong(armed, Armed::no) || !cq.channel) return;
    by.notifier.notify(
        Notifier::channel_path(*by.wire, station->index, station.generation, cq.channel),
        &cq.cookie, sizeof(cq.cookie));
}

void push_completion(Context& by, StationMap& station, uint32_t index, const Cqe& cqe,
                     bool solicited) {
    CqShared& cq = station->cqs[index];
    {
        SharedLocked locked(cq.lock);
        const uint32_t tail = cq.tail.load(std::memory_order_relaxed);
        if (tail - cq.head.load(std::memory_order_acquire) > cq.mask) {
            if (!cq.overrun.exchange(true))
                push_async(by, station->index, IBV_EVENT_CQ_ERR, cq.cookie);
            return;
        }
        Cqe& slot = station.at<Cqe>(cq.ring)[tail & cq.mask];
        slot = cqe;
        if (cq.timestamps) slot.timestamp = clock_ns();
        cq.tail.store(tail + 1, std::memory_order_seq_cst);
    }
    wake_armed(by, station, cq, solicited || cqe.status != IBV_WC_SUCCESS);
}

void push_async(Context& by, uint32_t station, ibv_event_type type, uint64_t element,
                uint32_t port) {
    StationMap* map = by.wire->station(station);
    if (!map) return;
    const AsyncRecord record = {uint32_t(type), port, element};
    by.notifier.notify(Notifier::async_path(*by.wire, station, map->generation), &record,
                       sizeof(record));
}

bool make_recv_queue(Context& c, RecvQueue& q, uint32_t capacity, uint32_t max_sge, uint32_t pd) {
    q.head = q.tail = 0;
    q.capacity = capacity;
    q.max_sge = max_sge;
    q.pd = pd;
    q.stride = uint32_t(sizeof(RecvWqe) + max_sge * sizeof(ibv_sge));
    q.mask = ring_slots(capacity) - 1;
    q.limit = 0;
    q.ring = c.heap.take(uint64_t(q.mask + 1) * q.stride);
    return q.ring != 0;
}

void free_recv_queue(Context& c, RecvQueue& q) {
    c.heap.give(q.ring, uint64_t(q.mask + 1) * q.stride);
    q.ring = 0;
}

int post_receives(Context& c, RecvQueue& q, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    SharedLocked locked(q.lock);
    uint32_t tail = q.tail.load(std::memory_order_relaxed);
    int error = 0;
    for (; wr; wr = wr->next) {
        if (tail - q.head.load(std::memory_order_acquire) >= q.capacity)
            error = ENOMEM;
        else if (wr->num_sge < 0 || uint32_t(wr->num_sge) > q.max_sge)
            error = EINVAL;
        if (error) {
            *bad = wr;
            break;
        }
        RecvWqe* wqe = recv_wqe(*c.own, q, tail++);
        wqe->wr_id = wr->wr_id;
        wqe->sges = uint32_t(wr->num_sge);
        if (wr->num_sge) std::memcpy(wqe->sge, wr->sg_list, size_t(wr->num_sge) * sizeof(ibv_sge));
    }
    q.tail.store(tail, std::memory_order_release);
    return error;
}

RecvQueue& recv_queue_of(Station& station, QpShared& qp) {
    return qp.srq ? station.srqs[qp.srq - 1] : qp.recv;
}

}  // namespace softhca
