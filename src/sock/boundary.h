// How an answer of the socket layer becomes a return value and errno: for libc's functions (intercept/hooks.h) and for those
// of the extra API. Used in code that is compiled without exceptions: a handler's longjmp or pthread_cancel passes through its
// frames without stopping.
#pragma once

#include <errno.h>
#include <pthread.h>

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

}  // namespace vma::sock
