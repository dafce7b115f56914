// How an answer of the socket layer becomes a return value and errno: for libc's functions (intercept/hooks.h) and for those
// of the extra API. Used in code that is compiled without exceptions: a handler's longjmp or pthread_cancel passes through its
// frames without stopping.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>

#include "base/deferred_signal.h"
#include "sock/api.h"

namespace vma::sock {

// A call to libc during which the socket must stay the kernel's.
template <class R, class Kernel>
R pinned(long pin, const Kernel& kernel) {
    const R result = kernel();
    const int saved = errno;
    enter_library();
    kernel_call_done(pin);
    leave_library();
    errno = saved;
    return result;
}

// Turns what `ask` answers into libc's convention; `kernel` makes libc's call. errno is touched by errors only. Not inline,
// and called with lambdas that capture by value: the hook then needs no frame on the way to libc (six instructions).
template <class R, class Ask, class Kernel>
[[gnu::noinline]] R answer(const Ask& ask, const Kernel& kernel) {
    const int saved = errno;
    for (;;) {
        enter_library();
        const Outcome outcome = ask();
        leave_library();  // may run a handler of the program, or end the thread
        switch (outcome.kind) {
            case Outcome::Kind::value:
                errno = saved;
                return R(outcome.v);
            case Outcome::Kind::error:
                errno = int(outcome.v);
                return R(-1);
            case Outcome::Kind::restart:
                continue;
            case Outcome::Kind::kernel:
                errno = saved;
                if (outcome.v == 0) return kernel();
                return pinned<R>(outcome.v, kernel);
        }
    }
}

// The same for functions that POSIX makes points of cancellation: a thread that was cancelled before it called ends here, also
// when the call would not wait.
template <class R, class Ask, class Kernel>
R cancellable(const Ask& ask, const Kernel& kernel) {
    pthread_testcancel();
    return answer<R>(ask, kernel);
}

// Worth asking the socket layer.
inline bool ours(int fd) { return maybe_ours(fd) && !inside_library(); }

// A remark to the socket layer that needs no answer. Leaves errno alone.
template <class Tell>
inline void tell(Tell&& remark) {
    const int saved = errno;
    enter_library();
    remark();
    leave_library();
    errno = saved;
}

// Passes the result of a call that makes descriptors through; what we knew under this number is stale.
inline int fresh(int fd) {
    if (fd >= 0 && ours(fd)) tell([&] { fd_reused(fd); });
    return fd;
}

// The configuration is read, the log runs.
inline bool started() { return start(getauxval(AT_SECURE) != 0); }

// libc has made this socket.
inline int created(int fd, int domain, int type, int protocol) {
    if (fresh(fd) >= 0 && !inside_library())
        tell([&] {
            if (started()) socket_created(fd, domain, type, protocol);
        });
    return fd;
}

// libc has accepted this connection: the library may take it over later.
inline int accepted(int listener, int fd, int flags) {
    if (fresh(fd) >= 0 && !inside_library())
        tell([&] {
            if (started()) accepted_by_kernel(listener, fd, flags);
        });
    return fd;
}

// accept() by libc, which `accept` makes. What waited in a queue of ours when the listener became the kernel's comes first,
// behind stand-ins.
template <class Accept>
int accept_in_kernel(int listener, sockaddr* addr, socklen_t* len, int flags, Accept&& accept) {
    if (!handovers() || inside_library() || (addr && (len == nullptr || int(*len) < 0)))
        return accepted(listener, accept(addr, len), flags);
    for (;;) {
        sockaddr_storage name;
        socklen_t size = sizeof name;
        int fd = accept(reinterpret_cast<sockaddr*>(&name), &size);
        if (fd < 0) return fd;
        tell([&] { fd = settle_accepted(listener, fd, name, size, flags); });
        if (fd < 0) continue;
        if (addr) {
            std::memcpy(addr, &name, std::min<size_t>(*len, size));
            *len = size;
        }
        return accepted(listener, fd, flags);
    }
}

}  // namespace vma::sock
