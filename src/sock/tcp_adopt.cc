// Adoption: a connection that the kernel has made moves into a shard (process-model.md section 5; the order and why nothing
// is lost in docs/decisions/0009-adoption.md).
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "engine/tcp_defaults.h"
#include "sock/broker_link.h"
#include "sock/carried.h"
#include "sock/cross.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/mover.h"
#include "sock/option_rows.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// Refused for a moment: another thread is in the kernel with this socket, or the connection would not hold still.
constexpr Reason kNotNow = Reason::undecided;

bool is_tcp_v4(int fd) {
    return int_option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET &&
           int_option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

Reason reason_of(int error) {
    switch (error) {
        case EAGAIN:
            return kNotNow;
        case EPERM:
            return Reason::capability;
        case EADDRINUSE:
        case EEXIST:
            return Reason::flow_taken;
        case ENOMEM:
        case ENOBUFS:
        case ENOSPC:
            return Reason::memory;
        case EOPNOTSUPP:
            return Reason::unsupported_option;
        default:
            return Reason::kernel_connection;
    }
}

}  // namespace

void TcpSocket::accepted_by_kernel(int listener, int fd, int flags) {
    const uint32_t after = Runtime::options().adopt_after;
    const bool by_memory = Runtime::options().shm_after != 0;
    if (after == 0 && !by_memory) return;
    {
        const ObjectRef ref{listener};
        if (ref && ref.get()->kind == ObjectKind::tcp) {
            // Why the listener is the kernel's holds for its connections, too, unless it is only that others share it.
            const Reason why = static_cast<TcpSocket*>(ref.get())->reason();
            // What reaches it from this host needs no ring.
            if (!(by_memory && only_no_ring(why)) && why != Reason::fork && why != Reason::exec &&
                why != Reason::reuseport_shared && why != Reason::none &&
                why != Reason::undecided && why != Reason::kernel_connection)
                return;
        } else if (ref || !is_tcp_v4(fd)) {
            return;
        }
    }
    TcpSocket* const socket = create(fd, SOCK_STREAM, IPPROTO_TCP);
    if (socket == nullptr) return;
    socket->accepted_ = true;
    socket->connect_reported_ = true;
    socket->set_nonblocking(flags & SOCK_NONBLOCK);
    socket->phase_.store(Phase::connected, std::memory_order_relaxed);
    socket->reason_.store(Reason::kernel_connection, std::memory_order_relaxed);
    socket->adopt_after_.store(after ? int32_t(std::min<uint32_t>(after, 1u << 20)) : kOnRequest,
                               std::memory_order_relaxed);
    socket->state_.store(SocketState::kernel, std::memory_order_release);
    if (!FdTable::install(fd, socket)) return release_object(socket);
    if (by_memory) publish_port(fd);
}

bool TcpSocket::adoption_due() {
    const int32_t left = adopt_after_.load(std::memory_order_relaxed);
    if (left < 0 || left == kOnRequest) return false;
    // Racing threads may count one call for two: it is a threshold, not a number.
    if (left > 1) adopt_after_.store(left - 1, std::memory_order_relaxed);
    return left <= 1;
}

bool TcpSocket::pin_in_kernel() {
    for (;;) {
        kernel_calls_.fetch_add(1, std::memory_order_seq_cst);
        if (!moving_.load(std::memory_order_seq_cst)) {
            if (state() == SocketState::kernel) return true;
            unpin_in_kernel();
            return false;
        }
        kernel_calls_.fetch_sub(1, std::memory_order_seq_cst);
        if (settling()) {  // as long as the other side takes
            const timespec nap{0, 20'000};
            sys::raw(SYS_nanosleep, sys::ptr(&nap), 0);
        }
        const std::lock_guard wait(control_);  // for the end of the adoption that is under way
        if (state() != SocketState::kernel) return false;
    }
}

bool TcpSocket::epoll_control(Epoll& epoll, int op, int fd, epoll_event* event, int* error) {
    // What only the kernel knows of such a membership could not follow.
    if (crossing() && event && (event->events & (EPOLLONESHOT | EPOLLEXCLUSIVE))) cross_cancel();
    const std::lock_guard guard(control_);
    if (state() != SocketState::kernel) return false;
    *error = epoll.control_in_kernel(op, fd, *this, event);
    return true;
}

bool TcpSocket::adopt(int fd) {
    Runtime::heavy_start();
    const std::lock_guard guard(control_);
    if (state() != SocketState::kernel || !may_be_adopted())
        return state() == SocketState::offloaded;
    if (crossing()) return false;
    moving_.store(true, std::memory_order_seq_cst);
    const Reason why = kernel_calls_.load(std::memory_order_seq_cst) == 0 ? adopt_now(fd) : kNotNow;
    moving_.store(false, std::memory_order_seq_cst);
    if (why == Reason::none) {
        // Once: if it goes back to the kernel, it is for a reason that stays.
        if (adopt_after_.load(std::memory_order_relaxed) != kOnRequest) never_adopt();
        publish_state();
        // Whoever waits for this socket finds it here now; an edge too many is allowed, one too few is not.
        watch.notify();
        vma_log(debug, "sock", "fd {}: taken over from the kernel", fd);
        return true;
    }
    if (why == kNotNow) return false;
    never_adopt();
    reason_.store(why, std::memory_order_relaxed);
    publish_state();
    vma_log(debug, "sock", "fd {}: the connection stays with the kernel: {}", fd,
            reason_meaning(why));
    return false;
}

Reason TcpSocket::adopt_now(int fd) {
    sockaddr_storage name{};
    auto* const sa = reinterpret_cast<sockaddr*>(&name);
    socklen_t len = sizeof name;
    if (sys::getsockname(fd, sa, &len) < 0 || !Endpoint::from_sockaddr(sa, len, local_))
        return Reason::kernel_connection;
    len = sizeof name;
    if (sys::raw(SYS_getpeername, fd, sys::ptr(sa), sys::ptr(&len)) < 0 ||
        !Endpoint::from_sockaddr(sa, len, remote_))
        return Reason::kernel_connection;
    Way way;
    const Reason why = obstacle(fd, remote_, accepted_ ? Role::tcp_server : Role::tcp_client, way);
    if (only_no_ring(why)) return cross_wanted(why);
    if (why != Reason::none) return why;
    broker_watch(*way.shard);
    if (!Epoll::prepare_from_kernel(*this)) return kNotNow;
    const Reason result = read_in(fd, way);
    if (result != Reason::none) Epoll::stay_in_kernel(*this);
    return result;
}

// What the program has set, from the twin.
void TcpSocket::take_options(int fd, const RepairImage& image) {
    const auto value = [&](int level, int name, int otherwise) {
        int v;
        return saved_option(image.options, level, name, &v) ? v : otherwise;
    };
    auto& o = options_;
    o.nodelay = value(IPPROTO_TCP, TCP_NODELAY, 0);
    o.cork = value(IPPROTO_TCP, TCP_CORK, 0);
    o.keepalive = value(SOL_SOCKET, SO_KEEPALIVE, 0);
    o.keepidle = value(IPPROTO_TCP, TCP_KEEPIDLE, 0);
    o.keepintvl = value(IPPROTO_TCP, TCP_KEEPINTVL, 0);
    o.keepcnt = value(IPPROTO_TCP, TCP_KEEPCNT, 0);
    o.user_timeout_ms = value(IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    o.linger2 = value(IPPROTO_TCP, TCP_LINGER2, 0);
    o.tos = value(IPPROTO_IP, IP_TOS, 0);
    o.ttl = value(IPPROTO_IP, IP_TTL, 0);
    o.priority = value(SOL_SOCKET, SO_PRIORITY, 0);
    o.mark = value(SOL_SOCKET, SO_MARK, 0);
    o.reuseaddr = value(SOL_SOCKET, SO_REUSEADDR, 0);
    o.linger_on = image.options.linger[0];
    o.linger_seconds = image.options.linger[1];
    // Sizes count if the program fixed them; half of what is reported is text.
    constexpr int kBufLock = 72 /* SO_BUF_LOCK */, kLockSend = 1, kLockReceive = 2;
    const int locks = value(SOL_SOCKET, kBufLock, 0);
    o.sndbuf = locks & kLockSend ? value(SOL_SOCKET, SO_SNDBUF, 0) / 2 : 0;
    o.rcvbuf = locks & kLockReceive ? value(SOL_SOCKET, SO_RCVBUF, 0) / 2 : 0;
    o.congestion = std::strcmp(image.options.congestion, "reno") == 0    ? int(tcp::CcKind::newreno)
                   : std::strcmp(image.options.congestion, "cubic") == 0 ? int(tcp::CcKind::cubic)
                                                                         : -1;
    o.notsent_lowat = uint32_t(int_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT));
    twin_has_options_ = true;
    receive_low_water_.store(std::max(1, value(SOL_SOCKET, SO_RCVLOWAT, 1)),
                             std::memory_order_relaxed);
    const auto time_of = [&](int option) {
        timeval tv{};
        socklen_t len = sizeof tv;
        sys::getsockopt(fd, SOL_SOCKET, option, &tv, &len);
        return int64_t(tv.tv_sec) * 1'000'000'000 + int64_t(tv.tv_usec) * 1000;
    };
    rcvtimeo_ns_.store(time_of(SO_RCVTIMEO), std::memory_order_relaxed);
    sndtimeo_ns_.store(time_of(SO_SNDTIMEO), std::memory_order_relaxed);
    const int status = sys::fcntl(fd, F_GETFL);
    if (status >= 0) set_nonblocking(status & O_NONBLOCK);
}

// The connection out of the twin, into the shard. On any answer but none everything is as it was.
Reason TcpSocket::read_in(int fd, Way& way) {
    const FlowTuple tuple{local_, remote_};
    Carried room(repair_room(fd));
    if (!room.ok()) return Reason::memory;
    Shard& shard = *way.shard;
    LeaseGuard lease(shard.lease());
    // From here on what the peer sends waits in the ring, and what the kernel makes for the tuple is dropped.
    if (const Status taken = shard.tcp().take_flow(tuple, fd); !taken) {
        const Reason refused = reason_of_steering(taken.error());
        return refused == Reason::none ? reason_of(taken.error()) : refused;
    }
    Mover& by = mover();
    RepairImage image;
    if (const Status read = by.checkpoint(fd, image, room.span()); !read) {
        shard.tcp().release_flow(tuple, monotonic_now());
        inject_strays(shard, by);
        return reason_of(read.error());
    }
    take_options(fd, image);
    tcp::TcpConfig config =
        tcp_defaults(Runtime::options(), shard.caps(),
                     image.path_mtu ? std::min<uint32_t>(way.mtu, image.path_mtu) : way.mtu);
    apply_options(config);
    // The kernel has tuned its buffer; the window that the peer knows is kept.
    if (options_.rcvbuf == 0)
        config.receive_buffer = std::clamp(image.snapshot.rcv_wnd + image.snapshot.unread,
                                           config.receive_buffer, config.receive_buffer_max);
    tcp::Snapshot& s = image.snapshot;
    s.passive = accepted_;
    const auto made =
        shard.tcp().adopt(tuple, s, room.view(0, image.to_send), room.view(image.to_send, s.unread),
                          config, way.path, space_->monitor(), this, monotonic_now());
    if (!made) {
        shard.tcp().release_flow(tuple, monotonic_now());
        by.resume(fd, image);
        inject_strays(shard, by);
        return reason_of(made.error());
    }
    Epoll::leave_kernel(*this);
    if (const Status released = by.release(fd, image); !released) {
        Epoll::return_to_kernel(*this);
        shard.tcp().forget(**made, monotonic_now());
        by.resume(fd, image);
        inject_strays(shard, by);
        return reason_of(released.error());
    }
    connection_ = *made;
    screen_connection();
    shard_ = way.shard;
    so_error_.store(0, std::memory_order_relaxed);
    read_shutdown_.store(false, std::memory_order_relaxed);
    write_shutdown_.store(s.fin_queued, std::memory_order_relaxed);
    reason_.store(Reason::none, std::memory_order_relaxed);
    phase_.store(Phase::connected, std::memory_order_release);
    reopen_share();
    update_ready();
    state_.store(SocketState::offloaded, std::memory_order_release);
    Epoll::follow_lanes(*this);
    Xtreme::settle(*this, shard);
    shard.tcp().flush(monotonic_now());
    return Reason::none;
}

}  // namespace vma::sock
