// The receiving half of a ring over a queue pair: buffers of the shard's arena, one per receive request, lent to packets and posted
// again when they come back. How they are posted and how completions are seen is what the two kinds differ in: by the calls of
// libibverbs (verbs_receive.h), or in the device's own queues (dev/mlx5/receive.h). Thread rules: the ring's.
#pragma once

#include <memory>
#include <span>

#include "base/arena.h"
#include "dev/ring.h"
#include "dev/verbs/queues.h"
#include "pkt/pool.h"

namespace vma {

inline constexpr uint32_t kVerbsMostPolled = 128;

class QueueReceiver : public PacketLender {
  public:
    struct Limits {
        uint32_t batch = 64;      // receive requests given to the device at a time
        uint32_t polled = 16;     // completions per look, at most kVerbsMostPolled
        uint32_t prefetched = 0;  // bytes of a frame, and of the buffer of the next
        uint32_t prefetched_before = 0;
        bool drop = false;  // what the pool has no packet for, instead of leaving it
    };
    virtual ~QueueReceiver() = default;
    // `slots` buffers of `room` bytes at `memory`, all of it registered with `key`. The rest outlives this.
    void open(uint8_t* memory, uint32_t slots, uint32_t room, uint32_t key, PacketPool& pool,
              uint32_t ifindex, const Limits& limits);
    // These queues from now on, of the size that open() said; forget_requests() first if there were others. EOPNOTSUPP: they are
    // not as they have to be.
    virtual Status use(const VerbsQueues& queues) = 0;
    virtual Status post() = 0;      // every free buffer; errors of ibv_post_recv(3)
    virtual void started() {}       // the QP has come to RTR
    virtual bool arm() = 0;         // the next completion is to ring; false: it will not
    virtual void rung(unsigned) {}  // so many times it did

    unsigned recv(std::span<Packet> out);
    // Takes completions out of the device's queue without handing packets out; how many frames wait here then.
    uint32_t gather();
    RingBacklog backlog() {
        gather();
        return {taken_ + dropped_, taken_ + dropped_ + waiting()};
    }
    void give_back(PacketBuf& buf) override;

    bool failed() const { return failed_; }  // a completion in error: the QP has to be made anew
    bool queue_failed() const { return queue_failed_; }  // the completion queue itself
    // The QP has been reset: requests that had not completed never will.
    virtual void forget_requests();
    // The completion queue is of no use any more.
    void queue_is_gone() { failed_ = queue_failed_ = true; }
    // Is no buffer lent to a packet?
    bool all_back() const { return free_count_ + (order_end_ - order_at_) + waiting() == slots_; }
    uint64_t frames() const { return taken_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t malformed() const { return malformed_; }
    uint64_t dropped() const { return dropped_; }  // for want of a packet

  protected:
    // Completions taken from the queue, each told to completed(), at most limits_.polled; negative: the queue has failed.
    virtual int take_completions() = 0;
    // Of the slot whose turn it is, or with verbs any. `flags`: IBV_WC_...
    void completed(uint32_t slot, ibv_wc_status status, uint32_t len, unsigned flags,
                   uint64_t stamp);
    uint32_t first_free() const { return free_[free_count_ - 1]; }
    void gave(uint32_t slot);  // first_free() is with the device
    bool has_posted() const { return order_at_ != order_end_; }
    uint32_t next_posted() const { return order_[order_at_ & mask_]; }

    uint8_t* memory_ = nullptr;
    uint32_t slots_ = 0, room_ = 0, key_ = 0;
    Limits limits_;
    std::unique_ptr<uint32_t[]> free_;  // slots that are neither posted, arrived nor lent
    uint32_t free_count_ = 0;
    bool failed_ = false, queue_failed_ = false;
    uint64_t malformed_ = 0;

  private:
    struct Arrived {
        uint32_t slot, len;
        bool checksum_good;
        uint64_t stamp;  // 0: none
    };

    uint32_t waiting() const { return arrived_end_ - arrived_at_; }
    unsigned poll();
    void prefetch(const uint8_t* data, uint32_t bytes) const;

    uint32_t ifindex_ = 0;
    PacketPool* pool_ = nullptr;
    std::unique_ptr<bool[]> posted_;  // by slot: the device has it
    std::unique_ptr<uint32_t[]>
        order_;  // ring of posted slots, which the device fills in this order
    uint32_t order_at_ = 0, order_end_ = 0;
    std::unique_ptr<Arrived[]> arrived_;  // ring of slots_ entries rounded up to a power of two
    uint32_t mask_ = 0, arrived_at_ = 0, arrived_end_ = 0;
    uint64_t taken_ = 0, bytes_ = 0, dropped_ = 0;
};

inline void QueueReceiver::gave(uint32_t slot) {
    posted_[slot] = true;
    order_[order_end_++ & mask_] = slot;
    free_count_--;
}

inline void QueueReceiver::completed(uint32_t slot, ibv_wc_status status, uint32_t len,
                                     unsigned flags, uint64_t stamp) {
    posted_[slot] = false;
    order_at_++;
    if (status != IBV_WC_SUCCESS || len < 14 || len > room_) [[unlikely]] {
        free_[free_count_++] = slot;
        if (status == IBV_WC_SUCCESS || status == IBV_WC_LOC_LEN_ERR) malformed_++;
        failed_ = failed_ || status != IBV_WC_SUCCESS;
        return;
    }
    arrived_[arrived_end_++ & mask_] = {slot, len, (flags & IBV_WC_IP_CSUM_OK) != 0, stamp};
}

}  // namespace vma
