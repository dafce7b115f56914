// What viewers are told about a TCP socket.
#include <algorithm>

#include "sock/stats_rows.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// VMA's numbers of the TCP states are the order of RFC 9293, as tcp::State.
static_assert(unsigned(tcp::State::ESTABLISHED) == 4 && unsigned(tcp::State::TIME_WAIT) == 10);

uint64_t ring_bit(const Shard* shard) {
    const auto shards = Runtime::shards();
    const auto place = std::find(shards.begin(), shards.end(), shard) - shards.begin();
    return place < 64 && size_t(place) < shards.size() ? uint64_t(1) << place : 0;
}

}  // namespace

// control_ held, or by the thread that has just changed the socket.
void TcpSocket::publish_state(uint16_t tcp_state) {
    const Phase phase = phase_.load(std::memory_order_relaxed);
    stats::SocketIdentity id;
    id.fd = fd();
    id.domain = uint16_t(domain);
    id.type = uint16_t(type);
    id.protocol = uint16_t(protocol);
    id.path = state() == SocketState::undecided   ? stats::Path::undecided
              : state() == SocketState::offloaded ? stats::Path::offloaded
                                                  : stats::Path::kernel;
    id.reason = id.path == stats::Path::undecided && phase == Phase::kernel_listener
                    ? Reason::listener_idle
                    : reason();
    id.nonblocking = nonblocking();
    id.tcp_state = tcp_state;
    if (id.path == stats::Path::offloaded) {
        if (shard_) id.rings |= ring_bit(shard_);
        for (unsigned i = 0; i < listeners_count_; i++) id.rings |= ring_bit(listeners_[i].shard);
        stats_show_rings();
    }
    id.local = stats::to_address(local_);
    id.remote = stats::to_address(remote_);
    stats::set_socket(row_, id);
}

void TcpSocket::publish_state() {
    switch (phase_.load(std::memory_order_relaxed)) {
        case Phase::fresh:
            return publish_state(uint16_t(tcp::State::CLOSED));
        case Phase::kernel_listener:
        case Phase::listening:
            return publish_state(uint16_t(tcp::State::LISTEN));
        case Phase::connecting:
            return publish_state(uint16_t(tcp::State::SYN_SENT));
        case Phase::connected:
            return publish_state(uint16_t(tcp::State::ESTABLISHED));
    }
}

void TcpSocket::publish_all() {
    std::lock_guard guard(control_);
    stats::SocketNumbers n = counters.snapshot();
    if (shard_ != nullptr && connection_ != nullptr) {
        uint16_t tcp_state;
        {
            LeaseGuard lease(shard_->lease());
            const tcp::Tcb& t = connection_->tcb;
            tcp_state = uint16_t(t.state);
            n.rx_queue_bytes = tcp::unread_bytes(t);
            n.tx_queue_bytes = tcp::unacked_bytes(t);
            n.tx_retransmits = t.count.retransmits;
        }
        publish_state(tcp_state);
    } else {
        publish_state();
    }
    stats::set_numbers(row_, n);
}

}  // namespace vma::sock
