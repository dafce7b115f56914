// Socket options of TCP sockets. Every option goes to the twin first, which checks it; what the connection must know is then
// applied here.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/runtime.h"
#include "sock/option_rows.h"
#include "sock/tcp_info.h"
#include "sock/tcp_socket.h"
#include "sock/unserved.h"

namespace vma::sock {
namespace {

enum class Effect : uint8_t { to_kernel, before_open, mirror, applied };
struct Row {
    int level, name;
    Effect effect;
};
constexpr Row kRows[] = {
#define TCP_OPTION(level, name, effect) {level, name, Effect::effect},
#include "sock/tcp_options.def"
#undef TCP_OPTION
};

Outcome put(const void* from, size_t size, void* value, socklen_t* len) {
    if (int(*len) < 0) return Outcome::error(EINVAL);
    const size_t n = std::min<size_t>(*len, size);
    std::memcpy(value, from, n);
    *len = socklen_t(n);
    return Outcome::value(0);
}

// TCP_DEFER_ACCEPT's seconds as repetitions of the SYN-ACK that fill them, as Linux counts.
int synack_repetitions(int seconds) {
    if (seconds <= 0) return 0;
    int count = 1, step = 1, total = 1;
    for (; seconds > total && count < 255; ++count) {
        step = std::min(step * 2, 120);
        total += step;
    }
    return count;
}

// Would Linux take the value, and does options_to_twin() tell the twin of it, whatever it was before?
bool twin_may_wait(int level, int name, int n) {
    if (level == SOL_SOCKET) return name == SO_KEEPALIVE;
    if (level != IPPROTO_TCP) return false;
    switch (name) {
        case TCP_KEEPIDLE:
        case TCP_KEEPINTVL:
            return n >= 1 && n <= 32767;
        case TCP_KEEPCNT:
            return n >= 1 && n <= 127;
        case TCP_USER_TIMEOUT:
            return n >= 1;
        default:
            return false;
    }
}

Outcome put_int(int n, void* value, socklen_t* len) { return put(&n, sizeof n, value, len); }

}  // namespace

// What VMA_* sets on a new socket: as if the program had done it, so that it sees it and may undo it.
void TcpSocket::preset_options(int fd) {
    const int on = 1;
    options_.nodelay = Runtime::options().tcp_nodelay &&
                       sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
    options_.poll_on_send = Runtime::options().rx_poll_on_tx_tcp;
}

// options_ was changed: a live connection or listener hears of it. control_ is held: both stay.
void TcpSocket::set_messages(uint8_t bits) {
    std::lock_guard guard(control_);
    options_.messages = bits;
    config_changed();
}

uint8_t TcpSocket::messages() {
    std::lock_guard guard(control_);
    return options_.messages;
}

void TcpSocket::config_changed(bool acknowledge_owed) {
    for (unsigned i = 0; i < listeners_count_; i++) {
        LeaseGuard lease(listeners_[i].shard->lease());
        TcpListener* const l = listeners_[i].listener;
        if (l == nullptr) continue;
        apply_options(l->config);
        if (options_.ttl) l->ttl = uint8_t(options_.ttl);
        l->tos = uint8_t(options_.tos);
        apply_fast_open(*l);
    }
    if (connection_ == nullptr) return;
    const ConnectionLease lease(shard_);
    tcp::TcpConfig& c = connection_->tcb.cfg;
    c.nodelay = shard_->caps().pushes_back;  // as tcp_defaults()
    apply_options(c);
    const Instant now = monotonic_now();
    tcp::Actions actions;
    tcp::config_changed(connection_->tcb, now, actions);
    stamp_connection();
    if (acknowledge_owed) tcp::acknowledge_owed(connection_->tcb, actions);
    if (options_.ttl) connection_->path.ttl = uint8_t(options_.ttl);
    connection_->path.tos = uint8_t(options_.tos);
    shard_->tcp().absorb(*connection_, actions, now);
    shard_->tcp().pull(*connection_, now);
    shard_->tcp().flush(now);
}

// Options of which the twin of a connection hears only when somebody looks at it, because Linux refuses no such value: switches
// that programs turn with every message (TCP_CORK around each response of nginx), with VMA_AVOID_SYS_CALLS_ON_TCP_FD those that
// options_to_twin() puts in order again. True: done.
bool TcpSocket::turn_switch(int fd, int level, int name, const void* value, socklen_t len) {
    if (value == nullptr || int(len) < int(sizeof(int))) return false;
    const bool turned =
        level == IPPROTO_TCP && (name == TCP_CORK || name == TCP_NODELAY || name == TCP_QUICKACK);
    if (!turned && !(Runtime::options().avoid_sys_calls_on_tcp_fd &&
                     twin_may_wait(level, name, option_number(value, len))))
        return false;
    std::lock_guard guard(control_);
    if (connection_ == nullptr || state() != SocketState::offloaded) return false;
    twin_has_options_ = false;
    apply_option(fd, level, name, value, len);
    config_changed(name == TCP_QUICKACK && options_.quickack);
    return true;
}

Outcome TcpSocket::set_option(int fd, int level, int name, const void* value, socklen_t len) {
    const Effect effect = effect_in(kRows, level, name);
    if (state() == SocketState::kernel && effect == Effect::to_kernel) never_adopt();
    if (Outcome kernel; in_kernel(&kernel)) return kernel;
    const bool live = state() == SocketState::offloaded;
    const Unserved mode = unserved();
    const auto what = [&] { return fmt::format("socket option level {} name {}", level, name); };
    if (effect == Effect::to_kernel && mode == Unserved::refuse && !live) {
        tell_unserved(fd, what());
        return Outcome::error(EINVAL);
    }
    if (live && (effect == Effect::to_kernel || effect == Effect::before_open)) {
        // What the kernel would refuse anyway is no reason to move: a level of another family or protocol.
        if (level != SOL_SOCKET && level != IPPROTO_IP && level != IPPROTO_TCP)
            if (const int refused = sys::setsockopt(fd, level, name, value, len); refused < 0)
                return Outcome::error(-refused);
        if (refuse_unserved(*this, fd, what())) return Outcome::error(EINVAL);
        if (mode == Unserved::hand_back && state() == SocketState::kernel) return Outcome::kernel();
    }
    // The twin is closed, where Linux takes what it refuses to a connection.
    if (live && level == IPPROTO_TCP && name == TCP_WINDOW_CLAMP && value && len >= sizeof(int) &&
        option_number(value, len) == 0)
        return Outcome::error(EINVAL);
    if (live && turn_switch(fd, level, name, value, len)) return Outcome::value(0);
    const int result = sys::setsockopt(fd, level, name, value, len);
    if (result < 0) return Outcome::error(-result);
    if (effect == Effect::to_kernel && !live && mode == Unserved::hand_back) {
        std::lock_guard guard(control_);
        drop_failed_connection();
        if (state() == SocketState::undecided) become_kernel(Reason::unsupported_option);
    }
    if (effect == Effect::applied && apply_option(fd, level, name, value, len)) {
        std::lock_guard guard(control_);
        config_changed();
    }
    return Outcome::value(0);
}

// After the twin has accepted it. True: a live connection must hear of it.
bool TcpSocket::apply_option(int fd, int level, int name, const void* value, socklen_t len) {
    const int n = value ? option_number(value, len) : 0;
    if (level == SOL_SOCKET) return apply_socket_option(fd, name, n, value, len);
    if (level == IPPROTO_IP) {
        if (name == IP_TOS)
            options_.tos = n;
        else
            options_.ttl = n > 0 ? n : 0;
        return true;
    }
    switch (name) {
        case TCP_NODELAY:
            options_.nodelay = n != 0;
            break;
        case TCP_CORK:
            options_.cork = n != 0;
            break;
        case TCP_QUICKACK:
            options_.quickack = n != 0;
            break;
        case TCP_KEEPIDLE:
            options_.keepidle = n;
            break;
        case TCP_KEEPINTVL:
            options_.keepintvl = n;
            break;
        case TCP_KEEPCNT:
            options_.keepcnt = n;
            break;
        case TCP_USER_TIMEOUT:
            options_.user_timeout_ms = n;
            break;
        case TCP_MAXSEG:
            options_.max_seg = n;
            break;
        case TCP_SYNCNT:
            options_.syncnt = n;
            break;
        case TCP_LINGER2:
            options_.linger2 = n;
            break;
        case TCP_WINDOW_CLAMP:
            options_.window_clamp = n;
            break;
        case TCP_DEFER_ACCEPT:
            options_.defer_accept = synack_repetitions(n);
            break;
        case TCP_FASTOPEN:
            options_.fast_open_queue = n;
            break;
        case TCP_FASTOPEN_CONNECT:
            options_.fast_open_connect = n != 0;
            break;
        case TCP_FASTOPEN_NO_COOKIE:
            options_.fast_open_no_cookie = n != 0;
            break;
        case TCP_FASTOPEN_KEY:
            take_fast_open_key(value, len);
            break;
        case TCP_NOTSENT_LOWAT:
            options_.notsent_lowat = uint32_t(n);
            break;
        case TCP_CONGESTION: {
            const std::string_view text(static_cast<const char*>(value),
                                        strnlen(static_cast<const char*>(value), len));
            options_.congestion = text == "reno"    ? int(tcp::CcKind::newreno)
                                  : text == "cubic" ? int(tcp::CcKind::cubic)
                                  : text == "bbr"   ? int(tcp::CcKind::bbr)
                                                    : -1;
            break;
        }
    }
    return true;
}

bool TcpSocket::apply_socket_option(int fd, int name, int n, const void* value, socklen_t len) {
    bool live = true;
    switch (name) {
        case SO_KEEPALIVE:
            options_.keepalive = n != 0;
            break;
        case SO_LINGER: {
            struct linger l {};
            std::memcpy(&l, value, std::min<size_t>(len, sizeof l));
            options_.linger_on = l.l_onoff;
            options_.linger_seconds = l.l_linger;
            live = false;
            break;
        }
        case SO_RCVTIMEO:
        case SO_SNDTIMEO: {
            timeval tv{};
            std::memcpy(&tv, value, std::min<size_t>(len, sizeof tv));
            const int64_t ns = int64_t(tv.tv_sec) * 1000000000 + int64_t(tv.tv_usec) * 1000;
            (name == SO_RCVTIMEO ? rcvtimeo_ns_ : sndtimeo_ns_)
                .store(ns, std::memory_order_relaxed);
            live = false;
            break;
        }
        case SO_RCVLOWAT:
            receive_low_water_.store(std::max(1, n), std::memory_order_relaxed);
            if (connection_) {
                const ConnectionLease lease(shard_);
                update_ready();
            }
            live = false;
            break;
        case SO_RCVBUF:
        case SO_RCVBUFFORCE:
        case SO_SNDBUF:
        case SO_SNDBUFFORCE: {
            // The twin clamped and doubled it; half of that is text, as in Linux's accounting.
            int bytes = 0;
            socklen_t size = sizeof bytes;
            const bool receive = name == SO_RCVBUF || name == SO_RCVBUFFORCE;
            sys::getsockopt(fd, SOL_SOCKET, receive ? SO_RCVBUF : SO_SNDBUF, &bytes, &size);
            (receive ? options_.rcvbuf : options_.sndbuf) = bytes / 2;
            if (connection_) {
                const ConnectionLease lease(shard_);
                tcp::Tcb& t = connection_->tcb;
                tcp::set_buffers(t, options_.sndbuf ? uint32_t(options_.sndbuf) : t.out.limit,
                                 options_.rcvbuf ? uint32_t(options_.rcvbuf) : t.rcv.buffer,
                                 options_.rcvbuf != 0);
            }
            live = false;
            break;
        }
        case SO_MAX_PACING_RATE:
            options_.pacing = uint32_t(n) == UINT32_MAX ? 0 : uint32_t(n);
            if (len >= sizeof(uint64_t)) {  // Linux takes a long as well
                std::memcpy(&options_.pacing, value, sizeof(uint64_t));
                if (options_.pacing == UINT64_MAX) options_.pacing = 0;
            }
            break;
        case SO_REUSEADDR:
            options_.reuseaddr = n != 0;
            live = false;
            break;
        case SO_PRIORITY:
            options_.priority = n;
            live = false;
            break;
        case SO_MARK:
            options_.mark = n;
            live = false;
            break;
    }
    return live;
}

// Linux gives an accepted connection the options of its listener. Done when somebody looks, because most programs never do
// and each option costs a system call. Under control_.
void TcpSocket::inherited_options_to_twin(int fd) {
    if (!std::exchange(twin_has_options_, true)) options_to_twin(fd);
}

void TcpSocket::options_to_twin(int fd) const {
    const auto put_any = [&](int level, int name, int value) {
        sys::setsockopt(fd, level, name, &value, sizeof value);
    };
    const auto put = [&](int level, int name, int value) {
        if (value) put_any(level, name, value);
    };
    put(SOL_SOCKET, SO_REUSEADDR, options_.reuseaddr);
    put(SOL_SOCKET, SO_RCVBUF, options_.rcvbuf);
    put(SOL_SOCKET, SO_SNDBUF, options_.sndbuf);
    put(SOL_SOCKET, SO_PRIORITY, options_.priority);
    if (const int low = receive_low_water_.load(std::memory_order_relaxed); low > 1)
        put(SOL_SOCKET, SO_RCVLOWAT, low);
    put(SOL_SOCKET, SO_MARK, options_.mark);
    // Zero is news, too: turn_switch().
    put_any(SOL_SOCKET, SO_KEEPALIVE, options_.keepalive);
    put_any(IPPROTO_TCP, TCP_NODELAY, options_.nodelay);
    put_any(IPPROTO_TCP, TCP_CORK, options_.cork);
    put_any(IPPROTO_TCP, TCP_QUICKACK, options_.quickack);
    put(IPPROTO_TCP, TCP_KEEPIDLE, options_.keepidle);
    put(IPPROTO_TCP, TCP_KEEPINTVL, options_.keepintvl);
    put(IPPROTO_TCP, TCP_KEEPCNT, options_.keepcnt);
    put(IPPROTO_TCP, TCP_USER_TIMEOUT, options_.user_timeout_ms);
    put(IPPROTO_TCP, TCP_SYNCNT, options_.syncnt);
    put(IPPROTO_TCP, TCP_LINGER2, options_.linger2);
    put(IPPROTO_TCP, TCP_WINDOW_CLAMP, options_.window_clamp);
    put(IPPROTO_TCP, TCP_NOTSENT_LOWAT, int(options_.notsent_lowat));
    put(IPPROTO_IP, IP_TOS, options_.tos);
    put(IPPROTO_IP, IP_TTL, options_.ttl);
    if (options_.linger_on) {
        const struct linger l { options_.linger_on, options_.linger_seconds };
        sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    const auto put_time = [&](int name, int64_t ns) {
        const timeval tv{time_t(ns / 1'000'000'000), suseconds_t(ns / 1000 % 1'000'000)};
        if (ns) sys::setsockopt(fd, SOL_SOCKET, name, &tv, sizeof tv);
    };
    put_time(SO_RCVTIMEO, rcvtimeo_ns_.load(std::memory_order_relaxed));
    put_time(SO_SNDTIMEO, sndtimeo_ns_.load(std::memory_order_relaxed));
}

Outcome TcpSocket::get_option(int fd, int level, int name, void* value, socklen_t* len) {
    if (Outcome kernel; in_kernel(&kernel)) return kernel;
    if (state() != SocketState::offloaded || value == nullptr || len == nullptr)
        return Outcome::kernel();
    if (level == SOL_SOCKET && name == SO_ERROR) {
        const int error = take_error();
        if (connection_) {
            const ConnectionLease lease(shard_);
            if (connection_) update_ready();
        } else if (phase_.load(std::memory_order_relaxed) == Phase::fresh) {
            update_ready();
        }
        return put_int(error, value, len);
    }
    if (!twin_has_options_) {
        std::lock_guard guard(control_);
        inherited_options_to_twin(fd);
    }
    // The twin is not connected: what Linux tells of a connection is told here.
    if (connection_ && level == SOL_SOCKET && name == SO_PEERNAME) {
        const sockaddr_in peer = remote_.to_sockaddr_in();
        if (int(*len) < 0 || *len > sizeof peer) return Outcome::error(EINVAL);
        return put(&peer, sizeof peer, value, len);
    }
    if (connection_ && level == IPPROTO_IP && name == IP_MTU) {
        const ConnectionLease lease(shard_);
        if (connection_ == nullptr) return Outcome::kernel();
        return put_int(connection_->tcb.cfg.mss + 40, value, len);
    }
    if (connection_ == nullptr || level != IPPROTO_TCP) return Outcome::kernel();
    if (name == TCP_ZEROCOPY_RECEIVE) {
        // Reads data, of which the twin has none.
        (void)hand_back(Reason::unsupported_option);
        return Outcome::kernel();
    }
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr) return Outcome::kernel();
    const tcp::Tcb& t = connection_->tcb;
    switch (name) {
        case TCP_INFO: {
            // The twin says how much of it this kernel has, and refuses what it would.
            socklen_t size = *len;
            if (const int r = sys::getsockopt(fd, level, name, value, &size); r < 0)
                return Outcome::error(-r);
            *len = size;
            const LinuxTcpInfo info = tcp_info_of(t, monotonic_now());
            std::memcpy(value, &info, std::min<size_t>(size, sizeof info));
            return Outcome::value(0);
        }
        case TCP_CC_INFO: {
            LinuxBbrInfo info;
            return put(&info, tcp_cc_info_of(t, info), value, len);
        }
        case TCP_MAXSEG:
            return put_int(t.snd.mss, value, len);
        case TCP_CONGESTION: {
            char text[16] = {};
            std::strcpy(text, congestion_control_name(t.cfg.cc));
            return put(text, sizeof text, value, len);
        }
        default:
            return Outcome::kernel();
    }
}

Outcome TcpSocket::get_name(bool peer, sockaddr* addr, socklen_t* len) {
    if (Outcome kernel; in_kernel(&kernel)) return kernel;
    if (state() != SocketState::offloaded) return Outcome::kernel();
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::listening || phase == Phase::fresh)
        return peer ? Outcome::error(ENOTCONN) : Outcome::kernel();
    if (addr == nullptr || len == nullptr) return Outcome::error(EFAULT);
    if (int(*len) < 0) return Outcome::error(EINVAL);
    if (peer) {
        const ConnectionLease lease(shard_);
        if (connection_ == nullptr) return Outcome::kernel();
        const tcp::State state = connection_->tcb.state;
        if (state == tcp::State::SYN_SENT || state == tcp::State::CLOSED ||
            state == tcp::State::TIME_WAIT)
            return Outcome::error(ENOTCONN);
    }
    const sockaddr_in sin = (peer ? remote_ : local_).to_sockaddr_in();
    std::memcpy(addr, &sin, std::min<size_t>(*len, sizeof sin));
    *len = sizeof sin;
    return Outcome::value(0);
}

}  // namespace vma::sock
