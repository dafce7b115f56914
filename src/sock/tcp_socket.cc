// Control path of a TCP socket: open, listen, accept, close.
#include "sock/tcp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/deferred_signal.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/tcp_defaults.h"
#include "sock/broker_link.h"
#include "sock/context.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/fork.h"

namespace vma::sock {
namespace {

Slab<TcpSocket> g_slab;

int int_option(int fd, int level, int name, int otherwise = 0) {
    int value = otherwise;
    socklen_t len = sizeof value;
    return sys::getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

// A duplicate of the twin that keeps the port reserved while an orphan still uses it.
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

class Sink final : public TcpSink {
  public:
    void tcp_events(TcpConnection& connection, uint32_t events, int error) override {
        static_cast<TcpSocket*>(connection.owner)->on_events(events, error);
    }
    void tcp_acceptable(TcpListener& listener) override {
        static_cast<TcpSocket*>(listener.owner)->on_acceptable(listener);
    }
    void tcp_orphan_gone(uint64_t token) override {
        auto* hold = reinterpret_cast<PortHold*>(token);
        hold->fd.reset();
        g_holds.give(hold);
        g_hold_count.fetch_sub(1, std::memory_order_relaxed);
    }
};
Sink g_sink;

// Waits for `done(socket)` under the lease of its shard.
template <class Done>
class ConditionTarget final : public WaitTarget {
  public:
    ConditionTarget(Socket& socket, Shard* shard, Done done)
        : socket_(socket), shard_(shard), done_(done) {}
    bool ready(bool) override {
        LeaseGuard guard(shard_->lease());
        if (done_()) return true;
        return shard_->poll() != 0 && done_();
    }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return {&shard_, 1}; }
    void progress() override {}

  private:
    Socket& socket_;
    Shard* shard_;
    Done done_;
};

}  // namespace

TcpSink& tcp_sink() { return g_sink; }

int held_port(uint64_t token) { return token ? reinterpret_cast<PortHold*>(token)->fd.fd() : -1; }

TcpSocket* TcpSocket::create(int fd, int type, int protocol) {
    bool recycled;
    void* memory = g_slab.take(&recycled);
    if (memory == nullptr) return nullptr;
    const uint32_t generation = recycled ? static_cast<TcpSocket*>(memory)->generation + 1 : 1;
    return new (memory) TcpSocket(generation, fd, type, protocol);
}

void TcpSocket::destroy(TcpSocket* socket) {
    Epoll::forget_member(*socket);
    stats::remove_socket(socket->row_);
    g_slab.give(socket);
}

void tcp_forget_in_child() {
    g_slab.forget_lock_in_child();
    g_holds.forget_lock_in_child();
}

void TcpSocket::become_kernel(Reason why) {
    tell_served_by_kernel(why);
    reason_.store(why, std::memory_order_relaxed);
    state_.store(SocketState::kernel, std::memory_order_release);
    publish_state();
    TwinEvents::remove(fd());
    Epoll::move_to_kernel(*this);
    watch.notify();
}

void TcpSocket::become_twin_in_child() {
    new (&control_) std::mutex;
    const Phase phase = phase_.load(std::memory_order_relaxed);
    connection_ = nullptr;
    shard_ = nullptr;
    listeners_count_ = 0;
    steered_count_ = 0;
    space_ = nullptr;
    if (phase == Phase::listening || phase == Phase::kernel_listener) {
        // Several processes may accept from it: the kernel's listener serves them all.
        phase_.store(Phase::kernel_listener, std::memory_order_relaxed);
        acceptable_.store(0, std::memory_order_relaxed);
        reason_.store(Reason::fork, std::memory_order_relaxed);
        state_.store(SocketState::kernel, std::memory_order_release);
        Epoll::move_to_kernel(*this);
    } else if (phase != Phase::fresh) {
        reason_.store(Reason::fork, std::memory_order_relaxed);
        state_.store(SocketState::kernel, std::memory_order_release);
        Epoll::move_to_kernel(*this);
    }
}

// ---- Options that shape a connection

void TcpSocket::apply_options(tcp::TcpConfig& c) const {
    c.nodelay = options_.nodelay || c.nodelay;
    c.cork = options_.cork;
    c.quickack = options_.quickack;
    c.keepalive = options_.keepalive;
    if (options_.keepidle) c.keepalive_idle = Duration::seconds(options_.keepidle);
    if (options_.keepintvl) c.keepalive_interval = Duration::seconds(options_.keepintvl);
    if (options_.keepcnt) c.keepalive_probes = uint8_t(options_.keepcnt);
    if (options_.user_timeout_ms) c.user_timeout = Duration::millis(options_.user_timeout_ms);
    if (options_.max_seg) c.max_seg = uint16_t(options_.max_seg);
    if (options_.syncnt) c.syn_retries = uint8_t(options_.syncnt);
    if (options_.linger2 > 0) c.fin_timeout = Duration::seconds(options_.linger2);
    if (options_.window_clamp) c.window_clamp = uint32_t(options_.window_clamp);
    if (options_.sndbuf) c.send_buffer = c.send_buffer_max = uint32_t(options_.sndbuf);
    if (options_.rcvbuf) c.receive_buffer = c.receive_buffer_max = uint32_t(options_.rcvbuf);
    if (options_.congestion >= 0) c.cc = tcp::CcKind(options_.congestion);
    if (options_.pacing) c.pacing_rate = options_.pacing;
}

// ---- Open

Outcome TcpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    std::lock_guard guard(control_);
    if (state() == SocketState::kernel) return Outcome::kernel();
    const int result = sys::bind(fd, addr, len);
    if (result < 0) return Outcome::error(-result);
    bound_ = true;
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), size, local_);
    return Outcome::value(0);
}

// Why the kernel has to make this connection, or none and everything that the engine needs.
Reason TcpSocket::connect_obstacle(int fd, const Endpoint& to, TcpPath& path, Endpoint& local,
                                   uint32_t& mtu, Shard*& shard) {
    if (!to.addr.is_v4() || to.port == 0) return Reason::family;
    if (to.addr.is_any() || to.addr.is_loopback() || to.addr.is_multicast())
        return Reason::loopback;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return why;
    const auto view = space_->monitor().view();
    RouteQuery query;
    query.dst = to.addr;
    query.src = local_.addr;
    query.protocol = IPPROTO_TCP;
    query.dport = to.port;
    query.tos = uint8_t(options_.tos);
    query.mark = uint32_t(int_option(fd, SOL_SOCKET, SO_MARK));
    query.oif = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
    const auto route = view->route(query);
    if (!route) return Reason::no_route;
    if (route->type == RouteType::local) return Reason::loopback;
    if (route->type != RouteType::unicast) return Reason::broadcast;
    local = {local_.addr.is_any() ? route->source : local_.addr, local_.port};
    if (!Runtime::snapshot().rules.decide(Role::tcp_client, to, &local).offload)
        return Reason::rule;
    if (space_->policy()) {
        FlowQuery flow;
        flow.protocol = IPPROTO_TCP;
        flow.local = local;
        flow.remote = to;
        flow.ifindex = route->oif;
        flow.mark = query.mark;
        flow.role = FlowRole::active;
        std::string culprit;
        why = space_->policy()->check(flow, *view, &culprit);
        if (why != Reason::none) {
            vma_log(info, "sock", "fd {}: the connection stays with the kernel ({}): {}", fd,
                    reason_name(why), culprit);
            return why;
        }
    }
    shard = space_->shard(route->oif, &why);
    if (shard == nullptr) return why;
    path.ifindex = route->oif;
    path.next_hop = route->next_hop;
    path.ttl = uint8_t(options_.ttl ? options_.ttl : int_option(fd, IPPROTO_IP, IP_TTL, 64));
    path.tos = uint8_t(options_.tos);
    const Neighbor neighbor = space_->monitor().neighbor(path.ifindex, path.next_hop);
    path.neighbor_generation = space_->monitor().neighbor_generation();
    path.resolved = neighbor.sendable();
    path.dst_mac = neighbor.mac;
    mtu = route->mtu;
    return Reason::none;
}

// The kernel keeps the port space: binds the twin to a free port of the automatic range whose tuple is not in TIME_WAIT here,
// which the kernel would not know of. 0: there is none.
uint16_t TcpSocket::take_port(int fd, const IpAddr& from, const Endpoint& to, Shard& shard) {
    constexpr unsigned kTries = 256;
    static std::atomic<uint64_t> seed{0};
    const PortRange range = automatic_ports();
    Rng rng(seed.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed) ^
            uint64_t(monotonic_now().ns));
    for (unsigned i = 0; range.count != 0 && i < kTries; i++) {
        const Endpoint candidate{from, uint16_t(range.first + rng.below(range.count))};
        {
            LeaseGuard lease(shard.lease());
            if (!shard.tcp().may_connect({candidate, to}, monotonic_now())) continue;
        }
        const sockaddr_in sin = candidate.to_sockaddr_in();
        if (sys::bind(fd, reinterpret_cast<const sockaddr*>(&sin), sizeof sin) == 0)
            return candidate.port;
    }
    // Nearly every port is in use, or only the kernel can choose (reserved ports).
    sockaddr_in sin = Endpoint{from, 0}.to_sockaddr_in();
    if (sys::bind(fd, reinterpret_cast<const sockaddr*>(&sin), sizeof sin) < 0) return 0;
    socklen_t size = sizeof sin;
    sys::getsockname(fd, reinterpret_cast<sockaddr*>(&sin), &size);
    return __builtin_bswap16(sin.sin_port);
}

Outcome TcpSocket::connect_result() {
    LeaseGuard lease(shard_->lease());
    const int error = take_error();
    if (error == 0 && connection_ && connection_->tcb.state != tcp::State::CLOSED) {
        connect_reported_ = true;
        return Outcome::value(0);
    }
    // Told once; then the socket is as before connect() and may try again. Its twin keeps the port.
    phase_.store(Phase::fresh, std::memory_order_release);
    update_ready();
    return Outcome::error(error ? error : ECONNABORTED);
}

// connect() on a socket that is connecting or connected.
Outcome TcpSocket::connect_again() {
    bool opening;
    {
        LeaseGuard lease(shard_->lease());
        shard_->poll();
        opening = connection_->tcb.state == tcp::State::SYN_SENT;
    }
    if (opening) return nonblocking() ? Outcome::error(EALREADY) : wait_connected(EALREADY);
    return connect_reported_ ? Outcome::error(EISCONN) : connect_result();
}

// What is left of an attempt that failed.
void TcpSocket::drop_failed_connection() {
    if (connection_ == nullptr) return;
    LeaseGuard lease(shard_->lease());
    TcpConnection* c = connection_;
    connection_ = nullptr;
    shard_->tcp().release_owner(*c, 0, monotonic_now());
}

Outcome TcpSocket::connect(int fd, const sockaddr* addr, socklen_t len) {
    {
        std::lock_guard guard(control_);
        if (state() == SocketState::kernel) return Outcome::kernel();
        const Phase phase = phase_.load(std::memory_order_relaxed);
        if (phase == Phase::kernel_listener || phase == Phase::listening)
            return Outcome::error(EISCONN);
        if (phase == Phase::connected || phase == Phase::connecting) {
            const bool nobody =
                addr && len >= sizeof addr->sa_family && addr->sa_family == AF_UNSPEC;
            return nobody ? disconnect() : connect_again();
        }
        drop_failed_connection();
        Endpoint to;
        if (!Endpoint::from_sockaddr(addr, len, to)) return Outcome::kernel();
        TcpPath path;
        Endpoint local;
        uint32_t mtu = 1500;
        Shard* shard = nullptr;
        const Reason why = connect_obstacle(fd, to, path, local, mtu, shard);
        if (why != Reason::none) {
            become_kernel(why);
            return Outcome::kernel();
        }
        if (!bound_ || local.port == 0) {
            local.port = take_port(fd, local.addr, to, *shard);
            if (local.port == 0) return Outcome::error(EADDRNOTAVAIL);
            bound_ = true;
        }
        tcp::TcpConfig config = tcp_defaults(Runtime::options(), shard->caps(), mtu);
        apply_options(config);
        broker_watch(*shard);
        LeaseGuard lease(shard->lease());
        ready_.store(0, std::memory_order_release);
        phase_.store(Phase::connecting, std::memory_order_release);
        const auto connection = shard->tcp().connect({local, to}, config, path, space_->monitor(),
                                                     this, monotonic_now());
        if (!connection) {
            phase_.store(Phase::fresh, std::memory_order_release);
            return Outcome::error(connection.error());
        }
        connection_ = *connection;
        shard_ = shard;
        local_ = local;
        remote_ = to;
        reason_.store(Reason::none, std::memory_order_relaxed);
        state_.store(SocketState::offloaded, std::memory_order_release);
        update_ready();
        shard->tcp().flush(monotonic_now());
    }
    publish_state();
    if (nonblocking()) return Outcome::error(EINPROGRESS);
    return wait_connected(EINPROGRESS);
}

// connect(AF_UNSPEC): the connection is reset, the socket is as before connect(). Under control_.
Outcome TcpSocket::disconnect() {
    LeaseGuard lease(shard_->lease());
    const Instant now = monotonic_now();
    TcpConnection* c = connection_;
    tcp::Actions actions;
    if (c->tcb.state != tcp::State::CLOSED && c->tcb.state != tcp::State::TIME_WAIT)
        so_error_.store(ECONNRESET, std::memory_order_relaxed);
    connection_ = nullptr;
    tcp::abort(c->tcb, 0, actions);
    shard_->tcp().absorb(*c, actions, now);
    shard_->tcp().release_owner(*c, 0, now);
    shard_->tcp().flush(now);
    connect_reported_ = false;
    phase_.store(Phase::fresh, std::memory_order_release);
    update_ready();
    watch.notify();
    return Outcome::value(0);
}

Outcome TcpSocket::wait_connected(int on_timeout) {
    ConditionTarget target(*this, shard_, [this] {
        return connection_ == nullptr ||  // another thread ended the attempt
               connection_->tcb.state != tcp::State::SYN_SENT;
    });
    WaitLimits limits = Context::receive_limits();
    const int64_t timeout = sndtimeo_ns_.load(std::memory_order_relaxed);
    if (timeout) limits.deadline = monotonic_now() + Duration{timeout};
    switch (wait_until(target, read_governor_, limits)) {
        case WaitEnd::ready:
            return connect_result();
        case WaitEnd::timeout:
            return Outcome::error(on_timeout);
        case WaitEnd::interrupted:
            break;
    }
    // connect(2) is not restarted by repeating it: the connection goes on being made.
    return Outcome::error(EINTR);
}

// ---- Listen and accept

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
    if (local_.addr.is_loopback() || int_option(fd, SOL_SOCKET, SO_REUSEPORT) ||
        !Runtime::snapshot().rules.decide(Role::tcp_server, local_).offload)
        return;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return;
    const auto view = space_->monitor().view();
    for (const Interface& interface : view->interfaces()) {
        if (!NetSpace::can_carry_ring(interface)) continue;
        bool covered = false;
        for (const InterfaceAddress& a : interface.addresses)
            covered =
                covered || (a.addr.is_v4() && (local_.addr.is_any() || a.addr == local_.addr));
        if (covered) (void)space_->shard(interface.index, &why);
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
                vma_log(info, "sock",
                        "listener on port {}, interface {}: stays with the kernel ({}): {}",
                        local_.port, interface.name, reason_name(failed), culprit);
        }
        Shard* shard = failed == Reason::none ? space_->shard(interface.index, &failed) : nullptr;
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
        unsigned steered = 0;
        for (unsigned i = 0; i < n && steered_count_ < kMaxKeys; i++) {
            FlowKey key;
            key.local = {addresses[i], local_.port};
            key.protocol = IPPROTO_TCP;
            if (!shard->steer(key)) continue;
            steered_[steered_count_++] = {shard, key};
            steered++;
        }
        if (steered == 0) {
            shard->tcp().close_listener(**listener, monotonic_now());
            if (why == Reason::none) why = Reason::flow_taken;
            continue;
        }
        listeners_[listeners_count_++] = {shard, *listener};
    }
    if (listeners_count_ == 0)
        return become_kernel(why == Reason::none ? Reason::interface_unsupported : why);
    reason_.store(Reason::none, std::memory_order_relaxed);
    phase_.store(Phase::listening, std::memory_order_release);
    state_.store(SocketState::offloaded, std::memory_order_release);
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
    const auto attempt = [&] {
        int new_fd = -1, error = 0;
        if (state() == SocketState::kernel) {  // handed back meanwhile
            outcome = Outcome::kernel();
            return true;
        }
        if (TcpSocket* socket = accept_from_ring(fd, flags, &new_fd, &error)) {
            if (addr && len && int(*len) < 0) {  // found out too late, in Linux as well
                release_object(socket);
                sys::close(new_fd);
                outcome = Outcome::error(EINVAL);
                return true;
            }
            if (addr && len) put_name(socket->remote_, addr, len);
            if (!FdTable::install(new_fd, socket)) {
                release_object(socket);
                sys::close(new_fd);
                outcome = Outcome::error(EMFILE);
                return true;
            }
            outcome = Outcome::value(new_fd);
            return true;
        }
        if (error) {
            outcome = Outcome::error(error);
            return true;
        }
        if (kernel_news_.exchange(false, std::memory_order_acq_rel) &&
            kernel_listener_readable(fd)) {
            const int got = int(sys::raw(SYS_accept4, fd, sys::ptr(addr), sys::ptr(len), flags));
            kernel_news_.store(true, std::memory_order_release);
            if (got == -EAGAIN) return false;
            outcome = got < 0 ? Outcome::error(-got) : Outcome::value(got);
            return true;
        }
        if (read_shutdown_.load(std::memory_order_relaxed)) {
            outcome = Outcome::error(EINVAL);
            return true;
        }
        return false;
    };
    if (nonblocking()) {
        if (!kernel_news_.load(std::memory_order_relaxed)) TwinEvents::drain();
        attempt();
        return outcome;
    }
    Shard* shards[kMaxListeners];
    for (unsigned i = 0; i < listeners_count_; i++) shards[i] = listeners_[i].shard;
    AcceptTarget target(*this, std::span<Shard* const>(shards, listeners_count_), attempt);
    WaitLimits limits = Context::receive_limits();
    const Duration timeout = receive_timeout();
    if (timeout.ns) limits.deadline = monotonic_now() + timeout;
    switch (wait_until(target, read_governor_, limits)) {
        case WaitEnd::ready:
            return outcome;
        case WaitEnd::timeout:
            return Outcome::error(EAGAIN);
        case WaitEnd::interrupted:
            break;
    }
    return pending_signal() == PendingSignal::restart && timeout.ns == 0 ? Outcome::restart()
                                                                         : Outcome::error(EINTR);
}

// ---- Events and readiness

int TcpSocket::take_error() { return so_error_.exchange(0, std::memory_order_acq_rel); }

// The level bits of tcp(7)/poll(2) as Linux computes them, from the control block.
void TcpSocket::update_ready() {
    if (phase_.load(std::memory_order_relaxed) == Phase::fresh)
        return ready_.store(EPOLLOUT | EPOLLWRNORM | EPOLLHUP, std::memory_order_release);
    const tcp::Tcb& t = connection_->tcb;
    uint32_t events = 0;
    const bool closed = t.state == tcp::State::CLOSED || t.state == tcp::State::TIME_WAIT;
    const bool receive_done = t.rcv.fin_done || t.read_shutdown || closed;
    const bool send_done = t.snd.fin_queued || closed;
    if ((receive_done && send_done) || t.state == tcp::State::CLOSED) events |= EPOLLHUP;
    if (receive_done) events |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (t.state != tcp::State::SYN_SENT) {
        if (tcp::unread_bytes(t) >=
            uint32_t(std::max(1, receive_low_water_.load(std::memory_order_relaxed))))
            events |= EPOLLIN | EPOLLRDNORM;
        if (send_done || uint64_t(t.out.room()) * 3 >= t.out.limit)
            events |= EPOLLOUT | EPOLLWRNORM;
        if (t.rcv.urgent) events |= EPOLLPRI;
    }
    if (so_error_.load(std::memory_order_relaxed)) events |= EPOLLERR;
    ready_.store(events, std::memory_order_release);
}

void TcpSocket::on_events(uint32_t events, int error) {
    if (connection_ == nullptr) {
        // Told from inside connect(), before the connection is known here.
        if (events & tcp::kFailed) so_error_.store(error, std::memory_order_release);
        return;
    }
    if (events & tcp::kFailed) so_error_.store(error, std::memory_order_release);
    if (events & (tcp::kConnected | tcp::kFailed))
        phase_.store(Phase::connected, std::memory_order_release);
    const uint32_t before = ready_.load(std::memory_order_relaxed);
    update_ready();
    const uint32_t after = ready_.load(std::memory_order_relaxed);
    constexpr uint32_t kEdges = tcp::kReadable | tcp::kConnected | tcp::kPeerClosed | tcp::kFailed |
                                tcp::kReleasable | tcp::kTimeWait | tcp::kUrgent | tcp::kAllAcked;
    if ((after & ~before) || (events & kEdges)) watch.notify();
}

// ---- Close

Outcome TcpSocket::shutdown(int fd, int how) {
    if (state() == SocketState::kernel) return Outcome::kernel();
    if (how < SHUT_RD || how > SHUT_RDWR) return Outcome::error(EINVAL);
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kernel_listener) return Outcome::kernel();
    if (phase == Phase::listening) {
        // As in Linux: a listener that is shut down for reading stops listening.
        if (how == SHUT_WR) return Outcome::value(0);
        std::lock_guard guard(control_);
        const int result = int(sys::raw(SYS_shutdown, fd, how));
        if (result < 0) return Outcome::error(-result);
        read_shutdown_.store(true, std::memory_order_relaxed);
        phase_.store(Phase::fresh, std::memory_order_release);
        ready_.store(EPOLLOUT | EPOLLWRNORM | EPOLLHUP, std::memory_order_release);
        close_listeners();
        TwinEvents::remove(fd);
        watch.notify();
        return Outcome::value(0);
    }
    if (connection_ == nullptr) return Outcome::error(ENOTCONN);
    LeaseGuard lease(shard_->lease());
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

void TcpSocket::linger() {
    if (state() != SocketState::offloaded || connection_ == nullptr || !options_.linger_on ||
        options_.linger_seconds == 0)
        return;
    {
        LeaseGuard lease(shard_->lease());
        if (tcp::unread_bytes(connection_->tcb)) return;  // close() resets
        tcp::Actions actions;
        const Instant now = monotonic_now();
        tcp::shutdown_write(connection_->tcb, now, actions);
        shard_->tcp().absorb(*connection_, actions, now);
        shard_->tcp().pull(*connection_, now);
        shard_->tcp().flush(now);
    }
    ConditionTarget target(*this, shard_, [this] {
        const tcp::Tcb& t = connection_->tcb;
        return t.state == tcp::State::CLOSED || (t.out.bytes == 0 && t.snd.una == t.snd.nxt);
    });
    WaitLimits limits = Context::receive_limits();
    limits.deadline = monotonic_now() + Duration::seconds(options_.linger_seconds);
    (void)wait_until(target, write_governor_, limits);
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
}

void TcpSocket::teardown() {
    std::lock_guard guard(control_);
    if (inherited.load(std::memory_order_relaxed) || state() == SocketState::kernel) return;
    close_listeners();
    if (connection_ == nullptr) return;
    // A child may hold the descriptor: the connection goes on in the kernel, where this close is one of several.
    ShareRecord* record = share();
    if (record && hand_back_connection(Reason::fork)) {
        record->done.store(1, std::memory_order_release);
        return;
    }
    const broker::Held custody = in_custody();
    end_custody(custody);
    const Instant now = monotonic_now();
    LeaseGuard lease(shard_->lease());
    TcpConnection* c = connection_;
    connection_ = nullptr;
    tcp::Actions actions;
    if (options_.linger_on && options_.linger_seconds == 0)
        tcp::abort(c->tcb, 0, actions);
    else
        tcp::close(c->tcb, now, actions);
    shard_->tcp().absorb(*c, actions, now);
    const bool over = c->tcb.state == tcp::State::CLOSED && !c->tcb.rst_due;
    const uint64_t token = over || accepted_ ? 0 : hold_port(fd());
    shard_->tcp().release_owner(*c, token, now);
    shard_->tcp().flush(now);
}

void tcp_drain_orphans(Duration bound) {
    const Instant deadline = monotonic_now() + bound;
    for (;;) {
        uint64_t left = 0;
        for (Shard* shard : Runtime::shards()) {
            LeaseGuard lease(shard->lease());
            while (shard->poll() != 0) {
            }
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
        pollfd fds[8];
        nfds_t n = 0;
        for (Shard* shard : Runtime::shards())
            if (n < 8 && shard->arm()) fds[n++] = {shard->wake_fd(), POLLIN, 0};
        const timespec slice{0, 5'000'000};
        sys::ppoll(fds, n, n == Runtime::shards().size() ? &slice : &nap);
        for (Shard* shard : Runtime::shards()) shard->disarm();
    }
}

const char* TcpSocket::state_text() const {
    switch (phase_.load(std::memory_order_relaxed)) {
        case Phase::fresh:
            return "CLOSED";
        case Phase::kernel_listener:
        case Phase::listening:
            return "LISTEN";
        default:
            return connection_ ? tcp::state_name(connection_->tcb.state) : "CLOSED";
    }
}

}  // namespace vma::sock
