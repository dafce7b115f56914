// Hooks: fork, spawn, exec, exit (process-model.md §6).
#include "intercept/process.h"

#include <alloca.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/sys.h"
#include "intercept/hooks.h"

namespace vma::hook {
namespace {

// Set once the program has made a child that shares its memory but not its descriptors.
std::atomic<bool> g_lends_memory{false};
std::atomic<int> g_pid{0};  // of the process that this memory belongs to, known when it matters

void before_fork(bool only_exec = false) {
    tell([=] { sock::fork_prepare(only_exec); });
}

// In parent and child, with what the fork call returned.
pid_t after_fork(pid_t pid) {
    if (pid == 0)
        child_begins();
    else
        tell([&] { sock::fork_parent(pid); });
    return pid;
}

// clone() without shared memory is a fork whose child starts in a function. This frame exists in the child, too: its
// memory is a copy.
struct CloneStart {
    int (*fn)(void*);
    void* arg;
};
int clone_begins(void* start) {
    child_begins();
    const CloneStart& s = *static_cast<CloneStart*>(start);
    return s.fn(s.arg);
}

// A search along PATH by the program itself fails here a few times; nothing is to be done for that.
bool is_missing(const char* path) {
    if (path == nullptr) return true;
    const long found = sys::raw(SYS_faccessat, AT_FDCWD, sys::ptr(path), F_OK);
    return found == -ENOENT || found == -ENOTDIR;
}

// Does the new program load the library, too?
bool preloads_us(char* const* envp) {
    for (; *envp; envp++)
        if (std::strncmp(*envp, "LD_PRELOAD=", 11) == 0 && std::strstr(*envp, "libvma"))
            return true;
    return false;
}

// libc runs the new program without coming back to us: what survives exec must be the kernel's by then. The environment may
// get one more line, on the stack: a vfork-like child must not allocate.
template <class Exec>
int with_exec(char* const* envp, Exec&& exec) {
    if (inside_library()) return exec(envp);
    if (on_borrowed_memory()) {
        for (int fd = 0; fd <= 2; fd++) needs_kernel(fd, Reason::exec);
        return exec(envp);
    }
    char line[1536];
    bool more = false;
    tell([&] {
        sock::exec_prepare();
        more = envp && sock::exec_inheritance(preloads_us(envp), line, sizeof line);
    });
    if (more) {
        size_t n = 0;
        while (envp[n]) n++;
        auto** with_line = static_cast<char**>(alloca((n + 2) * sizeof(char*)));
        std::copy(envp, envp + n, with_line);
        with_line[n] = line;
        with_line[n + 1] = nullptr;
        envp = with_line;
    }
    const int result = exec(envp);
    tell([] { sock::exec_failed(); });
    return result;
}

void before_exit() {
    if (!inside_library() && !on_borrowed_memory()) tell([] { sock::exit_prepare(); });
}

// A spawned child that is not preloaded finds its standard descriptors and those that the file actions name.
void before_spawn() {
    for (int fd = 0; fd <= 2; fd++) needs_kernel(fd, Reason::exec);
}

// Calls exec(argv, ap) with the argument list that follows `first`, ap standing after its null. On the stack: a vfork-like
// child must not allocate.
template <class Exec>
int with_list(const char* first, va_list ap, Exec&& exec) {
    va_list count;
    va_copy(count, ap);
    size_t n = 1;
    if (first != nullptr)
        while (va_arg(count, char*) != nullptr) n++;
    va_end(count);
    auto** argv = static_cast<char**>(alloca((n + 1) * sizeof(char*)));
    argv[0] = const_cast<char*>(first);
    for (size_t i = 1; i <= n; i++) argv[i] = first ? va_arg(ap, char*) : nullptr;
    return exec(argv);
}

}  // namespace

bool on_borrowed_memory() {
    return g_lends_memory.load(std::memory_order_relaxed) &&
           sys::getpid() != g_pid.load(std::memory_order_relaxed);
}

void child_begins() {
    g_pid.store(sys::getpid(), std::memory_order_relaxed);
    ThreadState& t = thread_state;
    t.wait_timeout = nullptr;
    dispositions_after_fork();
    tell([] { sock::fork_child(); });
}

pid_t fork() {
    if (inside_library()) return libc.fork();
    before_fork();
    return after_fork(libc.fork());
}
VMA_ALIAS(__fork, fork);

pid_t _Fork() {
    if (inside_library()) return libc._Fork();
    before_fork();
    return after_fork(libc._Fork());
}

// A child on borrowed memory cannot live with our state: it would change the parent's. CLONE_VFORK without CLONE_VM gives
// it a copy and keeps the rest of the promise: the parent is held by the kernel until the child execs or exits, and no
// pthread_atfork handler runs. What is lost is that the child's stores are seen by the parent.
pid_t vfork() {
    if (!inside_library()) before_fork(true);
    const long pid = sys::raw(SYS_clone, CLONE_VFORK | SIGCHLD);
    if (inside_library()) return pid_t(pid);
    if (pid < 0) {
        tell([] { sock::fork_parent(-1); });
        errno = int(-pid);
        return -1;
    }
    return after_fork(pid_t(pid));
}
VMA_ALIAS(__vfork, vfork);

int clone(int (*fn)(void*), void* stack, int flags, void* arg, ...) {
    va_list ap;
    va_start(ap, arg);
    pid_t* parent_tid = va_arg(ap, pid_t*);
    void* tls = va_arg(ap, void*);
    pid_t* child_tid = va_arg(ap, pid_t*);
    va_end(ap);
    if ((flags & (CLONE_VM | CLONE_FILES)) == CLONE_VM && !on_borrowed_memory()) {
        g_pid.store(sys::getpid(), std::memory_order_relaxed);
        g_lends_memory.store(true, std::memory_order_relaxed);
    }
    if ((flags & CLONE_VM) != 0 || inside_library())
        return libc.clone(fn, stack, flags, arg, parent_tid, tls, child_tid);
    CloneStart start{fn, arg};
    before_fork(flags & CLONE_VFORK);
    return after_fork(
        libc.clone(fn ? clone_begins : nullptr, stack, flags, &start, parent_tid, tls, child_tid));
}
VMA_ALIAS(__clone, clone);

// daemon(3), made of hooks: libc's own forks and exits out of our sight.
int daemon(int nochdir, int noclose) {
    const pid_t pid = hook::fork();
    if (pid < 0) return -1;
    if (pid > 0) hook::_exit(0);
    if (setsid() < 0) return -1;
    if (!nochdir && chdir("/") != 0) errno = 0;  // as in libc, not an error of daemon()
    if (noclose) return 0;
    const int null = hook::open("/dev/null", O_RDWR);
    struct stat st {};
    if (null < 0 || fstat(null, &st) != 0) return -1;
    if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(1, 3)) {
        hook::close(null);
        errno = ENODEV;
        return -1;
    }
    for (int fd = 0; fd <= 2; fd++) hook::dup2(null, fd);
    if (null > 2) hook::close(null);
    return 0;
}

pid_t forkpty(int* master, char* name, const termios* term, const winsize* win) {
    before_fork();
    const pid_t pid = after_fork(libc.forkpty(master, name, term, win));
    if (pid > 0) fresh(*master);
    return pid;
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attr, char* const* argv, char* const* envp) {
    before_spawn();
    return libc.posix_spawn(pid, path, actions, attr, argv, envp);
}

int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attr, char* const* argv, char* const* envp) {
    before_spawn();
    return libc.posix_spawnp(pid, file, actions, attr, argv, envp);
}

// The list of file actions is libc's secret; what it will hand to a child is known when it is added.
int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd, int target) {
    needs_kernel(fd, Reason::exec);
    return libc.posix_spawn_file_actions_adddup2(actions, fd, target);
}

int system(const char* command) {
    before_spawn();
    return libc.system(command);
}

FILE* popen(const char* command, const char* type) {
    before_spawn();
    return libc.popen(command, type);
}
VMA_ALIAS(_IO_popen, popen);

int execve(const char* path, char* const* argv, char* const* envp) {
    if (is_missing(path)) return libc.execve(path, argv, envp);
    return with_exec(envp, [&](char* const* env) { return libc.execve(path, argv, env); });
}
int execv(const char* path, char* const* argv) { return hook::execve(path, argv, environ); }
int execvp(const char* file, char* const* argv) { return hook::execvpe(file, argv, environ); }
int execvpe(const char* file, char* const* argv, char* const* envp) {
    return with_exec(envp, [&](char* const* env) { return libc.execvpe(file, argv, env); });
}
int fexecve(int fd, char* const* argv, char* const* envp) {
    return with_exec(envp, [&](char* const* env) { return libc.fexecve(fd, argv, env); });
}
int execveat(int dir, const char* path, char* const* argv, char* const* envp, int flags) {
    return with_exec(envp,
                     [&](char* const* env) { return libc.execveat(dir, path, argv, env, flags); });
}

int execl(const char* path, const char* arg, ...) {
    va_list ap;
    va_start(ap, arg);
    const int result = with_list(arg, ap, [&](char** argv) { return hook::execv(path, argv); });
    va_end(ap);
    return result;
}

int execlp(const char* file, const char* arg, ...) {
    va_list ap;
    va_start(ap, arg);
    const int result = with_list(arg, ap, [&](char** argv) { return hook::execvp(file, argv); });
    va_end(ap);
    return result;
}

// The environment follows the list's null.
int execle(const char* path, const char* arg, ...) {
    va_list ap;
    va_start(ap, arg);
    const int result = with_list(
        arg, ap, [&](char** argv) { return hook::execve(path, argv, va_arg(ap, char* const*)); });
    va_end(ap);
    return result;
}

// atexit handlers may still use sockets: the library's destructor, which runs after them, does the rest.
void exit(int status) { libc.exit(status); }

void _exit(int status) {
    before_exit();
    libc._exit(status);
}
void _Exit(int status) {
    before_exit();
    libc._Exit(status);
}
void quick_exit(int status) {
    before_exit();
    libc.quick_exit(status);
}

}  // namespace vma::hook
