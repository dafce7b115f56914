// The sending half of the verbs ring: small frames inside the request, others copied into a ring of registered
// memory. A completion is asked for every Limits::batching requests and frees all before it. Thread rules: the ring's.
#pragma once

#include <memory>
#include <span>

#include "dev/ring.h"
#include "dev/verbs/library.h"

namespace vma {

inline constexpr uint32_t kVerbsMostPieces = 16;

class VerbsTransmitter {
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
    // `memory` of `bytes` is registered with `key` and outlives this.
    void open(ibv_qp* qp, ibv_cq* cq, uint8_t* memory, uint32_t bytes, uint32_t key,
              const Limits& limits);

    // Other queues from now on, of the same size; forget_requests() first.
    void use(ibv_qp* qp, ibv_cq* cq) { qp_ = qp, cq_ = cq; }
    unsigned send(std::span<const TxFrame> frames, int* why);
    void reclaim();  // what the device has sent

    bool failed() const { return failed_; }
    bool queue_failed() const { return queue_failed_; }  // the completion queue itself
    void forget_requests();  // the QP has been reset: nothing is under way
    uint64_t frames() const { return frames_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t refused() const { return refused_; }

  private:
    int check(const TxFrame& f) const;
    int send_one(const TxFrame& f);
    uint8_t* room(uint32_t bytes);  // contiguous, null: none now
    uint8_t* room_or_reclaim(uint32_t bytes);

    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
    uint8_t* memory_ = nullptr;
    uint32_t size_ = 0, key_ = 0;
    Limits limits_;
    std::unique_ptr<uint64_t[]> ends_;  // of memory, behind request number i, at i modulo requests
    uint64_t posted_ = 0, done_ = 0;    // requests
    uint64_t asked_ = 0;                // requests when a completion was last asked for
    uint64_t used_ = 0, freed_ = 0;     // bytes of memory, free running, gaps at the end included
    uint64_t asked_used_ = 0;           // used_ at asked_
    bool failed_ = false, queue_failed_ = false;
    uint64_t frames_ = 0, bytes_ = 0, refused_ = 0;
};

}  // namespace vma
