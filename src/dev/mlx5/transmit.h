// Sending by the queues of an mlx5 device in memory. A request is a control segment, an Ethernet segment with the first bytes of
// the frame inlined, and one data segment: the rest of it inlined, too, or where it is. Thread rules: the ring's.
#pragma once

#include <memory>

#include "dev/mlx5/completion_queue.h"
#include "dev/verbs/transmit.h"

namespace vma {

class Mlx5Transmitter final : public QueueTransmitter {
  public:
    Mlx5Transmitter(const Mlx5Library& library, unsigned (*kick)(ibv_context*), bool blueflame)
        : library_(library), kick_(kick), wants_blueflame_(blueflame) {}
    Status use(const VerbsQueues& queues) override;
    void reclaim() override;
    void forget_requests() override;

  private:
    static constexpr uint32_t kBlock = MLX5_SEND_WQE_BB, kSegment = 16;

    // What a request that begins at a block was.
    struct Request {
        uint64_t number;
        uint16_t end;  // the block behind it
    };

    int send_one(const TxFrame& f) override;
    void ring() override;
    bool has_room(uint32_t blocks) const { return uint16_t(end_ - begin_) + blocks <= blocks_; }
    uint8_t* at(uint16_t block) const { return queue_ + size_t(block & (blocks_ - 1)) * kBlock; }
    // Copies to `offset` of the request that begins at block end_, around the queue's end.
    void put(uint32_t offset, const void* from, size_t bytes);
    void put_pointer(uint32_t offset, uint32_t bytes, const uint8_t* at);
    void put_inline(uint32_t offset, const TxFrame& f, uint32_t from);

    const Mlx5Library& library_;
    Kick kick_;
    bool wants_blueflame_;
    mlx5::CompletionQueue completions_;
    uint8_t* queue_ = nullptr;
    volatile uint32_t* record_ = nullptr;
    uint8_t* registers_ = nullptr;         // two, which are written in turn
    uint32_t register_bytes_ = 0;          // of each; 0: there is one, for eight bytes
    uint32_t register_at_ = 0;             // the one whose turn it is
    uint32_t blocks_ = 0, number_ = 0;     // of the queue pair
    std::unique_ptr<Request[]> requests_;  // by the block where one begins
    // Blocks, free running: done by the device up to begin_, written up to end_; the last request begins at last_;
    // asked_block_: behind the last whose completion was asked for.
    uint16_t begin_ = 0, end_ = 0, last_ = 0, asked_block_ = 0;
    uint32_t unrung_ = 0;         // requests
    bool last_is_whole_ = false;  // it has all of its frame inside
};

}  // namespace vma
