#include "sock/thread_offload.h"

#include <errno.h>

#include <atomic>
#include <new>

#include "base/spin_lock.h"

namespace vma::sock {
namespace {

struct Answer {
    pthread_t thread;
    bool offload;
};
SpinLock g_lock;
Answer g_answers[kMostThreads];
std::atomic<unsigned> g_count{0};  // changed under the lock

Answer* find(pthread_t thread) {
    const unsigned count = g_count.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++)
        if (pthread_equal(g_answers[i].thread, thread)) return &g_answers[i];
    return nullptr;
}

}  // namespace

int set_thread_offload(pthread_t thread, bool offload) {
    SpinGuard guard(g_lock);
    if (Answer* known = find(thread)) {
        known->offload = offload;
        return 0;
    }
    const unsigned count = g_count.load(std::memory_order_relaxed);
    if (count == kMostThreads) return ENOMEM;
    g_answers[count] = {thread, offload};
    g_count.store(count + 1, std::memory_order_release);
    return 0;
}

bool thread_offloads(bool otherwise) {
    if (g_count.load(std::memory_order_acquire) == 0) return otherwise;
    SpinGuard guard(g_lock);
    const Answer* const known = find(pthread_self());
    return known ? known->offload : otherwise;
}

// The answers stay: the child's one thread has the id of the one that forked.
void thread_offload_forget_in_child() { new (&g_lock) SpinLock; }

}  // namespace vma::sock
