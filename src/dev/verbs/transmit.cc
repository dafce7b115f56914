#include "dev/verbs/transmit.h"

#include <algorithm>
#include <cstring>

namespace vma {
namespace {

void copy_payload(const TxFrame& f, uint8_t* to) {
    for (uint16_t i = 0; i < f.payload_count; ++i) {
        std::memcpy(to, f.payload[i].iov_base, f.payload[i].iov_len);
        to += f.payload[i].iov_len;
    }
}

}  // namespace

void VerbsTransmitter::open(ibv_qp* qp, ibv_cq* cq, uint8_t* memory, uint32_t bytes, uint32_t key,
                            const Limits& limits) {
    qp_ = qp;
    cq_ = cq;
    memory_ = memory;
    size_ = bytes;
    key_ = key;
    limits_ = limits;
    ends_ = std::make_unique<uint64_t[]>(limits.requests);
}

void VerbsTransmitter::reclaim() {
    ibv_wc done[16];
    int n;
    while ((n = ibv_poll_cq(cq_, 16, done)) > 0) {
        for (int i = 0; i < n; ++i) {
            failed_ = failed_ || done[i].status != IBV_WC_SUCCESS;
            done_ = done[i].wr_id + 1;  // and all before it
        }
        freed_ = ends_[(done_ - 1) % limits_.requests];
        if (n < 16) break;
    }
    queue_failed_ = queue_failed_ || n < 0;
    failed_ = failed_ || queue_failed_;
}

void VerbsTransmitter::forget_requests() {
    failed_ = queue_failed_ = false;
    done_ = asked_ = posted_;
    freed_ = asked_used_ = used_;
}

uint8_t* VerbsTransmitter::room(uint32_t bytes) {
    const uint32_t at = uint32_t(used_ % size_), to_end = size_ - at;
    const uint32_t gap = bytes > to_end ? to_end : 0;
    if (used_ + gap + bytes - freed_ > size_) return nullptr;
    used_ += gap;
    uint8_t* p = memory_ + used_ % size_;
    used_ += (bytes + 63) & ~63u;  // size_ is a multiple of 64
    return p;
}

uint8_t* VerbsTransmitter::room_or_reclaim(uint32_t bytes) {
    if (uint8_t* p = room(bytes)) return p;
    reclaim();
    return room(bytes);
}

int VerbsTransmitter::check(const TxFrame& f) const {
    const uint64_t bytes = f.head.size() + uint64_t(f.payload_len);
    if (f.head.size() < 14) return EINVAL;
    if (f.csum_start != 0 && !limits_.checksum) return EOPNOTSUPP;
    const bool tagged = f.head[12] == 0x81 && f.head[13] == 0;
    if (f.gso == Gso::none) return bytes > limits_.max_frame + (tagged ? 4 : 0) ? EMSGSIZE : 0;
    if (f.gso == Gso::udp_l4 || limits_.max_gso == 0) return EOPNOTSUPP;
    return bytes > limits_.max_gso ? EMSGSIZE : 0;
}

int VerbsTransmitter::send_one(const TxFrame& f) {
    if (posted_ - done_ >= limits_.requests) reclaim();
    if (failed_) return ENETDOWN;
    if (posted_ - done_ >= limits_.requests) return EAGAIN;
    ibv_send_wr wr{};
    ibv_sge pieces[kVerbsMostPieces];
    const uint32_t head = uint32_t(f.head.size()), bytes = head + f.payload_len;
    const uint64_t used = used_;
    const bool cut = f.gso != Gso::none && f.payload_len > f.gso_size;
    wr.num_sge = 1;
    if (!cut && bytes <= limits_.max_inline && f.payload_count < limits_.max_pieces) {
        pieces[0] = {uint64_t(f.head.data()), head, 0};
        for (uint16_t i = 0; i < f.payload_count; ++i)
            pieces[wr.num_sge++] = {uint64_t(f.payload[i].iov_base), uint32_t(f.payload[i].iov_len),
                                    0};
        wr.send_flags = IBV_SEND_INLINE;
    } else {
        const uint32_t copied = cut ? f.payload_len : bytes;
        uint8_t* p = room_or_reclaim(copied);
        if (p == nullptr) return EAGAIN;
        if (!cut) std::memcpy(p, f.head.data(), head);
        copy_payload(f, p + (cut ? 0 : head));
        pieces[0] = {uint64_t(p), copied, key_};
    }
    wr.opcode = cut ? IBV_WR_TSO : IBV_WR_SEND;
    if (cut) wr.tso = {const_cast<uint8_t*>(f.head.data()), uint16_t(head), f.gso_size};
    if (cut || f.csum_start != 0) wr.send_flags |= IBV_SEND_IP_CSUM;
    // At the latest when an eighth of the memory or of the queue waits for it, so that neither can run full unasked.
    const bool ask = posted_ + 1 - asked_ >= std::min(limits_.batching, limits_.requests / 8) ||
                     used_ - asked_used_ >= size_ / 8;
    if (ask) wr.send_flags |= IBV_SEND_SIGNALED;
    wr.wr_id = posted_;
    wr.sg_list = pieces;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(qp_, &wr, &bad)) {
        used_ = used;
        return error == ENOMEM ? EAGAIN : error;
    }
    ends_[posted_ % limits_.requests] = used_;
    posted_++;
    if (ask) asked_ = posted_, asked_used_ = used_;
    frames_++;
    bytes_ += bytes;
    return 0;
}

unsigned VerbsTransmitter::send(std::span<const TxFrame> frames, int* why) {
    unsigned n = 0;
    int error = 0;
    for (; n < frames.size() && error == 0; n += error == 0) {
        error = check(frames[n]);
        if (error == 0) error = send_one(frames[n]);
    }
    if (error == 0) return n;
    refused_++;
    *why = error;
    return n;
}

}  // namespace vma
