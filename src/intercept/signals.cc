// Hooks: signal dispositions. Handlers that the program installs are wrapped so that they never run on top of library state
// (base/deferred_signal.h); the kernel keeps flags and mask as the program gave them, and every question about a
// disposition is answered from the kernel's answer, with the wrapper replaced by the program's handler.
#include <string.h>

#include <atomic>

#include "base/signals_blocked.h"
#include "base/sys.h"
#include "intercept/hooks.h"
#include "intercept/process.h"

namespace vma::hook {
namespace {

constexpr int kSignals = 64;

// The program's handler of one signal. Written under the lock with all signals blocked; read by the wrapper at any time, in
// any thread: `version` is odd while it is being written.
struct Disposition {
    std::atomic<uint32_t> version{0};
    std::atomic<void*> handler{nullptr};
    std::atomic<uint64_t> mask{0};
    std::atomic<int> flags{0};
    std::atomic<bool> no_restart{false};  // siginterrupt(signal, 1): what signal() installs
};
Disposition g_dispositions[kSignals + 1];

ProgramAction load(int signal) {
    const Disposition& d = g_dispositions[signal];
    for (;;) {
        const uint32_t version = d.version.load(std::memory_order_acquire);
        const ProgramAction action{d.handler.load(std::memory_order_relaxed),
                                   d.mask.load(std::memory_order_relaxed),
                                   d.flags.load(std::memory_order_relaxed)};
        std::atomic_thread_fence(std::memory_order_acquire);
        if ((version & 1) == 0 && d.version.load(std::memory_order_relaxed) == version)
            return action;
    }
}

void store(int signal, const ProgramAction& action) {
    Disposition& d = g_dispositions[signal];
    d.version.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    d.handler.store(action.handler, std::memory_order_relaxed);
    d.mask.store(action.mask, std::memory_order_relaxed);
    d.flags.store(action.flags, std::memory_order_relaxed);
    d.version.fetch_add(1, std::memory_order_release);
}

void on_signal(int signal, siginfo_t* info, void* context) {
    const ProgramAction action = load(signal);
    if (!inside_library()) return call_handler(signal, info, context, action);
    if (is_synchronous(signal)) return run_immediately(signal, info, context, action);
    defer_signal(signal, info, context, action);
}

bool is_wrapper(const struct sigaction& act) { return act.sa_sigaction == on_signal; }
bool is_handler(const struct sigaction& act) {
    return act.sa_handler != SIG_DFL && act.sa_handler != SIG_IGN;
}

// Changes of one process's dispositions come one at a time, so that table and kernel agree. All signals are blocked
// meanwhile: sigaction is async-signal-safe, and a handler must not wait for the thread it interrupted.
std::atomic<uint32_t> g_lock{0};
class DispositionLock {
  public:
    DispositionLock() {
        uint32_t free = 0;
        while (!g_lock.compare_exchange_weak(free, 1, std::memory_order_acquire)) {
            free = 0;
            sys::raw(SYS_sched_yield);
        }
    }
    ~DispositionLock() { g_lock.store(0, std::memory_order_release); }
    DispositionLock(const DispositionLock&) = delete;
    DispositionLock& operator=(const DispositionLock&) = delete;

  private:
    SignalsBlocked blocked_;  // until after the lock is free
};

ProgramAction record_of(const struct sigaction& act) {
    ProgramAction action;
    action.handler = reinterpret_cast<void*>(act.sa_sigaction);
    memcpy(&action.mask, &act.sa_mask, sizeof(action.mask));
    action.flags = act.sa_flags;
    return action;
}

// Replaces the wrapper in the kernel's answer by what the program had installed.
void unwrap(struct sigaction& act, const ProgramAction& program) {
    if (!is_wrapper(act)) return;
    act.sa_sigaction = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(program.handler);
    act.sa_flags = (act.sa_flags & ~SA_SIGINFO) | (program.flags & SA_SIGINFO);
}

int set_action(int signal, const struct sigaction* act, struct sigaction* old) {
    if (signal < 1 || signal > kSignals) return libc.sigaction(signal, act, old);
    DispositionLock lock;
    const ProgramAction before = load(signal);
    struct sigaction wrapped;
    // The wrapper's own address comes back only from code that asked the kernel behind our back: nothing to change.
    const bool wrap = act != nullptr && is_handler(*act) && !is_wrapper(*act);
    if (wrap) {
        wrapped = *act;
        wrapped.sa_sigaction = on_signal;
        wrapped.sa_flags |= SA_SIGINFO;
        store(signal, record_of(*act));
    }
    // `old` may be the object that `act` points to.
    struct sigaction previous;
    const int result = libc.sigaction(signal, wrap ? &wrapped : act, &previous);
    if (result != 0) {
        if (wrap) store(signal, before);
        return result;
    }
    unwrap(previous, before);
    if (old != nullptr) *old = previous;
    return result;
}

sighandler_t set_handler(int signal, sighandler_t handler, int flags, bool mask_itself) {
    if (handler == SIG_ERR || signal < 1 || signal > kSignals) {
        errno = EINVAL;
        return SIG_ERR;
    }
    struct sigaction act {};
    struct sigaction old {};
    act.sa_handler = handler;
    act.sa_flags = flags;
    sigemptyset(&act.sa_mask);
    if (mask_itself) sigaddset(&act.sa_mask, signal);
    return set_action(signal, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}

}  // namespace

void dispositions_after_fork() { g_lock.store(0, std::memory_order_relaxed); }

void dispositions_end() {
    for (int signal = 1; signal <= kSignals; signal++) {
        struct sigaction now;
        if (libc.sigaction(signal, nullptr, &now) != 0 || !is_wrapper(now)) continue;
        unwrap(now, load(signal));
        libc.sigaction(signal, &now, nullptr);
    }
}

int sigaction(int signal, const struct sigaction* act, struct sigaction* old) {
    return set_action(signal, act, old);
}
VMA_ALIAS(__sigaction, sigaction);

// BSD semantics, signal(2): the handler stays, the call restarts unless siginterrupt said otherwise.
sighandler_t signal(int signal, sighandler_t handler) {
    const bool restart = signal < 1 || signal > kSignals ||
                         !g_dispositions[signal].no_restart.load(std::memory_order_relaxed);
    return set_handler(signal, handler, restart ? SA_RESTART : 0, true);
}
VMA_ALIAS(bsd_signal, signal);
VMA_ALIAS(ssignal, signal);

// System V semantics, sysv_signal(3): once, and not masked while it runs.
sighandler_t sysv_signal(int signal, sighandler_t handler) {
    return set_handler(signal, handler, int(SA_RESETHAND) | SA_NODEFER | SA_INTERRUPT, false);
}
VMA_ALIAS(__sysv_signal, sysv_signal);

// sigset(3): SIG_HOLD blocks; anything else is installed and unblocked. Answers SIG_HOLD when it was blocked.
sighandler_t sigset(int signal, sighandler_t disposition) {
    if (disposition == SIG_ERR || signal < 1 || signal > kSignals) {
        errno = EINVAL;
        return SIG_ERR;
    }
    sigset_t one;
    sigset_t before;
    sigemptyset(&one);
    sigaddset(&one, signal);
    struct sigaction old {};
    if (disposition == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &one, &before) != 0) return SIG_ERR;
        if (sigismember(&before, signal)) return SIG_HOLD;
        return set_action(signal, nullptr, &old) == 0 ? old.sa_handler : SIG_ERR;
    }
    const sighandler_t previous = set_handler(signal, disposition, 0, false);
    if (previous == SIG_ERR || sigprocmask(SIG_UNBLOCK, &one, &before) != 0) return SIG_ERR;
    return sigismember(&before, signal) ? SIG_HOLD : previous;
}

// siginterrupt(3) flips SA_RESTART of the disposition in the kernel, which is the wrapper's; our record follows.
int siginterrupt(int signal, int interrupt) {
    if (signal < 1 || signal > kSignals) return libc.siginterrupt(signal, interrupt);
    DispositionLock lock;
    const int result = libc.siginterrupt(signal, interrupt);
    if (result != 0) return result;
    g_dispositions[signal].no_restart.store(interrupt != 0, std::memory_order_relaxed);
    ProgramAction action = load(signal);
    action.flags = interrupt ? action.flags & ~SA_RESTART : action.flags | SA_RESTART;
    store(signal, action);
    return result;
}

}  // namespace vma::hook
