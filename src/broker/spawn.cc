#include "broker/spawn.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/signals_blocked.h"
#include "base/sys.h"

namespace vma::broker {
namespace {

constexpr size_t kStack = 32 * 1024;  // each; the two children make a handful of system calls
constexpr int kLeast = 10;            // descriptors are moved above what the broker gets

std::atomic<bool> g_elsewhere{false};  // the capabilities are of another user namespace

struct Capabilities {
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    bool get() { return sys::raw(SYS_capget, sys::ptr(&head), sys::ptr(data)) == 0; }
    bool set() { return sys::raw(SYS_capset, sys::ptr(&head), sys::ptr(data)) == 0; }
    bool has(int cap) const { return data[cap / 32].effective & (1u << (cap % 32)); }
};

// Shared with the children, which run in our memory while we wait.
struct Start {
    const char* path;
    char* const* argv;
    char* const* environment;
    int socket;
    int null;
    uint8_t* stack;  // top of the second child's
    int error;
};

// The broker-to-be. Its memory is ours, its descriptor table a copy.
int become_broker(void* context) {
    Start& s = *static_cast<Start*>(context);
    for (int fd = 0; fd <= 2; fd++) sys::raw(SYS_dup3, s.null, fd, 0);
    sys::raw(SYS_dup3, s.socket, kBrokerSocket, 0);
    sys::raw(SYS_close_range, kBrokerSocket + 1, ~0u, 0);
    keep_capabilities();
    s.error =
        int(-sys::raw(SYS_execve, sys::ptr(s.path), sys::ptr(s.argv), sys::ptr(s.environment)));
    sys::raw(SYS_exit, 127);
    return 127;
}

// Exists only so that the broker is not the program's child.
int go_between(void* context) {
    Start& s = *static_cast<Start*>(context);
    sys::raw(SYS_setsid);
    if (clone(become_broker, s.stack, CLONE_VM | CLONE_VFORK | SIGCHLD, context) < 0)
        s.error = EAGAIN;
    sys::raw(SYS_exit, 0);
    return 0;
}

bool runnable(const char* path) {
    return sys::raw(SYS_faccessat, AT_FDCWD, sys::ptr(path), 1 /* X_OK */) == 0;
}

constexpr uid_t kNoNumber = 65534;  // /proc/sys/kernel/overflowuid

// In one of its own, in which not every user of the host has a number.
bool in_user_namespace() {
    const int fd =
        int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr("/proc/self/uid_map"), O_RDONLY | O_CLOEXEC));
    if (fd < 0) return false;
    char text[128];
    const ssize_t n = sys::read(fd, text, sizeof text - 1);
    sys::close(fd);
    unsigned inside = 0, outside = 0, count = 0;
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%u %u %u", &inside, &outside, &count) != 3 || count != UINT32_MAX;
}

// Root of a container that is on the host's network has every capability, and none over that network.
bool network_is_of_another_namespace() {
    if (!in_user_namespace()) return false;
    const int net =
        int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr("/proc/self/ns/net"), O_RDONLY | O_CLOEXEC));
    if (net < 0) return false;
    // EPERM: its owner is a namespace outside of ours.
    const int owner = int(sys::raw(SYS_ioctl, net, NS_GET_USERNS));
    sys::close(net);
    if (owner >= 0) sys::close(owner);
    return owner == -EPERM;
}

}  // namespace

void keep_capabilities() {
    Capabilities c;
    if (sys::raw(SYS_geteuid) == 0 || !c.get()) return;
    for (auto& word : c.data) word.inheritable = word.permitted;
    if (!c.set()) return;
    for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
        if (c.data[cap / 32].permitted & (1u << (cap % 32)))
            sys::raw(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap);
}

bool has_net_admin() {
    static const bool started_elsewhere = network_is_of_another_namespace();
    Capabilities c;
    return !started_elsewhere && !g_elsewhere.load(std::memory_order_relaxed) && c.get() &&
           c.has(CAP_NET_ADMIN);
}

bool has_net_admin_of_host() {
    static const bool inside = in_user_namespace();
    return !inside && has_net_admin();
}

void capabilities_are_of_another_namespace() { g_elsewhere.store(true, std::memory_order_relaxed); }

bool has_sys_admin() {
    Capabilities c;
    return c.get() && c.has(CAP_SYS_ADMIN);
}

bool find_broker(const char* wished, char* out, size_t room) {
    if (wished != nullptr && *wished != 0)
        return size_t(snprintf(out, room, "%s", wished)) < room && runnable(out);
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&has_net_admin), &info) == 0 || info.dli_fname == nullptr)
        return false;
    const char* slash = std::strrchr(info.dli_fname, '/');
    const int folder = slash ? int(slash - info.dli_fname) : 0;
    for (const char* rest : {"/../bin/vmad", "/vmad", VMA_INSTALLED_BROKER}) {
        const int n =
            snprintf(out, room, "%.*s%s", folder ? folder : 1, folder ? info.dli_fname : ".", rest);
        if (n > 0 && size_t(n) < room && runnable(out)) return true;
    }
    return false;
}

Result<int> knock_at_host_broker() {
    const int fd = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return Errno{-fd};
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, kHostSocket, sizeof kHostSocket);
    int error = sys::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
    ucred who{};
    socklen_t len = sizeof who;
    if (error == 0) error = sys::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
    // The root of the host is nobody that a user namespace has a number for. Who could put a socket of his own under this name
    // is root of the mount namespace in either case.
    if (error == 0 && who.uid != 0 && !(who.uid == kNoNumber && in_user_namespace()))
        error = -EACCES;
    if (error == 0) return fd;
    sys::close(fd);
    return Errno{-error};
}

Result<int> spawn_broker(const char* path, const char* program) {
    int pair[2];
    const long made =
        sys::raw(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sys::ptr(pair));
    if (made < 0) return Errno{int(-made)};
    const int socket = sys::fcntl(pair[1], F_DUPFD_CLOEXEC, kLeast);
    sys::close(pair[1]);
    const int opened =
        int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr("/dev/null"), O_RDWR | O_CLOEXEC));
    const int null = opened < 0 ? opened : sys::fcntl(opened, F_DUPFD_CLOEXEC, kLeast);
    if (opened >= 0) sys::close(opened);
    void* stacks = sys::mmap(nullptr, 2 * kStack, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

    char pid[16];
    snprintf(pid, sizeof pid, "%d", sys::getpid());
    const char* argv[] = {"vmad", "--broker", "for", pid, program, nullptr};
    const char* environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", nullptr};
    Start start{path,
                const_cast<char* const*>(argv),
                const_cast<char* const*>(environment),
                socket,
                null,
                nullptr,
                0};
    if (socket < 0 || null < 0) {
        start.error = EMFILE;
    } else if (sys::failed(stacks)) {
        start.error = ENOMEM;
    } else {
        auto* base = static_cast<uint8_t*>(stacks);
        start.stack = base + 2 * kStack;
        // No handler of the program may run in the children: they are on its memory.
        SignalsBlocked blocked;
        const int child = clone(go_between, base + kStack, CLONE_VM | CLONE_VFORK, &start);
        if (child < 0) {
            start.error = EAGAIN;
        } else {
            int status;
            while (sys::raw(SYS_wait4, child, sys::ptr(&status), long(__WCLONE), 0) == -EINTR) {
            }
        }
    }
    if (!sys::failed(stacks)) sys::munmap(stacks, 2 * kStack);
    if (socket >= 0) sys::close(socket);
    if (null >= 0) sys::close(null);
    if (start.error) {
        sys::close(pair[0]);
        return Errno{start.error};
    }
    return pair[0];
}

}  // namespace vma::broker
