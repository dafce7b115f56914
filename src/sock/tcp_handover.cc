// Listeners go back to the kernel: what becomes of the connections that wait in our accept queue (handover.h).
#include <fcntl.h>
#include <netinet/in.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/internal_thread.h"
#include "sock/option_rows.h"
#include "sock/tcp_socket.h"
#include "sock/walk.h"

namespace vma::sock {
namespace {

// Listeners with half-open connections left here.
std::atomic<unsigned> g_fading{0};

}  // namespace

// Under control_. New connections come by the twin from now on; those that wait here are still accepted from here.
void TcpSocket::unsteer_listener() {
    for (unsigned i = 0; i < listeners_count_; i++) {
        LeaseGuard lease(listeners_[i].shard->lease());
        if (listeners_[i].listener)
            listeners_[i].shard->tcp().detach_listener(*listeners_[i].listener);
    }
    for (unsigned i = 0; i < steered_count_; i++) {
        LeaseGuard lease(steered_[i].shard->lease());
        steered_[i].shard->unsteer(steered_[i].key);
    }
    steered_count_ = 0;
}

// Under control_.
bool TcpSocket::connections_wait() {
    for (unsigned i = 0; i < listeners_count_; i++) {
        LeaseGuard lease(listeners_[i].shard->lease());
        listeners_[i].shard->drain();
        if (listeners_[i].listener && !listeners_[i].listener->ready.empty()) return true;
    }
    return false;
}

// [lease] The connection that has waited longest, or null.
TcpConnection* TcpSocket::first_waiting(const Listening& at) {
    at.shard->drain();
    while (TcpConnection* const c = at.listener ? at.listener->ready.front() : nullptr) {
        if (c->tcb.state != tcp::State::CLOSED) return c;
        // Reset by its peer before anybody accepted it: nobody misses it.
        at.shard->tcp().forget(*c, monotonic_now());
    }
    return nullptr;
}

// Under control_. Everything that waits here now goes to whoever accepts next. False: something had to stay.
bool TcpSocket::hand_over(Reason why) {
    if (handed_over() == nullptr) return !connections_wait();
    for (unsigned i = 0; i < listeners_count_; i++) {
        const Listening& at = listeners_[i];
        for (;;) {
            {
                LeaseGuard lease(at.shard->lease());
                if (first_waiting(at) == nullptr) break;
            }
            const int fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
            if (fd < 0) return false;
            options_to_twin(fd);
            bool there, moved;
            {
                LeaseGuard lease(at.shard->lease());
                TcpConnection* const c = first_waiting(at);  // another thread may have accepted it
                there = c != nullptr;
                // The stand-in comes first, because a connection in the kernel that nobody is told of is lost, and under the
                // lease: accept() of this process takes no other lock, and a stand-in whose connection it took in between
                // would hold up whoever accepts that for as long as a connection may be on its way. It is a few calls over
                // the loopback interface; with a full queue 20 ms.
                moved = there && Handover::announce(c->tuple.local) &&
                        move_to_kernel(*at.shard, *c, fd, why);
            }
            if (moved) {
                handed_over()->give(fd);
                continue;
            }
            sys::close(fd);
            if (there) return false;
        }
    }
    return true;
}

// Under control_.
bool TcpSocket::half_open_left() {
    for (unsigned i = 0; i < listeners_count_; i++) {
        LeaseGuard lease(listeners_[i].shard->lease());
        if (listeners_[i].listener && listeners_[i].listener->state.half_open != 0) return true;
    }
    return false;
}

// Under control_. What waits here is still accepted from here, unless `share`: another process, or the program after exec,
// is going to accept, and gets it handed over.
void TcpSocket::hand_back_listener(Reason why, bool share) {
    unsteer_listener();
    reason_.store(why, std::memory_order_relaxed);
    // Before a fork: the child must have the reading end also of what is not there yet.
    if (share && handed_over() == nullptr && (connections_wait() || half_open_left()))
        handover_.store(Handover::create(), std::memory_order_release);
    if (!hand_over(why)) return;
    if (handed_over() == nullptr || why != Reason::fork || !half_open_left())
        return end_listening(why);
    fading_ = true;
    g_fading.fetch_add(1, std::memory_order_relaxed);
    phase_.store(Phase::kernel_listener, std::memory_order_release);
    become_kernel(why);
    InternalThread::poke();
}

// A child that will exec may want what waits here now (inetd's way), and has to have the reading end then.
void TcpSocket::offer_to_spawned() {
    if (handed_over() == nullptr && connections_wait())
        handover_.store(Handover::create(), std::memory_order_release);
}

void tcp_handover_forget_in_child() { g_fading = 0; }

void tcp_hand_over_late() {
    if (g_fading.load(std::memory_order_relaxed) == 0) return;
    for_each_own_socket([](Socket& socket, int) {
        if (socket.kind == ObjectKind::tcp) static_cast<TcpSocket&>(socket).hand_over_late();
    });
}

void TcpSocket::hand_over_late() {
    std::lock_guard guard(control_);
    if (!fading_) return;
    if (hand_over(Reason::fork) && half_open_left()) return;
    close_listeners();
}

int TcpSocket::settle_accepted(Handover& handover, int fd, Endpoint& peer, int flags) {
    const bool kept = handover.has_kept();
    const int waiting = handover.take(peer);
    if (waiting < 0 || kept) {
        sys::close(fd);
        if (waiting < 0) return -1;
        fd = waiting;
        if (flags & SOCK_CLOEXEC) sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
    } else {
        sys::raw(SYS_dup3, waiting, fd, flags & SOCK_CLOEXEC ? O_CLOEXEC : 0);
        sys::close(waiting);
    }
    if (flags & SOCK_NONBLOCK) sys::fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
    return fd;
}

void TcpSocket::inherited_by_exec(int fd, int reader) {
    if (int_option(fd, SOL_SOCKET, SO_ACCEPTCONN) != 1 ||
        int_option(fd, SOL_SOCKET, SO_DOMAIN) != AF_INET ||
        int_option(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP)
        return;
    Handover* const handover = Handover::from_exec(reader);
    if (handover == nullptr) return;
    TcpSocket* const socket = create(fd, SOCK_STREAM, IPPROTO_TCP);
    if (socket == nullptr) return Handover::destroy(handover);
    socket->handover_.store(handover, std::memory_order_relaxed);
    socket->bound_ = true;
    socket->set_nonblocking(sys::fcntl(fd, F_GETFL) & O_NONBLOCK);
    socket->phase_.store(Phase::kernel_listener, std::memory_order_relaxed);
    socket->reason_.store(Reason::exec, std::memory_order_relaxed);
    socket->state_.store(SocketState::kernel, std::memory_order_release);
    if (!FdTable::install(fd, socket)) release_object(socket);
}

// Under control_. The twin, which has listened all the time, is the listener; connections that wait here are reset.
void TcpSocket::end_listening(Reason why) {
    close_listeners();
    phase_.store(Phase::kernel_listener, std::memory_order_release);
    become_kernel(why);
}

void TcpSocket::drop_waiting(Reason why) {
    std::lock_guard guard(control_);
    if (state() == SocketState::offloaded &&
        phase_.load(std::memory_order_relaxed) == Phase::listening)
        end_listening(why);
}

void TcpSocket::listener_to_kernel(Reason why) {
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::listening || phase == Phase::kernel_listener) (void)hand_back(why);
}

// The entries stay: another thread may be in accept() and finds them empty.
void TcpSocket::close_listeners() {
    for (unsigned i = 0; i < listeners_count_; i++) {
        LeaseGuard lease(listeners_[i].shard->lease());
        TcpListener* const listener = std::exchange(listeners_[i].listener, nullptr);
        if (listener) listeners_[i].shard->tcp().close_listener(*listener, monotonic_now());
    }
    acceptable_.store(0, std::memory_order_release);
    for (unsigned i = 0; i < steered_count_; i++) {
        LeaseGuard lease(steered_[i].shard->lease());
        steered_[i].shard->unsteer(steered_[i].key);
    }
    steered_count_ = 0;
    if (std::exchange(fading_, false)) g_fading.fetch_sub(1, std::memory_order_relaxed);
    if (Handover* const given = handed_over()) given->no_more();
}

}  // namespace vma::sock
