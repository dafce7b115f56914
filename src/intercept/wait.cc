// Hooks: select, poll and epoll. Timeouts become a timespec here; arguments that the kernel refuses are left to it.
#include "intercept/hooks.h"

namespace vma::hook {
namespace {

// A relative timeout in milliseconds as a timespec; negative: none.
struct Milliseconds {
    timespec ts;
    bool infinite;
    explicit Milliseconds(int ms) : ts{ms / 1000, ms % 1000 * 1000000L}, infinite(ms < 0) {}
    const timespec* get() const { return infinite ? nullptr : &ts; }
};

bool valid(const timespec* ts) {
    return ts == nullptr || (ts->tv_sec >= 0 && ts->tv_nsec >= 0 && ts->tv_nsec < 1000000000);
}

timespec now() {
    timespec ts{};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts;
}

// What is left of a timeout that began then.
timespec left_of(const timespec& timeout, const timespec& begin) {
    const timespec end = now();
    timespec left{timeout.tv_sec - (end.tv_sec - begin.tv_sec),
                  timeout.tv_nsec - (end.tv_nsec - begin.tv_nsec)};
    for (; left.tv_nsec < 0; left.tv_nsec += 1000000000) left.tv_sec--;
    for (; left.tv_nsec >= 1000000000; left.tv_nsec -= 1000000000) left.tv_sec++;
    return left.tv_sec < 0 ? timespec{} : left;
}

// A wait on the kernel set alone may be called back, because the set has a member of ours by now.
template <class Kernel>
int wait_in_set(int ep, epoll_event* events, int max, const timespec* timeout, const sigset_t* mask,
                const Kernel& kernel) {
    bool called = false;
    timespec begin{};
    const auto strip = [&](int n) {
        const int left = n > 0 ? sock::epoll_without_call(events, n) : n;
        called = n > 0 && left == 0;
        return left;
    };
    int result =
        cancellable<int>([=] { return sock::epoll_pwait2(ep, events, max, timeout, mask); },
                         [&] {
                             if (timeout) begin = now();
                             return strip(kernel());
                         });
    while (called) {
        called = false;
        timespec left{};
        if (timeout) left = left_of(*timeout, begin);
        const timespec* const again = timeout ? &left : nullptr;
        result =
            answer<int>([=] { return sock::epoll_pwait2(ep, events, max, again, mask); },
                        [&] { return strip(libc.epoll_pwait2(ep, events, max, again, mask)); });
    }
    return result;
}

bool kernel_only() { return sock::nothing_ours() || inside_library(); }

}  // namespace

int select(int n, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
    if (kernel_only() || n < 0 || (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
        return libc.select(n, read, write, except, timeout);
    timespec left{};
    if (timeout)
        left = {timeout->tv_sec + timeout->tv_usec / 1000000, timeout->tv_usec % 1000000 * 1000};
    bool answered = false;
    const int result = cancellable<int>(
        [&] {
            const auto outcome =
                sock::select(n, read, write, except, timeout ? &left : nullptr, nullptr);
            answered = outcome.kind != sock::Outcome::Kind::kernel;
            return outcome;
        },
        [=] { return libc.select(n, read, write, except, timeout); });
    if (answered && timeout) *timeout = {left.tv_sec, left.tv_nsec / 1000};
    return result;
}
VMA_ALIAS(__select, select);

int pselect(int n, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
            const sigset_t* mask) {
    if (kernel_only() || n < 0 || !valid(timeout))
        return libc.pselect(n, read, write, except, timeout, mask);
    return cancellable<int>(
        [=] {
            timespec left{};  // the caller's is const: POSIX keeps it
            if (timeout) left = *timeout;
            return sock::select(n, read, write, except, timeout ? &left : nullptr, mask);
        },
        [=] { return libc.pselect(n, read, write, except, timeout, mask); });
}

int poll(pollfd* fds, nfds_t n, int timeout) {
    if (kernel_only()) return libc.poll(fds, n, timeout);
    const Milliseconds limit(timeout);
    return cancellable<int>([=] { return sock::poll(fds, n, limit.get(), nullptr); },
                            [=] { return libc.poll(fds, n, timeout); });
}
VMA_ALIAS(__poll, poll);

int __poll_chk(pollfd* fds, nfds_t n, int timeout, size_t room) {
    if (room / sizeof(pollfd) < n || kernel_only()) return libc.__poll_chk(fds, n, timeout, room);
    return hook::poll(fds, n, timeout);
}

int ppoll(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    if (kernel_only() || !valid(timeout)) return libc.ppoll(fds, n, timeout, mask);
    return cancellable<int>([=] { return sock::poll(fds, n, timeout, mask); },
                            [=] { return libc.ppoll(fds, n, timeout, mask); });
}

int __ppoll_chk(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask, size_t room) {
    if (room / sizeof(pollfd) < n || kernel_only())
        return libc.__ppoll_chk(fds, n, timeout, mask, room);
    return hook::ppoll(fds, n, timeout, mask);
}

int epoll_create(int size) {
    const int ep = fresh(libc.epoll_create(size));
    if (ep >= 0 && !inside_library()) tell([&] { sock::epoll_created(ep, 0); });
    return ep;
}

int epoll_create1(int flags) {
    const int ep = fresh(libc.epoll_create1(flags));
    if (ep >= 0 && !inside_library()) tell([&] { sock::epoll_created(ep, flags); });
    return ep;
}

int epoll_ctl(int ep, int op, int fd, epoll_event* event) {
    if (!ours(ep) && !ours(fd)) return libc.epoll_ctl(ep, op, fd, event);
    return answer<int>([=] { return sock::epoll_ctl(ep, op, fd, event); },
                       [=] { return libc.epoll_ctl(ep, op, fd, event); });
}

int epoll_wait(int ep, epoll_event* events, int max, int timeout) {
    if (!ours(ep)) return libc.epoll_wait(ep, events, max, timeout);
    const Milliseconds limit(timeout);
    return wait_in_set(ep, events, max, limit.get(), nullptr,
                       [=] { return libc.epoll_wait(ep, events, max, timeout); });
}

int epoll_pwait(int ep, epoll_event* events, int max, int timeout, const sigset_t* mask) {
    if (!ours(ep)) return libc.epoll_pwait(ep, events, max, timeout, mask);
    const Milliseconds limit(timeout);
    return wait_in_set(ep, events, max, limit.get(), mask,
                       [=] { return libc.epoll_pwait(ep, events, max, timeout, mask); });
}

int epoll_pwait2(int ep, epoll_event* events, int max, const timespec* timeout,
                 const sigset_t* mask) {
    if (!ours(ep) || !valid(timeout)) return libc.epoll_pwait2(ep, events, max, timeout, mask);
    return wait_in_set(ep, events, max, timeout, mask,
                       [=] { return libc.epoll_pwait2(ep, events, max, timeout, mask); });
}

}  // namespace vma::hook
