// Out of the shm ring: both ends leave it together, each with what the other's program has not read (tcp_cross.cc has the
// way in). On whatever thread needs the kernel, or the internal one when the other side does; under the control lock.
#include <errno.h>
#include <poll.h>

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "engine/internal_thread.h"
#include "engine/shm_peers.h"
#include "repair/repair.h"
#include "sock/cross.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// Whose control lock the internal thread holds while it hears the neighbours.
const TcpSocket* g_busy = nullptr;

// All of it into the kernel's connection, whose buffers take it as a rule at once. False: they did not for a second.
bool write_twin(int fd, ByteView bytes) {
    const Instant deadline = monotonic_now() + kPatience;
    while (!bytes.empty()) {
        const ssize_t n =
            sys::sendto(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
        if (n > 0) {
            bytes = bytes.subspan(size_t(n));
        } else if (n == -EAGAIN) {
            if (monotonic_now() >= deadline) return false;
            pollfd room{fd, POLLOUT, 0};
            const timespec slice{0, 50'000'000};
            sys::ppoll(&room, 1, &slice);
        } else if (n != -EINTR) {
            return true;  // reset: whoever is at the other end wants none of it
        }
    }
    return true;
}

bool read_memory(int fd, ByteSpan to) {
    for (size_t at = 0; at < to.size();) {
        const long n =
            sys::raw(SYS_pread64, fd, sys::ptr(to.data() + at), long(to.size() - at), long(at));
        if (n <= 0) return false;
        at += size_t(n);
    }
    return true;
}

// What a connection takes along out of the ring.
struct Luggage {
    tcp::Snapshot s;
    Seq first;
    std::vector<uint8_t> to_send, unread;
};

// [lease] It sends and takes nothing from here on. False: nothing of it could move.
bool pack(Shard& shard, TcpConnection& c, Luggage& out) {
    shard.drain();
    const auto snapshot = move_method(c.tcb.state).back == MoveMethod::restore
                              ? tcp::export_snapshot(c.tcb, monotonic_now())
                              : Result<tcp::Snapshot>(Errno{EINVAL});
    if (!snapshot) return false;
    out.s = *snapshot;
    out.first = Seq::min(out.s.snd_una, out.s.snd_end);
    out.to_send.resize(uint32_t(out.s.snd_end - out.first));
    out.unread.resize(out.s.unread);
    if (!out.to_send.empty())
        tcp::export_unacked(c.tcb, out.first, out.to_send.data(), out.to_send.size());
    if (!out.unread.empty()) tcp::export_unread(c.tcb, 0, out.unread.data(), out.unread.size());
    shard.tcp().leave_ring(c);
    return true;
}

// TcpSocket, or an orphan of one.
struct Leaving {
    Shard& shard;
    TcpConnection& c;
    int fd;  // the twin
};

// `request`: what the other side has said, null if this side begins. left() runs under the lease once it is gone from the
// engine. False: it stays in the ring.
template <class Left>
bool leave(Leaving l, Reason why, const ShmMessage* request, int memory, Left&& left) {
    const ShmPeerId peer = l.c.neighbor;
    const FlowTuple tuple = l.c.tuple;
    Luggage mine;
    bool packed;
    {
        LeaseGuard lease(l.shard.lease());
        packed = pack(l.shard, l.c, mine);
    }
    ShmMessage said = ShmMessage::about(ShmWord::back, tuple);
    if (!packed) {
        said.flags = ShmMessage::kGone;
        if (request) (void)ShmPeers::send(peer, said);
        return false;
    }
    said.seq = uint32_t(mine.s.rcv_nxt - Seq{0});
    said.unread = uint32_t(mine.unread.size());
    const ByteView unread{mine.unread.data(), mine.unread.size()};
    const int given = unread.empty() ? -1 : memory_file("vma-unread", {&unread, 1});
    ShmMessage theirs{};
    int their_memory = -1, error = 0;
    if (request) {
        theirs = *request;
        their_memory = memory;
        (void)ShmPeers::send(peer, said, given);
    } else if (const Status answered =
                   ShmPeers::exchange_back(peer, said, given, kPatience, &theirs, &their_memory);
               !answered) {
        error = answered.error();
        theirs.flags = ShmMessage::kGone;
    }
    if (given >= 0) sys::close(given);
    bool whole = error != ETIMEDOUT && (said.unread == 0 || given >= 0);
    if (whole && (theirs.flags & ShmMessage::kGone)) {
        // Nobody could put into the kernel what this side's program has not read yet, or what came after it was asked.
        LeaseGuard lease(l.shard.lease());
        if (!mine.unread.empty() || l.shard.tcp().has_unread_text(l.c)) {
            l.shard.tcp().stay_in_ring(l.c, monotonic_now());
            l.shard.drain();
            l.shard.tcp().peers_gone([&](const FlowTuple& t) { return t == tuple; },
                                     monotonic_now());
            return false;
        }
    } else if (whole) {
        const Seq expected{theirs.seq};
        whole = expected <= mine.s.snd_end && theirs.unread <= kMostUnread;
        std::vector<uint8_t> text(whole ? theirs.unread : 0);
        whole = whole && (text.empty() || read_memory(their_memory, {text.data(), text.size()}));
        if (whole && expected < mine.first) {
            LeaseGuard lease(l.shard.lease());
            whole = l.shard.tcp().unread_text(l.c, expected, mine.first, text);
        }
        if (whole) {
            const uint32_t skip = expected < mine.first ? 0 : uint32_t(expected - mine.first);
            text.insert(text.end(), mine.to_send.begin() + skip, mine.to_send.end());
            whole = write_twin(l.fd, {text.data(), text.size()});
        }
    }
    if (!request && their_memory >= 0) sys::close(their_memory);
    if (!whole) {
        vma_log(warning, "sock",
                "fd {}: the connection is reset: its other end, which shared "
                "memory with it, does not follow it into the kernel ({})",
                l.fd, reason_name(why));
        reset_twin(l.fd);
    } else if (mine.s.fin_queued || mine.s.fin_sent) {
        sys::raw(SYS_shutdown, l.fd, SHUT_WR);
    }
    LeaseGuard lease(l.shard.lease());
    const uint64_t token = std::exchange(l.c.orphan_token, 0);
    l.shard.tcp().forget(l.c, monotonic_now());
    left();
    if (token) tcp_sink().tcp_orphan_gone(token);
    vma_log(debug, "sock", "fd {}: out of the shm ring: {}", l.fd, reason_meaning(why));
    return true;
}

}  // namespace

const TcpSocket* leaving_here() { return g_busy; }

void reset_twin(int fd) {
    const sockaddr unspec{AF_UNSPEC, {}};
    sys::connect(fd, &unspec, sizeof unspec);
}

bool TcpSocket::leave_ring(Reason why, const ShmMessage* request, int memory) {
    inherited_options_to_twin(fd());
    const TcpSocket* const before =
        InternalThread::is_current() ? std::exchange(g_busy, this) : nullptr;
    const bool left = leave({*shard_, *connection_, fd()}, why, request, memory, [&] {
        connection_ = nullptr;
        if (read_shutdown_.load(std::memory_order_relaxed)) sys::raw(SYS_shutdown, fd(), SHUT_RD);
        become_kernel(why);
    });
    if (InternalThread::is_current()) g_busy = before;
    if (left) answer_share(true);
    return left;
}

bool orphan_leaves_ring(Shard& shard, TcpConnection& c, int fd, Reason why) {
    return leave({shard, c, fd}, why, nullptr, -1, [] {});
}

bool orphan_asked_back(ShmPeerId from, const ShmMessage& m, int memory) {
    shm::ShmRing* ring = nullptr;
    Shard* const shard = Runtime::shm_shard(&ring);
    if (shard == nullptr) return false;
    TcpConnection* c;
    int fd;
    {
        LeaseGuard lease(shard->lease());
        c = shard->tcp().find(m.tuple());
        if (c == nullptr || c->owner != nullptr || c->neighbor != from) return false;
        fd = held_port(c->orphan_token);
        if (fd < 0) return false;
    }
    return leave({*shard, *c, fd}, Reason::peer_left, &m, memory, [] {});
}

}  // namespace vma::sock
