// The library's own beginning and end. Neither does more than it must: the table of symbols may have been filled by an
// earlier hook, and configuration waits for the first socket.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "intercept/hooks.h"
#include "intercept/process.h"
#include "sock/unload.h"

namespace vma::hook {

// For programs that are through with the library before they end: gives back what can be given. 0, or -1 when nothing was there
// to release.
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

// Of a library that dlopen() loads exit() calls what it has given to atexit() before its destructor, dlclose() behind it. One that
// was there when the program began is not unloaded, and with it the order is the other way round.
bool g_process_ends = false;

// Is the library one of those that the program began with? Only those are found from the program while constructors run; the
// others become visible after that, if at all.
bool is_of_the_program() {
    void* const program = dlopen(nullptr, RTLD_LAZY);
    if (program == nullptr) return true;
    const bool found = dlsym(program, "vma_exit") != nullptr;
    dlclose(program);
    dlerror();  // the program's to ask for
    return found;
}

__attribute__((constructor)) void begin() {
    resolve_libc();
    g_process_ends = is_of_the_program() || atexit([] { g_process_ends = true; }) != 0;
    take_inheritance();
}

// At exit() after the program's atexit handlers and the destructors of libraries that depend on nothing of ours: unsent data of
// sockets that are still open goes on in the kernel. By dlclose(), which only ends a library that dlopen() has loaded, they all
// go on there, and nothing may be left that leads into this code.
__attribute__((destructor)) void end() {
    if (inside_library()) return;
    if (g_process_ends) return tell([] { sock::exit_prepare(); });
    tell([] { sock::unload(); });
    dispositions_end();
}

}  // namespace

}  // namespace vma::hook
