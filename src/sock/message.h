// What every call with a msghdr asks of it (sendmsg(2), recvmsg(2)).
#pragma once

#include <sys/socket.h>

#include <climits>
#include <cstddef>

namespace vma::sock {

// Total length of the iovecs, or false when it does not fit a long (EINVAL).
inline bool total_length(const msghdr& msg, size_t& out) {
    out = 0;
    for (size_t i = 0; i < msg.msg_iovlen; i++) {
        if (msg.msg_iov[i].iov_len > size_t(LONG_MAX) - out) return false;
        out += msg.msg_iov[i].iov_len;
    }
    return true;
}

}  // namespace vma::sock
