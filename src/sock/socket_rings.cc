#include "sock/socket_rings.h"

#include "engine/runtime.h"

namespace vma::sock {
RingLogic SocketRings::logic(Direction direction) const {
    const Wish wish = wishes_[direction].load(std::memory_order_acquire);
    if (wish.made) return wish.logic;
    const Options& options = Runtime::options();
    return RingLogic(direction == kReceive ? options.ring_allocation_logic_rx
                                           : options.ring_allocation_logic_tx);
}

unsigned SocketRings::choose(Direction by, LaneChoice& choice, int fd, const IpAddr& local) {
    if (choice.made()) return choice.lane();
    const uint32_t user = wishes_[by].load(std::memory_order_acquire).user;
    return choice.make(Runtime::lanes(), lane_key(logic(by), fd, local, user),
                       unsigned(Runtime::options().ring_limit_per_interface));
}

unsigned SocketRings::receive(int fd, const IpAddr& local) {
    return choose(kReceive, receive_, fd, local);
}

unsigned SocketRings::send(int fd, const IpAddr& local) {
    const auto user = [&](Direction d) { return wishes_[d].load(std::memory_order_acquire).user; };
    const bool same = logic(kSend) == logic(kReceive) && user(kSend) == user(kReceive);
    return choose(kSend, same ? receive_ : send_, fd, local);
}

unsigned SocketRings::both(int fd, const IpAddr& local) {
    const Direction by = logic(kReceive) == RingLogic::interface ? kSend : kReceive;
    return choose(by, receive_, fd, local);
}

void SocketRings::share(const SocketRings& listener) {
    receive_.share(Runtime::lanes(), listener.receive_);
}

void SocketRings::wish(RingLogic logic, uint32_t user, bool for_receiving, bool for_sending) {
    const Wish wish{user, logic, true, 0};
    if (for_receiving) wishes_[kReceive].store(wish, std::memory_order_release);
    if (for_sending) wishes_[kSend].store(wish, std::memory_order_release);
}

void SocketRings::give_back() {
    receive_.give_back(Runtime::lanes());
    send_.give_back(Runtime::lanes());
}

void SocketRings::forget_in_child() {
    receive_.forget_in_child();
    send_.forget_in_child();
}

}  // namespace vma::sock
