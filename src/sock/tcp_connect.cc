// Opening: bind, connect and how a connection attempt ends.
#include "sock/epoll.h"
#include "sock/option_rows.h"
#include "sock/tcp_socket.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/tcp_defaults.h"
#include "sock/broker_link.h"
#include "sock/condition_target.h"
#include "sock/context.h"
#include "sock/cross.h"

namespace vma::sock {

// ---- Options that shape a connection

void TcpSocket::apply_options(tcp::TcpConfig& c) const {
    c.nodelay = options_.nodelay || c.nodelay;
    c.cork = options_.cork;
    c.messages = (options_.messages & kMessageSend) != 0;
    c.quickack = options_.quickack;
    c.keepalive = options_.keepalive;
    if (options_.keepidle) c.keepalive_idle = Duration::seconds(options_.keepidle);
    if (options_.keepintvl) c.keepalive_interval = Duration::seconds(options_.keepintvl);
    if (options_.keepcnt) c.keepalive_probes = uint8_t(options_.keepcnt);
    if (options_.user_timeout_ms) c.user_timeout = Duration::millis(options_.user_timeout_ms);
    if (options_.max_seg) c.max_seg = uint16_t(options_.max_seg);
    if (options_.syncnt) c.syn_retries = uint8_t(options_.syncnt);
    if (options_.linger2 > 0) c.fin_timeout = Duration::seconds(std::min(options_.linger2, 120));
    if (options_.linger2 < 0) c.fin_timeout = {};
    c.defer_accept = uint8_t(options_.defer_accept);
    if (options_.fast_open_no_cookie) c.fast_open |= tcp::fast_open::client_no_cookie;
    if (options_.notsent_lowat) c.notsent_lowat = options_.notsent_lowat;
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
    // The twin of an accepted connection would take what the connection may not, before it has ended; then Linux has no port for
    // it either. That of one in shared memory is still connected then.
    if (connection_ && (accepted_ || connection_->neighbor)) {
        {
            const ConnectionLease lease(shard_);
            shard_->poll();
            const tcp::State now = connection_->tcb.state;
            if (now != tcp::State::CLOSED && now != tcp::State::TIME_WAIT)
                return Outcome::error(EINVAL);
        }
        end_custody(in_custody());  // which goes by the name that changes now
        if (connection_->neighbor) reset_twin(fd);
    }
    const int result = sys::bind(fd, addr, len);
    if (result < 0) return Outcome::error(-result);
    bound_ = true;
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), size, local_);
    return Outcome::value(0);
}

Reason TcpSocket::find_way(int fd, const Endpoint& to, Way& way) {
    if (!to.addr.is_v4() || to.port == 0) return Reason::family;
    if (to.addr.is_any() || to.addr.is_loopback() || to.addr.is_multicast())
        return Reason::loopback;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return why;
    network_generation_ = space_->generation();
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
    way.local = {local_.addr.is_any() ? route->source : local_.addr, local_.port};
    way.mtu = route->mtu;
    TcpPath& path = way.path;
    path.ifindex = route->oif;
    path.next_hop = route->next_hop;
    path.ttl = uint8_t(options_.ttl ? options_.ttl : int_option(fd, IPPROTO_IP, IP_TTL, 64));
    path.tos = uint8_t(options_.tos);
    const Neighbor neighbor = space_->monitor().neighbor(path.ifindex, path.next_hop);
    path.neighbor_generation = space_->monitor().neighbor_generation();
    path.resolved = neighbor.sendable();
    path.dst_mac = neighbor.mac;
    return Reason::none;
}

Reason TcpSocket::kernel_interferes(int fd, const Endpoint& to, Role role, const Way& way) {
    if (!space_->policy()) return Reason::none;
    FlowQuery flow;
    flow.protocol = IPPROTO_TCP;
    flow.local = way.local;
    flow.remote = to;
    flow.ifindex = way.path.ifindex;
    flow.mark = uint32_t(int_option(fd, SOL_SOCKET, SO_MARK));
    flow.role = role == Role::tcp_client ? FlowRole::active : FlowRole::passive;
    std::string culprit;
    const Reason why = space_->policy()->check(flow, *space_->monitor().view(), &culprit);
    if (why != Reason::none)
        vma_log(info, "sock", "fd {}: the connection is the kernel's ({}): {}", fd,
                reason_name(why), culprit);
    return why;
}

Reason TcpSocket::obstacle(int fd, const Endpoint& to, Role role, Way& way) {
    Reason why = find_way(fd, to, way);
    if (why != Reason::none) return why;
    const Rules& rules = Runtime::snapshot().rules;
    const bool offload = role == Role::tcp_client ? rules.decide(role, to, &way.local).offload
                                                  : rules.decide(role, way.local).offload;
    if (!offload) return Reason::rule;
    why = kernel_interferes(fd, to, role, way);
    if (why != Reason::none) return why;
    way.shard = space_->shard(way.path.ifindex, rings.both(fd, way.local.addr), &why);
    return way.shard ? Reason::none : why;
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
        const auto may_connect = [&](Shard* other) {
            if (other->ifindex() != shard.ifindex()) return true;
            LeaseGuard lease(other->lease());
            return other->tcp().may_connect({candidate, to}, monotonic_now());
        };
        if (!std::ranges::all_of(Runtime::shards(), may_connect)) continue;
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
    const ConnectionLease lease(shard_);
    const int error = take_error();
    if (connection_ == nullptr && state() == SocketState::kernel) {  // made, and handed back since
        connect_reported_ = true;
        return Outcome::value(0);
    }
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
    if (syn_held_.load(std::memory_order_acquire)) return Outcome::error(EISCONN);
    bool opening;
    {
        const ConnectionLease lease(shard_);
        shard_->poll();
        opening = connection_ && connection_->tcb.state == tcp::State::SYN_SENT;
    }
    if (opening) return nonblocking() ? Outcome::error(EALREADY) : wait_connected(EALREADY);
    return connect_reported_ ? Outcome::error(EISCONN) : connect_result();
}

// What is left of an attempt that failed.
void TcpSocket::drop_failed_connection() {
    if (connection_ == nullptr) return;
    const ConnectionLease lease(shard_);
    TcpConnection* c = connection_;
    connection_ = nullptr;
    shard_->tcp().release_owner(*c, 0, monotonic_now());
}

Outcome TcpSocket::connect(int fd, const sockaddr* addr, socklen_t len, TcpFirstText* first) {
    const bool nobody = addr && len >= sizeof addr->sa_family && addr->sa_family == AF_UNSPEC;
    if (nobody && phase_.load(std::memory_order_acquire) == Phase::listening &&
        state() != SocketState::kernel)
        return shutdown(fd, SHUT_RD);  // ends a listener in the same way
    TcpFirstText asked;
    {
        std::lock_guard guard(control_);
        if (state() == SocketState::kernel) return Outcome::kernel();
        const Phase phase = phase_.load(std::memory_order_relaxed);
        if (phase == Phase::kernel_listener || phase == Phase::listening)
            return nobody ? Outcome::kernel() : Outcome::error(EISCONN);
        if (phase == Phase::connected || phase == Phase::connecting)
            return nobody ? disconnect() : connect_again();
        drop_failed_connection();
        // What an earlier attempt or connect(AF_UNSPEC) left is over.
        so_error_.store(0, std::memory_order_relaxed);
        shut_while_fresh_.store(false, std::memory_order_relaxed);
        Endpoint to;
        if (!Endpoint::from_sockaddr(addr, len, to)) return Outcome::kernel();
        Way way;
        const Reason why = obstacle(fd, to, Role::tcp_client, way);
        if (why != Reason::none) {
            if (only_no_ring(why) && Runtime::options().shm_after != 0)
                adopt_after_.store(int32_t(Runtime::options().shm_after),
                                   std::memory_order_relaxed);
            become_kernel(why);
            return Outcome::kernel();
        }
        Endpoint& local = way.local;
        Shard* const shard = way.shard;
        if (!bound_ || local.port == 0) {
            local.port = take_port(fd, local.addr, to, *shard);
            if (local.port == 0) return Outcome::error(EADDRNOTAVAIL);
            bound_ = true;
        }
        tcp::TcpConfig config = tcp_defaults(Runtime::options(), shard->caps(), way.mtu);
        apply_options(config);
        broker_watch(*shard);
        LeaseGuard lease(shard->lease());
        const Instant now = monotonic_now();
        if (first == nullptr && options_.fast_open_connect &&
            (config.fast_open & tcp::fast_open::client)) {
            first = &asked;
            asked.hold = (config.fast_open & tcp::fast_open::client_no_cookie) != 0 ||
                         shard->tcp().has_cookie(to.addr, now);
        }
        ready_.store(0, std::memory_order_release);
        phase_.store(Phase::connecting, std::memory_order_release);
        const auto connection = shard->tcp().connect({local, to}, config, way.path,
                                                     space_->monitor(), this, now, first);
        if (!connection) {
            phase_.store(Phase::fresh, std::memory_order_release);
            const Reason refused = reason_of_steering(connection.error());
            if (refused == Reason::none) return Outcome::error(connection.error());
            become_kernel(refused);
            return Outcome::kernel();
        }
        connection_ = *connection;
        screen_connection();
        shard_ = shard;
        local_ = local;
        remote_ = to;
        reason_.store(Reason::none, std::memory_order_relaxed);
        state_.store(SocketState::offloaded, std::memory_order_release);
        Epoll::follow_lanes(*this);
        Xtreme::settle(*this, *shard);
        VMA_PROBE4(connect, fd, &connection_->tcb, to.addr.v4_host(), to.port);
        syn_held_.store(first != nullptr && first->hold, std::memory_order_release);
        update_ready();
        shard->tcp().flush(monotonic_now());
    }
    publish_state();
    if (first != nullptr && first->hold) return Outcome::value(0);
    if (nonblocking() || (first != nullptr && first->no_wait)) return Outcome::error(EINPROGRESS);
    return wait_connected(EINPROGRESS);
}

// connect(AF_UNSPEC): the connection is reset, the socket is as before connect(). Under control_.
Outcome TcpSocket::disconnect() {
    if (connection_->neighbor) reset_twin(fd());  // the kernel's connection beside it
    const ConnectionLease lease(shard_);
    const Instant now = monotonic_now();
    TcpConnection* c = connection_;
    tcp::Actions actions;
    if (c->tcb.state != tcp::State::CLOSED && c->tcb.state != tcp::State::TIME_WAIT)
        so_error_.store(ECONNRESET, std::memory_order_relaxed);
    syn_held_.store(false, std::memory_order_release);
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
    const Duration timeout{sndtimeo_ns_.load(std::memory_order_relaxed)};
    switch (wait_until(target, read_governor_, Context::receive_limits(timeout))) {
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

}  // namespace vma::sock
