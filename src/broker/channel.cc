#include "broker/channel.h"

#include <errno.h>
#include <poll.h>

#include "base/sys.h"

namespace vma::broker {

Status send_message(int socket, Op op, uint32_t serial, const void* body, size_t bytes,
                    std::span<const int> fds) {
    Head head;
    head.op = op;
    head.bytes = uint32_t(bytes);
    head.serial = serial;
    iovec parts[2] = {{&head, sizeof head}, {const_cast<void*>(body), bytes}};
    return send_with_fds(socket, {parts, bytes ? size_t(2) : size_t(1)}, fds);
}

Result<size_t> receive_packet(int socket, ByteSpan buffer, Fds& fds) {
    return receive_with_fds(socket, buffer, fds, MSG_CMSG_CLOEXEC);
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

bool has_ended(int socket) {
    pollfd p{socket, 0, 0};
    const timespec now{};
    return sys::ppoll(&p, 1, &now) > 0 && (p.revents & (POLLHUP | POLLERR));
}

}  // namespace vma::broker
