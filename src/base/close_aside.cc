#include "base/close_aside.h"

#include <fcntl.h>
#include <pthread.h>

#include "base/signals_blocked.h"
#include "base/sys.h"

namespace vma {

void close_aside(int fd) {
    if (fd < 0) return;
    sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
    const auto run = [](void* number) -> void* {
        sys::close(int(reinterpret_cast<intptr_t>(number)));
        return nullptr;
    };
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 64 * 1024);
    SignalsBlocked blocked(SignalsBlocked::Libc::left);  // the thread begins with this mask
    pthread_t thread;
    (void)pthread_create(&thread, &attr, run, reinterpret_cast<void*>(intptr_t(fd)));
    pthread_attr_destroy(&attr);
}

}  // namespace vma
