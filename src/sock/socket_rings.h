// SocketRings: which rings of an interface a socket receives and sends by (VMA_RING_ALLOCATION_LOGIC_*): chosen at its first use of
// either, by the thread that makes it, and kept until it is closed, or until another thread or CPU has used it for a while
// (VMA_RING_MIGRATION_RATIO_*).
//
// Threads: any; a move is one thread's at a time, under the socket's lock.
#pragma once

#include "engine/lane_fit.h"
#include "engine/lanes.h"

namespace vma::sock {

class SocketRings {
  public:
    enum Direction : unsigned { kReceive, kSend };

    // The lane to receive by and to send by: the same where both logics are, until one of them moves. `fd` and `local` are the
    // socket's.
    unsigned receive(int fd, const IpAddr& local);
    unsigned send(int fd, const IpAddr& local);
    // Of a connection, which has one ring: as for receiving, or if that is by interface as for sending.
    unsigned both(int fd, const IpAddr& local);
    // An accepted connection has its listener's.
    void share(const SocketRings& listener);
    // SO_VMA_RING_ALLOC_LOGIC: by these logics from now on, where nothing has been chosen yet. `user`: the key of the user logic.
    void wish(RingLogic logic, uint32_t user, bool for_receiving, bool for_sending);

    // Does the socket follow who uses it? If so the caller says access() of each call.
    bool follows(Direction d) const { return fits_[d].is_on(); }
    // The calling thread receives or sends. True: the socket should move to a lane of this thread's.
    bool access(Direction d);
    // A move to the calling thread's lane: begin() takes a use of it, then keep() makes it the socket's, or drop() gives it back. A
    // move for sending leaves receiving where it is; one for receiving takes sending along unless that has moved by itself.
    // `refused`: not possible, so it is tried more seldom. `whole`: of a connection, whose one ring moves whichever direction asked for it.
    struct Move {
        Direction direction{};
        bool whole = false;
        bool elsewhere = false;  // it is not the lane that the socket has
        LaneUse use;
        uint64_t key = 0;
    };
    Move begin(Direction d, bool whole = false);
    void keep(const Move& move);
    void drop(const Move& move, bool refused = false);

    // No call is in the socket any more.
    void give_back();
    void forget_in_child();

  private:
    // What decides: the socket's own wish, or the variable.
    RingLogic logic(Direction direction) const;
    unsigned choose(Direction by, LaneChoice& choice, int fd, const IpAddr& local);
    void follow(Direction d, uint64_t own);
    LaneChoice& choice_of(const Move& move) {
        return move.direction == kSend && !move.whole ? send_ : receive_;
    }

    struct Wish {
        uint32_t user = 0;
        RingLogic logic = RingLogic::interface;
        bool made = false;
        uint16_t zero = 0;
    };
    static_assert(std::atomic<Wish>::is_always_lock_free);
    std::atomic<Wish> wishes_[2]{};
    LaneChoice receive_, send_;
    LaneFit fits_[2];
};

}  // namespace vma::sock
