// The receiving half of the verbs ring: buffers of the shard's arena, one per receive request, lent to packets and posted
// again when they come back. Thread rules: the ring's.
#pragma once

#include <memory>
#include <span>

#include "base/arena.h"
#include "dev/ring.h"
#include "dev/verbs/library.h"
#include "pkt/pool.h"

namespace vma {

class VerbsReceiver final : public PacketLender {
  public:
    struct Limits {
        uint32_t batch = 64;      // receive requests given to the device at a time
        uint32_t polled = 16;     // completions per look, at most kVerbsMostPolled
        uint32_t prefetched = 0;  // bytes of a frame, and of the buffer of the next
        uint32_t prefetched_before = 0;
        bool drop = false;  // what the pool has no packet for, instead of leaving it
    };
    // `slots` buffers of `room` bytes at `memory`, all of it registered with `key`. The rest outlives this. `stamped`: `cq` as
    // one whose completions have times; else null.
    void open(ibv_qp* qp, ibv_cq* cq, ibv_cq_ex* stamped, uint8_t* memory, uint32_t slots,
              uint32_t room, uint32_t key, PacketPool& pool, uint32_t ifindex,
              const Limits& limits);
    // Other queues from now on, of the same size; forget_requests() first.
    void use(ibv_qp* qp, ibv_cq* cq, ibv_cq_ex* stamped) { qp_ = qp, cq_ = cq, stamped_ = stamped; }
    Status post();  // every free buffer; errors of ibv_post_recv(3)

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
    void forget_requests();
    // Is no buffer lent to a packet?
    bool all_back() const { return free_count_ + (order_end_ - order_at_) + waiting() == slots_; }
    uint64_t frames() const { return taken_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t malformed() const { return malformed_; }
    uint64_t dropped() const { return dropped_; }  // for want of a packet

  private:
    struct Arrived {
        uint32_t slot, len;
        bool checksum_good;
        uint64_t stamp;  // 0: none
    };
    static constexpr uint32_t kMostPosted = 64;  // by one call of the verb

    uint32_t waiting() const { return arrived_end_ - arrived_at_; }
    unsigned poll();
    int poll_plain();
    int poll_stamped();
    void completed(uint32_t slot, ibv_wc_status status, uint32_t len, unsigned flags,
                   uint64_t stamp);
    void prefetch(const uint8_t* data, uint32_t bytes) const;

    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_cq_ex* stamped_ = nullptr;
    uint8_t* memory_ = nullptr;
    uint32_t slots_ = 0, room_ = 0, key_ = 0, ifindex_ = 0;
    PacketPool* pool_ = nullptr;
    Limits limits_;
    std::unique_ptr<uint32_t[]> free_;  // slots that are neither posted, arrived nor lent
    uint32_t free_count_ = 0;
    std::unique_ptr<bool[]> posted_;  // by slot: the device has it
    std::unique_ptr<uint32_t[]>
        order_;  // ring of posted slots, which the device fills in this order
    uint32_t order_at_ = 0, order_end_ = 0;
    std::unique_ptr<Arrived[]> arrived_;  // ring of slots_ entries rounded up to a power of two
    uint32_t mask_ = 0, arrived_at_ = 0, arrived_end_ = 0;
    bool failed_ = false, queue_failed_ = false;
    uint64_t taken_ = 0, bytes_ = 0, malformed_ = 0, dropped_ = 0;
};

}  // namespace vma
