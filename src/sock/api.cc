// The boundary to intercept: finds the object behind a descriptor and lets it answer. The process as a whole: process.cc.
#include "sock/api.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "sock/context.h"
#include "sock/poll_select.h"
#include "sock/process.h"
#include "sock/stats_rows.h"
#include "sock/thread_offload.h"
#include "sock/unserved.h"
#include "sock/using.h"

namespace vma::sock {
namespace {

void descriptor_gone(int fd) {
    Object* object = FdTable::remove(fd);
    if (object == nullptr) return;
    if (object->is_socket()) {
        auto* const socket = static_cast<Socket*>(static_cast<Pollable*>(object));
        if (socket->descriptor_closed(fd) && object->kind == ObjectKind::tcp)
            static_cast<TcpSocket*>(socket)->keep_twin();
    } else {
        static_cast<Epoll*>(static_cast<Pollable*>(object))->descriptor_closed(fd);
    }
    Visit::wait();
    release_object(object);
}

}  // namespace

void destroy_object(Object* object) {
    switch (object->kind) {
        case ObjectKind::udp: {
            auto* socket = static_cast<UdpSocket*>(object);
            socket->teardown();
            UdpSocket::destroy(socket);
            return;
        }
        case ObjectKind::epoll:
            Epoll::destroy(static_cast<Epoll*>(object));
            return;
        case ObjectKind::tcp: {
            auto* socket = static_cast<TcpSocket*>(object);
            socket->teardown();
            TcpSocket::destroy(socket);
            return;
        }
    }
}

Reason born_kernel(int domain, int kind, int protocol) {
    if (domain == AF_INET6) return Reason::ipv6;
    if (domain != AF_INET) return Reason::family;
    const int ours = kind == SOCK_DGRAM ? IPPROTO_UDP : kind == SOCK_STREAM ? IPPROTO_TCP : -1;
    if (ours < 0 || (protocol != 0 && protocol != ours)) return Reason::protocol;
    if (!thread_offloads(Runtime::options().offloaded_sockets)) return Reason::offload_off;
    if (Runtime::snapshot().rules.decide_early(ours) == Transport::os) return Reason::rule;
    return why_pass_through();
}

void socket_created(int fd, int domain, int type, int protocol) {
    if (domain == AF_INET) Runtime::heavy_start();
    const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (const Reason why = born_kernel(domain, kind, protocol); why != Reason::none) {
        stats_kernel_socket(fd, domain, kind, protocol, why);
        return;
    }
    stats_object_made(fd);
    Socket* socket = kind == SOCK_DGRAM
                         ? static_cast<Socket*>(UdpSocket::create(fd, domain, kind, IPPROTO_UDP))
                         : static_cast<Socket*>(TcpSocket::create(fd, kind, IPPROTO_TCP));
    if (socket == nullptr) {
        stats_kernel_socket(fd, domain, kind, protocol, Reason::memory);
        return;
    }
    if (kind == SOCK_STREAM) static_cast<TcpSocket*>(socket)->preset_options(fd);
    socket->set_nonblocking(type & SOCK_NONBLOCK);
    if (!FdTable::install(fd, socket))
        release_object(socket);  // Reason::fd_limit: beyond any row, too
}

void epoll_created(int fd, int) {
    if (!FdTable::start()) return;
    Epoll* epoll = Epoll::create();
    if (epoll == nullptr) return;
    epoll->set_fd(fd);
    if (!FdTable::install(fd, epoll)) release_object(epoll);
}

void unpin(const Outcome& outcome) {
    if (outcome.kind == Outcome::Kind::kernel && outcome.v != 0) kernel_call_done(outcome.v);
}

void fd_reused(int fd) { descriptor_gone(fd); }
void implicit_close(int fd) { descriptor_gone(fd); }

void dup(int oldfd, int newfd) {
    if (oldfd == newfd) return;
    descriptor_gone(newfd);
    Object* object = FdTable::acquire(oldfd);
    if (object == nullptr) return;
    if (object->is_socket())
        static_cast<Socket*>(static_cast<Pollable*>(object))->descriptor_added();
    if (!FdTable::install(newfd, object)) release_object(object);
}

Outcome close(int fd) {
    {
        // Not Using: a forked child that closes its copy uses nothing, and the parent keeps the socket.
        const ObjectRef ref{fd};
        Object* object = ref.get();
        if (object && object->kind == ObjectKind::tcp &&
            !object->inherited.load(std::memory_order_acquire))
            static_cast<TcpSocket*>(object)->linger();
    }
    descriptor_gone(fd);
    return Outcome::kernel();
}

Outcome shutdown(int fd, int how) {
    Using object{fd};
    if (TcpSocket* socket = object.tcp()) return socket->shutdown(fd, how);
    if (UdpSocket* socket = object.udp()) (void)socket->hand_back(Reason::unsupported_option);
    return Outcome::kernel();
}

Outcome bind(int fd, const sockaddr* addr, socklen_t len) {
    Using object{fd};
    if (TcpSocket* tcp = object.tcp()) return tcp->bind(fd, addr, len);
    UdpSocket* socket = object.udp();
    return socket ? socket->bind(fd, addr, len) : Outcome::kernel();
}

Outcome connect(int fd, const sockaddr* addr, socklen_t len) {
    Using object{fd};
    if (TcpSocket* tcp = object.tcp()) return tcp->connect(fd, addr, len);
    UdpSocket* socket = object.udp();
    return socket ? socket->connect(fd, addr, len) : Outcome::kernel();
}

Outcome listen(int fd, int backlog) {
    Using object{fd};
    TcpSocket* socket = object.tcp();
    if (socket == nullptr) return Outcome::kernel();
    const Outcome outcome = socket->listen(fd, backlog);
    // SocketXtreme accepts: nobody calls accept().
    if (Runtime::options().listen_eager || Xtreme::on()) socket->activate_listener(fd);
    return outcome;
}

Outcome accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    Using object{fd};
    TcpSocket* socket = object.tcp();
    return socket ? socket->accept(fd, addr, len, flags) : Outcome::kernel();
}

bool handovers() { return Handover::any(); }

int settle_accepted(int listener, int fd, sockaddr_storage& name, socklen_t& len, int flags) {
    if (!is_stand_in(name)) return fd;
    Endpoint peer;
    int settled = fd;
    if (Handover* const kept = kept_after_filter(listener)) {
        settled = TcpSocket::settle_accepted(*kept, fd, peer, flags);
    } else {
        Using object{listener};
        Handover* const handover = object.tcp() ? object.tcp()->handed_over() : nullptr;
        if (handover == nullptr) return fd;
        settled = TcpSocket::settle_accepted(*handover, fd, peer, flags);
    }
    const sockaddr_in in = peer.to_sockaddr_in();
    std::memcpy(&name, &in, sizeof in);
    len = sizeof in;
    return settled;
}

void accepted_by_kernel(int listener, int fd, int flags) {
    if (born_kernel(AF_INET, SOCK_STREAM, IPPROTO_TCP) == Reason::none)
        TcpSocket::accepted_by_kernel(listener, fd, flags);
}

void kernel_call_done(long pin) {
    auto* const object = reinterpret_cast<Object*>(pin);
    if (object->kind == ObjectKind::epoll)
        static_cast<Epoll*>(static_cast<Pollable*>(object))->unpin_in_kernel();
    else
        static_cast<TcpSocket*>(static_cast<Socket*>(static_cast<Pollable*>(object)))
            ->unpin_in_kernel();
    release_object(object);
}

Outcome getsockname(int fd, sockaddr* addr, socklen_t* len) {
    Using object{fd};
    TcpSocket* socket = object.tcp();
    if (socket == nullptr) return Outcome::kernel();
    if (Runtime::options().trigger_dummy_send_getsockname) socket->warm_up();
    return socket->get_name(false, addr, len);
}

Outcome getpeername(int fd, sockaddr* addr, socklen_t* len) {
    Using object{fd};
    TcpSocket* socket = object.tcp();
    return socket ? socket->get_name(true, addr, len) : Outcome::kernel();
}

Outcome setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    Using object{fd};
    if (TcpSocket* tcp = object.tcp()) return tcp->set_option(fd, level, name, value, len);
    UdpSocket* socket = object.udp();
    return socket ? socket->set_option(fd, level, name, value, len) : Outcome::kernel();
}

Outcome getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    Using object{fd};
    TcpSocket* socket = object.tcp();
    return socket ? socket->get_option(fd, level, name, value, len) : Outcome::kernel();
}

Outcome fcntl(int fd, int cmd, long arg) {
    if (cmd != F_SETFL) return Outcome::kernel();
    Using object{fd};
    Socket* socket = object.socket();
    if (socket == nullptr) return Outcome::kernel();
    if ((arg & O_ASYNC) && refuse_unserved(*socket, fd, "O_ASYNC")) return Outcome::error(EINVAL);
    const int result = sys::fcntl(fd, cmd, arg);
    if (result < 0) return Outcome::error(-result);
    socket->set_nonblocking(arg & O_NONBLOCK);
    return Outcome::value(result);
}

Outcome ioctl(int fd, unsigned long request, void* arg) {
    Using object{fd};
    if (TcpSocket* tcp = object.tcp(); tcp && arg) {
        if (request == FIOASYNC && *static_cast<int*>(arg) && refuse_unserved(*tcp, fd, "FIOASYNC"))
            return Outcome::error(EINVAL);
        return tcp->ioctl(fd, request, arg);
    }
    UdpSocket* socket = object.udp();
    if (socket == nullptr || arg == nullptr) return Outcome::kernel();
    switch (request) {
        case FIONBIO: {
            const int result = sys::ioctl(fd, request, arg);
            if (result < 0) return Outcome::error(-result);
            socket->set_nonblocking(*static_cast<int*>(arg) != 0);
            return Outcome::value(result);
        }
        case FIONREAD: {
            const Outcome size = socket->next_datagram_size(fd);
            if (size.kind != Outcome::Kind::value) return size;
            *static_cast<int*>(arg) = int(size.v);
            return Outcome::value(0);
        }
        case SIOCOUTQ: {
            const Outcome unsent = socket->unsent(fd);
            if (unsent.kind != Outcome::Kind::value) return unsent;
            *static_cast<int*>(arg) = int(unsent.v);
            return Outcome::value(0);
        }
        case SIOCGSTAMP_OLD:
        case SIOCGSTAMPNS_OLD:
        case SIOCGSTAMP_NEW:
        case SIOCGSTAMPNS_NEW: {
            const int64_t stamp = socket->last_stamp();
            if (stamp == 0) return Outcome::kernel();
            // Both structures in both forms are two numbers of 64 bits.
            const bool is_nanos = request == SIOCGSTAMPNS_OLD || request == SIOCGSTAMPNS_NEW;
            const int64_t parts[2] = {stamp / 1000000000,
                                      stamp % 1000000000 / (is_nanos ? 1 : 1000)};
            static_assert(sizeof parts == sizeof(timeval) && sizeof parts == sizeof(timespec));
            std::memcpy(arg, parts, sizeof parts);
            return Outcome::value(0);
        }
        case FIOASYNC:
            if (refuse_unserved(*socket, fd, "FIOASYNC")) return Outcome::error(EINVAL);
            return Outcome::kernel();
        default:
            return Outcome::kernel();
    }
}

namespace {

// What the kernel would refuse of a message's vectors before it does anything: an errno value, or 0. Other addresses than null
// cannot be told from good ones here. `data`: there are bytes behind the addresses (not so for MSG_TRUNC).
int bad_vectors(const msghdr* msg, bool data) {
    if (msg == nullptr) return EFAULT;
    if (msg->msg_iovlen > UIO_MAXIOV) return EMSGSIZE;
    if (msg->msg_iovlen != 0 && msg->msg_iov == nullptr) return EFAULT;
    for (size_t i = 0; data && i < msg->msg_iovlen; i++)
        if (msg->msg_iov[i].iov_base == nullptr && msg->msg_iov[i].iov_len != 0) return EFAULT;
    return 0;
}

}  // namespace

Outcome recvmsg(int fd, msghdr* msg, int flags, RecvCall call, Taker* taker) {
    Using object{fd};
    TcpSocket* tcp = object.tcp();
    UdpSocket* udp = object.udp();
    if (tcp == nullptr && udp == nullptr) return Outcome::kernel();
    if (const int error = bad_vectors(msg, !(flags & MSG_TRUNC))) return Outcome::error(error);
    if (msg->msg_name && int(msg->msg_namelen) < 0) return Outcome::error(EINVAL);
    // read() and readv() of nothing are over at once, whatever waits (System V's way, as in Linux).
    if ((call == RecvCall::read || call == RecvCall::readv) &&
        std::all_of(msg->msg_iov, msg->msg_iov + msg->msg_iovlen,
                    [](const iovec& iov) { return iov.iov_len == 0; }))
        return Outcome::value(0);
    if (udp) return udp->receive(fd, msg, flags, taker);
    return tcp->receive(fd, msg, flags, taker);
}

void received_by_kernel(int fd, msghdr& msg) {
    Using object{fd};
    if (UdpSocket* const socket = object.udp()) socket->correct_drops(msg);
}

Outcome recvmmsg(int fd, mmsghdr* vec, unsigned n, int flags, timespec* timeout) {
    Using object{fd};
    UdpSocket* socket = object.udp();
    TcpSocket* tcp = object.tcp();
    if ((socket == nullptr && tcp == nullptr) || n == 0) return Outcome::kernel();
    if (timeout && (timeout->tv_sec < 0 || uint64_t(timeout->tv_nsec) >= 1'000'000'000))
        return Outcome::error(EINVAL);
    const Instant deadline =
        timeout ? monotonic_now() + Duration{timeout->tv_sec * 1000000000 + timeout->tv_nsec}
                : Instant::never();
    unsigned done = 0;
    int each = flags & ~MSG_WAITFORONE;
    while (done < n) {
        const Outcome got = tcp ? tcp->receive(fd, &vec[done].msg_hdr, each)
                                : socket->receive(fd, &vec[done].msg_hdr, each);
        if (done > 0) unpin(got);
        if (got.kind != Outcome::Kind::value) {
            if (done == 0) return got;
            break;
        }
        vec[done++].msg_len = unsigned(got.v);
        if (flags & MSG_WAITFORONE) each |= MSG_DONTWAIT;
        if (timeout && monotonic_now() >= deadline) break;
    }
    if (timeout) {
        // What is left of the time, as the kernel writes it back.
        const Duration left = deadline - monotonic_now();
        *timeout = left.ns > 0 ? timespec{left.ns / 1000000000, left.ns % 1000000000} : timespec{};
    }
    return Outcome::value(done);
}

Outcome sendmsg(int fd, const msghdr* msg, int flags, SendCall call) {
    Using object{fd};
    TcpSocket* tcp = object.tcp();
    UdpSocket* udp = object.udp();
    if (tcp == nullptr && udp == nullptr) return Outcome::kernel();
    if (const int error = bad_vectors(msg, true)) return Outcome::error(error);
    // sendmsg() cuts a name that is too long, sendto() refuses it.
    if (msg->msg_name &&
        (int(msg->msg_namelen) < 0 ||
         (call == SendCall::sendto && msg->msg_namelen > sizeof(sockaddr_storage))))
        return Outcome::error(EINVAL);
    return tcp ? tcp->send(fd, msg, flags) : udp->send(fd, msg, flags, call);
}

Outcome sendmmsg(int fd, mmsghdr* vec, unsigned n, int flags) {
    Using object{fd};
    UdpSocket* socket = object.udp();
    TcpSocket* tcp = object.tcp();
    if (socket == nullptr && tcp == nullptr) return Outcome::kernel();
    unsigned done = 0;
    while (done < n) {
        Outcome sent = tcp ? tcp->send(fd, &vec[done].msg_hdr, flags)
                           : socket->send(fd, &vec[done].msg_hdr, flags, SendCall::sendmsg);
        if (sent.kind == Outcome::Kind::kernel) {
            if (done == 0) return sent;  // the whole call: libc's blocking rules then hold for it
            const ssize_t result = sys::sendmsg(fd, &vec[done].msg_hdr, flags);
            unpin(sent);
            sent = result < 0 ? Outcome::error(int(-result)) : Outcome::value(result);
        }
        if (sent.kind != Outcome::Kind::value) {
            if (done == 0) return sent;
            break;
        }
        vec[done++].msg_len = unsigned(sent.v);
    }
    return Outcome::value(done);
}

Outcome sendfile(int out_fd, int in_fd, off_t* offset, size_t count) {
    {
        Using object{out_fd};
        if (TcpSocket* tcp = object.tcp()) return tcp->sendfile(out_fd, in_fd, offset, count);
    }
    hand_back(out_fd, Reason::unsupported_option);
    return Outcome::kernel();
}

Outcome sockatmark(int) { return Outcome::kernel(); }

Outcome poll(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    return poll_mixed(fds, n, timeout, mask);
}

Outcome select(int nfds, fd_set* read, fd_set* write, fd_set* except, timespec* timeout,
               const sigset_t* mask) {
    return select_mixed(nfds, read, write, except, timeout, mask);
}

Outcome epoll_ctl(int ep, int op, int fd, epoll_event* event) {
    Using set{ep};
    Epoll* epoll = set.epoll();
    Using member{fd};
    if (epoll == nullptr) {
        // A set that is not known here could not follow an adoption.
        TcpSocket* const tcp = member.tcp();
        if (tcp && tcp->may_be_adopted()) (void)tcp->hand_back(Reason::kernel_connection);
        return Outcome::kernel();
    }
    if (TcpSocket* tcp = member.tcp()) tcp->activate_listener(fd);
    if (TcpSocket* tcp = member.tcp(); tcp && tcp->may_be_adopted()) {
        int error = 0;
        if (tcp->epoll_control(*epoll, op, fd, event, &error))
            return error ? Outcome::error(error) : Outcome::value(0);
    }
    if (Socket* socket = member.socket(); socket && socket->state() != SocketState::kernel) {
        const int error = epoll->control(op, fd, *socket, event);
        return error ? Outcome::error(error) : Outcome::value(0);
    }
    epoll->kernel_member_added();
    Epoll* inner = member.epoll();
    if (inner == nullptr || inner == epoll) return Outcome::kernel();
    // A set in a set: its kernel side by the kernel, ours here.
    const int result = sys::epoll_ctl(ep, op, fd, event);
    if (result < 0) return Outcome::error(-result);
    epoll->control(op, fd, *inner, event);
    return Outcome::value(0);
}

Outcome epoll_pwait2(int ep, epoll_event* events, int max, const timespec* timeout,
                     const sigset_t* mask) {
    Using set{ep};
    Epoll* epoll = set.epoll();
    return epoll ? epoll->wait(ep, events, max, timeout, mask) : Outcome::kernel();
}

int epoll_without_call(epoll_event* events, int n) { return Epoll::without_call(events, n); }

void hand_back(int fd, Reason why) {
    Using object{fd};
    Socket* socket = object.socket();
    if (socket == nullptr) return;
    // What another program or libc itself is about to use stays with the kernel even if nothing was offloaded yet.
    const bool leaves = why == Reason::fd_passed || why == Reason::exec || why == Reason::stdio;
    if (leaves || socket->state() != SocketState::undecided) (void)socket->hand_back(why);
}

void fd_enters_stdio(int fd) { hand_back(fd, Reason::stdio); }

}  // namespace vma::sock
