#include "base/close_aside.h"

#include <fcntl.h>
#include <pthread.h>

#include <atomic>
#include <new>

#include "base/join.h"
#include "base/signals_blocked.h"
#include "base/sys.h"

namespace vma {
namespace {

struct Closing {
    int fd;
    int pid;
    pthread_t thread{};
    std::atomic<bool> done{false};
    Closing* next = nullptr;
};
constinit std::atomic<Closing*> g_closings{nullptr};  // whose threads were not waited for yet

void add(Closing& closing) {
    closing.next = g_closings.load(std::memory_order_relaxed);
    while (!g_closings.compare_exchange_weak(closing.next, &closing, std::memory_order_release)) {
    }
}

void* run(void* closing) {
    auto* const c = static_cast<Closing*>(closing);
    sys::close(c->fd);
    c->done.store(true, std::memory_order_release);
    return nullptr;
}

// Waits for those that are through, or for all. Those that a forked child has copies of have no threads there.
void collect(bool all) {
    Closing* list = g_closings.exchange(nullptr, std::memory_order_acquire);
    const int pid = sys::getpid();
    while (Closing* const c = list) {
        list = c->next;
        if (c->pid == pid && !all && !c->done.load(std::memory_order_acquire)) {
            add(*c);
            continue;
        }
        if (c->pid == pid) join(c->thread);
        delete c;
    }
}

}  // namespace

void close_aside(int fd) {
    if (fd < 0) return;
    collect(false);
    sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
    auto* const closing = new (std::nothrow) Closing{fd, sys::getpid()};
    if (closing == nullptr) return;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64 * 1024);
    SignalsBlocked blocked(SignalsBlocked::Libc::left);  // the thread begins with this mask
    const bool made = pthread_create(&closing->thread, &attr, run, closing) == 0;
    pthread_attr_destroy(&attr);
    if (!made) return delete closing;
    add(*closing);
}

void close_aside_end() { collect(true); }

}  // namespace vma
