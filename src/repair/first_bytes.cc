// What tells two ends of one connection from two sockets whose names fit.
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "base/sys.h"
#include "repair/repair.h"
#include "repair/repair_socket.h"

namespace vma {
namespace {

using namespace repair;

constexpr int kEstablished = 1;  // enum of linux/net/tcp_states.h
constexpr unsigned kTries = 16;

struct Counts {
    uint32_t written = 0, received = 0;  // text, modulo 2^32
    bool operator==(const Counts&) const = default;
};

int read_counts(int fd, Counts& out) {
    tcp_info info{};
    socklen_t len = sizeof info;
    const int r = sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    if (r < 0) return r;
    if (len < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans)
        return -EOPNOTSUPP;
    if (info.tcpi_state != kEstablished) return -ENOTCONN;
    out.written =
        uint32_t(info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes);
    out.received = uint32_t(info.tcpi_bytes_received);
    return 0;
}

int sequence(int fd, Queue queue, uint32_t* out) {
    const int r = select_queue(fd, queue);
    socklen_t len = sizeof *out;
    return r < 0 ? r : sys::getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, out, &len);
}

// In repair mode. Segments go on coming: -EAGAIN when one came in between.
int read_once(int fd, FirstBytes& out) {
    Counts before, after;
    uint32_t sent = 0, received = 0;
    int r = read_counts(fd, before);
    if (r == 0) r = sequence(fd, kSendQueue, &sent);
    if (r == 0) r = sequence(fd, kReceiveQueue, &received);
    // No longer than it takes: what the kernel sends meanwhile it would only believe to have sent.
    (void)select_queue(fd, kNoQueue);
    if (r == 0) r = read_counts(fd, after);
    if (r < 0) return r;
    if (before != after) return -EAGAIN;
    out = {sent - before.written, received - before.received};
    return 0;
}

}  // namespace

Result<FirstBytes> repair_first_bytes(int fd) {
    int reuse = 0;
    int r = get(fd, SOL_SOCKET, SO_REUSEADDR, &reuse);
    if (r == 0) r = enter(fd);
    if (r < 0) return Errno{-r};
    FirstBytes out;
    r = -EAGAIN;
    for (unsigned i = 0; i < kTries && r == -EAGAIN; i++) r = read_once(fd, out);
    leave(fd, false);
    set(fd, SOL_SOCKET, SO_REUSEADDR, reuse);
    if (r < 0) return Errno{-r};
    return out;
}

}  // namespace vma
