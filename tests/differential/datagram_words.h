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
inline long sent(int fd, const std::string& text, const char* who, int offset = 0, int flags = 0) {
    const sockaddr_in to = at(who, port(offset));
    return sendto(fd, text.data(), text.size(), flags, raw(to), sizeof to);
}
