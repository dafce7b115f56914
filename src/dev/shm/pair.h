// Pair: one mapped pair of directions with its bells, from our side. What the neighbour does to it ends this pair and nothing
// else. Thread rules: the ring's.
#pragma once

#include <string>

#include "dev/shm/bell.h"
#include "dev/shm/direction.h"
#include "dev/shm/mapping.h"

namespace vma::shm {

// The descriptors of a pair; whoever gets them closes them on every path. Those of a neighbour have been looked at before
// (handshake.h): closing a file that he chose could wait for him.
struct PairParts {
    int memory = -1;         // create_pair_memory()'s, or the neighbour's
    int bell = -1;           // our own, which the neighbour rings
    int neighbor_bell = -1;  // his
    Side side = Side::opener;
    void close_all();
};

enum class PairState : uint8_t {
    open,
    ending,  // the neighbour is gone: what he sent is still read, nothing is sent
    broken,  // the neighbour wrote nonsense, fault() says which: nothing is read or sent
};

class Pair {
  public:
    // Errors: EINVAL (memory or bell is not one: *why names it), EMFILE (no own descriptor left), ENOMEM, those of mmap(2).
    Status open(PairParts parts, std::string* why);
    // In a forked child: the memory does not exist there.
    void forget() { mapping_.forget(); }

    PairState state() const { return state_; }
    Fault fault() const { return fault_; }
    int bell() const { return bell_.fd(); }

    // As Outbound::push, and ENETDOWN when the pair is not open.
    int push(const TxFrame& frame) {
        if (state_ != PairState::open) return ENETDOWN;
        const int error = out_.push(frame);
        if (error == ENETDOWN) break_off(out_.fault());
        return error;
    }
    int push_text(const TxFrame& text) {
        if (state_ != PairState::open) return ENETDOWN;
        const int error = out_.push_text(text);
        if (error == ENETDOWN) break_off(out_.fault());
        return error;
    }
    bool copy_text(uint32_t tag, Seq from, Seq until, std::vector<uint8_t>& out) const {
        return state_ == PairState::open && out_.copy_text(tag, from, until, out);
    }
    // Would push() take any frame? Also true when it would say ENETDOWN.
    bool has_room() {
        return state_ != PairState::open || out_.has_room() || out_.fault() != Fault::none;
    }
    // Once after a row of push(). True: the bell was rung.
    bool call() {
        if (!out_.must_ring()) return false;
        neighbor_bell_.ring();
        return true;
    }

    bool pending() const { return state_ != PairState::broken && in_.pending(); }
    Inbound::Took take(PacketPool& pool, Packet& out) {
        if (state_ == PairState::broken) return Inbound::Took::fault;
        const auto took = in_.take(pool, out);
        if (took == Inbound::Took::fault) break_off(in_.fault());
        return took;
    }
    uint32_t next_text() const { return state_ == PairState::broken ? 0 : in_.next_text(); }
    uint32_t waiting() const { return state_ == PairState::broken ? 0 : in_.waiting(); }
    void fall_asleep() {
        if (state_ != PairState::broken) in_.fall_asleep();
    }
    void wake() {
        if (state_ != PairState::broken) in_.wake();
    }

    void neighbor_gone() {
        if (state_ == PairState::open) state_ = PairState::ending;
    }

  private:
    void break_off(Fault fault) {
        state_ = PairState::broken;
        fault_ = fault;
    }

    PairMapping mapping_;
    Outbound out_;
    Inbound in_;
    OwnFd bell_;
    BorrowedBell neighbor_bell_;
    PairState state_ = PairState::open;
    Fault fault_ = Fault::none;
};

}  // namespace vma::shm
