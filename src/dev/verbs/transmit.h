// The sending half of a ring over a queue pair: small frames inside the request, others copied into a ring of registered
// memory. A completion is asked for every Limits::batching requests and frees all before it. What the two kinds differ in is how a
// request is made and a completion seen (verbs_transmit.h, dev/mlx5/transmit.h). Thread rules: the ring's.
#pragma once

#include <memory>
#include <span>

#include "dev/ring.h"
#include "dev/verbs/queues.h"

namespace vma {

inline constexpr uint32_t kVerbsMostPieces = 16;

class QueueTransmitter {
  public:
    struct Limits {
        uint32_t requests = 0;    // of the send queue
        uint32_t batching = 64;   // a completion every so many
        uint32_t max_inline = 0;  // bytes of a frame inside a request
        uint32_t max_pieces = 1;  // of memory that a request names, at most kVerbsMostPieces
        uint32_t max_frame = 0;   // Ethernet header to payload, without a VLAN tag
        uint32_t max_gso = 0;     // 0: no segmentation
        bool checksum = false;
    };
    virtual ~QueueTransmitter() = default;
    // `memory` of `bytes`, a multiple of 64, is registered with `key` and outlives this.
    void open(uint8_t* memory, uint32_t bytes, uint32_t key, const Limits& limits);
    // These queues from now on, of the size that open() said; forget_requests() first if there were others. EOPNOTSUPP: they are
    // not as they have to be.
    virtual Status use(const VerbsQueues& queues) = 0;
    unsigned send(std::span<const TxFrame> frames, int* why);
    virtual void reclaim() = 0;  // what the device has sent

    bool failed() const { return failed_; }
    bool queue_failed() const { return queue_failed_; }  // the completion queue itself
    void queue_is_gone() { failed_ = queue_failed_ = true; }
    virtual void forget_requests();  // the QP has been reset: nothing is under way
    uint64_t frames() const { return frames_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t refused() const { return refused_; }

  protected:
    // Errors: EAGAIN, those of the device.
    virtual int send_one(const TxFrame& f) = 0;
    virtual void ring() {}  // the device is to see what send_one() has made

    bool is_full() const { return posted_ - done_ >= limits_.requests; }
    uint8_t* room(uint32_t bytes);  // contiguous, null: none now
    uint8_t* room_or_reclaim(uint32_t bytes);
    // At the latest when an eighth of the memory or of the queue waits for it, so that neither can run full unasked.
    bool wants_completion() const {
        return posted_ + 1 - asked_ >= ask_after_ || used_ - asked_used_ >= size_ / 8;
    }
    // The request is the device's; `ask`: its completion was asked for. Returns its number.
    uint64_t sent(uint32_t bytes, bool ask);
    // Request `number` is done, and all before it. What room() gave for them is free then.
    void done(uint64_t number) {
        done_ = number + 1;
        freed_ = ends_[number % limits_.requests];
    }

    Limits limits_;
    uint32_t key_ = 0;
    uint64_t posted_ = 0;  // requests
    uint64_t used_ = 0;    // bytes of memory, free running, gaps at the end included
    bool failed_ = false;

  private:
    int check(const TxFrame& f) const;

    uint8_t* memory_ = nullptr;
    uint32_t size_ = 0, ask_after_ = 1;
    std::unique_ptr<uint64_t[]> ends_;  // of memory, behind request number i, at i modulo requests
    uint64_t done_ = 0;
    uint64_t asked_ = 0;  // requests when a completion was last asked for
    uint64_t freed_ = 0;
    uint64_t asked_used_ = 0;  // used_ at asked_
    bool queue_failed_ = false;
    uint64_t frames_ = 0, bytes_ = 0, refused_ = 0;
};

void copy_payload(const TxFrame& f, uint8_t* to);

}  // namespace vma
