// Behaviours with datagrams: one that is sent, one that came.
#pragma once

#include <algorithm>

#include "differential/behaviour.h"

// The datagram that waits, and who sent it.
inline std::string taken(int fd, size_t size = 8192, int flags = 0) {
    std::string buffer(size, '?');
    sockaddr_in from{};
    socklen_t len = sizeof from;
    const ssize_t n = recvfrom(fd, buffer.data(), size, flags, raw(from), &len);
    if (n < 0) return std::string("-1 ") + strerrorname_np(errno);
    return std::to_string(n) + " \"" +
           (n > 64 ? "..." : buffer.substr(0, std::min(size_t(n), size))) + "\" from " +
           shown(from) + (len == sizeof from ? "" : " len " + std::to_string(len));
}
// A datagram without waiting: how many the socket says that it has dropped before it (SO_RXQ_OVFL), 0 when it says nothing; -1:
// there is none.
inline long drops_told(int fd) {
    char text[64];
    alignas(cmsghdr) char control[256];
    iovec iov{text, sizeof text};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    if (recvmsg(fd, &msg, MSG_DONTWAIT) < 0) return -1;
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_RXQ_OVFL) continue;
        uint32_t count;
        memcpy(&count, CMSG_DATA(c), sizeof count);
        return count ? long(count) : -2;  // Linux never says 0
    }
    return 0;
}
inline long sent(int fd, const std::string& text, const char* who, int offset = 0, int flags = 0) {
    const sockaddr_in to = at(who, port(offset));
    return sendto(fd, text.data(), text.size(), flags, raw(to), sizeof to);
}
