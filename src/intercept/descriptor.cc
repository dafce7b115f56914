// Hooks: descriptors made, duplicated and closed. Descriptors of the library's own are not there for the program: closing
// one is EBADF, ranges go around them, and dup2 onto one moves it away first (process-model.md §2).
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/single_threaded.h>

#include "base/own_fd.h"
#include "base/sys.h"
#include "intercept/hooks.h"
#include "intercept/process.h"

namespace vma::hook {
namespace {

bool own(int fd) { return is_own_fd(fd) && !inside_library(); }

int bad_descriptor() {
    errno = EBADF;
    return -1;
}

bool is_open(int fd) { return sys::fcntl(fd, F_GETFD) >= 0; }

// Before libc makes `target` a duplicate of `fd`. False: target is ours and cannot move.
bool make_way(int fd, int target) {
    if (inside_library() || fd == target || !is_open(fd)) return true;  // libc reports the error
    if (on_borrowed_memory()) {
        if (target >= 0 && target <= STDERR_FILENO) needs_kernel(fd, Reason::exec);
        return true;
    }
    if (is_own_fd(target)) {
        bool moved = false;
        tell([&] { moved = own_fd_relocate(target); });
        if (!moved) return false;
    }
    if (target >= 0 && target <= STDERR_FILENO && ours(fd))
        tell([&] { sock::fd_enters_stdio(fd); });
    if (ours(target)) tell([&] { sock::implicit_close(target); });
    return true;
}

int duplicated(int fd, int copy) {
    if (copy < 0 || copy == fd || on_borrowed_memory()) return copy;
    fresh(copy);
    if (ours(fd)) tell([&] { sock::dup(fd, copy); });
    return copy;
}

int after_fcntl(int fd, int cmd, int result) {
    return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? duplicated(fd, result) : result;
}

// The first own descriptor in [first, last], or -1.
long next_own(unsigned first, unsigned last) {
    const int fd = own_fd_at_or_above(first > INT32_MAX ? INT32_MAX : int(first));
    return fd >= 0 && unsigned(fd) <= last ? fd : -1;
}

template <class Close>
int around_own(unsigned first, unsigned last, Close&& close_part) {
    for (long fd; (fd = next_own(first, last)) >= 0; first = unsigned(fd) + 1) {
        if (unsigned(fd) > first)
            if (const int result = close_part(first, unsigned(fd) - 1); result != 0) return result;
        if (unsigned(fd) == last) return 0;
    }
    return close_part(first, last);
}

void close_ours(unsigned first, unsigned last) {
    if (sock::nothing_ours() || inside_library() || on_borrowed_memory()) return;
    const unsigned end = sock::fd_slots.size.load(std::memory_order_acquire);
    for (unsigned fd = first; fd < end && fd <= last; fd++)
        if (sock::maybe_ours(int(fd))) tell([&] { static_cast<void>(sock::close(int(fd))); });
}

}  // namespace

int close(int fd) {
    if (own(fd)) return bad_descriptor();
    if (!ours(fd) || on_borrowed_memory()) return libc.close(fd);
    return answer<int>([=] { return sock::close(fd); }, [=] { return libc.close(fd); });
}
VMA_ALIAS(__close, close);

int close_range(unsigned first, unsigned last, int flags) {
    if (inside_library() || first > last) return libc.close_range(first, last, flags);
    // A thread that unshares the table closes its own descriptors, not those of the others.
    const bool own_table = (flags & CLOSE_RANGE_UNSHARE) && !__libc_single_threaded;
    if (!(flags & CLOSE_RANGE_CLOEXEC) && !own_table) close_ours(first, last);
    // Each part would unshare the table again, which the second time does nothing.
    return around_own(first, last,
                      [&](unsigned a, unsigned b) { return libc.close_range(a, b, flags); });
}

void closefrom(int first) {
    if (inside_library()) return libc.closefrom(first);
    const unsigned from = first < 0 ? 0 : unsigned(first);
    close_ours(from, ~0U);
    if (next_own(from, ~0U) < 0) return libc.closefrom(first);
    const int saved = errno;
    around_own(from, ~0U, [](unsigned a, unsigned b) { return libc.close_range(a, b, 0); });
    errno = saved;
}

int dup(int fd) {
    if (own(fd)) return bad_descriptor();
    return duplicated(fd, libc.dup(fd));
}

int dup2(int fd, int target) {
    if (own(fd) || !make_way(fd, target)) return bad_descriptor();
    return duplicated(fd, libc.dup2(fd, target));
}
VMA_ALIAS(__dup2, dup2);

int dup3(int fd, int target, int flags) {
    if (own(fd) || !make_way(fd, target)) return bad_descriptor();
    return duplicated(fd, libc.dup3(fd, target, flags));
}

// An argument that the caller left out is passed on as the garbage it is, as libc's own wrapper does.
int fcntl(int fd, int cmd, ...) {
    va_list ap;
    va_start(ap, cmd);
    const long arg = va_arg(ap, long);
    va_end(ap);
    if (!ours(fd)) return after_fcntl(fd, cmd, libc.fcntl(fd, cmd, arg));
    return answer<int>([=] { return sock::fcntl(fd, cmd, arg); },
                       [=] { return after_fcntl(fd, cmd, libc.fcntl(fd, cmd, arg)); });
}
VMA_ALIAS(__fcntl, fcntl);

int fcntl64(int fd, int cmd, ...) {
    va_list ap;
    va_start(ap, cmd);
    const long arg = va_arg(ap, long);
    va_end(ap);
    if (!ours(fd)) return after_fcntl(fd, cmd, libc.fcntl64(fd, cmd, arg));
    return answer<int>([=] { return sock::fcntl(fd, cmd, arg); },
                       [=] { return after_fcntl(fd, cmd, libc.fcntl64(fd, cmd, arg)); });
}

int ioctl(int fd, unsigned long request, ...) {
    va_list ap;
    va_start(ap, request);
    void* const arg = va_arg(ap, void*);
    va_end(ap);
    if (!ours(fd)) return libc.ioctl(fd, request, arg);
    return answer<int>([=] { return sock::ioctl(fd, request, arg); },
                       [=] { return libc.ioctl(fd, request, arg); });
}

int pipe(int* pair) {
    const int result = libc.pipe(pair);
    if (result == 0) {
        fresh(pair[0]);
        fresh(pair[1]);
    }
    return result;
}
VMA_ALIAS(__pipe, pipe);

int pipe2(int* pair, int flags) {
    const int result = libc.pipe2(pair, flags);
    if (result == 0) {
        fresh(pair[0]);
        fresh(pair[1]);
    }
    return result;
}

int open(const char* path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    return fresh(libc.open(path, flags, mode));
}
VMA_ALIAS(__open, open);

int open64(const char* path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    return fresh(libc.open64(path, flags, mode));
}
VMA_ALIAS(__open64, open64);

int openat(int dir, const char* path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    return fresh(libc.openat(dir, path, flags, mode));
}

int openat64(int dir, const char* path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    return fresh(libc.openat64(dir, path, flags, mode));
}

int __open_2(const char* path, int flags) { return fresh(libc.__open_2(path, flags)); }
int __open64_2(const char* path, int flags) { return fresh(libc.__open64_2(path, flags)); }
int __openat_2(int dir, const char* path, int flags) {
    return fresh(libc.__openat_2(dir, path, flags));
}
int __openat64_2(int dir, const char* path, int flags) {
    return fresh(libc.__openat64_2(dir, path, flags));
}
int creat(const char* path, mode_t mode) { return fresh(libc.creat(path, mode)); }
int creat64(const char* path, mode_t mode) { return fresh(libc.creat64(path, mode)); }

}  // namespace vma::hook
