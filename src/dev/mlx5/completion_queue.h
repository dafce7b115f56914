// A completion queue of an mlx5 device in memory: 64-byte entries with an owner bit, which turns with each lap. Thread rules: the
// ring's.
#pragma once

#include "base/result.h"
#include "dev/mlx5/library.h"
#include "dev/mlx5/order.h"

namespace vma::mlx5 {

class CompletionQueue {
  public:
    // A queue that nobody has used. EOPNOTSUPP: the library does not tell where it is, or it has not 64-byte entries.
    Status use(const Mlx5Library& library, ibv_cq* cq);

    // The entry whose turn it is, null: the device has not written it. It stays until release() after consume().
    const mlx5_cqe64* next() const {
        const mlx5_cqe64* const entry = entries_ + (consumed_ & (count_ - 1));
        const uint8_t owner = __atomic_load_n(&entry->op_own, __ATOMIC_RELAXED);
        const bool lap = (consumed_ & count_) != 0;
        if ((owner & MLX5_CQE_OWNER_MASK) != lap || owner >> 4 == MLX5_CQE_INVALID) return nullptr;
        after_owner();
        return entry;
    }
    void consume() { consumed_++; }
    void release();  // tells the device how far that was

    // It tells its channel of the next entry behind what is consumed; rung(): so often it has told.
    void arm();
    void rung(unsigned times) { armings_ += times; }

  private:
    const mlx5_cqe64* entries_ = nullptr;
    volatile uint32_t* records_ = nullptr;
    uint8_t* registers_ = nullptr;
    uint32_t count_ = 0, number_ = 0, consumed_ = 0, armings_ = 0;
};

}  // namespace vma::mlx5
