#include "engine/segfault.h"

#include <execinfo.h>
#include <signal.h>

#include "base/log.h"
#include "base/sys.h"

namespace vma {
namespace {

constexpr int kMostFrames = 64;

// Only what a handler may: no memory is taken, and the log's lines are written in one call each.
void on_segfault(int signal, siginfo_t* info, void*) {
    void* frames[kMostFrames];
    const int n = backtrace(frames, kMostFrames);
    vma_log(error, "engine",
            "segmentation fault at address {}, thread {}, {} frames:", info->si_addr, sys::gettid(),
            n);
    backtrace_symbols_fd(frames, n, 2);
    // Not by sigaction(), whose hook may be what crashed.
    const uint64_t usual[4] = {};
    sys::raw(SYS_rt_sigaction, signal, sys::ptr(usual), 0, sizeof(uint64_t));
    // Once this returns: also of a signal that was sent and would not come again.
    sys::raw(SYS_tgkill, sys::getpid(), sys::gettid(), signal);
}

}  // namespace

void print_backtrace_on_segfault() {
    struct sigaction before {};
    if (sigaction(SIGSEGV, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
    void* frame;
    backtrace(&frame, 1);  // loads what it needs now
    struct sigaction ours {};
    ours.sa_sigaction = on_segfault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &ours, nullptr);
}

void end_backtrace_on_segfault() {
    struct sigaction now {};
    if (sigaction(SIGSEGV, nullptr, &now) != 0 || now.sa_sigaction != on_segfault) return;
    now = {};
    now.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &now, nullptr);
}

}  // namespace vma
