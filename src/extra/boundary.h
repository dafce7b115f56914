// The border between a program that calls a function of the extra API and the library: what hooks.h is for libc's functions.
#pragma once

#include <errno.h>
#include <sys/auxv.h>

#include "base/deferred_signal.h"
#include "sock/api.h"

namespace vma::extra {

// Asks the library; `ask` returns what the function returns, or -errno. errno is touched by failures only.
template <class Ask>
int ask_library(const Ask& ask) {
    // From a handler that runs on top of the library, which may hold any lock.
    if (inside_library()) {
        errno = EDEADLK;
        return -1;
    }
    const int saved = errno;
    enter_library();
    const int result = ask();
    leave_library();
    errno = result < 0 ? -result : saved;
    return result < 0 ? -1 : result;
}

inline timespec to_timespec(int64_t ns) { return {ns / 1000000000, ns % 1000000000}; }

// The configuration is read, the log runs.
inline bool started() { return sock::start(getauxval(AT_SECURE) != 0); }

}  // namespace vma::extra
