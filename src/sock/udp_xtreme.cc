// What SocketXtreme gives out of a UDP socket: the datagrams of its rings. Those of the twin are news (EPOLLIN), and read.
#include "sock/udp_socket.h"
#include "sock/xtreme.h"

namespace vma::sock {

bool UdpSocket::complete(Completions& out) {
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        Presence& p = presences_[i];
        LeaseGuard lease(p.shard->lease());
        while (p.endpoint->readable()) {
            if (!out.room()) return false;
            UdpRxInfo info;
            Packet packet = p.endpoint->keep_front(p.shard->pool(), info);
            if (!packet) return false;
            const iovec text{packet->data + info.next, info.end - info.next};
            Completion done;
            done.bytes = info.end - info.next;
            done.hw_time_ns = packet->meta.hw_time_ns;
            done.peer = info.source;
            note_received(text.iov_len, info);
            done.pieces = &lend(*p.shard, std::move(packet), text, info.charge);
            done.pieces_count = 1;
            note_drained(p);
            out.put(*this, done);
        }
    }
    // The last of what was queued when the socket became the kernel's.
    if (handed_back_.load(std::memory_order_acquire)) {
        std::lock_guard guard(control_);
        finish_hand_back_if_drained();
    }
    return true;
}

}  // namespace vma::sock
