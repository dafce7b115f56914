// The shared memory of one pair (layout.h): making it, judging what somebody else made, mapping it. The mapping is not
// inherited by fork. No thread rules.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "dev/shm/layout.h"

namespace vma::shm {

// A memfd with everything in place: its pages exist, its size is sealed. The descriptor is the caller's. Errors: EINVAL (not
// usable_ring_bytes), ENOMEM, EFBIG (RLIMIT_FSIZE), those of memfd_create(2), fallocate(2). *why: what failed, in words.
Result<int> create_pair_memory(uint32_t ring_bytes, std::string* why);

class PairMapping {
  public:
    PairMapping() = default;
    ~PairMapping() { reset(); }
    PairMapping(const PairMapping&) = delete;
    PairMapping& operator=(const PairMapping&) = delete;

    // Maps what a neighbour has made, if nobody can make it shorter or longer and it is what its header says. `memory` stays
    // the caller's. Errors: EINVAL (not sealed, wrong size, not ours: *why names it), ENOMEM, those of mmap(2).
    Status map(int memory, Side side, std::string* why);
    void reset();
    void forget() { at_ = nullptr; }  // in a forked child, where it does not exist

    bool mapped() const { return at_ != nullptr; }
    uint32_t ring_bytes() const { return ring_bytes_; }
    // Each direction's records are mapped twice in a row, so that a record never breaks at the end.
    uint8_t* outgoing() const { return at_ + kControlBytes; }
    const uint8_t* incoming() const {
        return outgoing() + 2 * size_t(ring_bytes_);
    }                                     // cannot be written
    ConsumerWords& of_outgoing() const {  // the neighbour's words
        return side_ == Side::opener ? page().from_opener : page().from_joiner;
    }
    ConsumerWords& of_incoming() const {  // ours
        return side_ == Side::opener ? page().from_joiner : page().from_opener;
    }

  private:
    ControlPage& page() const { return *reinterpret_cast<ControlPage*>(at_); }
    Status place(int memory, std::string* why);

    uint8_t* at_ = nullptr;
    uint32_t ring_bytes_ = 0;
    Side side_ = Side::opener;
};

}  // namespace vma::shm
