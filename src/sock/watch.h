// Watch: who wants to know when a socket's readiness changes: threads asleep in a call (Sleeper) and epoll memberships
// (EpollItem, epoll.h). The side that delivers data calls notify(); it costs one relaxed load when nobody watches.
//
// Why no wake-up is lost: a sleeper registers first and evaluates its condition after that under the shard lease; the
// deliverer changes the condition under the same lease before it looks at the watchers.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "base/list.h"
#include "base/own_fd.h"
#include "base/spin_lock.h"

namespace vma::sock {

// Per thread, made at its first sleep, returned to a free list when the thread ends. Never freed: a late notifier may still
// write to the eventfd of a thread that has just left.
struct ThreadSleep {
    OwnFd event;  // polled by the sleeping thread next to the rings and the kernel descriptors
    ThreadSleep* next_free = nullptr;
    // Null only when no descriptor is to be had; the caller then sleeps in short slices.
    static ThreadSleep* mine();
    static void forget_in_child();  // after fork: the parent's eventfds are not the child's
};

struct Sleeper {
    ListHook hook;
    ThreadSleep* thread = nullptr;
    std::atomic<bool> notified{false};
    void notify();  // at most one write(2) per sleep
};

struct EpollItem;
class XtremeTurn;

class Watch {
  public:
    void add(Sleeper& sleeper);
    void remove(Sleeper& sleeper);
    void add(EpollItem& item);
    void remove(EpollItem& item);
    // `events` (EPOLL*) became so: wakes sleepers and queues the epoll items that are interested in one of them, as the keys
    // of Linux's wait queues do (an edge of arriving data is none for who wants EPOLLOUT). kAny: a change of state, told to
    // all; 0: to sleepers alone. Any thread; the shard lease may be held.
    static constexpr uint32_t kAny = ~0u;
    void notify(uint32_t events = kAny) {
        if (watchers_.load(std::memory_order_acquire) != 0) notify_all(events);
    }
    bool watched() const { return watchers_.load(std::memory_order_relaxed) != 0; }
    // SocketXtreme: the turn hears of everything, for the life of the socket. Before anybody else knows the socket.
    void set_turn(XtremeTurn& turn) {
        turn_ = &turn;
        watchers_.fetch_add(1, std::memory_order_acq_rel);
    }
    // The first membership for which match(EpollItem&) holds, or null; match runs under the lock.
    template <class Match>
    EpollItem* find_item(Match&& match) {
        SpinGuard guard(lock_);
        for (ListHook* h = items_.next; h != &items_; h = h->next)
            if (match(*item_of(h))) return item_of(h);
        return nullptr;
    }
    // Takes one membership out of the list (close of the socket); null when there is none left.
    EpollItem* pop_item();
    void forget_lock_in_child() { new (&lock_) SpinLock; }

  private:
    void notify_all(uint32_t events);
    static EpollItem* item_of(ListHook* hook);  // EpollItem is incomplete here
    std::atomic<uint32_t> watchers_{0};
    SpinLock lock_;
    List<Sleeper, &Sleeper::hook> sleepers_;
    ListHook items_{&items_, &items_};  // EpollItem::watch_hook
    XtremeTurn* turn_ = nullptr;
};

}  // namespace vma::sock
