#include "dev/verbs/receive.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "dev/verbs/verbs_ring.h"

namespace vma {

void VerbsReceiver::open(ibv_qp* qp, ibv_cq* cq, ibv_cq_ex* stamped, uint8_t* memory,
                         uint32_t slots, uint32_t room, uint32_t key, PacketPool& pool,
                         uint32_t ifindex, const Limits& limits) {
    qp_ = qp;
    cq_ = cq;
    stamped_ = stamped;
    memory_ = memory;
    slots_ = slots;
    room_ = room;
    key_ = key;
    pool_ = &pool;
    ifindex_ = ifindex;
    limits_ = limits;
    limits_.polled = std::min(limits.polled, kVerbsMostPolled);
    free_ = std::make_unique<uint32_t[]>(slots);
    for (uint32_t i = 0; i < slots; ++i) free_[i] = slots - 1 - i;
    free_count_ = slots;
    posted_ = std::make_unique<bool[]>(slots);
    mask_ = std::bit_ceil(slots) - 1;
    arrived_ = std::make_unique<Arrived[]>(mask_ + 1);
    order_ = std::make_unique<uint32_t[]>(mask_ + 1);
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
        for (uint32_t i = 0; i < taken; ++i) {
            posted_[requests[i].wr_id] = true;
            order_[order_end_++ & mask_] = uint32_t(requests[i].wr_id);
        }
        free_count_ -= taken;
        if (error) return Errno{error};
    }
    return {};
}

void VerbsReceiver::completed(uint32_t slot, ibv_wc_status status, uint32_t len, unsigned flags,
                              uint64_t stamp) {
    posted_[slot] = false;
    order_at_++;
    if (status != IBV_WC_SUCCESS || len < 14) {
        free_[free_count_++] = slot;
        if (status == IBV_WC_SUCCESS || status == IBV_WC_LOC_LEN_ERR) malformed_++;
        failed_ = failed_ || status != IBV_WC_SUCCESS;
        return;
    }
    arrived_[arrived_end_++ & mask_] = {slot, len, (flags & IBV_WC_IP_CSUM_OK) != 0, stamp};
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
    if (error != 0 && error != ENOENT) failed_ = queue_failed_ = true;
    return n;
}

unsigned VerbsReceiver::poll() {
    if (order_at_ != order_end_)
        prefetch(memory_ + size_t(order_[order_at_ & mask_]) * room_, limits_.prefetched_before);
    const int n = stamped_ ? poll_stamped() : poll_plain();
    if (n < 0) failed_ = queue_failed_ = true;
    return unsigned(std::max(n, 0));
}

void VerbsReceiver::forget_requests() {
    for (uint32_t slot = 0; slot < slots_; ++slot) {
        if (!posted_[slot]) continue;
        posted_[slot] = false;
        free_[free_count_++] = slot;
    }
    order_at_ = order_end_;
    failed_ = queue_failed_ = false;
}

void VerbsReceiver::prefetch(const uint8_t* data, uint32_t bytes) const {
    for (uint32_t at = 0; at < std::min(bytes, room_); at += 64) __builtin_prefetch(data + at);
}

uint32_t VerbsReceiver::gather() {
    while (poll() == limits_.polled) {
    }
    return waiting();
}

unsigned VerbsReceiver::recv(std::span<Packet> out) {
    unsigned n = 0;
    const uint64_t most = dropped_ + out.size();  // so that the caller is not kept here
    while (n < out.size() && dropped_ < most) {
        if (waiting() == 0) {
            const unsigned seen = poll();
            if (waiting() == 0) {
                if (seen == 0) break;
                continue;
            }
        }
        const Arrived a = arrived_[arrived_at_ & mask_];
        uint8_t* data = memory_ + size_t(a.slot) * room_;
        prefetch(data, std::min(limits_.prefetched, a.len));
        Packet p = pool_->lend(data, a.len, this, a.slot);
        if (!p) {
            if (!limits_.drop) break;  // the frame stays the next
            arrived_at_++;
            dropped_++;
            free_[free_count_++] = a.slot;
            continue;
        }
        arrived_at_++;
        p->meta.ifindex = ifindex_;
        p->meta.checksum_good = a.checksum_good;
        p->meta.hw_time_ns = int64_t(a.stamp);
        p->meta.to_us = (data[0] & 1) == 0;
        bytes_ += a.len;
        taken_++;
        out[n++] = std::move(p);
    }
    if (free_count_ >= limits_.batch && !failed_) (void)post();
    return n;
}

// Posted in batches by recv(): never fewer than slots less a batch are with the device or hold a frame.
void VerbsReceiver::give_back(PacketBuf& buf) {
    free_[free_count_++] = uint32_t(buf.lender_cookie);
}

}  // namespace vma
