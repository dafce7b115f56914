#include "sock/socket_rings.h"

#include "engine/runtime.h"

namespace vma::sock {
namespace {

// Logics whose key is the calling thread's, not the socket's.
bool is_of_thread(RingLogic logic) {
    return logic == RingLogic::thread || logic == RingLogic::core ||
           logic == RingLogic::pinned_core;
}

uint64_t callers_key(RingLogic logic) { return lane_key(logic, -1, {}, 0).id; }

unsigned limit() { return unsigned(Runtime::options().ring_limit_per_interface); }

}  // namespace

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
    const LaneKey key = lane_key(logic(by), fd, local, user);
    const unsigned lane = choice.make(Runtime::lanes(), key, limit());
    follow(by, key.id);
    return lane;
}

void SocketRings::follow(Direction d, uint64_t own) {
    const Options& options = Runtime::options();
    const int ratio =
        d == kReceive ? options.ring_migration_ratio_rx : options.ring_migration_ratio_tx;
    fits_[d].begin(is_of_thread(logic(d)) ? ratio : -1, own);
}

unsigned SocketRings::receive(int fd, const IpAddr& local) {
    return choose(kReceive, receive_, fd, local);
}

unsigned SocketRings::send(int fd, const IpAddr& local) {
    if (send_.made()) return send_.lane();
    const auto user = [&](Direction d) { return wishes_[d].load(std::memory_order_acquire).user; };
    if (logic(kSend) != logic(kReceive) || user(kSend) != user(kReceive))
        return choose(kSend, send_, fd, local);
    const unsigned lane = choose(kReceive, receive_, fd, local);
    if (!follows(kSend)) follow(kSend, fits_[kReceive].own());
    return lane;
}

unsigned SocketRings::both(int fd, const IpAddr& local) {
    const Direction by = logic(kReceive) == RingLogic::interface ? kSend : kReceive;
    return choose(by, receive_, fd, local);
}

void SocketRings::share(const SocketRings& listener) {
    receive_.share(Runtime::lanes(), listener.receive_);
    for (const Direction d : {kReceive, kSend}) {
        wishes_[d].store(listener.wishes_[d].load(std::memory_order_acquire),
                         std::memory_order_release);
        if (listener.follows(d)) follow(d, listener.fits_[d].own());
    }
}

void SocketRings::wish(RingLogic logic, uint32_t user, bool for_receiving, bool for_sending) {
    const Wish wish{user, logic, true, 0};
    if (for_receiving) wishes_[kReceive].store(wish, std::memory_order_release);
    if (for_sending) wishes_[kSend].store(wish, std::memory_order_release);
}

bool SocketRings::access(Direction d) {
    return fits_[d].access([&] { return callers_key(logic(d)); });
}

SocketRings::Move SocketRings::begin(Direction d, bool whole) {
    const LaneKey key = lane_key(logic(d), -1, {}, 0);
    Move move{d, whole, false, Runtime::lanes().take(key, limit()), key.id};
    const LaneChoice& own = choice_of(move);
    move.elsewhere = move.use.lane() != (own.made() ? own : receive_).lane();
    return move;
}

void SocketRings::keep(const Move& move) {
    choice_of(move).replace(Runtime::lanes(), move.use);
    fits_[move.direction].moved(move.key);
    // What is sent came along.
    if (move.direction == kReceive && !send_.made()) fits_[kSend].shared(move.key);
}

void SocketRings::drop(const Move& move, bool refused) {
    Runtime::lanes().give(move.use);
    LaneFit& fit = fits_[move.direction];
    refused ? fit.refused() : fit.stays();
}

void SocketRings::give_back() {
    receive_.give_back(Runtime::lanes());
    send_.give_back(Runtime::lanes());
}

void SocketRings::forget_in_child() {
    receive_.forget_in_child();
    send_.forget_in_child();
    for (LaneFit& fit : fits_) fit.forget_in_child();
}

}  // namespace vma::sock
