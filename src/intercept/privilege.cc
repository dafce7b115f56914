// Hooks: what changes what this process may do or sees: user and group ids, capabilities, seccomp, namespaces; and system
// calls made by number.
#include <dlfcn.h>
#include <linux/nsfs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/sys.h"
#include "intercept/hooks.h"
#include "intercept/process.h"

namespace vma::hook {
namespace {

// Before privileges may go: what needs them from now on is handed to the broker. A child that runs on our memory (CLONE_VM)
// changes nothing of ours: neither here nor by a filter or a namespace of its own.
void before_drop() {
    if (!inside_library() && !on_borrowed_memory()) tell([] { sock::setid_prepare(); });
}
// After a change that only the calling thread has made. Hooks of libc's functions do it for all threads.
template <class R>
R after_own_change(R result) {
    if (result == 0 && !inside_library() && !on_borrowed_memory())
        tell([] { sock::thread_changed_privileges(); });
    return result;
}
void before_filter() {
    if (!inside_library() && !on_borrowed_memory()) tell([] { sock::seccomp_prepare(); });
}
void after_namespace(bool network_changed) {
    if (network_changed && !inside_library() && !on_borrowed_memory())
        tell([] { sock::netns_changed(); });
}

// The kernel lets only processes of one thread do that, and the program may be one but for our thread. What it may in the new
// namespace counts nothing for its sockets, unless the network is a new one, too.
template <class Call>
int enter_user_namespace(bool same_network, const Call& call) {
    if (inside_library() || on_borrowed_memory()) return call();
    before_drop();
    int result = call();
    bool alone = false;
    if (result != 0 && errno == EINVAL) {
        tell([&] { alone = sock::user_namespace_prepare(); });
        if (alone) result = call();
    }
    if (alone || result == 0)
        tell([&] { sock::user_namespace_done(result == 0 && same_network, alone); });
    return result;
}

bool changes_privilege(long number) {
    switch (number) {
        case SYS_setuid:
        case SYS_setgid:
        case SYS_setreuid:
        case SYS_setregid:
        case SYS_setresuid:
        case SYS_setresgid:
        case SYS_setfsuid:
        case SYS_setfsgid:
        case SYS_setgroups:
        case SYS_capset:
            return true;
        default:
            return false;
    }
}

bool forks(long number, const long* a) {
#ifdef SYS_fork
    if (number == SYS_fork) return true;
#endif
    if (number == SYS_clone) return (a[0] & CLONE_VM) == 0;
    // The first member of struct clone_args is its 64-bit flags.
    if (number == SYS_clone3 && a[0] != 0)
        return (*reinterpret_cast<const uint64_t*>(a[0]) & CLONE_VM) == 0;
    return false;
}

bool only_execs(long number, const long* a) {
    if (number == SYS_clone) return (a[0] & CLONE_VFORK) != 0;
    return number == SYS_clone3 && (*reinterpret_cast<const uint64_t*>(a[0]) & CLONE_VFORK) != 0;
}

template <class T>
T* at(long address) {
    return reinterpret_cast<T*>(address);
}

// A socket call by number, for a descriptor that may be ours, means what the call by name means. False: not one of these.
// NOLINTNEXTLINE(readability-function-size): a case for each
bool socket_call(long number, const long* a, long& result) {
    const int fd = int(a[0]);
    switch (number) {
        case SYS_read:
            result = hook::read(fd, at<void>(a[1]), size_t(a[2]));
            return true;
        case SYS_write:
            result = hook::write(fd, at<void>(a[1]), size_t(a[2]));
            return true;
        case SYS_readv:
            result = hook::readv(fd, at<iovec>(a[1]), int(a[2]));
            return true;
        case SYS_writev:
            result = hook::writev(fd, at<iovec>(a[1]), int(a[2]));
            return true;
        case SYS_recvfrom:
            result = hook::recvfrom(fd, at<void>(a[1]), size_t(a[2]), int(a[3]), at<sockaddr>(a[4]),
                                    at<socklen_t>(a[5]));
            return true;
        case SYS_sendto:
            result = hook::sendto(fd, at<void>(a[1]), size_t(a[2]), int(a[3]), at<sockaddr>(a[4]),
                                  socklen_t(a[5]));
            return true;
        case SYS_recvmsg:
            result = hook::recvmsg(fd, at<msghdr>(a[1]), int(a[2]));
            return true;
        case SYS_sendmsg:
            result = hook::sendmsg(fd, at<msghdr>(a[1]), int(a[2]));
            return true;
        case SYS_recvmmsg:
            result = hook::recvmmsg(fd, at<mmsghdr>(a[1]), unsigned(a[2]), int(a[3]),
                                    at<timespec>(a[4]));
            return true;
        case SYS_sendmmsg:
            result = hook::sendmmsg(fd, at<mmsghdr>(a[1]), unsigned(a[2]), int(a[3]));
            return true;
        case SYS_close:
            result = hook::close(fd);
            return true;
        case SYS_shutdown:
            result = hook::shutdown(fd, int(a[1]));
            return true;
        case SYS_bind:
            result = hook::bind(fd, at<sockaddr>(a[1]), socklen_t(a[2]));
            return true;
        case SYS_connect:
            result = hook::connect(fd, at<sockaddr>(a[1]), socklen_t(a[2]));
            return true;
        case SYS_listen:
            result = hook::listen(fd, int(a[1]));
            return true;
        case SYS_accept:
            result = hook::accept(fd, at<sockaddr>(a[1]), at<socklen_t>(a[2]));
            return true;
        case SYS_accept4:
            result = hook::accept4(fd, at<sockaddr>(a[1]), at<socklen_t>(a[2]), int(a[3]));
            return true;
        case SYS_getsockname:
            result = hook::getsockname(fd, at<sockaddr>(a[1]), at<socklen_t>(a[2]));
            return true;
        case SYS_getpeername:
            result = hook::getpeername(fd, at<sockaddr>(a[1]), at<socklen_t>(a[2]));
            return true;
        case SYS_setsockopt:
            result = hook::setsockopt(fd, int(a[1]), int(a[2]), at<void>(a[3]), socklen_t(a[4]));
            return true;
        case SYS_getsockopt:
            result =
                hook::getsockopt(fd, int(a[1]), int(a[2]), at<void>(a[3]), at<socklen_t>(a[4]));
            return true;
        case SYS_dup:
            result = hook::dup(fd);
            return true;
        case SYS_dup3:
            result = hook::dup3(fd, int(a[1]), int(a[2]));
            return true;
#ifdef SYS_dup2
        case SYS_dup2:
            result = hook::dup2(fd, int(a[1]));
            return true;
#endif
        case SYS_fcntl:
            result = hook::fcntl(fd, int(a[1]), a[2]);
            return true;
        case SYS_ioctl:
            result = hook::ioctl(fd, static_cast<unsigned long>(a[1]), at<void>(a[2]));
            return true;
        case SYS_sendfile:
            result = hook::sendfile(fd, int(a[1]), at<off_t>(a[2]), size_t(a[3]));
            return true;
#ifdef SYS_epoll_wait
        case SYS_epoll_wait:
            result = hook::epoll_wait(fd, at<epoll_event>(a[1]), int(a[2]), int(a[3]));
            return true;
#endif
        case SYS_epoll_pwait:
            result = hook::epoll_pwait(fd, at<epoll_event>(a[1]), int(a[2]), int(a[3]),
                                       at<sigset_t>(a[4]));
            return true;
        case SYS_epoll_pwait2:
            result = hook::epoll_pwait2(fd, at<epoll_event>(a[1]), int(a[2]), at<timespec>(a[3]),
                                        at<sigset_t>(a[4]));
            return true;
        case SYS_epoll_ctl:
            result = hook::epoll_ctl(fd, int(a[1]), int(a[2]), at<epoll_event>(a[3]));
            return true;
        default:
            return false;
    }
}

// Calls whose first argument says nothing about whether one of ours is meant.
bool names_others(long number, const long* a, long& result) {
    switch (number) {
#ifdef SYS_poll
        case SYS_poll:
            result = hook::poll(at<pollfd>(a[0]), nfds_t(a[1]), int(a[2]));
            return true;
#endif
        case SYS_sendmsg:  // SCM_RIGHTS over a socket of another family
            result = hook::sendmsg(int(a[0]), at<msghdr>(a[1]), int(a[2]));
            return true;
        case SYS_sendmmsg:
            result = hook::sendmmsg(int(a[0]), at<mmsghdr>(a[1]), unsigned(a[2]), int(a[3]));
            return true;
        case SYS_recvmsg:
            result = hook::recvmsg(int(a[0]), at<msghdr>(a[1]), int(a[2]));
            return true;
        case SYS_epoll_ctl:
            result = hook::epoll_ctl(int(a[0]), int(a[1]), int(a[2]), at<epoll_event>(a[3]));
            return true;
        case SYS_splice:
            result = hook::splice(int(a[0]), at<off_t>(a[1]), int(a[2]), at<off_t>(a[3]),
                                  size_t(a[4]), unsigned(a[5]));
            return true;
        default:
            return false;
    }
}

// Own descriptors are looked for even where the number's slot is empty.
bool touches_descriptors(long number) {
    switch (number) {
        case SYS_close:
        case SYS_dup:
        case SYS_dup3:
#ifdef SYS_dup2
        case SYS_dup2:
#endif
            return true;
        default:
            return false;
    }
}

}  // namespace

int setuid(uid_t id) {
    before_drop();
    return libc.setuid(id);
}
int setgid(gid_t id) {
    before_drop();
    return libc.setgid(id);
}
int seteuid(uid_t id) {
    before_drop();
    return libc.seteuid(id);
}
int setegid(gid_t id) {
    before_drop();
    return libc.setegid(id);
}
int setreuid(uid_t real, uid_t effective) {
    before_drop();
    return libc.setreuid(real, effective);
}
int setregid(gid_t real, gid_t effective) {
    before_drop();
    return libc.setregid(real, effective);
}
int setresuid(uid_t real, uid_t effective, uid_t saved) {
    before_drop();
    return libc.setresuid(real, effective, saved);
}
int setresgid(gid_t real, gid_t effective, gid_t saved) {
    before_drop();
    return libc.setresgid(real, effective, saved);
}
int setfsuid(uid_t id) {
    before_drop();
    return libc.setfsuid(id);
}
int setfsgid(gid_t id) {
    before_drop();
    return libc.setfsgid(id);
}
int setgroups(size_t n, const gid_t* list) {
    before_drop();
    return libc.setgroups(n, list);
}
int initgroups(const char* user, gid_t group) {
    before_drop();
    return libc.initgroups(user, group);
}
int capset(void* header, const void* data) {
    before_drop();
    return after_own_change(libc.capset(header, data));
}

int prctl(int option, ...) {
    va_list ap;
    va_start(ap, option);
    unsigned long a[4];
    for (auto& v : a) v = va_arg(ap, unsigned long);
    va_end(ap);
    if (option == PR_SET_SECCOMP) before_filter();
    if (option == PR_CAPBSET_DROP || option == PR_SET_SECUREBITS) before_drop();
    const int result = libc.prctl(option, a[0], a[1], a[2], a[3]);
    if (option == PR_SET_KEEPCAPS && result == 0 && !inside_library() && !on_borrowed_memory())
        tell([&] { sock::thread_keeps_capabilities(a[0] != 0); });
    return result;
}

int chroot(const char* path) {
    if (!inside_library() && !on_borrowed_memory()) tell([] { sock::chroot_prepare(); });
    return libc.chroot(path);
}

int setns(int fd, int type) {
    const auto call = [=] { return libc.setns(fd, type); };
    const bool user = (type & CLONE_NEWUSER) != 0 ||
                      (type == 0 && sys::raw(SYS_ioctl, fd, NS_GET_NSTYPE) == CLONE_NEWUSER);
    const int result = user ? enter_user_namespace((type & CLONE_NEWNET) == 0, call) : call();
    // Type 0 joins whatever `fd` is.
    after_namespace(result == 0 && (type == 0 || (type & CLONE_NEWNET) != 0));
    return result;
}

int unshare(int flags) {
    const auto call = [=] { return libc.unshare(flags); };
    const int result =
        flags & CLONE_NEWUSER ? enter_user_namespace((flags & CLONE_NEWNET) == 0, call) : call();
    after_namespace(result == 0 && (flags & CLONE_NEWNET) != 0);
    return result;
}

long syscall(long number, ...) {
    va_list ap;
    va_start(ap, number);
    long a[6];
    for (auto& v : a) v = va_arg(ap, long);
    va_end(ap);
    const auto kernel = [&] { return libc.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
    if (inside_library()) return kernel();
    long result;
    if ((sock::maybe_ours(int(a[0])) || touches_descriptors(number)) &&
        socket_call(number, a, result))
        return result;
    if (!sock::nothing_ours() && names_others(number, a, result)) return result;
    if (number == SYS_socket) return hook::socket(int(a[0]), int(a[1]), int(a[2]));
    if (number == SYS_close_range)
        return hook::close_range(unsigned(a[0]), unsigned(a[1]), int(a[2]));
    if (number == SYS_epoll_create1) return hook::epoll_create1(int(a[0]));
    if (number == SYS_io_uring_setup || number == SYS_io_uring_enter ||
        number == SYS_io_uring_register)
        tell([] { sock::io_uring_seen(); });
    if (number == SYS_seccomp &&
        (a[0] == SECCOMP_SET_MODE_FILTER || a[0] == SECCOMP_SET_MODE_STRICT))
        before_filter();
    if (changes_privilege(number)) {
        before_drop();
        return after_own_change(kernel());
    }
    if (number == SYS_prctl) return hook::prctl(int(a[0]), a[1], a[2], a[3], a[4]);
    if (number == SYS_chroot) return hook::chroot(at<char>(a[0]));
    if (number == SYS_setns) return hook::setns(int(a[0]), int(a[1]));
    if (number == SYS_unshare) return hook::unshare(int(a[0]));
    if (number == SYS_execve) return hook::execve(at<char>(a[0]), at<char*>(a[1]), at<char*>(a[2]));
    if (number == SYS_execveat)
        return hook::execveat(int(a[0]), at<char>(a[1]), at<char*>(a[2]), at<char*>(a[3]),
                              int(a[4]));
    if (number == SYS_exit_group && !on_borrowed_memory()) tell([] { sock::exit_prepare(); });
    if (!forks(number, a)) return kernel();
    tell([=] { sock::fork_prepare(only_execs(number, a)); });
    const long pid = kernel();
    if (pid == 0)
        child_begins();
    else
        tell([&] { sock::fork_parent(pid_t(pid)); });
    return pid;
}

// io_uring has no libc symbol. Programs reach it through syscall() above or through liburing, which makes the system call
// inline: these are its ways in. What is linked in statically is not seen; the kernel then meets the twin.
namespace {

// liburing's own function: the next one in the global scope, or that of a copy which a plugin brought along.
template <class F>
F* uring_symbol(const char* name) {
    if (void* next = dlsym(RTLD_NEXT, name)) return reinterpret_cast<F*>(next);
    for (const char* file : {"liburing.so.2", "liburing.so.1"}) {
        void* library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) continue;
        void* symbol = dlsym(library, name);
        dlclose(library);
        if (symbol) return reinterpret_cast<F*>(symbol);
    }
    return nullptr;
}

template <class F, class... A>
int uring_start(F* symbol, A... arguments) {
    if (symbol == nullptr) return -ENOSYS;  // as on a kernel without io_uring
    if (!inside_library()) tell([] { sock::io_uring_seen(); });
    return symbol(arguments...);
}

}  // namespace

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
    return uring_start(uring_symbol<decltype(io_uring_queue_init)>("io_uring_queue_init"), entries,
                       ring, flags);
}
int io_uring_queue_init_params(unsigned entries, void* ring, void* params) {
    return uring_start(
        uring_symbol<decltype(io_uring_queue_init_params)>("io_uring_queue_init_params"), entries,
        ring, params);
}
int io_uring_queue_init_mem(unsigned entries, void* ring, void* params, void* buf, size_t size) {
    return uring_start(uring_symbol<decltype(io_uring_queue_init_mem)>("io_uring_queue_init_mem"),
                       entries, ring, params, buf, size);
}
int io_uring_setup(unsigned entries, void* params) {
    return uring_start(uring_symbol<decltype(io_uring_setup)>("io_uring_setup"), entries, params);
}

}  // namespace vma::hook
