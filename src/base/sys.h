// Raw system calls for the library's own use: they never reach our hooks or libc, need no symbol resolution, do not touch
// errno and are not cancellation points. Each returns the kernel's value, or -errno. man 2 <name> for semantics.
// Blocking waits that the program may cancel go through `blocking_ppoll`, which intercept points at interruptible_ppoll
// (deferred_signal.h).
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace vma::sys {

inline long raw(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
#if defined(__x86_64__)
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
#else
#error "port sys::raw to this architecture"
#endif
}

inline long ptr(const volatile void* p) { return reinterpret_cast<long>(p); }

inline int close(int fd) { return int(raw(SYS_close, fd)); }
inline ssize_t read(int fd, void* buf, size_t n) { return raw(SYS_read, fd, ptr(buf), long(n)); }
inline ssize_t write(int fd, const void* buf, size_t n) {
    return raw(SYS_write, fd, ptr(buf), long(n));
}
inline int socket(int family, int type, int proto) {
    return int(raw(SYS_socket, family, type, proto));
}
inline int bind(int fd, const sockaddr* sa, socklen_t len) {
    return int(raw(SYS_bind, fd, ptr(sa), len));
}
inline int connect(int fd, const sockaddr* sa, socklen_t len) {
    return int(raw(SYS_connect, fd, ptr(sa), len));
}
inline int getsockname(int fd, sockaddr* sa, socklen_t* len) {
    return int(raw(SYS_getsockname, fd, ptr(sa), ptr(len)));
}
inline int getpeername(int fd, sockaddr* sa, socklen_t* len) {
    return int(raw(SYS_getpeername, fd, ptr(sa), ptr(len)));
}
inline int setsockopt(int fd, int level, int name, const void* v, socklen_t len) {
    return int(raw(SYS_setsockopt, fd, level, name, ptr(v), len));
}
inline int getsockopt(int fd, int level, int name, void* v, socklen_t* len) {
    return int(raw(SYS_getsockopt, fd, level, name, ptr(v), ptr(len)));
}
inline ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* sa = nullptr,
                      socklen_t len = 0) {
    return raw(SYS_sendto, fd, ptr(buf), long(n), flags, ptr(sa), len);
}
inline ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* sa = nullptr,
                        socklen_t* len = nullptr) {
    return raw(SYS_recvfrom, fd, ptr(buf), long(n), flags, ptr(sa), ptr(len));
}
inline ssize_t sendmsg(int fd, const msghdr* m, int flags) {
    return raw(SYS_sendmsg, fd, ptr(m), flags);
}
inline ssize_t recvmsg(int fd, msghdr* m, int flags) { return raw(SYS_recvmsg, fd, ptr(m), flags); }
inline int fcntl(int fd, int cmd, long arg = 0) { return int(raw(SYS_fcntl, fd, cmd, arg)); }
inline int ioctl(int fd, unsigned long req, void* arg) {
    return int(raw(SYS_ioctl, fd, long(req), ptr(arg)));
}
inline int ppoll(pollfd* fds, nfds_t n, const timespec* ts, const void* sigmask8 = nullptr) {
    timespec copy{};  // the kernel writes the remaining time back
    if (ts) copy = *ts;
    return int(raw(SYS_ppoll, ptr(fds), long(n), ts ? ptr(&copy) : 0, ptr(sigmask8), 8));
}
inline int epoll_create1(int flags) { return int(raw(SYS_epoll_create1, flags)); }
inline int epoll_ctl(int ep, int op, int fd, epoll_event* ev) {
    return int(raw(SYS_epoll_ctl, ep, op, fd, ptr(ev)));
}
inline int epoll_wait(int ep, epoll_event* ev, int n, int timeout_ms) {
    return int(raw(SYS_epoll_pwait, ep, ptr(ev), n, timeout_ms, 0, 8));
}
inline int eventfd(unsigned init, int flags) { return int(raw(SYS_eventfd2, init, flags)); }
inline long futex(volatile uint32_t* word, int op, uint32_t val, const timespec* ts = nullptr) {
    return raw(SYS_futex, ptr(word), op, val, ptr(ts));
}
inline int getpid() { return int(raw(SYS_getpid)); }
inline int gettid() { return int(raw(SYS_gettid)); }
// mmap returns the address or -errno in the pointer value; test with failed().
inline void* mmap(void* addr, size_t n, int prot, int flags, int fd, off_t off) {
    return reinterpret_cast<void*>(raw(SYS_mmap, ptr(addr), long(n), prot, flags, fd, off));
}
inline bool failed(const void* p) { return reinterpret_cast<uintptr_t>(p) >= uintptr_t(-4095); }
inline int munmap(void* addr, size_t n) { return int(raw(SYS_munmap, ptr(addr), long(n))); }

// ppoll for a thread of the program that may be cancelled or hit by a signal there. Returns like ppoll(2) but -errno.
// Default: the raw call. intercept replaces it by a cancellable one before any hook can block.
extern int (*blocking_ppoll)(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask);

}  // namespace vma::sys
