// Hand-back of TCP: the live connection moves from the stack into its twin (process-model.md section 5).
#include <errno.h>
#include <netinet/in.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "broker/client.h"
#include "sock/carried.h"
#include "sock/context.h"
#include "sock/cross.h"
#include "sock/fork.h"
#include "sock/mover.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
// [lease] The connection into `fd`; it is gone from the engine afterwards. False: nothing has changed. The ring was drained
// just now.
bool move_to_kernel(Shard& shard, TcpConnection& c, int fd, Reason why) {
    const Instant now = monotonic_now();
    const tcp::State state = c.tcb.state;
    if (move_method(state).back != MoveMethod::restore) {
        if (state != tcp::State::CLOSED && state != tcp::State::TIME_WAIT)
            vma_log(warning, "sock",
                    "fd {}: a connection in state {} cannot move to the kernel ({}): it stays with "
                    "the library",
                    fd, tcp::state_name(state), reason_name(why));
        return false;
    }
    const auto snapshot = tcp::export_snapshot(c.tcb, now);
    if (!snapshot) return false;
    const tcp::Snapshot& s = *snapshot;
    const Seq first = Seq::min(s.snd_una, s.snd_end);
    const auto to_send = uint32_t(s.snd_end - first);
    const auto sent = uint32_t(Seq::max(Seq::min(s.snd_nxt, s.snd_end), first) - first);
    Carried send(to_send), unread(s.unread);
    if (!send.ok() || !unread.ok()) return false;
    if (to_send) tcp::export_unacked(c.tcb, first, send.data(), to_send);
    if (s.unread) tcp::export_unread(c.tcb, 0, unread.data(), s.unread);
    RepairQueues queues;
    queues.unacked = send.view(0, sent);
    queues.unsent = send.view(sent, to_send - sent);
    queues.unread = unread.view(0, s.unread);
    RepairOptions saved;
    Mover& by = mover();
    shard.tcp().own_flow(c);
    if (const Status restored = by.restore(fd, s, queues, saved); !restored) {
        vma_log(warning, "sock", "fd {}: the connection cannot move to the kernel ({}), errno {}{}",
                fd, reason_name(why), restored.error(),
                restored.error() == EPERM ? ": CAP_NET_ADMIN is needed for that" : "");
        return false;
    }
    // What holds the twin of an orphan is given back last: a socket that is closed in repair mode vanishes without a word.
    const uint64_t token = std::exchange(c.orphan_token, 0);
    shard.tcp().forget(c, now);
    const Status finished = by.finish(fd, s, queues, saved);
    // A peer that resets the connection right then loses nothing that it wanted.
    if (!finished && finished.error() != ECONNRESET && finished.error() != EPIPE)
        vma_log(warning, "sock", "fd {}: in the kernel now, but unsent bytes are lost: errno {}",
                fd, finished.error());
    const unsigned followed = inject_strays(shard, by);
    if (token) tcp_sink().tcp_orphan_gone(token);
    vma_log(debug, "sock", "fd {}: handed back to the kernel, {} frames followed: {}", fd, followed,
            reason_meaning(why));
    return true;
}

bool TcpSocket::hand_back(Reason why) {
    if (crossing()) cross_cancel();
    std::lock_guard guard(control_);
    if (state() == SocketState::kernel) {
        // Whatever asks for the kernel may have shared the descriptor: it never comes back.
        never_adopt();
        return true;
    }
    VMA_PROBE2(hand_back, fd(), unsigned(why));
    switch (phase_.load(std::memory_order_relaxed)) {
        case Phase::fresh:
        case Phase::kernel_listener:
            drop_failed_connection();
            if (state() != SocketState::kernel) become_kernel(why);
            return true;
        case Phase::listening:
            hand_back_listener(why, why == Reason::exec || why == Reason::seccomp);
            return true;
        default:
            return hand_back_connection(why);
    }
}

bool TcpSocket::hand_back_connection(Reason why) {
    if (state() != SocketState::offloaded || connection_ == nullptr)
        return state() == SocketState::kernel;
    if (connection_->neighbor) return leave_ring(why, nullptr, -1);
    inherited_options_to_twin(fd());
    const ConnectionLease lease(shard_);
    shard_->drain();
    const broker::Held custody = in_custody();
    if (!move_to_kernel(*shard_, *connection_, fd(), why)) return false;
    connection_ = nullptr;
    end_custody(custody);
    become_kernel(why);
    // A forked child may be waiting for just this, and a parent that exits does not get to serve_children() again.
    answer_share(true);
    return true;
}

namespace {

// Those of the shm ring: each is a transaction with its other end, and none is held up by a lease meanwhile.
void orphans_leave_ring(Shard& shard) {
    for (;;) {
        TcpConnection* c;
        int fd = -1;
        {
            LeaseGuard lease(shard.lease());
            c = shard.tcp().find_unfinished([](TcpConnection& o) { return o.error != EBUSY; });
            if (c == nullptr) return;
            fd = held_port(c->orphan_token);
            if (fd < 0) c->error = EBUSY;
        }
        if (fd < 0 || orphan_leaves_ring(shard, *c, fd, Reason::exiting)) continue;
        c->error = EBUSY;
    }
}

}  // namespace

bool TcpSocket::outlives_the_process() {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded || connection_ == nullptr || !connection_->neighbor ||
        share() != nullptr)
        return false;
    const ConnectionLease lease(shard_);
    return tcp::unsent_bytes(connection_->tcb) == 0;
}

void tcp_orphans_to_kernel() {
    for (Shard* shard : Runtime::shards()) {
        if (!shard->caps().has_neighbors) {
            orphans_leave_ring(*shard);
            continue;
        }
        LeaseGuard lease(shard->lease());
        shard->drain();
        // One that cannot move stays and is not asked again.
        while (TcpConnection* c = shard->tcp().find_unfinished(
                   [](TcpConnection& o) { return o.error != EBUSY; })) {
            // The twin of an active open still holds the port; an accepted connection gets a socket now.
            int fd = held_port(c->orphan_token);
            const bool bound = fd >= 0;
            if (!bound) fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
            // A program that starts again must get its port although this one is in TIME_WAIT.
            const int reuse = 1;
            if (fd >= 0 && !bound)
                sys::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
            if (fd < 0 || !move_to_kernel(*shard, *c, fd, Reason::exiting)) c->error = EBUSY;
            if (fd >= 0 && !bound) sys::close(fd);
        }
    }
}

broker::Held TcpSocket::in_custody() const {
    broker::Held held;
    held.connection = reinterpret_cast<uintptr_t>(connection_);
    held.local = broker::to_wire(local_);
    held.remote = broker::to_wire(remote_);
    return held;
}

void TcpSocket::end_custody(const broker::Held& held) {
    if (!std::exchange(in_custody_, false)) return;
    broker::drop(held);
}

bool TcpSocket::shared_with_child(broker::Held& out, int& twin) {
    std::lock_guard guard(control_);
    ShareRecord* record = share();
    if (in_custody_ || record == nullptr || connection_ == nullptr ||
        state() != SocketState::offloaded || connection_->neighbor)
        return false;
    inherited_options_to_twin(fd());
    out = in_custody();
    out.share = reinterpret_cast<uintptr_t>(&record->done);
    twin = fd();
    in_custody_ = true;
    return true;
}

void TcpSocket::prepare_fork(bool only_exec) {
    if (crossing()) cross_cancel();
    std::lock_guard guard(control_);
    // A child may be the one that accepts: were this process to take the port later, the child would hear nothing.
    if (phase_.load(std::memory_order_relaxed) == Phase::kernel_listener && !only_exec &&
        state() != SocketState::kernel)
        return become_kernel(Reason::fork);
    if (state() == SocketState::kernel) never_adopt();  // the child will hold it, too
    if (state() != SocketState::offloaded) return;
    const bool listening = phase_.load(std::memory_order_relaxed) == Phase::listening;
    if (listening && !only_exec) return hand_back_listener(Reason::fork, true);
    if (listening) offer_to_spawned();
    Shard* const shard = listening && listeners_count_ ? listeners_[0].shard : shard_;
    if (shard == nullptr || share_.load(std::memory_order_relaxed)) return;
    LeaseGuard lease(shard->lease());
    take_share(*shard);
}

}  // namespace vma::sock
