// The receiving half of the packet ring: user space's view of one BPF ring buffer. Source: Documentation/bpf/ringbuf.rst, layout
// of the mapping: consumer page, producer page, data twice in a row. The kernel writes records and the producer position, we
// only read them and write the consumer position. Thread rules: the ring's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "dev/packet/hook.h"
#include "dev/ring.h"
#include "pkt/pool.h"

namespace vma {

class Receiver final : public PacketLender {
  public:
    // `ring` is the descriptor of a ring buffer map of `bytes` (power of two); it may be closed afterwards.
    // drop: what the pool has no packet for, instead of leaving it.
    Status open(int ring, uint32_t bytes, PacketPool& pool, bool drop);
    void forget();

    unsigned recv(std::span<Packet> out);
    // The frame that recv() gives next.
    struct Head {
        bool there = false;
        bool ordered = false;  // `order` is its vma_mark's
        uint32_t order = 0;
    };
    Head head();
    // Records that recv() has not seen; publishes all free space before the reader sleeps.
    bool pending();
    void give_back(PacketBuf& buf) override;

    uint64_t data_address() const { return reinterpret_cast<uintptr_t>(data_); }
    uint32_t data_bytes() const { return uint32_t(mask_ + 1); }
    uint64_t position() const { return at_; }  // in the ring, behind what recv() has taken
    RingBacklog backlog() const { return {at_, __atomic_load_n(producer_, __ATOMIC_ACQUIRE)}; }
    uint64_t frames() const { return frames_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t malformed() const { return malformed_; }
    uint64_t dropped() const { return dropped_; }  // for want of a packet
    uint64_t moved() const { return moved_; }      // loans that were copied away to free the ring

  private:
    // One record that recv() has passed and whose space is not free yet, in ring order.
    struct Loan {
        uint64_t end;     // ring position behind it
        PacketBuf* held;  // null: given back
    };
    static constexpr uint32_t kMostLoans = 4096;

    const uint8_t* find_record(uint32_t* length, uint64_t* end);
    Packet take_record(const uint8_t* record, uint32_t record_bytes, uint64_t end, bool* wait);
    void pass(uint64_t end);
    void free_prefix();
    void move_old_loans();
    void publish();

    PrivateMapping consumer_map_, producer_map_;
    uint64_t* consumer_ = nullptr;
    const uint64_t* producer_ = nullptr;
    const uint8_t* data_ = nullptr;
    uint64_t mask_ = 0;
    PacketPool* pool_ = nullptr;
    std::unique_ptr<Loan[]> loans_;
    uint64_t produced_ = 0;   // producer position as last read
    uint64_t at_ = 0;         // next record to look at
    uint64_t freed_ = 0;      // everything before this is free
    uint64_t published_ = 0;  // what the kernel knows of it
    uint64_t loan_head_ = 0, loan_tail_ = 0;
    uint64_t frames_ = 0, bytes_ = 0, malformed_ = 0, moved_ = 0, dropped_ = 0;
    bool drop_ = false;
};

}  // namespace vma
