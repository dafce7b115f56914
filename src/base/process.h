// Who is running: the identity of the calling thread, cached and right after any fork, and the life of other processes.
// No thread rules; no malloc; system calls only where stated.
#pragma once

#include <atomic>
#include <cstdint>

namespace vma {

namespace detail {
// The pid as this process knows it, 0 when unknown. It lies on a page that the kernel clears in every forked child
// (MADV_WIPEONFORK, madvise(2)), so that also raw clone() and forks inside libc are noticed.
extern std::atomic<std::atomic<uint32_t>*> pid_word;
extern __thread uint64_t thread_identity __attribute__((tls_model("initial-exec")));
uint64_t find_identity();
}  // namespace detail

// pid << 32 | tid of the calling thread. A few loads; system calls only the first time in a thread or a forked child.
// A vfork child shares its parent's memory and is taken for the thread that called vfork, which sleeps meanwhile.
inline uint64_t self_identity() {
    const uint64_t id = detail::thread_identity;
    const uint32_t pid =
        detail::pid_word.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
    if (pid != 0 && uint32_t(id >> 32) == pid) [[likely]]
        return id;
    return detail::find_identity();
}
// For the child side of a fork hook: needed only on kernels without MADV_WIPEONFORK (before 4.14), harmless elsewhere.
void forget_process_identity();

// Start time of a process in clock ticks after boot (proc(5), stat field 22), 0 when it cannot be read.
uint64_t process_start_ticks(uint32_t pid);
// False when the process has ended (a zombie counts as ended) or the pid now belongs to one that started at another
// time; start_ticks 0 skips that comparison. True when it lives or nothing can be learned. A few system calls.
bool process_alive(uint32_t pid, uint64_t start_ticks);
// Inode of the calling process's pid namespace, 0 when unknown: pids of different namespaces must not be compared.
uint64_t pid_namespace();

}  // namespace vma
