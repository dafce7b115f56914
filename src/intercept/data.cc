// Hooks: data in and out. Every way to receive reaches sock::recvmsg, every way to send sock::sendmsg, as one msghdr.
//
// The _chk forms come from _FORTIFY_SOURCE: a length beyond the buffer goes to libc's own function, which ends the program
// with its usual message, offloaded or not.
#include <sys/sendfile.h>

#include "base/descriptor_message.h"
#include "intercept/hooks.h"

namespace vma::hook {
namespace {

using sock::RecvCall;
using sock::SendCall;

sock::Outcome receive(int fd, void* buf, size_t n, int flags, RecvCall call) {
    iovec iov{buf, n};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    return sock::recvmsg(fd, &msg, flags, call);
}

sock::Outcome receive_from(int fd, void* buf, size_t n, int flags, sockaddr* addr, socklen_t* len) {
    if (addr != nullptr && len == nullptr) return sock::Outcome::error(EFAULT);
    iovec iov{buf, n};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_name = addr;
    msg.msg_namelen = addr ? *len : 0;
    const bool bad_room = addr && int(*len) < 0;
    if (bad_room) msg.msg_name = nullptr;
    const sock::Outcome outcome = sock::recvmsg(fd, &msg, flags, RecvCall::recvfrom);
    // As in Linux: told afterwards, the data is gone.
    if (bad_room && outcome.kind == sock::Outcome::Kind::value) return sock::Outcome::error(EINVAL);
    if (addr != nullptr && outcome.kind == sock::Outcome::Kind::value) *len = msg.msg_namelen;
    return outcome;
}

sock::Outcome transmit(int fd, const void* buf, size_t n, int flags, const sockaddr* addr,
                       socklen_t len, SendCall call) {
    iovec iov{const_cast<void*>(buf), n};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_name = const_cast<sockaddr*>(addr);
    msg.msg_namelen = len;
    return sock::sendmsg(fd, &msg, flags, call);
}

// readv and writev. A count that the kernel refuses is left to it.
constexpr int kMaxIov = 1024;
msghdr vector_message(const iovec* iov, int count) {
    msghdr msg{};
    msg.msg_iov = const_cast<iovec*>(iov);
    msg.msg_iovlen = size_t(count);
    return msg;
}

template <class Visit>
void for_each_passed(const msghdr* msg, Visit&& visit) {
    if (sock::nothing_ours() || msg == nullptr || msg->msg_controllen == 0) return;
    vma::for_each_passed(*msg, visit);
}

// A descriptor on its way to another process must be the kernel's before it leaves.
void before_passing(const msghdr* msg) {
    for_each_passed(msg, [](int fd) { needs_kernel(fd, Reason::fd_passed); });
}
void after_kernel(int fd, msghdr* msg) {
    for_each_passed(msg, [](int passed) { fresh(passed); });
    if (ours(fd)) sock::received_by_kernel(fd, *msg);
}

}  // namespace

ssize_t read(int fd, void* buf, size_t n) {
    if (!ours(fd)) return libc.read(fd, buf, n);
    return cancellable<ssize_t>([=] { return receive(fd, buf, n, 0, RecvCall::read); },
                                [=] { return libc.read(fd, buf, n); });
}
VMA_ALIAS(__read, read);

ssize_t __read_chk(int fd, void* buf, size_t n, size_t room) {
    if (n > room || !ours(fd)) return libc.__read_chk(fd, buf, n, room);
    return hook::read(fd, buf, n);
}

ssize_t readv(int fd, const iovec* iov, int count) {
    if (!ours(fd) || count < 0 || count > kMaxIov) return libc.readv(fd, iov, count);
    return cancellable<ssize_t>(
        [=] {
            msghdr msg = vector_message(iov, count);
            return sock::recvmsg(fd, &msg, 0, RecvCall::readv);
        },
        [=] { return libc.readv(fd, iov, count); });
}

ssize_t recv(int fd, void* buf, size_t n, int flags) {
    if (!ours(fd)) return libc.recv(fd, buf, n, flags);
    return cancellable<ssize_t>([=] { return receive(fd, buf, n, flags, RecvCall::recv); },
                                [=] { return libc.recv(fd, buf, n, flags); });
}

ssize_t __recv_chk(int fd, void* buf, size_t n, size_t room, int flags) {
    if (n > room || !ours(fd)) return libc.__recv_chk(fd, buf, n, room, flags);
    return hook::recv(fd, buf, n, flags);
}

ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* addr, socklen_t* len) {
    if (!ours(fd)) return libc.recvfrom(fd, buf, n, flags, addr, len);
    return cancellable<ssize_t>([=] { return receive_from(fd, buf, n, flags, addr, len); },
                                [=] { return libc.recvfrom(fd, buf, n, flags, addr, len); });
}

ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags, sockaddr* addr,
                       socklen_t* len) {
    if (n > room || !ours(fd)) return libc.__recvfrom_chk(fd, buf, n, room, flags, addr, len);
    return hook::recvfrom(fd, buf, n, flags, addr, len);
}

ssize_t recvmsg(int fd, msghdr* msg, int flags) {
    const auto kernel = [=] {
        const ssize_t n = libc.recvmsg(fd, msg, flags);
        if (n >= 0) after_kernel(fd, msg);
        return n;
    };
    if (!ours(fd) || msg == nullptr) return kernel();
    return cancellable<ssize_t>([=] { return sock::recvmsg(fd, msg, flags, RecvCall::recvmsg); },
                                kernel);
}

int recvmmsg(int fd, mmsghdr* vec, unsigned n, int flags, timespec* timeout) {
    const auto kernel = [=] {
        const int got = libc.recvmmsg(fd, vec, n, flags, timeout);
        for (int i = 0; i < got; i++) after_kernel(fd, &vec[i].msg_hdr);
        return got;
    };
    if (!ours(fd)) return kernel();
    return cancellable<int>([=] { return sock::recvmmsg(fd, vec, n, flags, timeout); }, kernel);
}

// With a position these are for files only; with -1 they are readv and writev, which the kernel does on the twin.
ssize_t preadv(int fd, const iovec* iov, int count, off_t offset) {
    return libc.preadv(fd, iov, count, offset);
}
ssize_t preadv64(int fd, const iovec* iov, int count, off_t offset) {
    return libc.preadv64(fd, iov, count, offset);
}
ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (offset == -1) needs_kernel(fd, Reason::unsupported_option);
    return libc.preadv2(fd, iov, count, offset, flags);
}
ssize_t preadv64v2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (offset == -1) needs_kernel(fd, Reason::unsupported_option);
    return libc.preadv64v2(fd, iov, count, offset, flags);
}
ssize_t pwritev(int fd, const iovec* iov, int count, off_t offset) {
    return libc.pwritev(fd, iov, count, offset);
}
ssize_t pwritev64(int fd, const iovec* iov, int count, off_t offset) {
    return libc.pwritev64(fd, iov, count, offset);
}
ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (offset == -1) needs_kernel(fd, Reason::unsupported_option);
    return libc.pwritev2(fd, iov, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (offset == -1) needs_kernel(fd, Reason::unsupported_option);
    return libc.pwritev64v2(fd, iov, count, offset, flags);
}

ssize_t write(int fd, const void* buf, size_t n) {
    if (!ours(fd)) return libc.write(fd, buf, n);
    return cancellable<ssize_t>(
        [=] { return transmit(fd, buf, n, 0, nullptr, 0, SendCall::write); },
        [=] { return libc.write(fd, buf, n); });
}
VMA_ALIAS(__write, write);

ssize_t writev(int fd, const iovec* iov, int count) {
    if (!ours(fd) || count < 0 || count > kMaxIov) return libc.writev(fd, iov, count);
    return cancellable<ssize_t>(
        [=] {
            const msghdr msg = vector_message(iov, count);
            return sock::sendmsg(fd, &msg, 0, SendCall::writev);
        },
        [=] { return libc.writev(fd, iov, count); });
}

ssize_t send(int fd, const void* buf, size_t n, int flags) {
    if (!ours(fd)) return libc.send(fd, buf, n, flags);
    return cancellable<ssize_t>(
        [=] { return transmit(fd, buf, n, flags, nullptr, 0, SendCall::send); },
        [=] { return libc.send(fd, buf, n, flags); });
}
VMA_ALIAS(__send, send);

ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* addr, socklen_t len) {
    if (!ours(fd)) return libc.sendto(fd, buf, n, flags, addr, len);
    return cancellable<ssize_t>(
        [=] { return transmit(fd, buf, n, flags, addr, len, SendCall::sendto); },
        [=] { return libc.sendto(fd, buf, n, flags, addr, len); });
}

ssize_t sendmsg(int fd, const msghdr* msg, int flags) {
    if (!ours(fd) || msg == nullptr) {
        before_passing(msg);
        return libc.sendmsg(fd, msg, flags);
    }
    return cancellable<ssize_t>([=] { return sock::sendmsg(fd, msg, flags, SendCall::sendmsg); },
                                [=] { return libc.sendmsg(fd, msg, flags); });
}

int sendmmsg(int fd, mmsghdr* vec, unsigned n, int flags) {
    if (!ours(fd)) {
        for (unsigned i = 0; i < n && vec != nullptr; i++) before_passing(&vec[i].msg_hdr);
        return libc.sendmmsg(fd, vec, n, flags);
    }
    return cancellable<int>([=] { return sock::sendmmsg(fd, vec, n, flags); },
                            [=] { return libc.sendmmsg(fd, vec, n, flags); });
}

ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
    if (!ours(out)) return libc.sendfile(out, in, offset, count);
    return answer<ssize_t>([=] { return sock::sendfile(out, in, offset, count); },
                           [=] { return libc.sendfile(out, in, offset, count); });
}

ssize_t sendfile64(int out, int in, off_t* offset, size_t count) {
    if (!ours(out)) return libc.sendfile64(out, in, offset, count);
    return answer<ssize_t>([=] { return sock::sendfile(out, in, offset, count); },
                           [=] { return libc.sendfile64(out, in, offset, count); });
}

ssize_t splice(int in, off_t* in_off, int out, off_t* out_off, size_t n, unsigned flags) {
    needs_kernel(in, Reason::unsupported_option);
    needs_kernel(out, Reason::unsupported_option);
    return libc.splice(in, in_off, out, out_off, n, flags);
}

// Pipes only: a socket is an error that the kernel reports.
ssize_t tee(int in, int out, size_t n, unsigned flags) { return libc.tee(in, out, n, flags); }
ssize_t vmsplice(int fd, const iovec* iov, size_t count, unsigned flags) {
    return libc.vmsplice(fd, iov, count, flags);
}

}  // namespace vma::hook
