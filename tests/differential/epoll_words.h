// Words that the groups about epoll share.
#pragma once

#include <algorithm>

#include "differential/behaviour.h"

namespace behave {

inline int add(int ep, int fd, uint32_t events, int op = EPOLL_CTL_ADD) {
    epoll_event e{events, {.u64 = uint64_t(fd)}};
    return epoll_ctl(ep, op, fd, &e);
}

// What epoll_wait() gave, in the order of the descriptors: "2: #0 IN, #1 IN|OUT" with the places in `fds`.
inline std::string events(int ep, std::initializer_list<int> fds, int timeout = 0) {
    std::vector<epoll_event> e(8);
    const int n = epoll_wait(ep, e.data(), int(e.size()), timeout);
    if (n < 0) return std::string("-1 ") + strerrorname_np(errno);
    e.resize(size_t(n));
    std::sort(e.begin(), e.end(),
              [](const epoll_event& x, const epoll_event& y) { return x.data.u64 < y.data.u64; });
    std::string text = std::to_string(n);
    for (size_t i = 0; i < e.size(); i++) {
        const auto at = std::find(fds.begin(), fds.end(), int(e[i].data.u64)) - fds.begin();
        text += (i ? ", #" : ": #") + std::to_string(at) + " " + events_text(e[i].events);
    }
    return text;
}

// The peer of an epoll test: sends a byte at each of these steps.
inline void bytes(int count) {
    const int s = connected();
    for (int i = 0; i < count; i++) {
        step("byte");
        put(s, "x");
        step("sent");
    }
    step("over");
}
// The test's side: until so many unread bytes are there.
inline void byte(int s, int unread = 1) {
    step("byte");
    step("sent");
    until_bytes(s, unread);
}

}  // namespace behave
