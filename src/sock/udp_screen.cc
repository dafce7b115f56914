// The receive callback of a UDP socket.
#include "sock/screen.h"

#include "sock/udp_socket.h"

namespace vma::sock {

void UdpSocket::set_screen(const Screen& screen) {
    std::lock_guard guard(control_);
    screening.set(screen);
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard lease(presences_[i].shard->lease());
        UdpEndpoint& endpoint = *presences_[i].endpoint;
        endpoint.screened = screen.show != nullptr;
        if (endpoint.readable())
            ring_ready_.fetch_or(1u << i, std::memory_order_release);
        else
            ring_ready_.fetch_and(~(1u << i), std::memory_order_release);
    }
    if (screening.on())
        Screens::add(*this);
    else
        watch.notify(EPOLLIN | EPOLLRDNORM);
}

bool UdpSocket::unscreened() {
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard lease(presences_[i].shard->lease());
        if (presences_[i].endpoint->unscreened()) return true;
    }
    return false;
}

// The datagram is out of the queue while the callback looks at it, and stays charged.
Socket::Showing UdpSocket::show_one(AskProgram ask) {
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        Presence& p = presences_[i];
        UdpRxInfo info;
        Packet packet;
        ShownPacket shown{};
        {
            std::lock_guard guard(control_);
            LeaseGuard lease(p.shard->lease());
            if (!p.endpoint->unscreened()) continue;
            packet = p.endpoint->screen_front(p.shard->pool(), info);
            if (!packet) return Showing::stuck;
            shown.queued_packets = p.endpoint->passed();
            shown.queued_bytes = p.endpoint->passed_bytes();
            shown_ = true;
        }
        const Screen screen = screening.get();
        shown.fd = screen.fd;
        shown.text = {packet->data + info.next, info.end - info.next};
        shown.id = KeptPackets::id_of(*packet);
        shown.source = info.source;
        shown.destination = info.destination;
        shown.hw_time_ns = packet->meta.hw_time_ns;
        shown.realtime_ns = info.realtime_ns;
        const ScreenAnswer answer = screen.show ? ask(screen, shown) : ScreenAnswer::queue;
        std::lock_guard guard(control_);
        shown_ = false;
        answered(p, std::move(packet), info, answer);
        // What its hand-back could not take along.
        if (handed_back_.load(std::memory_order_relaxed)) {
            if (is_read_elsewhere(reason())) move_queue_to_twin();
            finish_hand_back_if_drained();
        }
        return Showing::one;
    }
    return Showing::nothing;
}

void UdpSocket::answered(Presence& p, Packet packet, const UdpRxInfo& info, ScreenAnswer answer) {
    LeaseGuard lease(p.shard->lease());
    switch (answer) {
        case ScreenAnswer::drop:
            p.endpoint->kept_returned(info.charge);
            packet.reset();
            break;
        case ScreenAnswer::keep:
            (void)keep(*p.shard, std::move(packet), info.charge);
            break;
        case ScreenAnswer::queue:
            p.endpoint->pass(std::move(packet), info);
            ring_ready_.fetch_or(uint32_t(1) << (&p - presences_.data()),
                                 std::memory_order_release);
            watch.notify(EPOLLIN | EPOLLRDNORM);
            break;
    }
}

}  // namespace vma::sock
