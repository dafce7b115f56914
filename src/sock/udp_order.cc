// Which datagram a UDP socket's program gets next: within a path they come as they came, among the paths (the ring of each
// interface, the twin) the one with the oldest receive stamp is first. docs/decisions/0014-datagram-order.md.
#include <errno.h>
#include <linux/sockios.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "sock/context.h"
#include "sock/epoll_order.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// The receive stamp among the control messages of a socket that asks for it, or 0.
int64_t stamp_among(msghdr& msg) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        // The first stamp of SO_TIMESTAMPING's message is software's.
        if (c->cmsg_type == SO_TIMESTAMPNS || c->cmsg_type == SO_TIMESTAMPNS_NEW ||
            c->cmsg_type == SO_TIMESTAMPING || c->cmsg_type == SO_TIMESTAMPING_NEW) {
            timespec at;
            std::memcpy(&at, CMSG_DATA(c), sizeof at);
            return int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
        }
        if (c->cmsg_type == SO_TIMESTAMP || c->cmsg_type == SO_TIMESTAMP_NEW) {
            timeval at;
            std::memcpy(&at, CMSG_DATA(c), sizeof at);
            return int64_t(at.tv_sec) * 1000000000 + int64_t(at.tv_usec) * 1000;
        }
    }
    return 0;
}

// A stamp of the future is of before the clock was set back: as a number it would keep its datagram waiting until then, behind all
// that comes on other paths.
bool is_older(int64_t one, int64_t other) {
    const int64_t now = realtime_ns();
    if ((one > now) != (other > now)) return one > now;
    return one < other;
}

}  // namespace

// The request for the last datagram's stamp makes the kernel stamp what comes from here on. Nothing else shows it: no control
// message, no option.
void UdpSocket::stamp_twin(int fd) {
    timespec unused;
    sys::ioctl(fd, SIOCGSTAMPNS_OLD, &unused);
}

int64_t UdpSocket::first_of_twin(int fd) {
    if (const int64_t known = twin_first_.load(std::memory_order_acquire)) return known;
    // Cleared first: news that arrive from here on set it again.
    kernel_news_.store(false, std::memory_order_release);
    alignas(cmsghdr) char control[256];
    msghdr msg{};
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT);
    if (n == -EAGAIN) return kNothing;
    kernel_news_.store(true, std::memory_order_release);
    if (n < 0) {
        // An error in place of a datagram, which is told once: whoever receives or sends next has it.
        untold_error_.store(int(-n), std::memory_order_relaxed);
        twin_error_.store(true, std::memory_order_release);
        return kNothing;
    }
    int64_t stamp = stamp_among(msg);
    timespec at{};
    // Where SO_TIMESTAMPING keeps the stamp to itself the ioctl would tell an earlier datagram's.
    const bool is_untold = wanted_.load(std::memory_order_relaxed) & kUntoldStamps;
    if (stamp == 0 && !is_untold && sys::ioctl(fd, SIOCGSTAMPNS_OLD, &at) == 0)
        stamp = int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
    if (stamp == 0) stamp = realtime_ns();
    twin_first_.store(stamp, std::memory_order_release);
    return stamp;
}

bool UdpSocket::twin_is_older(int fd, const UdpRxInfo& first) {
    if (Context::kernel_poll_ratio_is_set() ? is_twins_turn() : TwinEvents::is_due(first.arrival))
        TwinEvents::drain();
    if (!kernel_news_.load(std::memory_order_acquire)) return false;
    const int64_t twins = first_of_twin(fd);
    return twins != kNothing && is_older(twins, first.realtime_ns);
}

bool UdpSocket::is_twins_turn() {
    if (++looks_ < Context::kernel_poll_ratio()) return false;
    looks_ = 0;
    return true;
}

bool UdpSocket::is_empty_look_due() {
    return is_twins_turn() ||
           (!Context::kernel_poll_ratio_is_set() && TwinEvents::is_due(monotonic_now()));
}

bool UdpSocket::first_of_ring(Presence& presence, UdpDatagram& out) {
    return presence.endpoint->peek(out) || (presence.shard->poll() && presence.endpoint->peek(out));
}

UdpSocket::Presence* UdpSocket::oldest_presence_of(uint32_t there) {
    Presence* oldest = nullptr;
    int64_t stamp = 0;
    const uint32_t live = there & live_.load(std::memory_order_acquire);
    for (uint32_t left = live; left != 0; left &= left - 1) {
        Presence& p = presences_[size_t(std::countr_zero(left))];
        LeaseGuard guard(p.shard->lease());
        UdpDatagram datagram;
        if (!first_of_ring(p, datagram)) continue;
        if (oldest && !is_older(datagram.info->realtime_ns, stamp)) continue;
        oldest = &p;
        stamp = datagram.info->realtime_ns;
    }
    // Rings before a move. What one has came before all that its successor has by now, whatever the stamps say: so they are looked at
    // after those, and whole.
    for (uint32_t left = there & ~live; left != 0; left &= left - 1) {
        Presence& p = presences_[size_t(std::countr_zero(left))];
        LeaseGuard guard(p.shard->lease());
        if (!p.endpoint->readable()) p.shard->drain();
        UdpDatagram datagram;
        if (!p.endpoint->peek(datagram)) continue;
        if (oldest && oldest->shard->ifindex() != p.shard->ifindex() &&
            !is_older(datagram.info->realtime_ns, stamp))
            continue;
        oldest = &p;
        stamp = datagram.info->realtime_ns;
    }
    if ((there & ~live) != 0) (void)is_settling();
    return oldest;
}

void UdpSocket::list_unread(Unread& out) {
    const uint32_t there =
        present_.load(std::memory_order_acquire) | ring_ready_.load(std::memory_order_acquire);
    const auto share =
        Unread::kMost / unsigned(std::popcount(there) + 1);  // the twin is a path, too
    for (uint32_t left = there; left != 0; left &= left - 1) {
        Presence& p = presences_[size_t(std::countr_zero(left))];
        LeaseGuard guard(p.shard->lease());
        Unread::Path path(out, share);
        p.endpoint->for_each_unread(
            [&](const UdpRxInfo& info, const PacketMeta& meta, uint32_t bytes) {
                return path.add({info.realtime_ns, meta.hw_time_ns, bytes, 1});
            });
    }
    if (!kernel_news_.load(std::memory_order_acquire)) return;
    const int64_t first = first_of_twin(fd());
    if (first == kNothing) return;
    msghdr nothing{};
    const ssize_t bytes = sys::recvmsg(fd(), &nothing, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    Unread::Path(out, share).add({first, 0, bytes > 0 ? uint32_t(bytes) : 0, 1});
    out.ends_at(first);  // the kernel shows one only
}

}  // namespace vma::sock
