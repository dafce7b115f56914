// Listeners: listen, accept, and what their readiness is.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/internal_thread.h"
#include "engine/tcp_defaults.h"
#include "sock/broker_link.h"
#include "sock/context.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/option_rows.h"
#include "sock/tcp_socket.h"

namespace vma::sock {

Outcome TcpSocket::listen(int fd, int backlog) {
    std::lock_guard guard(control_);
    if (state() == SocketState::kernel) return Outcome::kernel();
    const Phase phase = phase_.load(std::memory_order_relaxed);
    if (phase == Phase::connecting || phase == Phase::connected) return Outcome::error(EINVAL);
    const int result = int(sys::raw(SYS_listen, fd, backlog));
    if (result < 0) return Outcome::error(-result);
    backlog_ = int(
        std::min<uint32_t>(uint32_t(backlog < 0 ? INT32_MAX : backlog), listen_backlog_limit()));
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), size, local_);
    if (phase == Phase::listening) {
        for (unsigned i = 0; i < listeners_count_; i++) {
            LeaseGuard lease(listeners_[i].shard->lease());
            listeners_[i].listener->state.backlog = uint32_t(backlog_);
        }
        return Outcome::value(0);
    }
    bound_ = true;
    read_shutdown_.store(false, std::memory_order_relaxed);
    listeners_count_ = 0;
    ready_.store(0, std::memory_order_release);
    phase_.store(Phase::kernel_listener, std::memory_order_release);
    if (!local_.addr.is_loopback()) broker_listener(fd);
    return Outcome::value(0);
}

void TcpSocket::open_rings(int fd) {
    std::lock_guard guard(control_);
    Reason why = Reason::none;
    if (local_.addr.is_loopback() ||
        !Runtime::snapshot().rules.decide(Role::tcp_server, local_).offload)
        return;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return;
    const auto view = space_->monitor().view();
    for (const Interface& interface : view->interfaces()) {
        if (!NetSpace::can_carry_ring(interface)) continue;
        const auto& addresses = interface.addresses;
        if (std::any_of(addresses.begin(), addresses.end(), [](auto& a) { return a.addr.is_v4(); }))
            (void)space_->shard(interface.index, rings.both(fd, local_.addr), &why);
    }
}

void TcpSocket::activate_listener(int fd) {
    if (phase_.load(std::memory_order_acquire) != Phase::kernel_listener ||
        state() == SocketState::kernel)
        return;
    std::lock_guard guard(control_);
    if (phase_.load(std::memory_order_relaxed) != Phase::kernel_listener ||
        state() == SocketState::kernel)
        return;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return become_kernel(why);
    if (local_.addr.is_loopback()) return become_kernel(Reason::loopback);
    if (int_option(fd, SOL_SOCKET, SO_REUSEPORT)) return become_kernel(Reason::reuseport_shared);
    const Rules& rules = Runtime::snapshot().rules;
    if (!rules.decide(Role::tcp_server, local_).offload) return become_kernel(Reason::rule);
    const auto view = space_->monitor().view();
    const int bound_device = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
    for (const Interface& interface : view->interfaces()) {
        if (!NetSpace::can_carry_ring(interface) || listeners_count_ == kMaxListeners) continue;
        if (bound_device && interface.index != bound_device) continue;
        std::array<IpAddr, 32> addresses;
        unsigned n = 0;
        for (const InterfaceAddress& a : interface.addresses)
            if (a.addr.is_v4() && n < addresses.size() &&
                (local_.addr.is_any() || a.addr == local_.addr))
                addresses[n++] = a.addr;
        if (n == 0) continue;
        Reason failed = Reason::none;
        if (space_->policy()) {
            FlowQuery flow;
            flow.protocol = IPPROTO_TCP;
            flow.local = local_;
            flow.ifindex = interface.index;
            flow.role = FlowRole::passive;
            std::string culprit;
            failed = space_->policy()->check(flow, *view, &culprit);
            if (failed != Reason::none)
                vma_log(info, "sock", "listener on port {}, interface {}: is the kernel's ({}): {}",
                        local_.port, interface.name, reason_name(failed), culprit);
        }
        Shard* shard = failed == Reason::none
                           ? space_->shard(interface.index, rings.both(fd, local_.addr), &failed)
                           : nullptr;
        if (shard == nullptr) {
            if (why == Reason::none) why = failed;
            continue;
        }
        tcp::TcpConfig config = tcp_defaults(Runtime::options(), shard->caps(), interface.mtu);
        apply_options(config);
        broker_watch(*shard);
        LeaseGuard lease(shard->lease());
        const auto listener =
            shard->tcp().listen(local_, config, uint32_t(backlog_), space_->monitor(), this);
        if (!listener) {
            if (why == Reason::none) why = Reason::flow_taken;
            continue;
        }
        (*listener)->ttl = uint8_t(int_option(fd, IPPROTO_IP, IP_TTL, 64));
        (*listener)->tos = uint8_t(options_.tos);
        (*listener)->syns.most = uint32_t(Runtime::options().tcp_max_syn_rate);
        apply_fast_open(**listener);
        unsigned steered = 0;
        for (unsigned i = 0; i < n && room_for_flow(); i++) {
            FlowKey key;
            key.local = {addresses[i], local_.port};
            key.protocol = IPPROTO_TCP;
            if (const Status taken = shard->steer(key, fd); !taken) {
                if (why == Reason::none) why = reason_of_steering(taken.error());
                continue;
            }
            steered_[steered_count_++] = {shard, key};
            steered++;
        }
        if (steered == 0) {
            shard->tcp().close_listener(**listener, monotonic_now());
            if (why == Reason::none) why = Reason::flow_taken;
            continue;
        }
        listeners_[listeners_count_++] = {shard, *listener};
        Xtreme::settle(*this, *shard, listeners_count_ > 1);
    }
    network_generation_ = space_->generation();
    if (listeners_count_ == 0)
        return become_kernel(why == Reason::none ? Reason::interface_unsupported : why);
    reason_.store(Reason::none, std::memory_order_relaxed);
    phase_.store(Phase::listening, std::memory_order_release);
    state_.store(SocketState::offloaded, std::memory_order_release);
    Epoll::follow_lanes(*this);
    publish_state();
    kernel_news_.store(true,
                       std::memory_order_release);  // connections may wait in the twin already
    TwinEvents::add(fd, this, generation);
}

bool TcpSocket::kernel_listener_readable(int fd) {
    pollfd twin{fd, POLLIN, 0};
    const timespec zero{};
    return sys::ppoll(&twin, 1, &zero) > 0 && (twin.revents & POLLIN);
}

uint32_t TcpSocket::listener_events() {
    if (phase_.load(std::memory_order_relaxed) != Phase::listening) {
        if (phase_.load(std::memory_order_relaxed) == Phase::kernel_listener &&
            kernel_listener_readable(fd()))
            return EPOLLIN | EPOLLRDNORM;
        return 0;
    }
    if (acceptable_.load(std::memory_order_acquire)) return EPOLLIN | EPOLLRDNORM;
    if (!kernel_news_.load(std::memory_order_acquire)) return 0;
    kernel_news_.store(false, std::memory_order_release);
    if (!kernel_listener_readable(fd())) return 0;
    kernel_news_.store(true, std::memory_order_release);
    return EPOLLIN | EPOLLRDNORM;
}

void TcpSocket::on_acceptable(const TcpListener& listener) {
    for (unsigned i = 0; i < listeners_count_; i++)
        if (listeners_[i].listener == &listener)
            acceptable_.fetch_or(1u << i, std::memory_order_acq_rel);
    if (fading_) return InternalThread::poke();
    watch.notify();
}

// A connection out of our own queues. Null with *error 0: none there.
TcpSocket* TcpSocket::accept_from_ring(int, int flags, int* new_fd, int* error) {
    *error = 0;
    for (unsigned i = 0; i < listeners_count_; i++) {
        Shard& shard = *listeners_[i].shard;
        {
            LeaseGuard lease(shard.lease());
            if (listeners_[i].listener == nullptr) continue;  // shut down meanwhile
            if (listeners_[i].listener->ready.empty()) shard.poll();
            if (listeners_[i].listener->ready.empty()) continue;
        }
        const int fd = sys::socket(AF_INET, SOCK_STREAM | (flags & (SOCK_NONBLOCK | SOCK_CLOEXEC)),
                                   IPPROTO_TCP);
        if (fd < 0) {
            *error = -fd;
            return nullptr;
        }
        TcpSocket* socket = create(fd, SOCK_STREAM, IPPROTO_TCP);
        if (socket == nullptr) {
            sys::close(fd);
            *error = ENOMEM;
            return nullptr;
        }
        socket->space_ = space_;
        socket->shard_ = &shard;
        socket->accepted_ = true;
        socket->rings.share(rings);
        socket->options_ = options_;
        socket->twin_has_options_ = false;
        socket->set_nonblocking(flags & SOCK_NONBLOCK);
        socket->rcvtimeo_ns_.store(rcvtimeo_ns_.load(std::memory_order_relaxed),
                                   std::memory_order_relaxed);
        socket->sndtimeo_ns_.store(sndtimeo_ns_.load(std::memory_order_relaxed),
                                   std::memory_order_relaxed);
        socket->receive_low_water_.store(receive_low_water_.load(std::memory_order_relaxed),
                                         std::memory_order_relaxed);
        bool taken = false;
        {
            LeaseGuard lease(shard.lease());
            TcpListener* const listener = listeners_[i].listener;
            TcpConnection* c = listener ? shard.tcp().accept(*listener, socket) : nullptr;
            if (c) {
                taken = true;
                socket->connection_ = c;
                socket->local_ = c->tuple.local;
                socket->remote_ = c->tuple.remote;
                socket->reason_.store(Reason::none, std::memory_order_relaxed);
                socket->connect_reported_ = true;
                socket->phase_.store(Phase::connected, std::memory_order_release);
                socket->state_.store(SocketState::offloaded, std::memory_order_release);
                if (c->error) socket->so_error_.store(c->error, std::memory_order_relaxed);
                c->events = 0;
                socket->update_ready();
            }
            if (listener == nullptr || listener->ready.empty())
                acceptable_.fetch_and(~(1u << i), std::memory_order_acq_rel);
        }
        if (!taken) {
            // Another thread was faster.
            release_object(socket);
            sys::close(fd);
            continue;
        }
        Xtreme::settle(*socket, shard);
        VMA_PROBE4(accept, fd, &socket->connection_->tcb, socket->remote_.addr.v4_host(),
                   socket->remote_.port);
        *new_fd = fd;
        return socket;
    }
    return nullptr;
}

namespace {

template <class Try>
class AcceptTarget final : public WaitTarget {
  public:
    AcceptTarget(Socket& socket, std::span<Shard* const> shards, Try attempt)
        : socket_(socket), shards_(shards), attempt_(attempt) {}
    bool ready(bool) override { return attempt_(); }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return shards_; }
    void progress() override {}

  private:
    Socket& socket_;
    std::span<Shard* const> shards_;
    Try attempt_;
};

void put_name(const Endpoint& name, sockaddr* addr, socklen_t* len) {
    const sockaddr_in sin = name.to_sockaddr_in();
    std::memcpy(addr, &sin, std::min<size_t>(*len, sizeof sin));
    *len = sizeof sin;
}

}  // namespace

// One connection out of our own queues or the kernel's. False: there is none now.
bool TcpSocket::accept_one(int fd, sockaddr* addr, socklen_t* len, int flags, Outcome* out) {
    int new_fd = -1, error = 0;
    if (state() == SocketState::kernel) {  // handed back meanwhile
        *out = Outcome::kernel();
        return true;
    }
    if (TcpSocket* socket = accept_from_ring(fd, flags, &new_fd, &error)) {
        if (addr && len && int(*len) < 0) {  // found out too late, in Linux as well
            release_object(socket);
            sys::close(new_fd);
            *out = Outcome::error(EINVAL);
            return true;
        }
        if (addr && len) put_name(socket->remote_, addr, len);
        if (!FdTable::install(new_fd, socket)) {
            release_object(socket);
            sys::close(new_fd);
            *out = Outcome::error(EMFILE);
            return true;
        }
        *out = Outcome::value(new_fd);
        return true;
    }
    if (error) {
        *out = Outcome::error(error);
        return true;
    }
    if (kernel_news_.exchange(false, std::memory_order_acq_rel) && kernel_listener_readable(fd)) {
        sockaddr_storage name{};
        socklen_t size = sizeof name;
        int got = int(sys::raw(SYS_accept4, fd, sys::ptr(&name), sys::ptr(&size), flags));
        kernel_news_.store(true, std::memory_order_release);
        if (got == -EAGAIN) return false;
        if (got < 0) {
            *out = Outcome::error(-got);
            return true;
        }
        Endpoint peer;
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), size, peer);
        // Some of what waited could be handed over, some is still here.
        if (Handover* const handover = handed_over(); handover && is_stand_in(name)) {
            got = settle_accepted(*handover, got, peer, flags);
            if (got < 0) return false;
        }
        if (addr && len && int(*len) < 0) {
            sys::close(got);
            *out = Outcome::error(EINVAL);
            return true;
        }
        if (addr && len) put_name(peer, addr, len);
        accepted_by_kernel(fd, got, flags);
        *out = Outcome::value(got);
        return true;
    }
    if (read_shutdown_.load(std::memory_order_relaxed)) {
        *out = Outcome::error(EINVAL);
        return true;
    }
    return false;
}

Outcome TcpSocket::accept(int fd, sockaddr* addr, socklen_t* len, int flags) {
    activate_listener(fd);
    if (state() != SocketState::offloaded ||
        phase_.load(std::memory_order_acquire) != Phase::listening) {
        return phase_.load(std::memory_order_acquire) == Phase::kernel_listener ||
                       state() == SocketState::kernel
                   ? Outcome::kernel()
                   : Outcome::error(EINVAL);
    }
    if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) return Outcome::error(EINVAL);
    Outcome outcome = Outcome::error(EAGAIN);
    const auto attempt = [&] { return accept_one(fd, addr, len, flags, &outcome); };
    if (nonblocking()) {
        if (!kernel_news_.load(std::memory_order_relaxed)) TwinEvents::drain();
        attempt();
        return outcome;
    }
    Shard* shards[kMaxListeners];
    for (unsigned i = 0; i < listeners_count_; i++) shards[i] = listeners_[i].shard;
    AcceptTarget target(*this, std::span<Shard* const>(shards, listeners_count_), attempt);
    const Duration timeout = receive_timeout();
    switch (wait_until(target, read_governor_, Context::receive_limits(timeout))) {
        case WaitEnd::ready:
            return outcome;
        case WaitEnd::timeout:
            return Outcome::error(EAGAIN);
        case WaitEnd::interrupted:
            break;
    }
    return interrupted_call(timeout);
}

}  // namespace vma::sock
