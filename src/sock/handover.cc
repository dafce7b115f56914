#include "sock/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <atomic>
#include <new>

#include "base/descriptor_message.h"
#include "base/log.h"
#include "base/sys.h"
#include "sock/option_rows.h"
#include "sock/slab.h"

namespace vma::sock {
namespace {

// From the stand-in's arrival to the connection behind it: a few system calls of the owner.
constexpr int kOnItsWayMs = 1000;
constexpr int kArrivesMs = 20;
constexpr int kRoom = 8 << 20;  // bytes of socket buffer: a message takes less than 1 KiB of it

Slab<Handover> g_slab;
std::atomic<Handover*> g_all[Handover::kMost];
std::atomic<bool> g_any{false};

template <class Fn>
void for_each(Fn&& fn) {
    for (auto& place : g_all)
        if (Handover* handover = place.load(std::memory_order_acquire)) fn(*handover);
}

Handover* make() {
    bool recycled;
    void* memory = g_slab.take(&recycled);
    if (memory == nullptr) return nullptr;
    auto* handover = new (memory) Handover;
    for (auto& place : g_all) {
        Handover* none = nullptr;
        if (place.compare_exchange_strong(none, handover)) {
            g_any.store(true, std::memory_order_release);
            return handover;
        }
    }
    g_slab.give(handover);
    return nullptr;
}

}  // namespace

bool is_stand_in(const sockaddr_storage& peer) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(peer);
    return peer.ss_family == AF_INET && in.sin_addr.s_addr == htonl(kStandInAddress);
}

bool Handover::any() { return g_any.load(std::memory_order_acquire); }

Handover* Handover::create() {
    int ends[2];
    if (sys::raw(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                 sys::ptr(ends)) != 0)
        return nullptr;
    Handover* handover = make();
    if (handover == nullptr) {
        sys::close(ends[0]);
        sys::close(ends[1]);
        return nullptr;
    }
    const bool reads = handover->reader_.adopt(ends[0]).ok();
    const bool writes = handover->writer_.adopt(ends[1]).ok();
    if (!reads || !writes) {
        destroy(handover);
        return nullptr;
    }
    const int room = kRoom;
    const int writer = handover->writer_.fd();
    if (sys::setsockopt(writer, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0)
        sys::setsockopt(writer, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    return handover;
}

Handover* Handover::from_exec(int reader) {
    if (int_option(reader, SOL_SOCKET, SO_DOMAIN) != AF_UNIX ||
        int_option(reader, SOL_SOCKET, SO_TYPE) != SOCK_SEQPACKET)
        return nullptr;
    Handover* handover = make();
    if (handover == nullptr) {
        sys::close(reader);
        return nullptr;
    }
    if (handover->reader_.adopt(reader)) return handover;
    destroy(handover);
    return nullptr;
}

void Handover::destroy(Handover* handover) {
    for (auto& place : g_all) {
        Handover* it = handover;
        if (place.compare_exchange_strong(it, nullptr)) break;
    }
    while (handover->kept_next_ < handover->kept_count_)
        sys::close(handover->kept_[handover->kept_next_++].fd);
    handover->~Handover();
    g_slab.give(handover);
}

bool Handover::announce(const Endpoint& local) {
    const int fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) return false;
    const int late = 1;
    sys::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
    const sockaddr_in from = Endpoint{IpAddr::v4(kStandInAddress), 0}.to_sockaddr_in();
    const sockaddr_in to = local.to_sockaddr_in();
    const auto bound = sys::raw(SYS_bind, fd, sys::ptr(&from), sizeof from) == 0;
    const long connected = bound ? sys::raw(SYS_connect, fd, sys::ptr(&to), sizeof to) : -EINVAL;
    bool there = connected == 0;
    if (connected == -EINPROGRESS) {
        // Over the loopback interface it is there at once, or the queue is full, or a rule forbids it.
        pollfd wait{fd, POLLOUT, 0};
        const timespec limit{0, kArrivesMs * 1'000'000};
        sys::ppoll(&wait, 1, &limit);
        there = (int_option(fd, IPPROTO_TCP, TCP_INFO) & 0xff) == TCP_ESTABLISHED;
    }
    // For a listener with TCP_DEFER_ACCEPT.
    if (there) sys::sendto(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
    sys::close(fd);
    return there;
}

bool Handover::give(int connection) {
    char byte = 0;
    const iovec part{&byte, 1};
    const Status sent = send_with_fds(writer_.fd(), {&part, 1}, {&connection, 1});
    if (!sent)
        vma_log(warning, "sock",
                "a connection that waited to be accepted cannot be kept for another process, errno "
                "{}: it is closed",
                sent.error());
    sys::close(connection);
    return sent.ok();
}

// One connection; -EAGAIN: none now, -EPIPE: none any more, -EMSGSIZE: this process has no room for a descriptor, other errors
// of recvmsg(2).
int Handover::receive(Endpoint& peer) {
    uint8_t byte;
    Fds fds;
    // Without MSG_CMSG_CLOEXEC: after a filter the descriptor is the program's as it is.
    const auto n = receive_with_fds(reader_.fd(), {&byte, 1}, fds, 0);
    if (!n) return -n.error();
    if (fds.count() == 0) return -EPIPE;
    const int fd = fds.take(0);
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    // One that was reset meanwhile has no peer any more; the program finds that out by itself.
    if (sys::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), size, peer);
    return fd;
}

int Handover::take(Endpoint& peer) {
    if (has_kept()) {
        peer = kept_[kept_next_].peer;
        return kept_[kept_next_++].fd;
    }
    if (!reader_.valid()) return -1;
    for (int turn = 0; turn < 2; turn++) {
        const int fd = receive(peer);
        if (fd >= 0) return fd;
        if (fd != -EAGAIN) return -1;
        pollfd wait{reader_.fd(), POLLIN, 0};
        const timespec bound{kOnItsWayMs / 1000, kOnItsWayMs % 1000 * 1'000'000};
        if (turn == 0) sys::ppoll(&wait, 1, &bound);
    }
    return -1;
}

void Handover::keep_here() {
    while (kept_count_ < kMostKept) {
        const int fd = receive(kept_[kept_count_].peer);
        if (fd < 0) break;
        kept_[kept_count_++].fd = fd;
    }
    writer_.reset();
    reader_.reset();
}

void Handover::keep_in_child() {
    for_each([](Handover& handover) {
        handover.surviving_ =
            handover.reader_.valid() ? sys::fcntl(handover.reader_.fd(), F_DUPFD_CLOEXEC, 3) : -1;
    });
}

void Handover::forget_in_child() {
    g_slab.forget_lock_in_child();
    for_each([](Handover& handover) {
        if (handover.surviving_ < 0 || !handover.reader_.adopt(handover.surviving_))
            handover.reader_.reset();
        handover.surviving_ = -1;
    });
}

}  // namespace vma::sock
