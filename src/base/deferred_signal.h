// ThreadState and deferred signals: what the library knows about the calling thread, and how the program's
// signal handlers are kept out of it (process-model.md §7).
//
// Every handler that the program installs is wrapped (intercept/signals.cc). While the thread is outside the library the
// wrapper only calls it. Inside (depth > 0) the wrapper notes the signal here, blocks every other signal in the interrupted
// context, and returns; the handler runs when the outermost hook leaves. One note is enough: whatever else arrives stays
// pending in the kernel, which queues real-time signals and merges standard ones exactly as it always does.
//
// Rules for code inside the library
//  * It must not block without a look at pending_signal(). Waits go through sys::blocking_ppoll, which returns -EINTR when
//    a signal was noted, also if that happened just before the call; spin loops ask pending_signal() each time round.
//  * `interrupt`: give up the wait with EINTR (or the partial result). `restart`: the handler has SA_RESTART, answer
//    Outcome::restart() where the kernel would restart the call (signal(7)), else as `interrupt`.
//  * pthread_cancel never unwinds the library: the wait ends with -EINTR, pending_signal() says `interrupt`, the call
//    returns in the ordinary way and the hook ends the thread. A thread that only spins notices it when it makes a
//    blocking_ppoll call, be it with a zero timeout.
//  * Synchronous signals (SEGV, BUS, ILL, FPE, TRAP, SYS, and ABRT) run their handler at once. The hooks it calls go
//    straight to libc. If it leaves by longjmp the depth is recovered at the thread's next hook (inside_library()), but
//    what the library was doing stays half done: a fault inside it is a bad pointer of the program or a bug of ours.
//  * Other handlers run with depth 0 and no state of ours on the stack that matters: they may longjmp, throw, call
//    pthread_exit, swapcontext or any socket function.
#pragma once

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <cstdint>

namespace vma {

// How a handler was installed. `mask` has the kernel's layout: bit n-1 is signal n.
struct ProgramAction {
    void* handler =
        nullptr;  // void(*)(int), or void(*)(int, siginfo_t*, void*) with SA_SIGINFO in flags
    uint64_t mask = 0;
    int flags = 0;  // SA_*
};

// The part of siginfo_t that an asynchronous signal can fill: three ints, padding, then at most 32 bytes (SIGCHLD).
inline constexpr unsigned kSigInfoBytes = 48;

struct ThreadState {
    uint32_t depth;     // hooks of ours on this thread's stack, 0: in the program
    uint8_t resolving;  // looking symbols up: hooks use raw system calls
    uint8_t pending;    // the noted signal, 0: none
    uint8_t immediate;  // handlers of synchronous signals running on top of the library
    uint8_t cancelled;  // pthread_cancel hit while waiting: the hook ends the thread
    // Arguments of the system call about to block: when a signal is noted, set to zero and to
    // "everything blocked" (null: no mask in the call).
    timespec* wait_timeout;
    uint64_t* wait_mask;
    // Words in the frame of the newest immediate handler's wrapper, and what each holds.
    const uint64_t* canary;
    uint64_t canary_value;
    // That handler's alternate stack; equal when it runs on the thread's own.
    uintptr_t alt_begin, alt_end;
    uint64_t mask_before;  // signal mask of the interrupted context
    uint64_t requeued;     // signals delivered together with `pending` and sent back to the kernel
    ProgramAction action;  // of `pending`
    alignas(8) unsigned char info[kSigInfoBytes];
};
static_assert(sizeof(ThreadState) <= 192,
              "static TLS of a preloaded library is scarce (256 bytes in all)");

extern __thread ThreadState thread_state __attribute__((tls_model("initial-exec")));

bool inside_library_slow();  // depth > 0: still true, or was the outermost hook left by longjmp?
void run_deferred_signal();  // depth is 0: runs the noted handler; may not return

// True while a hook of ours is on this thread's stack: the hook that asks must go straight to libc.
inline bool inside_library() {
    if (__builtin_expect(thread_state.depth == 0, 1)) return false;
    return inside_library_slow();
}

// The time a thread spends inside the library. The frame that ends it may be left for good (a handler's longjmp, the end of
// a cancelled thread): nothing with a destructor may live there. An explicit pair, not RAII, so that the hooks have no
// unwind actions of their own (hooks are compiled without exceptions).
inline void enter_library() {
    thread_state.depth++;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
void leave_library_slow();
inline void leave_library() {
    ThreadState& t = thread_state;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (t.depth > 1) {
        t.depth--;
        return;
    }
    t.wait_timeout = nullptr;
    t.depth = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__builtin_expect(t.pending | t.cancelled, 0)) leave_library_slow();
}

// The same for threads of the library's own, which nobody cancels.
class LibraryScope {
  public:
    LibraryScope() { enter_library(); }
    ~LibraryScope() { leave_library(); }
    LibraryScope(const LibraryScope&) = delete;
    LibraryScope& operator=(const LibraryScope&) = delete;
};

enum class PendingSignal : uint8_t { none, interrupt, restart };
inline PendingSignal pending_signal() {
    const ThreadState& t = thread_state;
    if (__builtin_expect((t.pending | t.cancelled) == 0, 1)) return PendingSignal::none;
    if (t.cancelled) return PendingSignal::interrupt;
    return t.action.flags & SA_RESTART ? PendingSignal::restart : PendingSignal::interrupt;
}

// ---- For the wrapper. Called in signal context with the arguments of an SA_SIGINFO handler.
bool is_synchronous(int signal);
// Notes the signal (depth > 0). A second one that was delivered together with the first goes back to the kernel.
void defer_signal(int signal, const siginfo_t* info, void* context, const ProgramAction& action);
// Runs the handler now, on top of whatever was interrupted, library included.
void run_immediately(int signal, siginfo_t* info, void* context, const ProgramAction& action);
// The plain call.
void call_handler(int signal, siginfo_t* info, void* context, const ProgramAction& action);

// ppoll that a signal or a cancellation noted at any time before or during it ends (-EINTR).
// sys::blocking_ppoll is pointed at it by intercept. Returns like ppoll(2), -errno on failure.
int interruptible_ppoll(pollfd* fds, unsigned long n, const timespec* timeout,
                        const sigset_t* mask);

}  // namespace vma
