// Words that the groups about processes share.
#pragma once

#include "differential/behaviour.h"

namespace behave {

// The peer: sends back what comes, to the end.
inline void echo(int offset = 0) {
    const int s = connected(offset);
    char buffer[4096];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) put(s, std::string(buffer, size_t(n)));
    close(s);
}
// The text after its way to such a peer and back.
inline std::string echoed(int s, const std::string& text) {
    put(s, text);
    return got(s, text.size(), MSG_WAITALL);
}

// sendmsg() of a byte with at most four descriptors (SCM_RIGHTS), and what came of such a message.
inline long pass(int channel, std::initializer_list<int> fds, int flags = 0) {
    char byte = 'f';
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    iovec iov{&byte, 1};
    msghdr m = message_of(iov, control, CMSG_SPACE(fds.size() * sizeof(int)));
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(c), fds.begin(), fds.size() * sizeof(int));
    return sendmsg(channel, &m, flags);
}
inline std::vector<int> taken(int channel, int flags = 0) {
    char byte;
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    iovec iov{&byte, 1};
    msghdr m = message_of(iov, control, sizeof control);
    if (recvmsg(channel, &m, flags) != 1 || CMSG_FIRSTHDR(&m) == nullptr) return {};
    std::vector<int> fds((CMSG_FIRSTHDR(&m)->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds.data(), CMSG_DATA(CMSG_FIRSTHDR(&m)), fds.size() * sizeof(int));
    return fds;
}

}  // namespace behave
