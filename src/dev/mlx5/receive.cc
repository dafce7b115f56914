#include "dev/mlx5/receive.h"

#include <errno.h>

#include "base/bytes.h"

namespace vma {
namespace {

void write_pointer(uint8_t* to, uint32_t length, uint32_t key, const void* at) {
    store_be32(to, length);
    store_be32(to + 4, key);
    store_be32(to + 8, uint32_t(uint64_t(at) >> 32));
    store_be32(to + 12, uint32_t(uint64_t(at)));
}

}  // namespace

Status Mlx5Receiver::use(const VerbsQueues& queues) {
    mlx5dv_qp shown;
    if (!library_.show(queues.qp, &shown)) return Errno{EOPNOTSUPP};
    const uint32_t count = shown.rq.wqe_cnt, stride = shown.rq.stride;
    if (count < slots_ || (count & (count - 1)) != 0 || stride < sizeof(mlx5_wqe_data_seg))
        return Errno{EOPNOTSUPP};
    if (const Status used = completions_.use(library_, queues.receive); !used) return used;
    kick_.of(queues.qp->context);
    entries_ = static_cast<uint8_t*>(shown.rq.buf);
    record_ = shown.dbrec + MLX5_RCV_DBR;
    count_ = count;
    stride_ = stride;
    given_ = 0;
    return {};
}

Status Mlx5Receiver::post() {
    if (free_count_ == 0) return {};
    while (free_count_ != 0) {
        const uint32_t slot = first_free();
        uint8_t* const entry = entries_ + size_t(given_++ & (count_ - 1)) * stride_;
        write_pointer(entry, room_, key_, memory_ + size_t(slot) * room_);
        // An entry with room for more pieces ends at one of no memory.
        if (stride_ > sizeof(mlx5_wqe_data_seg))
            write_pointer(entry + sizeof(mlx5_wqe_data_seg), 0, MLX5_INVALID_LKEY, nullptr);
        gave(slot);
    }
    started();
    return {};
}

// The library writes the record when the QP comes to RTR, as if nothing had been posted.
void Mlx5Receiver::started() {
    mlx5::before_record();
    mlx5::write_record(record_, given_ & 0xffff);
}

bool Mlx5Receiver::arm() {
    completions_.arm();
    kick_();
    return true;
}

void Mlx5Receiver::complete(const mlx5_cqe64& entry) {
    const uint8_t opcode = entry.op_own >> 4;
    if (!has_posted()) {  // of nothing that is with the device
        malformed_++;
        failed_ = true;
        return;
    }
    const uint32_t slot = next_posted();
    if (opcode == MLX5_CQE_RESP_SEND) [[likely]] {
        constexpr uint8_t kGood = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
        completed(slot, IBV_WC_SUCCESS, be32toh(entry.byte_cnt),
                  (entry.hds_ip_ext & kGood) == kGood ? IBV_WC_IP_CSUM_OK : 0,
                  stamps_ ? be64toh(entry.timestamp) : 0);
        return;
    }
    const auto& error = reinterpret_cast<const mlx5_err_cqe&>(entry);
    const bool length =
        opcode == MLX5_CQE_RESP_ERR && error.syndrome == MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    completed(slot, length ? IBV_WC_LOC_LEN_ERR : IBV_WC_GENERAL_ERR, 0, 0, 0);
}

int Mlx5Receiver::take_completions() {
    kick_();
    uint32_t n = 0;
    for (; n < limits_.polled; ++n) {
        const mlx5_cqe64* const entry = completions_.next();
        if (entry == nullptr) break;
        complete(*entry);
        completions_.consume();
    }
    if (n != 0) completions_.release();
    return int(n);
}

// Completions that came between the last look and the reset are of requests that are forgotten. The library, which believes that
// nobody has consumed any, may have written the record of the completion queue.
void Mlx5Receiver::forget_requests() {
    while (completions_.next() != nullptr) completions_.consume();
    completions_.release();
    given_ = 0;
    QueueReceiver::forget_requests();
}

}  // namespace vma
