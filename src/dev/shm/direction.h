// One direction of a pair (layout.h), seen from its two ends. Both ends distrust the other: they keep their positions in
// private memory, read a shared word once into a local and check it, and never look at it again. What a bad word leads to is a
// Fault: the pair is over, nothing more is read from it, and nobody else notices.
//
// Wake-up: the consumer stores `sleeping`, fences and looks for a record; the producer stores a record, fences and looks at
// `sleeping`. One of them sees the other. Thread rules: each end by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/seq.h"
#include "dev/ring.h"
#include "dev/shm/layout.h"
#include "pkt/pool.h"

namespace vma::shm {

enum class Fault : uint8_t {
    none,
    consumed_back,    // the consumer's position is behind what it was
    consumed_beyond,  // ... or ahead of what was produced
    consumed_ragged,  // ... or not where a record begins
    record_word,  // a word that no producer stores: mark, flags, length below or above a frame's
};

class Outbound {
  public:
    // `records` is mapped twice in a row; `ring_bytes` is a power of two.
    void open(uint8_t* records, ConsumerWords& words, uint32_t ring_bytes);

    // Copies one frame, whose size has been checked (kLeastFrameBytes to kMostFrameBytes). EAGAIN: no room yet; EINVAL: the
    // payload is shorter than payload_len; ENETDOWN: fault(). Nothing is seen of a frame that was not taken.
    int push(const TxFrame& frame) {
        return push_record(frame, frame.csum_start != 0 ? kChecksumVouched : 0);
    }
    // The same for text: the head is a TextHead, the payload 1 to TextLane::kMostBytes.
    int push_text(const TxFrame& text) { return push_record(text, kText); }
    // Text for `tag` with numbers in [from, until) that the consumer may not have read, appended to `out`. False: some of it is
    // not there any more, or the neighbour has written over it.
    bool copy_text(uint32_t tag, Seq from, Seq until, std::vector<uint8_t>& out) const;
    // After one or more push(): is the consumer asleep, and not called yet?
    bool must_ring();
    Fault fault() const { return fault_; }
    // Is there room for a frame of any size?
    bool has_room() {
        constexpr uint32_t kMost = record_span(kMostFrameBytes);
        return kMost <= room() || (look_for_room() && kMost <= room());
    }

  private:
    int push_record(const TxFrame& record, uint8_t flags);
    uint32_t room() const { return ring_bytes_ - kRecordAlign - uint32_t(produced_ - consumed_); }
    bool look_for_room();

    uint8_t* records_ = nullptr;
    ConsumerWords* words_ = nullptr;
    uint32_t ring_bytes_ = 0;
    uint32_t rung_ = 0;  // value of `sleeping` that was answered
    uint64_t produced_ = 0;
    uint64_t consumed_ = 0;  // as last read and believed
    Fault fault_ = Fault::none;
};

class Inbound {
  public:
    void open(const uint8_t* records, ConsumerWords& words, uint32_t ring_bytes);

    bool pending() const { return load() != 0; }
    enum class Took : uint8_t { frame, nothing, no_memory, fault };
    // The next record as a packet of the pool. no_memory: it stays for later. Of text the packet has the TextHead, and a
    // PacketMeta::flow_tag that is not 0.
    Took take(PacketPool& pool, Packet& out);
    // Of the next record, if it is text: its tag; else 0. Nothing to rely on: the neighbour may change it.
    uint32_t next_text() const;

    // Gives all that was read back to the producer, and asks for the bell. The caller then fences (seq_cst) and sleeps only if
    // nothing is pending().
    void fall_asleep();
    void wake();
    Fault fault() const { return fault_; }
    // How many records have arrived and were not taken. Walks them; never more than there is room for.
    uint32_t waiting() const;

  private:
    // A hostile word costs the neighbour's own pair only, so one load decides.
    uint64_t load() const {
        return __atomic_load_n(reinterpret_cast<const uint64_t*>(records_ + (at_ & mask_)),
                               __ATOMIC_ACQUIRE);
    }
    void publish();

    const uint8_t* records_ = nullptr;
    ConsumerWords* words_ = nullptr;
    uint64_t mask_ = 0;
    uint64_t at_ = 0;         // the next record
    uint64_t published_ = 0;  // what the producer knows of it
    uint32_t sleeps_ = 0;     // value of `sleeping` last used
    Fault fault_ = Fault::none;
};

}  // namespace vma::shm
