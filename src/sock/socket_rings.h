// SocketRings: which rings of an interface a socket receives and sends by (VMA_RING_ALLOCATION_LOGIC_*): chosen at its first use of
// either, by the thread that makes it, and kept until it is closed.
//
// Threads: any.
#pragma once

#include "engine/lanes.h"

namespace vma::sock {

class SocketRings {
  public:
    // The lane to receive by and to send by: the same where both logics are. `fd` and `local` are the socket's.
    unsigned receive(int fd, const IpAddr& local);
    unsigned send(int fd, const IpAddr& local);
    // Of a connection, which has one ring: as for receiving, or if that is by interface as for sending.
    unsigned both(int fd, const IpAddr& local);
    // An accepted connection has its listener's.
    void share(const SocketRings& listener);
    // SO_VMA_RING_ALLOC_LOGIC: by these logics from now on, where nothing has been chosen yet. `user`: the key of the user logic.
    void wish(RingLogic logic, uint32_t user, bool for_receiving, bool for_sending);
    // No call is in the socket any more.
    void give_back();
    void forget_in_child();

  private:
    enum Direction : unsigned { kReceive, kSend };
    // What decides: the socket's own wish, or the variable.
    RingLogic logic(Direction direction) const;
    unsigned choose(Direction by, LaneChoice& choice, int fd, const IpAddr& local);

    struct Wish {
        uint32_t user = 0;
        RingLogic logic = RingLogic::interface;
        bool made = false;
        uint16_t zero = 0;
    };
    static_assert(std::atomic<Wish>::is_always_lock_free);
    std::atomic<Wish> wishes_[2]{};
    LaneChoice receive_, send_;
};

}  // namespace vma::sock
