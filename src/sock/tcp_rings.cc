// The rings of a TCP socket, for programs that ask (extra API).
#include <algorithm>

#include "sock/tcp_socket.h"

namespace vma::sock {

// What it is in comes and goes under control_; it is published by state_, after which these are set.
uint64_t TcpSocket::lanes() const {
    if (state() != SocketState::offloaded) return 0;
    if (phase_.load(std::memory_order_acquire) != Phase::listening)
        return shard_ ? shard_->lane_bit() : 0;
    uint64_t lanes = 0;
    for (unsigned i = 0; i < listeners_count_; i++) lanes |= listeners_[i].shard->lane_bit();
    return lanes;
}

unsigned TcpSocket::ring_fds(std::span<int> out) {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded) return 0;
    if (connection_ != nullptr) {
        if (!out.empty()) out[0] = shard_->wake_fd();
        return 1;
    }
    for (unsigned i = 0; i < listeners_count_ && i < out.size(); i++)
        out[i] = listeners_[i].shard->wake_fd();
    return listeners_count_;
}

// A connection has one ring, whatever address is named.
int TcpSocket::send_ring_fd(const Endpoint*) {
    std::lock_guard guard(control_);
    return state() == SocketState::offloaded && connection_ ? shard_->wake_fd() : -1;
}

uint32_t TcpSocket::network_header(std::span<uint8_t, kMostHeaders> out) {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded || connection_ == nullptr) return 0;
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr || !connection_->tcb.synchronised()) return 0;
    uint8_t head[TcpEngine::kMaxHead];
    const uint32_t size = shard_->tcp().header_template(*connection_, head);
    if (size > out.size()) return 0;
    std::copy(head, head + size, out.begin());
    return size;
}

}  // namespace vma::sock
