#include "broker/channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "base/sys.h"

namespace vma::broker {

int Fds::take(unsigned i) {
    if (i >= count_) return -1;
    const int fd = fds_[i];
    fds_[i] = -1;
    return fd;
}

void Fds::close_all() {
    for (unsigned i = 0; i < count_; i++)
        if (fds_[i] >= 0) sys::close(fds_[i]);
    count_ = 0;
}

void Fds::add(int fd) {
    if (count_ < kMostFds)
        fds_[count_++] = fd;
    else
        sys::close(fd);
}

Status send_message(int socket, Op op, uint32_t serial, const void* body, size_t bytes,
                    std::span<const int> fds) {
    Head head;
    head.op = op;
    head.bytes = uint32_t(bytes);
    head.serial = serial;
    iovec parts[2] = {{&head, sizeof head}, {const_cast<void*>(body), bytes}};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kMostFds * sizeof(int))];
    msghdr m{};
    m.msg_iov = parts;
    m.msg_iovlen = bytes ? 2 : 1;
    if (!fds.empty()) {
        if (fds.size() > kMostFds) return Errno{EINVAL};
        std::memset(control, 0, CMSG_SPACE(fds.size_bytes()));
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    const ssize_t n = sys::sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return Errno{int(-n)};
    return {};
}

Result<size_t> receive_packet(int socket, ByteSpan buffer, Fds& fds) {
    fds.close_all();
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kMostFds * sizeof(int))];
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return Errno{int(-n)};
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            fds.add(fd);
        }
    }
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        fds.close_all();
        return Errno{EMSGSIZE};
    }
    return size_t(n);
}

namespace {

bool wait_for(int socket, short events, int timeout_ms) {
    pollfd p{socket, events, 0};
    const timespec t{timeout_ms / 1000, (timeout_ms % 1000) * 1000000L};
    for (;;) {
        const int n = sys::ppoll(&p, 1, &t);
        if (n != -EINTR) return n > 0;
    }
}

}  // namespace

bool wait_readable(int socket, int timeout_ms) { return wait_for(socket, POLLIN, timeout_ms); }
bool wait_writable(int socket, int timeout_ms) { return wait_for(socket, POLLOUT, timeout_ms); }

}  // namespace vma::broker
