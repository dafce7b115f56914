// The border between a program that calls a function of the extra API and the library: what hooks.h is for libc's functions.
#pragma once

#include "sock/boundary.h"

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

using sock::started;

// Inside the library: the socket layer's answer or, where that is the kernel's, what `kernel` returns (negative: an errno value).
template <class Kernel>
sock::Outcome settled(const sock::Outcome& asked, const Kernel& kernel) {
    if (asked.kind != sock::Outcome::Kind::kernel) return asked;
    const long result = kernel();
    if (asked.v != 0) sock::kernel_call_done(asked.v);
    return result < 0 ? sock::Outcome::error(int(-result)) : sock::Outcome::value(result);
}

}  // namespace vma::extra
