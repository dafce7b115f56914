// What SocketXtreme gives out of a TCP socket: its text in the frames that it came in, and a listener's connections.
#include <errno.h>

#include <algorithm>

#include "base/clock.h"
#include "sock/tcp_socket.h"
#include "sock/xtreme.h"

namespace vma::sock {
namespace {

constexpr uint32_t kMostBytes = UINT16_MAX;  // of one packet: vma_packet_desc_t::total_len

}  // namespace

bool TcpSocket::complete(Completions& out) {
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kernel_listener || phase == Phase::listening) return accept_all(out);
    if (shard_ == nullptr) return true;
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr) return true;
    if (connection_->leaving) return false;
    bool any = false;
    while (readable_bytes() > 0 && out.room()) {
        Completion done;
        take_pieces(done);
        if (done.pieces == nullptr) break;
        any = true;
        done.peer = remote_;
        note_received(done.bytes);
        out.put(*this, done);
    }
    if (any) {
        note_read();
        update_ready();
    }
    return readable_bytes() == 0;
}

// [lease] A packet of as many frames as its length can say. None: no memory.
void TcpSocket::take_pieces(Completion& done) {
    tcp::Tcb& t = connection_->tcb;
    PacketPiece* last = nullptr;
    while (const PacketBuf* const front = t.in.front()) {
        const uint32_t bytes = tcp::text_of(*t.in.front()).len;
        if (bytes > kMostBytes - done.bytes) break;
        const int64_t hw_time_ns = front->meta.hw_time_ns;
        Packet frame = keep_frame();
        if (!frame) return;
        const tcp::RxText text = tcp::text_of(*frame);
        const iovec part{frame->data + text.offset, text.len};
        PacketPiece& piece = lend(*shard_, std::move(frame), part, text.len, t.snd.iss);
        if (last == nullptr) {
            done.pieces = &piece;
            done.hw_time_ns = hw_time_ns;
        } else {
            last->next = &piece;
        }
        last = &piece;
        done.pieces_count++;
        done.bytes += bytes;
    }
    if (done.pieces == nullptr) cut_piece(done);
}

// [lease] A longer text, what the kernel had of an adopted connection, is given out in copies, which fill no window.
void TcpSocket::cut_piece(Completion& done) {
    Packet copy = shard_->pool().take(kMostBytes);
    if (!copy) return;
    iovec part{copy->data, kMostBytes};
    const Instant now = monotonic_now();
    tcp::Actions actions;
    part.iov_len = tcp::read(connection_->tcb, &part, 1, now, actions);
    shard_->tcp().absorb(*connection_, actions, now);
    shard_->tcp().pull(*connection_, now);
    shard_->tcp().flush(now);
    done.bytes = uint32_t(part.iov_len);
    done.pieces = &lend_copy(*shard_, std::move(copy), part);
    done.pieces_count = 1;
}

// False: there are more, and no room or no descriptor for them now.
bool TcpSocket::accept_all(Completions& out) {
    for (;;) {
        if (state() != SocketState::offloaded ||
            phase_.load(std::memory_order_acquire) != Phase::listening ||
            (listener_events() & EPOLLIN) == 0)
            return true;
        if (!out.room()) return false;
        sockaddr_storage peer{};
        socklen_t len = sizeof peer;
        Outcome outcome;
        if (!accept_one(fd(), reinterpret_cast<sockaddr*>(&peer), &len, 0, &outcome)) continue;
        if (outcome.kind == Outcome::Kind::error && outcome.v != EINVAL) return false;
        if (outcome.kind != Outcome::Kind::value) return true;
        Completion done;
        done.accepted = int(outcome.v);
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&peer), len, done.peer);
        out.put(*this, done);
    }
}

}  // namespace vma::sock
