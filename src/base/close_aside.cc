#include "base/close_aside.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <atomic>
#include <new>

#include "base/join.h"
#include "base/signals_blocked.h"
#include "base/sys.h"

namespace vma {
namespace {

constexpr int kFutexWait = 128, kFutexWake = 129;  // of this process

struct Closing {
    int fd;
    int pid;
    pthread_t thread{};
    std::atomic<uint32_t> done{0};
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
    c->done.store(1, std::memory_order_release);
    sys::futex(reinterpret_cast<volatile uint32_t*>(&c->done), kFutexWake, 1);
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

// Null: no thread can be started.
Closing* start(int fd) {
    collect(false);
    sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
    auto* const closing = new (std::nothrow) Closing{fd, sys::getpid()};
    if (closing == nullptr) return nullptr;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64 * 1024);
    SignalsBlocked blocked(SignalsBlocked::Libc::left);  // the thread begins with this mask
    const bool made = pthread_create(&closing->thread, &attr, run, closing) == 0;
    pthread_attr_destroy(&attr);
    if (made) return closing;
    delete closing;
    return nullptr;
}

// A memory file or a datagram socket of the Internet, asked by calls that nobody behind it can hold up.
bool never_waits(int fd) {
    constexpr int kGetSeals = 1034;
    int type = 0, domain = 0;
    socklen_t len = sizeof type;
    if (sys::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0)
        return sys::fcntl(fd, kGetSeals, 0) >= 0;
    return type == SOCK_DGRAM && sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
           (domain == AF_INET || domain == AF_INET6);
}

}  // namespace

void close_aside(int fd) {
    if (fd < 0) return;
    if (Closing* const closing = start(fd)) add(*closing);
}

bool close_within(int fd, unsigned ms) {
    if (fd < 0) return true;
    if (never_waits(fd)) return sys::close(fd) == 0;
    Closing* const closing = start(fd);
    if (closing == nullptr) return false;
    const timespec ts{ms / 1000, long(ms % 1000) * 1000000};
    sys::futex(reinterpret_cast<volatile uint32_t*>(&closing->done), kFutexWait, 0, &ts);
    if (!closing->done.load(std::memory_order_acquire)) {
        add(*closing);
        return false;
    }
    join(closing->thread);
    delete closing;
    return true;
}

void close_aside_end() { collect(true); }

}  // namespace vma
