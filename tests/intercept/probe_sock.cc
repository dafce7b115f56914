// A socket layer for testing the hooks: every AF_INET socket is "ours", waits in user space with the library's rules
// (interruptible, restartable, cancellable) and then makes the kernel's call on the twin itself.
#include <fcntl.h>
#include <limits.h>
#include <sys/eventfd.h>

#include "base/deferred_signal.h"
#include "base/own_fd.h"
#include "base/sys.h"
#include "extra/api.h"
#include "intercept/probe.h"
#include "sock/api.h"
#include "sock/unload.h"

namespace vma::sock {

FdSlots fd_slots;

namespace {

constexpr unsigned kSlots = 4096;
std::atomic<void*> g_slots[kSlots];
char g_mark;  // what a slot of ours points at
OwnFd g_own;
ProbeState g_state;

bool known(int fd) { return unsigned(fd) < kSlots && g_slots[fd].load() != nullptr; }
void forget(int fd) {
    if (unsigned(fd) < kSlots) g_slots[fd].store(nullptr);
}
void remember(int fd) {
    if (unsigned(fd) < kSlots) g_slots[fd].store(&g_mark);
}

// The kernel's answer as an Outcome.
Outcome result(long v) { return v < 0 ? Outcome::error(int(-v)) : Outcome::value(v); }

Outcome interrupted() {
    return pending_signal() == PendingSignal::restart ? Outcome::restart() : Outcome::error(EINTR);
}

// Waits until `attempt` stops answering EAGAIN. A mistake of ours shows as a lost signal or a lost cancellation.
template <class Attempt>
Outcome wait_for(int fd, short events, bool nonblocking, Attempt&& attempt) {
    for (;;) {
        const long r = attempt();
        if (r != -EAGAIN || nonblocking || (sys::fcntl(fd, F_GETFL) & O_NONBLOCK)) return result(r);
        if (pending_signal() != PendingSignal::none) return interrupted();
        pollfd p{fd, events, 0};
        if (sys::blocking_ppoll(&p, 1, nullptr, nullptr) == -EINTR) return interrupted();
    }
}

}  // namespace

bool start(bool) {
    if (!g_own.valid()) {
        g_state.depth = [] { return int(thread_state.depth); };
        g_state.own_fd = [] { return g_own.fd(); };
        if (!g_own.adopt(sys::eventfd(0, EFD_CLOEXEC)).ok()) return false;
        fd_slots.slot.store(g_slots);
        fd_slots.size.store(kSlots);
    }
    return true;
}
void socket_created(int fd, int domain, int, int) {
    if (domain == AF_INET) remember(fd);
}
void epoll_created(int, int) {}
void fd_reused(int fd) { forget(fd); }
void dup(int oldfd, int newfd) {
    g_state.dup_from = oldfd;
    g_state.dup_to = newfd;
    remember(newfd);
}
void implicit_close(int fd) {
    g_state.implicitly_closed = fd;
    forget(fd);
}
Outcome close(int fd) {
    g_state.asks++;
    forget(fd);
    return Outcome::kernel();
}
Outcome shutdown(int fd, int how) {
    g_state.asks++;
    return result(sys::raw(SYS_shutdown, fd, how));
}
Outcome bind(int fd, const sockaddr* addr, socklen_t len) {
    g_state.asks++;
    return result(sys::bind(fd, addr, len));
}
Outcome connect(int fd, const sockaddr* addr, socklen_t len) {
    g_state.asks++;
    return result(sys::connect(fd, addr, len));
}
Outcome listen(int fd, int backlog) {
    g_state.asks++;
    return result(sys::raw(SYS_listen, fd, backlog));
}
Outcome accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    g_state.asks++;
    pollfd p{fd, POLLIN, 0};
    for (;;) {
        const int ready = sys::blocking_ppoll(&p, 1, nullptr, nullptr);
        if (ready == -EINTR) return interrupted();
        if (ready > 0)
            return result(sys::raw(SYS_accept4, fd, sys::ptr(addr), sys::ptr(len), flags));
    }
}
Outcome getsockname(int fd, sockaddr* addr, socklen_t* len) {
    g_state.asks++;
    return result(sys::getsockname(fd, addr, len));
}
Outcome getpeername(int fd, sockaddr* addr, socklen_t* len) {
    g_state.asks++;
    return result(sys::getpeername(fd, addr, len));
}
Outcome setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    g_state.asks++;
    return result(sys::setsockopt(fd, level, name, value, len));
}
Outcome getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    g_state.asks++;
    const socklen_t room =
        *len;  // the program's pointer, read in user space: a wild one faults inside the library
    socklen_t actual = room;
    const int r = sys::getsockopt(fd, level, name, value, &actual);
    *len = actual;
    return result(r);
}
Outcome fcntl(int, int, long) {
    g_state.asks++;
    return Outcome::kernel();
}
Outcome ioctl(int, unsigned long, void*) {
    g_state.asks++;
    return Outcome::kernel();
}
Outcome recvmsg(int fd, msghdr* msg, int flags, RecvCall, Taker*) {
    g_state.asks++;
    return wait_for(fd, POLLIN, flags & MSG_DONTWAIT,
                    [&] { return sys::recvmsg(fd, msg, flags | MSG_DONTWAIT); });
}
Outcome recvmmsg(int, mmsghdr*, unsigned, int, timespec*) { return Outcome::kernel(); }
Outcome sendmsg(int fd, const msghdr* msg, int flags, SendCall) {
    g_state.asks++;
    return wait_for(fd, POLLOUT, flags & MSG_DONTWAIT,
                    [&] { return sys::sendmsg(fd, msg, flags | MSG_DONTWAIT); });
}
Outcome sendmmsg(int, mmsghdr*, unsigned, int) { return Outcome::kernel(); }
Outcome sendfile(int, int, off_t*, size_t) { return Outcome::kernel(); }
void received_by_kernel(int, msghdr&) {}
Outcome sockatmark(int) { return Outcome::kernel(); }
Outcome poll(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    g_state.asks++;
    return result(sys::blocking_ppoll(fds, n, timeout, mask));
}
Outcome select(int, fd_set*, fd_set*, fd_set*, timespec*, const sigset_t*) {
    return Outcome::kernel();
}
Outcome epoll_ctl(int, int, int, epoll_event*) { return Outcome::kernel(); }
Outcome epoll_pwait2(int, epoll_event*, int, const timespec*, const sigset_t*) {
    return Outcome::kernel();
}
int epoll_without_call(epoll_event*, int n) { return n; }
bool handovers() { return false; }
int settle_accepted(int, int fd, sockaddr_storage&, socklen_t&, int) { return fd; }
void accepted_by_kernel(int, int, int) {}
void kernel_call_done(long) {}
void hand_back(int fd, Reason why) {
    if (why == Reason::fd_passed) g_state.passed_fd = fd;
    forget(fd);
}
void fd_enters_stdio(int fd) {
    g_state.stdio_fd = fd;
    forget(fd);
}
void io_uring_seen() { g_state.rings++; }
void fork_prepare(bool) { g_state.fork_prepares++; }
void fork_parent(pid_t) { g_state.fork_parents++; }
void fork_child() { g_state.fork_children++; }
void exec_prepare() { g_state.execs++; }
bool exec_inheritance(bool, char*, size_t) { return false; }
void exec_inherited(const char*) {}
void exec_failed() {}
void exit_prepare() {}
void unload() {}
void seccomp_prepare() { g_state.filters++; }
void setid_prepare() { g_state.setids++; }
bool user_namespace_prepare() { return false; }
void user_namespace_done(bool, bool) {}
void chroot_prepare() { g_state.chroots++; }
void thread_changed_privileges() { g_state.own_changes++; }
void thread_keeps_capabilities(bool) { g_state.keeps++; }
void netns_changed() { g_state.namespaces++; }
int release() { return 0; }

}  // namespace vma::sock

// How a test finds the probe's state.
vma::sock::Outcome vma::extra::give_table(int, void* value, socklen_t*) {
    using namespace vma::sock;
    if (!known(-1) && !start(false)) return Outcome::error(ENOMEM);
    *static_cast<ProbeState**>(value) = &g_state;
    return Outcome::value(0);
}

vma::sock::Outcome vma::extra::explain(int, void*, socklen_t*) { return sock::Outcome::kernel(); }

vma::sock::Outcome vma::extra::setsockopt(int fd, int level, int name, const void* value,
                                          socklen_t len) {
    return sock::setsockopt(fd, level, name, value, len);
}
vma::sock::Outcome vma::extra::getsockopt(int fd, int level, int name, void* value,
                                          socklen_t* len) {
    return sock::getsockopt(fd, level, name, value, len);
}
