// The library's own beginning and end. Neither does more than it must: the table of symbols may have been filled by an
// earlier hook, and configuration waits for the first socket.
#include <cstdlib>
#include <cstring>

#include "intercept/hooks.h"

namespace vma::hook {

// For programs that dlclose the library: gives back what can be given. 0, or -1 when nothing was there to release.
VMA_EXPORT int vma_exit() __asm__("vma_exit");
int vma_exit() {
    int result = -1;
    tell([&] { result = sock::release(); });
    return result;
}
VMA_ALIAS(xlio_exit, vma_exit);

namespace {

// A variable of the library's own, from the program that was here before exec.
void take_inheritance() {
    char name[sizeof sock::kInheritance];
    std::memcpy(name, sock::kInheritance, sizeof name);
    name[sizeof name - 2] = 0;  // without the equal sign
    const char* const text = secure_getenv(name);
    if (text == nullptr) return;
    tell([&] {
        if (sock::start(false)) sock::exec_inherited(text);
    });
    unsetenv(name);
}

__attribute__((constructor)) void begin() {
    resolve_libc();
    take_inheritance();
}

// After the program's atexit handlers and the destructors of libraries that depend on nothing of ours: unsent data of
// sockets that are still open goes on in the kernel.
__attribute__((destructor)) void end() {
    if (!inside_library()) tell([] { sock::exit_prepare(); });
}

}  // namespace

}  // namespace vma::hook
