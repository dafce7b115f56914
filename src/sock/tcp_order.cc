// What of a stream waits to be read, and when it came (ordered waits of the extra API).
#include "sock/epoll_order.h"
#include "sock/tcp_socket.h"

namespace vma::sock {

void TcpSocket::keep_order() {
    keeps_order_.store(true, std::memory_order_seq_cst);
    if (shard_ == nullptr) return;
    const ConnectionLease lease(shard_);
    stamp_connection();
}

void TcpSocket::stamp_connection() {
    if (connection_ == nullptr) return;
    if (keeps_order_.load(std::memory_order_seq_cst) || reads_messages())
        connection_->tcb.in.keeps_frames = true;
}

// Text that waited for what was lost before it is as old as that. What came before the first ordered wait may have no stamp, and is
// older than all that has one.
void TcpSocket::list_unread(Unread& out) {
    if (shard_ == nullptr) return;
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr || connection_->leaving || readable_bytes() == 0) return;
    Unread::Path path(out, Unread::kMost);
    PacketQueue& packets = connection_->tcb.in.packets;
    for (PacketBuf* p = packets.front(); p; p = packets.next(*p)) {
        const uint32_t bytes = tcp::text_of(*p).len;
        if (bytes != 0 && !path.add({p->meta.realtime_ns, p->meta.hw_time_ns, bytes, 0})) return;
    }
}

}  // namespace vma::sock
