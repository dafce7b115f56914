// The hooks: functions of vma::hook that carry libc's symbol names, and the one place where an answer of the socket layer
// becomes a return value and errno.
//
// A hook that can block is not noexcept, and no hook has an unwind action (-fno-exceptions): pthread_cancel, a handler's
// longjmp or exception pass through its frame without stopping.
// A hook called from inside the library (inside_library()) goes straight to libc.
#pragma once

#include <errno.h>
#include <pthread.h>

#include "base/deferred_signal.h"
#include "intercept/libc.h"
#include "sock/api.h"

namespace vma::hook {

#define VMA_EXPORT __attribute__((visibility("default"), used))
#define HOOK(result, name, parameters, arguments, early) \
    VMA_EXPORT result name parameters __asm__(#name);
#define VARIADIC(result, name, parameters) VMA_EXPORT result name parameters __asm__(#name);
#define BUILT(result, name, parameters) VMA_EXPORT result name parameters __asm__(#name);
#define ALIAS(name, row)
#include "intercept/hooks.def"
#undef HOOK
#undef VARIADIC
#undef BUILT
#undef ALIAS

// Gives the function of this file whose symbol is `row` a second symbol.
#define VMA_ALIAS(name, row) \
    __asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", " #row)

// Worth asking the socket layer.
inline bool ours(int fd) { return sock::maybe_ours(fd) && !inside_library(); }

// A call to libc during which the socket must stay the kernel's.
template <class R, class Kernel>
R pinned(long pin, const Kernel& kernel) {
    const R result = kernel();
    const int saved = errno;
    enter_library();
    sock::kernel_call_done(pin);
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
        const sock::Outcome outcome = ask();
        leave_library();  // may run a handler of the program, or end the thread
        switch (outcome.kind) {
            case sock::Outcome::Kind::value:
                errno = saved;
                return R(outcome.v);
            case sock::Outcome::Kind::error:
                errno = int(outcome.v);
                return R(-1);
            case sock::Outcome::Kind::restart:
                continue;
            case sock::Outcome::Kind::kernel:
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
    if (fd >= 0 && ours(fd)) tell([&] { sock::fd_reused(fd); });
    return fd;
}

inline void needs_kernel(int fd, Reason why) {
    if (ours(fd)) tell([&] { sock::hand_back(fd, why); });
}

}  // namespace vma::hook
