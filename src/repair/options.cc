// Options that survive a move. Leaving repair mode clears SO_REUSEADDR, filling queues forces the buffer sizes, a disconnect
// resets more, and which depends on the kernel: so everything of this list is read before and put back where it differs.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "repair/repair_socket.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace vma::repair {
namespace {

struct Row {
    int level, name;
};
constexpr Row kRows[] = {
    {IPPROTO_IP, IP_TOS},  // sets the priority, too
    {SOL_SOCKET, SO_REUSEADDR},
    {SOL_SOCKET, SO_REUSEPORT},
    {SOL_SOCKET, SO_KEEPALIVE},
    {SOL_SOCKET, SO_OOBINLINE},
    {SOL_SOCKET, SO_RCVLOWAT},
    {SOL_SOCKET, SO_PRIORITY},
    {SOL_SOCKET, SO_MARK},
    {IPPROTO_TCP, TCP_NODELAY},
    {IPPROTO_TCP, TCP_CORK},
    {IPPROTO_TCP, TCP_KEEPIDLE},
    {IPPROTO_TCP, TCP_KEEPINTVL},
    {IPPROTO_TCP, TCP_KEEPCNT},
    {IPPROTO_TCP, TCP_USER_TIMEOUT},
    {IPPROTO_TCP, TCP_SYNCNT},
    {IPPROTO_TCP, TCP_LINGER2},
    {IPPROTO_IP, IP_TTL},
    // The rest are buffers: a size that the program did not fix (the lock word) goes on being tuned by the kernel.
    {SOL_SOCKET, SO_SNDBUF},
    {SOL_SOCKET, SO_RCVBUF},
    {SOL_SOCKET, SO_BUF_LOCK},
};
constexpr unsigned kRowCount = sizeof kRows / sizeof *kRows;
static_assert(kRowCount == RepairOptions::kCount);
static_assert(kRows[6].name == SO_PRIORITY && kRows[7].name == SO_MARK);
constexpr unsigned kSendBuffer = kRowCount - 3, kReceiveBuffer = kRowCount - 2,
                   kBufferLocks = kRowCount - 1;
// Values of SO_BUF_LOCK (linux/socket.h).
constexpr int kLockSend = 1, kLockReceive = 2;

}  // namespace

int set(int fd, int level, int name, int value) {
    return sys::setsockopt(fd, level, name, &value, sizeof value);
}
int get(int fd, int level, int name, int* value) {
    socklen_t len = sizeof *value;
    *value = 0;
    return sys::getsockopt(fd, level, name, value, &len);
}
int enter(int fd) { return set(fd, IPPROTO_TCP, TCP_REPAIR, 1); }
void leave(int fd, bool probe) {
    set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, kNoQueue);
    set(fd, IPPROTO_TCP, TCP_REPAIR, probe ? 0 : -1);
}
int select_queue(int fd, Queue queue) { return set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue); }
int disconnect(int fd) {
    const sockaddr unspec{AF_UNSPEC, {}};
    const int r = sys::connect(fd, &unspec, sizeof unspec);
    int error;
    get(fd, SOL_SOCKET, SO_ERROR, &error);  // ECONNABORTED, which nobody is to see
    return r;
}

void save_options(int fd, RepairOptions& out) {
    out = {};
    for (unsigned i = 0; i < kRowCount; i++)
        if (get(fd, kRows[i].level, kRows[i].name, &out.value[i]) == 0) out.known |= 1u << i;
    socklen_t len = sizeof out.linger;
    sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, out.linger, &len);
    len = sizeof out.congestion;
    sys::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, out.congestion, &len);
}

void put_options(int fd, const RepairOptions& saved, bool buffers) {
    const auto known = [&](unsigned i) { return (saved.known >> i & 1) != 0; };
    for (unsigned i = 0; i < kSendBuffer; i++) {
        int now;
        if (!known(i) || get(fd, kRows[i].level, kRows[i].name, &now) != 0 || now == saved.value[i])
            continue;
        set(fd, kRows[i].level, kRows[i].name, saved.value[i]);
    }
    RepairOptions now;
    socklen_t len = sizeof now.linger;
    if (sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, now.linger, &len) == 0 &&
        std::memcmp(now.linger, saved.linger, sizeof saved.linger) != 0)
        sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, saved.linger, sizeof saved.linger);
    len = sizeof now.congestion;
    if (saved.congestion[0] &&
        sys::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now.congestion, &len) == 0 &&
        std::strncmp(now.congestion, saved.congestion, sizeof saved.congestion) != 0)
        sys::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, saved.congestion,
                        socklen_t(strnlen(saved.congestion, sizeof saved.congestion)));
    if (!buffers || !known(kBufferLocks)) return;
    // getsockopt reports twice what setsockopt takes.
    const int locks = saved.value[kBufferLocks];
    if (locks & kLockSend) set(fd, SOL_SOCKET, SO_SNDBUFFORCE, saved.value[kSendBuffer] / 2);
    if (locks & kLockReceive) set(fd, SOL_SOCKET, SO_RCVBUFFORCE, saved.value[kReceiveBuffer] / 2);
    set(fd, SOL_SOCKET, SO_BUF_LOCK, locks);
}

}  // namespace vma::repair

namespace vma {

bool saved_option(const RepairOptions& saved, int level, int name, int* value) {
    for (unsigned i = 0; i < RepairOptions::kCount; i++) {
        if (repair::kRows[i].level != level || repair::kRows[i].name != name) continue;
        *value = saved.value[i];
        return (saved.known >> i & 1) != 0;
    }
    return false;
}

}  // namespace vma
