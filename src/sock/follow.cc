#include "sock/follow.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/runtime.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"
#include "sock/walk.h"

namespace vma::sock {

// Where the connection would go now; none: where it goes already.
Reason TcpSocket::reason_to_leave(Way& way) {
    const Reason why = find_way(fd(), remote_, way);
    if (why != Reason::none) return why;
    if (way.path.ifindex != shard_->ifindex()) return Reason::route_moved;
    return kernel_interferes(fd(), remote_, accepted_ ? Role::tcp_server : Role::tcp_client, way);
}

Reason TcpSocket::listener_reason_to_leave() {
    if (!space_->policy()) return Reason::none;
    const auto view = space_->monitor().view();
    for (unsigned i = 0; i < listeners_count_; i++) {
        if (listeners_[i].listener == nullptr) continue;
        FlowQuery flow;
        flow.protocol = IPPROTO_TCP;
        flow.local = local_;
        flow.ifindex = listeners_[i].shard->ifindex();
        flow.role = FlowRole::passive;
        std::string culprit;
        const Reason why = space_->policy()->check(flow, *view, &culprit);
        if (why == Reason::none) continue;
        vma_log(info, "sock", "listener on port {}: is the kernel's from now on ({}): {}",
                local_.port, reason_name(why), culprit);
        return why;
    }
    return Reason::none;
}

void TcpSocket::network_changed() {
    Reason why = Reason::none;
    {
        std::lock_guard guard(control_);
        if (state() != SocketState::offloaded || space_ == nullptr ||
            network_generation_ == space_->generation())
            return;
        network_generation_ = space_->generation();
        const Phase phase = phase_.load(std::memory_order_relaxed);
        if (phase == Phase::listening) {
            why = listener_reason_to_leave();
        } else if (phase == Phase::connected && connection_ != nullptr &&
                   connection_->neighbor == 0) {
            Way way;
            why = reason_to_leave(way);
            const ConnectionLease lease(shard_);
            if (connection_ == nullptr) return;
            // What is over has no way any more.
            if (move_method(connection_->tcb.state).back != MoveMethod::restore) return;
            if (why == Reason::none)
                shard_->tcp().path_changed(*connection_, way.path, way.mtu, monotonic_now());
        }
    }
    // Without a route the kernel could not take it, and would do no better: what is sent is repeated until there is one.
    if (why == Reason::none || why == Reason::no_route) return;
    if (hand_back(why))
        vma_log(info, "sock", "fd {}: handed back to the kernel: {}", fd(), reason_meaning(why));
}

bool TcpSocket::has_lost_its_device() {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded) return false;
    if (phase_.load(std::memory_order_relaxed) == Phase::listening) {
        for (unsigned i = 0; i < listeners_count_; i++)
            if (listeners_[i].listener != nullptr && listeners_[i].shard->lost()) return true;
        return false;
    }
    if (connection_ == nullptr || !shard_->lost()) return false;
    // What has no counterpart in the kernel ends by its timers.
    const ConnectionLease lease(shard_);
    return connection_ != nullptr &&
           move_method(connection_->tcb.state).back == MoveMethod::restore;
}

// The kernel goes on, over the way that it has.
static void leave_lost_devices() {
    for_each_own_socket([](Socket& socket, int fd) {
        const bool lost = socket.kind == ObjectKind::tcp
                              ? static_cast<TcpSocket&>(socket).has_lost_its_device()
                              : static_cast<UdpSocket&>(socket).has_lost_its_device();
        if (lost && socket.hand_back(Reason::device_lost))
            vma_log(info, "sock", "fd {}: handed back to the kernel: {}", fd,
                    reason_meaning(Reason::device_lost));
    });
}

void follow_network() {
    static Instant next_touch;
    static uint64_t seen_generation = 0;
    uint64_t generation = 0;
    Runtime::for_each_space([&](NetSpace& space) { generation += space.generation(); });
    const bool touch = monotonic_now() >= next_touch;
    // Whoever was about to join a ring that was being lost is found at the next touch.
    static unsigned seen_lost = 0;
    unsigned lost = 0;
    for (const Shard* shard : Runtime::shards()) lost += shard->lost();
    if (lost != 0 && (touch || lost != seen_lost)) leave_lost_devices();
    seen_lost = lost;
    if (!touch && generation == seen_generation) return;
    seen_generation = generation;
    if (touch) next_touch = monotonic_now() + Duration::millis(500);
    for_each_own_socket([&](Socket& socket, int) {
        if (socket.kind == ObjectKind::tcp)
            return static_cast<TcpSocket&>(socket).network_changed();
        auto& udp = static_cast<UdpSocket&>(socket);
        udp.network_changed();
        if (touch) udp.touch_neighbors();
    });
}

}  // namespace vma::sock
