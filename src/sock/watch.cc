#include "sock/watch.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <new>

#include "base/sys.h"
#include "sock/epoll.h"
#include "sock/unload.h"
#include "sock/xtreme.h"

namespace vma::sock {
namespace {

thread_local ThreadSleep* t_sleep = nullptr;
SpinLock g_lock;
ThreadSleep* g_free = nullptr;
pthread_key_t g_key;
bool g_has_key = false;
pthread_once_t g_once = PTHREAD_ONCE_INIT;

void thread_ended(void* p) {
    auto* sleep = static_cast<ThreadSleep*>(p);
    SpinGuard guard(g_lock);
    sleep->next_free = g_free;
    g_free = sleep;
}

ThreadSleep* take_or_make() {
    {
        SpinGuard guard(g_lock);
        if (ThreadSleep* sleep = g_free) {
            g_free = sleep->next_free;
            return sleep;
        }
    }
    void* memory =
        sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sys::failed(memory)) return nullptr;
    return new (memory) ThreadSleep;
}

}  // namespace

void thread_sleeps_end() {
    if (g_has_key) pthread_key_delete(g_key);
}

ThreadSleep* ThreadSleep::mine() {
    if (t_sleep && t_sleep->event.valid()) return t_sleep;
    pthread_once(&g_once, [] { g_has_key = pthread_key_create(&g_key, thread_ended) == 0; });
    if (t_sleep == nullptr) t_sleep = take_or_make();
    if (t_sleep == nullptr) return nullptr;
    if (!t_sleep->event.valid()) {
        const int fd = sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0 || !t_sleep->event.adopt(fd)) {
            thread_ended(t_sleep);
            t_sleep = nullptr;
            return nullptr;
        }
    }
    pthread_setspecific(g_key, t_sleep);
    return t_sleep;
}

void ThreadSleep::forget_in_child() {
    g_free = nullptr;
    t_sleep = nullptr;
    new (&g_lock) SpinLock;
}

void Sleeper::notify() {
    if (notified.exchange(true, std::memory_order_acq_rel) || thread == nullptr) return;
    const uint64_t one = 1;
    sys::write(thread->event.fd(), &one, sizeof one);
}

EpollItem* Watch::item_of(ListHook* hook) {
    return reinterpret_cast<EpollItem*>(reinterpret_cast<char*>(hook) -
                                        offsetof(EpollItem, watch_hook));
}

void Watch::add(Sleeper& sleeper) {
    SpinGuard guard(lock_);
    sleepers_.push_back(sleeper);
    watchers_.fetch_add(1, std::memory_order_acq_rel);
}

void Watch::remove(Sleeper& sleeper) {
    SpinGuard guard(lock_);
    if (!sleeper.hook.linked()) return;
    sleeper.hook.unlink();
    watchers_.fetch_sub(1, std::memory_order_acq_rel);
}

void Watch::add(EpollItem& item) {
    SpinGuard guard(lock_);
    ListHook& hook = item.watch_hook;
    hook.prev = items_.prev;
    hook.next = &items_;
    items_.prev->next = &hook;
    items_.prev = &hook;
    watchers_.fetch_add(1, std::memory_order_acq_rel);
}

void Watch::remove(EpollItem& item) {
    SpinGuard guard(lock_);
    if (!item.watch_hook.linked()) return;
    item.watch_hook.unlink();
    watchers_.fetch_sub(1, std::memory_order_acq_rel);
}

void Watch::notify_all(uint32_t events) {
    SpinGuard guard(lock_);
    for (Sleeper* s = sleepers_.front(); s; s = sleepers_.next(*s)) s->notify();
    for (ListHook* h = items_.next; h != &items_; h = h->next)
        epoll_item_changed(*item_of(h), events);
    if (turn_ != nullptr && events != 0) turn_->changed(events);
}

EpollItem* Watch::pop_item() {
    SpinGuard guard(lock_);
    if (items_.next == &items_) return nullptr;
    EpollItem* item = item_of(items_.next);
    item->watch_hook.unlink();
    watchers_.fetch_sub(1, std::memory_order_acq_rel);
    return item;
}

}  // namespace vma::sock
