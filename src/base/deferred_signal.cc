#include "base/deferred_signal.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"

// glibc's, behind the C form of pthread_cleanup_push; <pthread.h> hides their declarations from C++.
extern "C" void __pthread_register_cancel(__pthread_unwind_buf_t*);
extern "C" void __pthread_unregister_cancel(__pthread_unwind_buf_t*);

namespace vma {

__thread ThreadState thread_state __attribute__((tls_model("initial-exec"))) = {};

namespace {

constexpr unsigned kCanaryWords = 128;

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

// What must get through while a noted signal waits: faults (the kernel kills when they are blocked) and the two signals
// that glibc keeps for pthread_cancel and for setuid in all threads.
constexpr uint64_t kNeverBlocked = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE) |
                                   bit(SIGTRAP) | bit(SIGSYS) | bit(SIGABRT) | bit(32) | bit(33);

// The kernel's 64-bit mask is the first word of libc's sigset_t and of uc_sigmask.
uint64_t load_mask(const sigset_t* set) {
    uint64_t m;
    std::memcpy(&m, set, sizeof(m));
    return m;
}
void store_mask(sigset_t* set, uint64_t m) { std::memcpy(set, &m, sizeof(m)); }

void set_mask(uint64_t mask) {
    sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::ptr(&mask), 0, sizeof(mask));
}

// Waits as a cancellation point, but lets nobody unwind through the library: pthread_cancel's unwinding ends at the buffer
// registered here (what pthread_cleanup_push is made of), `cancelled` is noted, the library returns as if interrupted, and
// the hook ends the thread from its own frame. A personality routine linked statically must not meet the unwinder of
// libgcc_s (it aborts), and locks and rings are put in order by ordinary returns.
__attribute__((noinline)) long cancellable_ppoll(pollfd* fds, unsigned long n, timespec* timeout,
                                                 const uint64_t* mask) {
    __pthread_unwind_buf_t end;
    volatile int old_type = PTHREAD_CANCEL_DEFERRED;
    volatile long result = -EINTR;
    if (__sigsetjmp(reinterpret_cast<__jmp_buf_tag*>(end.__cancel_jmp_buf), 0) == 0) {
        __pthread_register_cancel(&end);
        int type;
        // NOLINTNEXTLINE(concurrency-thread-canceltype-asynchronous): around one system call, as libc does
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
        old_type = type;
        result = sys::raw(SYS_ppoll, sys::ptr(fds), long(n), sys::ptr(timeout), sys::ptr(mask), 8);
    } else {
        thread_state.cancelled = 1;
    }
    pthread_setcanceltype(old_type, nullptr);
    __pthread_unregister_cancel(&end);
    return result;
}

}  // namespace

bool is_synchronous(int signal) { return (kNeverBlocked & bit(signal)) != 0; }

void call_handler(int signal, siginfo_t* info, void* context, const ProgramAction& action) {
    if (action.flags & SA_SIGINFO)
        reinterpret_cast<void (*)(int, siginfo_t*, void*)>(action.handler)(signal, info, context);
    else
        reinterpret_cast<void (*)(int)>(action.handler)(signal);
}

void defer_signal(int signal, const siginfo_t* info, void* context, const ProgramAction& action) {
    ThreadState& t = thread_state;
    sigset_t& interrupted = static_cast<ucontext_t*>(context)->uc_sigmask;
    if (t.pending != 0) {
        // The kernel had stacked two frames before either ran. This context is the older one: its mask is the true one.
        sys::raw(SYS_rt_tgsigqueueinfo, sys::getpid(), sys::gettid(), signal, sys::ptr(info));
        t.action.flags &= action.flags | ~SA_RESTART;
        t.requeued |= bit(signal);
    } else {
        t.action = action;
        std::memcpy(t.info, info, kSigInfoBytes);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        t.pending = uint8_t(signal);
    }
    t.mask_before = load_mask(&interrupted);
    store_mask(&interrupted, t.mask_before | ~kNeverBlocked);
    if (t.wait_timeout) {
        *t.wait_timeout = {};
        if (t.wait_mask) *t.wait_mask = ~kNeverBlocked;
    }
}

namespace {

// Does the handler belong on another stack than this one? Only the kernel changes stacks. A handler that was to run once
// (SA_RESETHAND) has had its delivery.
bool wants_other_stack(const ProgramAction& action) {
    if (!(action.flags & SA_ONSTACK) || (action.flags & int(SA_RESETHAND))) return false;
    stack_t other{};
    sys::raw(SYS_sigaltstack, 0, sys::ptr(&other));
    return !(other.ss_flags & (SS_DISABLE | SS_ONSTACK));
}

// Sends the signal once more, now that the thread is outside: delivered before this returns.
void deliver_again(int signal, const siginfo_t& info, uint64_t before, uint64_t requeued) {
    set_mask(before & ~(bit(signal) | requeued));
    sys::raw(SYS_rt_tgsigqueueinfo, sys::getpid(), sys::gettid(), signal, sys::ptr(&info));
    set_mask(before);
}

}  // namespace

// The handler gets a context of this very place (getcontext), not of the instruction inside the library where the signal
// hit: a profiler sees the hook. Changes of its uc_sigmask take effect, as they do on return from a real signal frame.
void run_deferred_signal() {
    ThreadState& t = thread_state;
    const int signal = t.pending;
    const ProgramAction action = t.action;
    const uint64_t before = t.mask_before;
    const uint64_t requeued = t.requeued;
    siginfo_t info;
    std::memset(&info, 0, sizeof(info));
    std::memcpy(&info, t.info, kSigInfoBytes);
    t.pending = 0;
    t.requeued = 0;
    const int saved_errno = errno;
    if (wants_other_stack(action)) {
        deliver_again(signal, info, before, requeued);
        errno = saved_errno;
        return;
    }
    ucontext_t context;
    volatile bool ran = false;
    getcontext(&context);  // returns a second time if the handler resumes it
    if (!ran) {
        ran = true;
        store_mask(&context.uc_sigmask, before);
        const uint64_t self = action.flags & SA_NODEFER ? 0 : bit(signal);
        set_mask(before | ((action.mask | self) & ~(bit(32) | bit(33))));
        call_handler(signal, &info, &context, action);
        // ppoll's mask had let these in although the thread's own may block them.
        const uint64_t after = load_mask(&context.uc_sigmask);
        if (requeued & after) set_mask(after & ~requeued);
        set_mask(after);
    }
    errno = saved_errno;
}

namespace {

// Calls the handler from above a kilobyte of known words on the thread's own stack: code that runs deeper than this after
// the handler left by longjmp overwrites some of them.
__attribute__((noinline)) void call_above_canary(int signal, siginfo_t* info, void* context,
                                                 const ProgramAction& action) {
    static uint64_t serial = 0x9e3779b97f4a7c15;
    ThreadState& t = thread_state;
    volatile uint64_t canary[kCanaryWords];
    const uint64_t value = __atomic_add_fetch(&serial, 0x9e3779b97f4a7c16, __ATOMIC_RELAXED);
    for (volatile uint64_t& word : canary) word = value;
    t.canary = const_cast<const uint64_t*>(canary);
    t.canary_value = value;
    call_handler(signal, info, context, action);
    for (volatile uint64_t& word : canary) word = 0;
}

bool canary_intact(const ThreadState& t) {
    for (unsigned i = 0; i < kCanaryWords; i++)
        if (t.canary[i] != t.canary_value) return false;
    return true;
}

}  // namespace

void run_immediately(int signal, siginfo_t* info, void* context, const ProgramAction& action) {
    ThreadState& t = thread_state;
    if (t.depth == 0) return call_handler(signal, info, context, action);
    const uint64_t* const outer_canary = t.canary;
    const uint64_t outer_value = t.canary_value;
    const uintptr_t outer_begin = t.alt_begin, outer_end = t.alt_end;
    stack_t alternate{};
    sys::raw(SYS_sigaltstack, 0, sys::ptr(&alternate));
    t.alt_begin = t.alt_end = 0;
    t.immediate++;
    if (alternate.ss_flags & SS_ONSTACK) {
        t.alt_begin = uintptr_t(alternate.ss_sp);
        t.alt_end = t.alt_begin + alternate.ss_size;
        call_handler(signal, info, context, action);
    } else {
        call_above_canary(signal, info, context, action);
    }
    if (t.immediate) t.immediate--;
    t.canary = outer_canary;
    t.canary_value = outer_value;
    t.alt_begin = outer_begin;
    t.alt_end = outer_end;
}

// Only a handler of a synchronous signal can have left the library by longjmp. It did when the caller runs on another stack
// than the handler's alternate one, or, without that, when the wrapper's frame is gone: the caller's is older, or the words
// that the wrapper left in its own were overwritten.
bool inside_library_slow() {
    ThreadState& t = thread_state;
    if (t.immediate == 0) return true;
    const auto here = uintptr_t(__builtin_frame_address(0));
    const bool handler_active = t.alt_begin != t.alt_end
                                    ? here >= t.alt_begin && here < t.alt_end
                                    : here < uintptr_t(t.canary) && canary_intact(t);
    if (handler_active) return true;
    t.depth = 0;
    t.immediate = 0;
    t.wait_timeout = nullptr;
    t.alt_begin = t.alt_end = 0;
    if (t.pending || t.cancelled) leave_library_slow();
    return false;
}

void leave_library_slow() {
    ThreadState& t = thread_state;
    if (t.pending) run_deferred_signal();
    if (t.cancelled == 0) return;
    t.cancelled = 0;
    pthread_exit(PTHREAD_CANCELED);
}

int interruptible_ppoll(pollfd* fds, unsigned long n, const timespec* timeout,
                        const sigset_t* mask) {
    ThreadState& t = thread_state;
    timespec limit = timeout ? *timeout : timespec{INT32_MAX, 0};
    uint64_t wait_mask = mask ? load_mask(mask) : 0;
    // A handler that runs before the system call has read these makes it return at once; one that runs later interrupts it.
    t.wait_mask = mask ? &wait_mask : nullptr;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    t.wait_timeout = &limit;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    long result = -EINTR;
    while (t.pending == 0 && t.cancelled == 0) {
        result = cancellable_ppoll(fds, n, &limit, mask ? &wait_mask : nullptr);
        if (result != 0 || timeout != nullptr || t.cancelled) break;
    }
    t.wait_timeout = nullptr;
    return (t.pending && result <= 0) || t.cancelled ? -EINTR : int(result);
}

}  // namespace vma
