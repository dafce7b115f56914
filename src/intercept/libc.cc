#include "intercept/libc.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>

#include <atomic>
#include <type_traits>

#include "base/deferred_signal.h"
#include "base/sys.h"

namespace vma {
namespace early {

template <class T>
long word(T v) {
    if constexpr (std::is_pointer_v<T>)
        return sys::ptr(v);
    else
        return long(v);
}

long fail(int code) {
    errno = code;
    return -1;
}

template <class... A>
long call(long number, A... a) {
    const long result = sys::raw(number, word(a)...);
    return result < 0 && result > -4096 ? fail(int(-result)) : result;
}

template <class R>
R to(long result) {
    if constexpr (std::is_void_v<R>)
        return;
    else if constexpr (std::is_pointer_v<R>)
        return nullptr;
    else
        return R(result);
}

long dup2_same(int fd) { return call(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : fd; }

long poll_ts(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    timespec copy{};
    if (timeout) copy = *timeout;
    return call(SYS_ppoll, fds, n, timeout ? &copy : nullptr, mask, 8);
}

long poll_ms(pollfd* fds, nfds_t n, int timeout_ms) {
    const timespec ts{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    return poll_ts(fds, n, timeout_ms < 0 ? nullptr : &ts, nullptr);
}

// True when libc.<row> is worth calling now.
#define RESOLVED(name) (resolve_libc() && libc.name != &early::name##_)

#define SYS(...) early::call(__VA_ARGS__)
#define ENOSYS_EARLY early::fail(ENOSYS)
#define HOOK(result, name, parameters, arguments, raw)  \
    result name##_ parameters {                         \
        if (RESOLVED(name)) return libc.name arguments; \
        return early::to<result>(raw);                  \
    }
#define VARIADIC(result, name, parameters) result name##_ parameters;
#define BUILT(result, name, parameters)
#define ALIAS(name, row)
#include "intercept/hooks.def"
#undef HOOK
#undef VARIADIC

// What a caller may have left out is read all the same: on this ABI that yields a register's content, which libc's own
// wrappers read just as blindly.
#define NEXT_ARGUMENT(type, name, last) \
    va_list ap;                         \
    va_start(ap, last);                 \
    const auto name = va_arg(ap, type); \
    va_end(ap)

int fcntl_(int fd, int cmd, ...) {
    NEXT_ARGUMENT(long, arg, cmd);
    return RESOLVED(fcntl) ? libc.fcntl(fd, cmd, arg) : int(call(SYS_fcntl, fd, cmd, arg));
}
int fcntl64_(int fd, int cmd, ...) {
    NEXT_ARGUMENT(long, arg, cmd);
    return RESOLVED(fcntl64) ? libc.fcntl64(fd, cmd, arg) : int(call(SYS_fcntl, fd, cmd, arg));
}
int ioctl_(int fd, unsigned long request, ...) {
    NEXT_ARGUMENT(void*, arg, request);
    return RESOLVED(ioctl) ? libc.ioctl(fd, request, arg) : int(call(SYS_ioctl, fd, request, arg));
}
int open_(const char* path, int flags, ...) {
    NEXT_ARGUMENT(mode_t, mode, flags);
    return RESOLVED(open) ? libc.open(path, flags, mode)
                          : int(call(SYS_openat, AT_FDCWD, path, flags, mode));
}
int open64_(const char* path, int flags, ...) {
    NEXT_ARGUMENT(mode_t, mode, flags);
    return RESOLVED(open64) ? libc.open64(path, flags, mode)
                            : int(call(SYS_openat, AT_FDCWD, path, flags, mode));
}
int openat_(int dir, const char* path, int flags, ...) {
    NEXT_ARGUMENT(mode_t, mode, flags);
    return RESOLVED(openat) ? libc.openat(dir, path, flags, mode)
                            : int(call(SYS_openat, dir, path, flags, mode));
}
int openat64_(int dir, const char* path, int flags, ...) {
    NEXT_ARGUMENT(mode_t, mode, flags);
    return RESOLVED(openat64) ? libc.openat64(dir, path, flags, mode)
                              : int(call(SYS_openat, dir, path, flags, mode));
}
int clone_(int (*fn)(void*), void* stack, int flags, void* arg, ...) {
    va_list ap;
    va_start(ap, arg);
    pid_t* parent = va_arg(ap, pid_t*);
    void* tls = va_arg(ap, void*);
    pid_t* child = va_arg(ap, pid_t*);
    va_end(ap);
    return RESOLVED(clone) ? libc.clone(fn, stack, flags, arg, parent, tls, child)
                           : int(fail(ENOSYS));
}
int prctl_(int option, ...) {
    va_list ap;
    va_start(ap, option);
    unsigned long a[4];
    for (auto& v : a) v = va_arg(ap, unsigned long);
    va_end(ap);
    return RESOLVED(prctl) ? libc.prctl(option, a[0], a[1], a[2], a[3])
                           : int(call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
}
long syscall_(long number, ...) {
    va_list ap;
    va_start(ap, number);
    long a[6];
    for (auto& v : a) v = va_arg(ap, long);
    va_end(ap);
    return RESOLVED(syscall) ? libc.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5])
                             : call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // namespace early

#define HOOK(result, name, parameters, arguments, raw) &early::name##_,
#define VARIADIC(result, name, parameters) &early::name##_,
constinit Libc libc = {
#include "intercept/hooks.def"
};
#undef HOOK
#undef VARIADIC

namespace {

std::atomic<bool> g_resolved{false};

// Not every C library has every row: one that is missing keeps its early form.
template <class F>
void resolve_one(F*& slot, const char* name) {
    if (void* symbol = dlsym(RTLD_NEXT, name))
        __atomic_store_n(&slot, reinterpret_cast<F*>(symbol), __ATOMIC_RELAXED);
}

}  // namespace

bool resolve_libc() {
    if (g_resolved.load(std::memory_order_acquire)) return true;
    ThreadState& t = thread_state;
    if (t.resolving) return false;
    t.resolving = 1;
    const int saved = errno;
#define HOOK(result, name, parameters, arguments, raw) resolve_one(libc.name, #name);
#define VARIADIC(result, name, parameters) resolve_one(libc.name, #name);
#include "intercept/hooks.def"
#undef HOOK
#undef VARIADIC
    sys::blocking_ppoll = interruptible_ppoll;
    errno = saved;
    t.resolving = 0;
    g_resolved.store(true, std::memory_order_release);
    return true;
}

}  // namespace vma
