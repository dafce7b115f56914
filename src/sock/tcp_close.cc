// Ending: shutdown, close, orphans and the port they hold.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>

#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "sock/condition_target.h"
#include "sock/context.h"
#include "sock/fork.h"
#include "sock/stats_rows.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

struct PortHold {
    OwnFd fd;
};
Slab<PortHold> g_holds;
std::atomic<unsigned> g_hold_count{0};
constexpr unsigned kMaxHolds = 256;

uint64_t hold_port(int fd) {
    if (g_hold_count.load(std::memory_order_relaxed) >= kMaxHolds) return 0;
    const int copy = sys::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) return 0;
    bool recycled;
    void* memory = g_holds.take(&recycled);
    if (memory == nullptr) {
        sys::close(copy);
        return 0;
    }
    auto* hold = new (memory) PortHold;
    if (!hold->fd.adopt(copy)) {
        g_holds.give(hold);
        return 0;
    }
    g_hold_count.fetch_add(1, std::memory_order_relaxed);
    return reinterpret_cast<uint64_t>(hold);
}

}  // namespace

int held_port(uint64_t token) { return token ? reinterpret_cast<PortHold*>(token)->fd.fd() : -1; }

void give_port(uint64_t token) {
    auto* hold = reinterpret_cast<PortHold*>(token);
    hold->fd.reset();
    g_holds.give(hold);
    g_hold_count.fetch_sub(1, std::memory_order_relaxed);
}

void tcp_close_forget_in_child() { g_holds.forget_lock_in_child(); }

Outcome TcpSocket::shutdown(int fd, int how) {
    if (Outcome kernel; in_kernel(&kernel)) {
        never_adopt();  // nobody but the kernel knows of a half that has ended
        return kernel;
    }
    if (how < SHUT_RD || how > SHUT_RDWR) return Outcome::error(EINVAL);
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kernel_listener) return Outcome::kernel();
    if (phase == Phase::listening) {
        // As in Linux: a listener that is shut down for reading stops listening.
        if (how == SHUT_WR) return Outcome::value(0);
        std::lock_guard guard(control_);
        const int result = int(sys::raw(SYS_shutdown, fd, how));
        if (result < 0) return Outcome::error(-result);
        read_shutdown_.store(true, std::memory_order_relaxed);  // who is in accept() leaves it
        phase_.store(Phase::fresh, std::memory_order_release);
        ready_.store(EPOLLOUT | EPOLLWRNORM | EPOLLHUP, std::memory_order_release);
        close_listeners();
        TwinEvents::remove(fd);
        watch.notify();
        return Outcome::value(0);
    }
    if (phase == Phase::connecting) {
        // As in Linux: an attempt that is shut down ends as by connect(AF_UNSPEC).
        std::lock_guard guard(control_);
        bool opening = false;
        if (connection_) {
            const ConnectionLease lease(shard_);
            opening = connection_->tcb.state == tcp::State::SYN_SENT;
        }
        if (opening) return disconnect();
    }
    if (connection_ == nullptr) {
        // Linux closes the direction all the same: poll() tells, of the twin and here.
        if (phase == Phase::fresh) sys::raw(SYS_shutdown, fd, how);
        if (phase == Phase::fresh && how != SHUT_WR) {
            shut_while_fresh_.store(true, std::memory_order_relaxed);
            update_ready();
            watch.notify();
        }
        return Outcome::error(ENOTCONN);
    }
    if (leaving()) const std::lock_guard wait(control_);
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr) return Outcome::kernel();  // handed back just now
    tcp::Tcb& t = connection_->tcb;
    if (t.state == tcp::State::CLOSED || t.state == tcp::State::SYN_SENT ||
        t.state == tcp::State::TIME_WAIT)
        return Outcome::error(ENOTCONN);
    const Instant now = monotonic_now();
    tcp::Actions actions;
    if (how != SHUT_WR) {
        tcp::shutdown_read(t);
        read_shutdown_.store(true, std::memory_order_relaxed);
    }
    if (how != SHUT_RD) {
        tcp::shutdown_write(t, now, actions);
        write_shutdown_.store(true, std::memory_order_relaxed);
    }
    shard_->tcp().absorb(*connection_, actions, now);
    shard_->tcp().pull(*connection_, now);
    shard_->tcp().flush(now);
    update_ready();
    watch.notify();
    return Outcome::value(0);
}

bool TcpSocket::leaving() const {
    const ConnectionLease lease(shard_);
    return connection_ != nullptr && connection_->leaving;
}

void TcpSocket::linger() {
    if (state() != SocketState::offloaded || connection_ == nullptr || !options_.linger_on ||
        options_.linger_seconds == 0)
        return;
    {
        const ConnectionLease lease(shard_);
        if (connection_ == nullptr || tcp::unread_bytes(connection_->tcb))
            return;  // close() resets
        tcp::Actions actions;
        const Instant now = monotonic_now();
        tcp::shutdown_write(connection_->tcb, now, actions);
        shard_->tcp().absorb(*connection_, actions, now);
        shard_->tcp().pull(*connection_, now);
        shard_->tcp().flush(now);
    }
    ConditionTarget target(*this, shard_, [this] {
        if (connection_ == nullptr) return true;
        const tcp::Tcb& t = connection_->tcb;
        return t.state == tcp::State::CLOSED || (t.out.bytes == 0 && t.snd.una == t.snd.nxt);
    });
    WaitLimits limits = Context::receive_limits();
    limits.deadline = monotonic_now() + Duration::seconds(options_.linger_seconds);
    (void)wait_until(target, write_governor_, limits);
}

void TcpSocket::teardown() {
    std::lock_guard guard(control_);
    if (inherited.load(std::memory_order_relaxed)) return;
    stats_closed(*this);
    reclaim_kept();
    end_connection();
    Screens::remove(*this);  // no ring tells it anything any more
    Xtreme::remove(*this);
    rings.give_back();
    give_share();
}

void TcpSocket::end_connection() {
    if (fading_) close_listeners();
    if (state() == SocketState::kernel) return cross_over();
    close_listeners();
    if (connection_ == nullptr) return;
    // A child may hold the descriptor: the connection goes on in the kernel, where this close is one of several.
    if (share() && hand_back_connection(Reason::fork)) return;
    const broker::Held custody = in_custody();
    end_custody(custody);
    const Instant now = monotonic_now();
    const ConnectionLease lease(shard_);
    TcpConnection* c = connection_;
    connection_ = nullptr;
    tcp::Actions actions;
    if (options_.linger_on && options_.linger_seconds == 0)
        tcp::abort(c->tcb, 0, actions);
    else
        tcp::close(c->tcb, now, actions);
    shard_->tcp().absorb(*c, actions, now);
    const bool over = c->tcb.state == tcp::State::CLOSED && !c->tcb.rst_due;
    const uint64_t token = over || (accepted_ && !c->neighbor) ? 0 : hold_port(fd());
    shard_->tcp().release_owner(*c, token, now);
    shard_->tcp().flush(now);
}

void tcp_drain_orphans(Duration bound) {
    const Instant deadline = monotonic_now() + bound;
    for (;;) {
        uint64_t left = 0;
        for (Shard* shard : Runtime::shards()) {
            LeaseGuard lease(shard->lease());
            shard->drain();
            const Instant now = monotonic_now();
            shard->tcp().run_deadlines(now);
            left += shard->tcp().unfinished();
        }
        if (left == 0) return;
        if (monotonic_now() >= deadline) {
            vma_log(warning, "sock",
                    "exit: {} connections still had unacknowledged data after {} s and are lost",
                    left, bound.to_millis() / 1000);
            return;
        }
        const timespec nap{0, 200'000};
        pollfd fds[Runtime::kMaxShards];
        nfds_t n = 0;
        for (Shard* shard : Runtime::shards())
            if (shard->arm()) fds[n++] = {shard->wake_fd(), POLLIN, 0};
        const timespec slice{0, 5'000'000};
        sys::ppoll(fds, n, n == Runtime::shards().size() ? &slice : &nap);
        for (Shard* shard : Runtime::shards()) shard->disarm();
    }
}

}  // namespace vma::sock
