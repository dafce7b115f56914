#include "dev/verbs/verbs_transmit.h"

#include <cerrno>
#include <cstring>

namespace vma {

Status VerbsTransmitter::use(const VerbsQueues& queues) {
    qp_ = queues.qp;
    cq_ = queues.send;
    return {};
}

void VerbsTransmitter::reclaim() {
    ibv_wc seen[16];
    int n;
    while ((n = ibv_poll_cq(cq_, 16, seen)) > 0) {
        for (int i = 0; i < n; ++i) failed_ = failed_ || seen[i].status != IBV_WC_SUCCESS;
        done(seen[n - 1].wr_id);
        if (n < 16) break;
    }
    if (n < 0) queue_is_gone();
}

int VerbsTransmitter::send_one(const TxFrame& f) {
    if (is_full()) reclaim();
    if (failed_) return ENETDOWN;
    if (is_full()) return EAGAIN;
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
    const bool ask = wants_completion();
    if (ask) wr.send_flags |= IBV_SEND_SIGNALED;
    wr.wr_id = posted_;
    wr.sg_list = pieces;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(qp_, &wr, &bad)) {
        used_ = used;
        return error == ENOMEM ? EAGAIN : error;
    }
    sent(bytes, ask);
    return 0;
}

}  // namespace vma
