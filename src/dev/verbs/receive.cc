#include "dev/verbs/receive.h"

#include <algorithm>
#include <bit>

namespace vma {

void QueueReceiver::open(uint8_t* memory, uint32_t slots, uint32_t room, uint32_t key,
                         PacketPool& pool, uint32_t ifindex, const Limits& limits) {
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

unsigned QueueReceiver::poll() {
    if (limits_.prefetched_before != 0 && has_posted())
        prefetch(memory_ + size_t(next_posted()) * room_, limits_.prefetched_before);
    const int n = take_completions();
    if (n < 0) queue_is_gone();
    return unsigned(std::max(n, 0));
}

void QueueReceiver::forget_requests() {
    for (uint32_t slot = 0; slot < slots_; ++slot) {
        if (!posted_[slot]) continue;
        posted_[slot] = false;
        free_[free_count_++] = slot;
    }
    order_at_ = order_end_;
    failed_ = queue_failed_ = false;
}

void QueueReceiver::prefetch(const uint8_t* data, uint32_t bytes) const {
    for (uint32_t at = 0; at < std::min(bytes, room_); at += 64) __builtin_prefetch(data + at);
}

uint32_t QueueReceiver::gather() {
    while (poll() == limits_.polled) {
    }
    return waiting();
}

unsigned QueueReceiver::recv(std::span<Packet> out) {
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
void QueueReceiver::give_back(PacketBuf& buf) {
    free_[free_count_++] = uint32_t(buf.lender_cookie);
}

}  // namespace vma
