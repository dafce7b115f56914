// TCP Fast Open as tcp(7) and Linux's sendmsg() have it: TCP_FASTOPEN, TCP_FASTOPEN_KEY, TCP_FASTOPEN_CONNECT, MSG_FASTOPEN.
#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/tcp_defaults.h"
#include "sock/tcp_socket.h"

namespace vma::sock {

bool TcpSocket::send_fast(int fd, const msghdr* msg, int flags, size_t* sent, Outcome* out) {
    const bool may_wait = !nonblocking() && !(flags & MSG_DONTWAIT);
    TcpFirstText first{msg->msg_iov, msg->msg_iovlen};
    first.no_wait = !may_wait;
    if (syn_held_.load(std::memory_order_acquire)) {
        std::lock_guard guard(control_);
        if (syn_held_.exchange(false, std::memory_order_acq_rel) && connection_) {
            const ConnectionLease lease(shard_);
            const Instant now = monotonic_now();
            shard_->tcp().send_first_text(*connection_, first, now);
            shard_->tcp().flush(now);
            update_ready();
        }
    } else {
        const auto* name = static_cast<const sockaddr*>(msg->msg_name);
        const bool nobody =
            name && msg->msg_namelen >= sizeof name->sa_family && name->sa_family == AF_UNSPEC;
        if (!(fast_open_bits() & tcp::fast_open::client) || nobody) {
            *out = Outcome::error(EOPNOTSUPP);
            return true;
        }
        const Phase phase = phase_.load(std::memory_order_acquire);
        if (phase != Phase::fresh) {
            *out = Outcome::error(phase == Phase::connecting ? EALREADY : EISCONN);
            return true;
        }
        if (name == nullptr || msg->msg_namelen < sizeof(sockaddr_in)) {
            *out = Outcome::error(EINVAL);
            return true;
        }
        const Outcome opened = connect(fd, name, msg->msg_namelen, &first);
        // Linux waits here as connect() does; a socket that must not wait has what the SYN took.
        const bool going_on = opened.kind == Outcome::Kind::value ||
                              (opened.kind == Outcome::Kind::error && opened.v == EINPROGRESS);
        if (!going_on) {
            *out = opened;
            return true;
        }
    }
    *sent = first.taken;
    if (may_wait) return false;
    *out = first.taken > 0 ? Outcome::value(long(first.taken)) : Outcome::error(EINPROGRESS);
    return true;
}

void TcpSocket::apply_fast_open(TcpListener& l) const {
    const uint32_t bits = fast_open_bits();
    l.fast_open_keys = {};
    l.state.fast_open_limit = 0;
    if (!(bits & tcp::fast_open::server)) return;
    int queue = options_.fast_open_queue;
    if (queue == 0 && (bits & tcp::fast_open::server_all_listeners)) queue = backlog_;
    l.state.fast_open_limit = std::min(uint32_t(std::max(queue, 0)), listen_backlog_limit());
    if (l.state.fast_open_limit > 0)
        l.fast_open_keys =
            options_.fast_open_keys.count ? options_.fast_open_keys : fast_open_keys();
}

// 16 bytes, or 32 with the backup key; the twin has checked it.
void TcpSocket::take_fast_open_key(const void* value, socklen_t len) {
    tcp::FastOpenKeys& keys = options_.fast_open_keys;
    keys = {};
    if (len != 16 && len != 32) return;
    std::memcpy(keys.words, value, len);
    keys.count = uint8_t(len / 16);
}

}  // namespace vma::sock
