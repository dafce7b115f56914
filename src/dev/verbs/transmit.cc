#include "dev/verbs/transmit.h"

#include <algorithm>
#include <cstring>

namespace vma {

void copy_payload(const TxFrame& f, uint8_t* to) {
    for (uint16_t i = 0; i < f.payload_count; ++i) {
        std::memcpy(to, f.payload[i].iov_base, f.payload[i].iov_len);
        to += f.payload[i].iov_len;
    }
}

void QueueTransmitter::open(uint8_t* memory, uint32_t bytes, uint32_t key, const Limits& limits) {
    memory_ = memory;
    size_ = bytes;
    key_ = key;
    limits_ = limits;
    ask_after_ = std::min(limits.batching, limits.requests / 8);
    ends_ = std::make_unique<uint64_t[]>(limits.requests);
}

void QueueTransmitter::forget_requests() {
    failed_ = queue_failed_ = false;
    done_ = asked_ = posted_;
    freed_ = asked_used_ = used_;
}

uint8_t* QueueTransmitter::room(uint32_t bytes) {
    const uint32_t at = uint32_t(used_ % size_), to_end = size_ - at;
    const uint32_t gap = bytes > to_end ? to_end : 0;
    if (used_ + gap + bytes - freed_ > size_) return nullptr;
    used_ += gap;
    uint8_t* p = memory_ + used_ % size_;
    used_ += (bytes + 63) & ~63u;  // size_ is a multiple of 64
    return p;
}

uint8_t* QueueTransmitter::room_or_reclaim(uint32_t bytes) {
    if (uint8_t* p = room(bytes)) return p;
    reclaim();
    return room(bytes);
}

int QueueTransmitter::check(const TxFrame& f) const {
    const uint64_t bytes = f.head.size() + uint64_t(f.payload_len);
    if (f.head.size() < 14) return EINVAL;
    if (f.csum_start != 0 && !limits_.checksum) return EOPNOTSUPP;
    const bool tagged = f.head[12] == 0x81 && f.head[13] == 0;
    if (f.gso == Gso::none) return bytes > limits_.max_frame + (tagged ? 4 : 0) ? EMSGSIZE : 0;
    if (f.gso == Gso::udp_l4 || limits_.max_gso == 0) return EOPNOTSUPP;
    return bytes > limits_.max_gso ? EMSGSIZE : 0;
}

uint64_t QueueTransmitter::sent(uint32_t bytes, bool ask) {
    ends_[posted_ % limits_.requests] = used_;
    const uint64_t number = posted_++;
    if (ask) asked_ = posted_, asked_used_ = used_;
    frames_++;
    bytes_ += bytes;
    return number;
}

unsigned QueueTransmitter::send(std::span<const TxFrame> frames, int* why) {
    unsigned n = 0;
    int error = 0;
    for (; n < frames.size() && error == 0; n += error == 0) {
        error = check(frames[n]);
        if (error == 0) error = send_one(frames[n]);
    }
    if (n != 0) ring();
    if (error == 0) return n;
    refused_++;
    *why = error;
    return n;
}

}  // namespace vma
