#include "base/descriptor_message.h"

#include "base/sys.h"

namespace vma {

int Fds::take(unsigned i) {
    if (i >= count_) return -1;
    const int fd = fds_[i];
    fds_[i] = -1;
    return fd;
}

void Fds::close_all() {
    for (unsigned i = 0; i < count_; i++)
        if (fds_[i] >= 0) close_ ? close_(fds_[i]) : void(sys::close(fds_[i]));
    count_ = 0;
}

void Fds::add(int fd) {
    if (count_ < kMostFds)
        fds_[count_++] = fd;
    else
        close_ ? close_(fd) : void(sys::close(fd));
}

Status send_with_fds(int socket, std::span<const iovec> parts, std::span<const int> fds) {
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kMostFds * sizeof(int))];
    msghdr m{};
    m.msg_iov = const_cast<iovec*>(parts.data());
    m.msg_iovlen = parts.size();
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

Result<size_t> receive_with_fds(int socket, ByteSpan buffer, Fds& fds, int flags) {
    fds.close_all();
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kMostFds * sizeof(int))];
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(socket, &m, MSG_DONTWAIT | flags);
    if (n < 0) return Errno{int(-n)};
    for_each_passed(m, [&](int fd) { fds.add(fd); });
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        fds.close_all();
        return Errno{EMSGSIZE};
    }
    return size_t(n);
}

}  // namespace vma
