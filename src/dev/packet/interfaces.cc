#include "dev/packet/interfaces.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace vma {
namespace {

constexpr char kLockName[] = "vma-packet-hook";

// Reads one datagram of the dump into `out`; true when it was the last.
bool take_links(const char* buffer, size_t length, std::vector<InterfaceBrief>& out, int* error) {
    size_t at = 0;
    while (length - at >= sizeof(nlmsghdr)) {
        nlmsghdr head;
        std::memcpy(&head, buffer + at, sizeof(head));
        if (head.nlmsg_len < sizeof(head) || head.nlmsg_len > length - at) return true;
        if (head.nlmsg_type == NLMSG_DONE) return true;
        if (head.nlmsg_type == NLMSG_ERROR) {
            *error = EIO;
            return true;
        }
        if (head.nlmsg_type == RTM_NEWLINK && head.nlmsg_len >= NLMSG_LENGTH(sizeof(ifinfomsg))) {
            ifinfomsg info;
            std::memcpy(&info, buffer + at + NLMSG_HDRLEN, sizeof(info));
            out.push_back({info.ifi_index, info.ifi_type, info.ifi_flags});
        }
        at += NLMSG_ALIGN(head.nlmsg_len);
        if (at > length) return true;
    }
    return false;
}

}  // namespace

Result<std::vector<InterfaceBrief>> list_interfaces() {
    OwnFd socket;
    const int fd = sys::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) return Errno{-fd};
    if (Status s = socket.adopt(fd); !s) return Errno{s.error()};
    struct {
        nlmsghdr head;
        ifinfomsg info;
    } request{};
    request.head.nlmsg_len = sizeof(request);
    request.head.nlmsg_type = RTM_GETLINK;
    request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    ssize_t n = sys::sendto(socket.fd(), &request, sizeof(request), 0);
    if (n < 0) return Errno{int(-n)};
    std::vector<InterfaceBrief> out;
    std::vector<char> buffer(32768);
    int error = 0;
    do {
        n = sys::recvfrom(socket.fd(), buffer.data(), buffer.size(), 0);
        if (n < 0 && n != -EINTR) return Errno{int(-n)};
    } while (n < 0 || !take_links(buffer.data(), size_t(n), out, &error));
    if (error) return Errno{error};
    return out;
}

Result<uint64_t> namespace_cookie() {
    const int fd = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Errno{-fd};
    uint64_t cookie = 0;
    socklen_t length = sizeof(cookie);
    const int r = sys::getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length);
    sys::close(fd);
    if (r < 0) return Errno{-r};
    return cookie;
}

int open_namespace() {
    const int socket = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return socket;
    const int fd = sys::ioctl(socket, SIOCGSKNS, nullptr);
    sys::close(socket);
    return fd;
}

VisitNamespace::VisitNamespace(uint64_t cookie, int namespace_fd) {
    const auto here = namespace_cookie();
    if (!here) return;
    if (*here == cookie) {
        ok_ = true;
        return;
    }
    home_ = open_namespace();
    ok_ = home_ >= 0 && sys::raw(SYS_setns, namespace_fd, CLONE_NEWNET) == 0;
    if (ok_ || home_ < 0) return;
    sys::close(home_);
    home_ = -1;
}

VisitNamespace::~VisitNamespace() {
    if (home_ < 0) return;
    sys::raw(SYS_setns, home_, CLONE_NEWNET);
    sys::close(home_);
}

Status NamespaceLock::take() {
    constexpr int kTries = 10000;
    const int fd = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Errno{-fd};
    if (Status s = socket_.adopt(fd); !s) return s;
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, kLockName, sizeof(kLockName) - 1);
    const socklen_t length = offsetof(sockaddr_un, sun_path) + 1 + sizeof(kLockName) - 1;
    for (int i = 0; i < kTries; ++i) {
        const int r = sys::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&name), length);
        if (r == 0) return {};
        if (r != -EADDRINUSE) return Errno{-r};
        const timespec nap{0, 1000000};
        sys::ppoll(nullptr, 0, &nap);
    }
    return Errno{EBUSY};
}

}  // namespace vma
