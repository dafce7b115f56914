#include "extra/group_calls.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "base/sys.h"
#include "extra/api.h"
#include "extra/boundary.h"
#include "sock/using.h"

namespace vma::extra::group::calls {
namespace {

constexpr int kFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

// A raw call's result as libc's.
ssize_t in_libcs_terms(long result) {
    if (result >= 0) return result;
    errno = int(-result);
    return -1;
}

template <class Ask, class Kernel>
ssize_t call(const Ask& ask, const Kernel& kernel) {
    return sock::answer<ssize_t>(ask, [=] { return in_libcs_terms(kernel()); });
}

}  // namespace

int socket(int domain) {
    const int fd = int(in_libcs_terms(sys::socket(domain, SOCK_STREAM | kFlags, IPPROTO_TCP)));
    return sock::created(fd, domain, SOCK_STREAM | kFlags, IPPROTO_TCP);
}

void close(int fd) {
    (void)call([=] { return sock::close(fd); }, [=] { return sys::close(fd); });
}

int bind(int fd, const sockaddr* address, socklen_t length) {
    return int(call([=] { return sock::bind(fd, address, length); },
                    [=] { return sys::bind(fd, address, length); }));
}

int connect(int fd, const sockaddr* address, socklen_t length) {
    return int(call([=] { return sock::connect(fd, address, length); },
                    [=] { return sys::connect(fd, address, length); }));
}

int listen(int fd) {
    return int(call([=] { return sock::listen(fd, SOMAXCONN); },
                    [=] { return sys::raw(SYS_listen, fd, SOMAXCONN); }));
}

int accept(int fd) {
    const auto kernel = [=](sockaddr* from, socklen_t* length) {
        return int(
            in_libcs_terms(sys::raw(SYS_accept4, fd, sys::ptr(from), sys::ptr(length), kFlags)));
    };
    return sock::answer<int>(
        [=] { return sock::accept4(fd, nullptr, nullptr, kFlags); },
        [=] { return sock::accept_in_kernel(fd, nullptr, nullptr, kFlags, kernel); });
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
    return int(call([=] { return extra::setsockopt(fd, level, name, value, length); },
                    [=] { return sys::setsockopt(fd, level, name, value, length); }));
}

int getsockname(int fd, sockaddr* address, socklen_t* length) {
    return int(call([=] { return sock::getsockname(fd, address, length); },
                    [=] { return sys::getsockname(fd, address, length); }));
}

int getpeername(int fd, sockaddr* address, socklen_t* length) {
    return int(call([=] { return sock::getpeername(fd, address, length); },
                    [=] { return sys::getpeername(fd, address, length); }));
}

int pending_error(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    int* const to = &error;
    socklen_t* const size = &length;
    (void)call([=] { return sock::getsockopt(fd, SOL_SOCKET, SO_ERROR, to, size); },
               [=] { return sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, to, size); });
    return error;
}

ssize_t send(int fd, const iovec* iov, unsigned count, bool more) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(iov);
    message.msg_iovlen = count;
    const msghdr* const what = &message;
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    return call([=] { return sock::sendmsg(fd, what, flags, sock::SendCall::sendmsg); },
                [=] { return sys::sendmsg(fd, what, flags); });
}

ssize_t receive(int fd, void* data, size_t length) {
    iovec room{data, length};
    msghdr message{};
    message.msg_iov = &room;
    message.msg_iovlen = 1;
    msghdr* const what = &message;
    return call([=] { return sock::recvmsg(fd, what, MSG_DONTWAIT, sock::RecvCall::recvmsg); },
                [=] { return sys::recvmsg(fd, what, MSG_DONTWAIT); });
}

int epoll_create() {
    const int set = sock::fresh(int(in_libcs_terms(sys::epoll_create1(EPOLL_CLOEXEC))));
    if (set >= 0) sock::tell([=] { sock::epoll_created(set, EPOLL_CLOEXEC); });
    return set;
}

int epoll_control(int set, int operation, int fd, uint32_t events, void* data) {
    epoll_event event{events, {.ptr = data}};
    epoll_event* const what = &event;
    return int(call([=] { return sock::epoll_ctl(set, operation, fd, what); },
                    [=] { return sys::epoll_ctl(set, operation, fd, what); }));
}

int epoll_look(int set, epoll_event* events, int most) {
    static constexpr timespec kNow{};
    return int(call([=] { return sock::epoll_pwait2(set, events, most, &kNow, nullptr); },
                    [=] { return sys::epoll_wait(set, events, most, 0); }));
}

Progress progress(int fd) {
    Progress now;
    (void)ask_library([&] {
        const sock::Using object{fd};
        if (sock::Socket* const socket = object.socket()) {
            now.events = socket->poll_events();
        } else {
            pollfd look{fd, POLLOUT | POLLRDHUP, 0};
            const timespec at_once{};
            if (sys::ppoll(&look, 1, &at_once) > 0) now.events = uint16_t(look.revents);
        }
        int bytes = 0;
        (void)settled(sock::ioctl(fd, SIOCOUTQ, &bytes),
                      [&] { return sys::ioctl(fd, SIOCOUTQ, &bytes); });
        now.unacknowledged = uint32_t(bytes);
        return 0;
    });
    return now;
}

}  // namespace vma::extra::group::calls
