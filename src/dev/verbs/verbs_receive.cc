#include "dev/verbs/verbs_receive.h"

#include <algorithm>
#include <cerrno>

namespace vma {

Status VerbsReceiver::use(const VerbsQueues& queues) {
    qp_ = queues.qp;
    cq_ = queues.receive;
    stamped_ = queues.stamped;
    return {};
}

Status VerbsReceiver::post() {
    while (free_count_ != 0) {
        ibv_recv_wr requests[kMostPosted];
        ibv_sge pieces[kMostPosted];
        const uint32_t n = std::min(free_count_, kMostPosted);
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t slot = free_[free_count_ - 1 - i];
            pieces[i] = {uint64_t(memory_ + size_t(slot) * room_), room_, key_};
            requests[i] = {slot, i + 1 < n ? &requests[i + 1] : nullptr, &pieces[i], 1};
        }
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_recv(qp_, requests, &bad);
        const uint32_t taken = error ? uint32_t(bad - requests) : n;
        for (uint32_t i = 0; i < taken; ++i) gave(uint32_t(requests[i].wr_id));
        if (error) return Errno{error};
    }
    return {};
}

int VerbsReceiver::poll_plain() {
    ibv_wc done[kVerbsMostPolled];
    const int n = ibv_poll_cq(cq_, int(limits_.polled), done);
    for (int i = 0; i < n; ++i) {
        const ibv_wc& c = done[i];
        completed(uint32_t(c.wr_id), c.status, c.byte_len, c.wc_flags, 0);
    }
    return n;
}

// The same by the calls of ibv_create_cq_ex(3), which alone tell a completion's time.
int VerbsReceiver::poll_stamped() {
    ibv_poll_cq_attr attr{};
    int error = ibv_start_poll(stamped_, &attr);
    if (error != 0) return error == ENOENT ? 0 : -1;
    int n = 0;
    while (error == 0) {
        // What is not a success has nothing else to tell.
        const bool good = stamped_->status == IBV_WC_SUCCESS;
        completed(uint32_t(stamped_->wr_id), stamped_->status,
                  good ? ibv_wc_read_byte_len(stamped_) : 0,
                  good ? ibv_wc_read_wc_flags(stamped_) : 0,
                  good ? ibv_wc_read_completion_ts(stamped_) : 0);
        if (++n == int(limits_.polled)) break;
        error = ibv_next_poll(stamped_);
    }
    ibv_end_poll(stamped_);
    if (error != 0 && error != ENOENT) queue_is_gone();
    return n;
}

}  // namespace vma
