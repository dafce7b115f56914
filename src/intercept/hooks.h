// The hooks: functions of vma::hook that carry libc's symbol names.
//
// A hook that can block is not noexcept, and no hook has an unwind action (-fno-exceptions): pthread_cancel, a handler's
// longjmp or exception pass through its frame without stopping.
// A hook called from inside the library (inside_library()) goes straight to libc.
#pragma once

#include "intercept/libc.h"
#include "sock/boundary.h"

namespace vma::hook {

using sock::accept_in_kernel;
using sock::answer;
using sock::cancellable;
using sock::fresh;
using sock::ours;
using sock::tell;

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

inline void needs_kernel(int fd, Reason why) {
    if (ours(fd)) tell([&] { sock::hand_back(fd, why); });
}

}  // namespace vma::hook
