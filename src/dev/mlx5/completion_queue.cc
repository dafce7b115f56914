#include "dev/mlx5/completion_queue.h"

#include <errno.h>

#include "base/bytes.h"

namespace vma::mlx5 {
namespace {

// The two doorbell records of a completion queue: up to which entry it is free again, and up to which it is armed.
constexpr unsigned kConsumedRecord = 0, kArmedRecord = 1;
constexpr uint32_t kIndexMask = 0xffffff;

}  // namespace

Status CompletionQueue::use(const Mlx5Library& library, ibv_cq* cq) {
    mlx5dv_cq shown;
    if (!library.show(cq, &shown)) return Errno{EOPNOTSUPP};
    const bool is_power = shown.cqe_cnt != 0 && (shown.cqe_cnt & (shown.cqe_cnt - 1)) == 0;
    if (shown.cqe_size != sizeof(mlx5_cqe64) || !is_power) return Errno{EOPNOTSUPP};
    entries_ = static_cast<const mlx5_cqe64*>(shown.buf);
    records_ = shown.dbrec;
    registers_ = static_cast<uint8_t*>(shown.cq_uar);
    count_ = shown.cqe_cnt;
    number_ = shown.cqn;
    consumed_ = armings_ = 0;
    return {};
}

void CompletionQueue::release() {
    before_record();  // nothing is read from an entry that the device may write again
    write_record(records_ + kConsumedRecord, consumed_ & kIndexMask);
}

// The two bits on top count how often the queue has told, so that an old arming cannot be taken for a new one.
void CompletionQueue::arm() {
    const uint32_t wanted = (armings_ & 3) << 28 | MLX5_CQ_DB_REQ_NOT | (consumed_ & kIndexMask);
    write_record(records_ + kArmedRecord, wanted);
    before_register();
    uint8_t words[8];
    store_be32(words, wanted);
    store_be32(words + 4, number_);
    write_register(registers_ + MLX5_CQ_DOORBELL, words);
    after_register();
}

}  // namespace vma::mlx5
