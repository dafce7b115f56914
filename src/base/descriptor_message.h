// Descriptors beside a message of a unix socket (SCM_RIGHTS, unix(7), cmsg(3)). Raw calls only, no allocation, any thread.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/result.h"

namespace vma {

inline constexpr unsigned kMostFds = 253;  // of one message: SCM_MAX_FD

// Descriptors that came with a message; closed at the end unless taken.
class Fds {
  public:
    Fds() = default;
    // `close`: instead of close(2), which may wait for whoever is behind a descriptor (base/close_aside.h).
    explicit Fds(void (*close)(int)) : close_(close) {}
    ~Fds() { close_all(); }
    Fds(const Fds&) = delete;
    Fds& operator=(const Fds&) = delete;
    unsigned count() const { return count_; }
    int operator[](unsigned i) const { return i < count_ ? fds_[i] : -1; }
    int take(unsigned i);  // the caller's from now on; -1 when there is none
    void close_all();
    void add(int fd);

  private:
    void (*close_)(int) = nullptr;
    int fds_[kMostFds];
    unsigned count_ = 0;
};

// fn(int fd) for each descriptor in the control messages of `m`, sent or received.
template <class Fn>
void for_each_passed(const msghdr& m, Fn&& fn) {
    auto* const message = const_cast<msghdr*>(&m);
    for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        if (c->cmsg_len < CMSG_LEN(0)) return;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            fn(fd);
        }
    }
}

// One message of `parts` with `fds`, which stay the caller's. MSG_DONTWAIT; EINVAL: more than kMostFds; else errors of
// sendmsg(2).
Status send_with_fds(int socket, std::span<const iovec> parts, std::span<const int> fds);

// The next message into `buffer`; its length, 0: the other side is gone. `flags`: MSG_CMSG_CLOEXEC or 0. MSG_DONTWAIT; EAGAIN:
// there is none; EMSGSIZE: it, or its descriptors, did not fit (they are closed); else errors of recvmsg(2).
Result<size_t> receive_with_fds(int socket, ByteSpan buffer, Fds& fds, int flags);

}  // namespace vma
