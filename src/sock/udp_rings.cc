// The rings of a UDP socket, for programs that ask (extra API).
#include <algorithm>

#include "sock/udp_socket.h"

namespace vma::sock {

unsigned UdpSocket::ring_fds(std::span<int> out) {
    if (state() != SocketState::offloaded || sends_only_.load(std::memory_order_relaxed)) return 0;
    unsigned count = 0;
    for (uint32_t left = live_.load(std::memory_order_acquire); left != 0; left &= left - 1) {
        if (count < out.size())
            out[count] = presences_[size_t(std::countr_zero(left))].shard->wake_fd();
        count++;
    }
    return count;
}

// What comes from here on is the twin's; what has come is read first.
bool UdpSocket::stop_receiving() {
    std::lock_guard guard(control_);
    sends_only_.store(true, std::memory_order_relaxed);
    if (state() == SocketState::kernel || handed_back_.load(std::memory_order_relaxed)) return true;
    drop_steering();
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard lease(presences_[i].shard->lease());
        presences_[i].shard->drain();
    }
    decide_receive(fd());
    publish_state();
    return true;
}

int UdpSocket::send_ring_fd(const Endpoint* to) {
    if (state() == SocketState::undecided) (void)settle(fd(), true);
    if (state() != SocketState::offloaded) return -1;
    const Endpoint peer = to ? *to : remote();
    if (!peer.addr.is_v4()) return -1;
    const Destination d = destination(fd(), peer);
    return d.shard ? d.shard->wake_fd() : -1;
}

uint32_t UdpSocket::network_header(std::span<uint8_t, kMostHeaders> out) {
    if (state() != SocketState::offloaded || remote_.port == 0) return 0;
    const Destination d = destination(fd(), remote_);
    if (d.shard == nullptr) return 0;
    static_assert(kUdpMaxHead <= kMostHeaders);
    std::copy(d.head.bytes().begin(), d.head.bytes().end(), out.begin());
    return d.head.size();
}

}  // namespace vma::sock
