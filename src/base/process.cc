#include "base/process.h"

#include <fcntl.h>
#include <signal.h>

#include <cstring>

#include "base/sys.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace vma {
namespace {

std::atomic<uint32_t> g_plain_word{0};  // until the page exists, and where MADV_WIPEONFORK does not
std::atomic<bool> g_page_tried{false};

void map_pid_page() {
    if (g_page_tried.exchange(true)) return;
    void* page =
        sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sys::failed(page)) return;
    if (sys::raw(SYS_madvise, sys::ptr(page), 4096, MADV_WIPEONFORK) != 0) {
        sys::munmap(page, 4096);
        return;
    }
    detail::pid_word.store(static_cast<std::atomic<uint32_t>*>(page), std::memory_order_release);
}

// "/proc/<pid>/<name>" into out; returns out.
const char* proc_path(char (&out)[48], uint32_t pid, const char* name) {
    char digits[10];
    int n = 0;
    do {
        digits[n++] = char('0' + pid % 10);
        pid /= 10;
    } while (pid);
    char* p = out;
    std::memcpy(p, "/proc/", 6);
    p += 6;
    while (n) *p++ = digits[--n];
    *p++ = '/';
    if (memccpy(p, name, 0, size_t(out + sizeof out - p)) == nullptr) out[sizeof out - 1] = 0;
    return out;
}

uint64_t parse_number(const char* p) {
    uint64_t v = 0;
    while (*p >= '0' && *p <= '9') v = v * 10 + uint64_t(*p++ - '0');
    return v;
}

struct ProcStat {
    char state = 0;  // 0: not readable
    uint64_t start_ticks = 0;
};

ProcStat read_stat(uint32_t pid) {
    char path[48];
    const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(proc_path(path, pid, "stat")),
                                O_RDONLY | O_CLOEXEC));
    if (fd < 0) return {};
    char text[1024];
    const ssize_t n = sys::read(fd, text, sizeof(text) - 1);
    sys::close(fd);
    if (n <= 0) return {};
    text[n] = 0;
    // The command name may hold anything, also ") ": fields are counted from the last parenthesis. State is field 3.
    const char* p = std::strrchr(text, ')');
    if (p == nullptr || p[1] != ' ') return {};
    ProcStat out;
    p += 2;
    out.state = *p;
    for (int field = 3; field < 22; ++field) {
        p = std::strchr(p, ' ');
        if (p == nullptr) return out;
        ++p;
    }
    out.start_ticks = parse_number(p);
    return out;
}

}  // namespace

namespace detail {
std::atomic<std::atomic<uint32_t>*> pid_word{&g_plain_word};
__thread uint64_t thread_identity __attribute__((tls_model("initial-exec"))) = 0;

uint64_t find_identity() {
    map_pid_page();
    const auto pid = uint32_t(sys::getpid());
    pid_word.load(std::memory_order_acquire)->store(pid, std::memory_order_relaxed);
    thread_identity = uint64_t(pid) << 32 | uint32_t(sys::gettid());
    return thread_identity;
}
}  // namespace detail

void forget_process_identity() {
    detail::pid_word.load(std::memory_order_relaxed)->store(0, std::memory_order_relaxed);
}

uint64_t process_start_ticks(uint32_t pid) { return read_stat(pid).start_ticks; }

bool process_alive(uint32_t pid, uint64_t start_ticks) {
    const int fd = int(sys::raw(SYS_pidfd_open, pid, 0));
    if (fd == -ESRCH) return false;
    if (fd < 0) {  // no pidfd here (old kernel, seccomp, no free number): what kill and /proc tell
        if (sys::raw(SYS_kill, pid, 0) == -ESRCH) return false;
        const ProcStat stat = read_stat(pid);
        if (stat.state == 0) return true;
        if (stat.state == 'Z' || stat.state == 'X') return false;
        return start_ticks == 0 || stat.start_ticks == start_ticks;
    }
    // Only while the descriptor pins the process is what /proc says about the same one.
    bool alive = true;
    if (start_ticks != 0) {
        const uint64_t now = process_start_ticks(pid);
        if (now != 0 && now != start_ticks) alive = false;
    }
    pollfd p{fd, POLLIN, 0};
    const timespec zero{};
    if (alive && sys::ppoll(&p, 1, &zero) == 1 && (p.revents & POLLIN)) alive = false;
    sys::close(fd);
    return alive;
}

uint64_t pid_namespace() {
    char text[64];
    const long n = sys::raw(SYS_readlinkat, AT_FDCWD, sys::ptr("/proc/self/ns/pid"), sys::ptr(text),
                            sizeof(text) - 1);
    if (n <= 0) return 0;
    text[n] = 0;
    const char* p = std::strchr(text, '[');
    return p ? parse_number(p + 1) : 0;
}

}  // namespace vma
