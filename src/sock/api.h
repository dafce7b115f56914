// The boundary between intercept and the socket layer: one function per socket-relevant libc call,
// with libc's parameters.
//
// Contract of every call that returns an Outcome
//  * kernel   not ours, or not any more: the hook calls libc with the same arguments. Nothing was
//  changed.
//  * value    done; `v` is what libc would return (>= 0). errno is left alone.
//  * error    done; `v` is a positive errno code, the hook returns -1.
//  * restart  only from a call that may block, made no progress and was interrupted by a signal
//  whose handler has SA_RESTART
//             (pending_signal() == restart, base/deferred_signal.h): the hook leaves the library,
//             the program's handler runs, and the same call is made again with the same arguments
//             (relative timeouts: return error EINTR instead).
//  * Called with the thread inside the library (ThreadState::depth > 0), no lock held, any thread,
//  never from a signal
//    handler of ours. libc calls made from inside go straight to libc. Pointers are the program's,
//    unchecked: the kernel would answer EFAULT; reading through them may fault exactly as libc's
//    own wrappers may.
//  * A call that may block waits through sys::blocking_ppoll with no lock held. pthread_cancel ends that wait with -EINTR and
//    pending_signal() == interrupt; the call returns error EINTR as usual and the hook ends the thread: nothing is unwound.
//  * No function here throws or prints to stdout; errno may be clobbered (the boundary saves it).
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/reason.h"

namespace vma::sock {

struct [[nodiscard]] Outcome {
    enum class Kind : uint8_t { kernel, value, error, restart };
    Kind kind = Kind::kernel;
    long v = 0;
    static constexpr Outcome kernel() { return {}; }
    // As kernel, for a socket or epoll set whose connections may be adopted: `pin` keeps them where they are until the
    // hook has come back from libc and called kernel_call_done(). A call that never comes back (pthread_cancel, longjmp)
    // only keeps them there for good.
    static Outcome kernel_pinned(void* pin) { return {Kind::kernel, reinterpret_cast<long>(pin)}; }
    static constexpr Outcome value(long result) { return {Kind::value, result}; }
    static constexpr Outcome error(int errno_code) { return {Kind::error, errno_code}; }
    static constexpr Outcome restart() { return {Kind::restart, 0}; }
};

// After libc's call for an outcome of kind kernel with v != 0.
void kernel_call_done(long pin);
// For an outcome that the library deals with itself.
void unpin(const Outcome& outcome);

// ---- Fast pre-check. The table is the socket layer's: one slot per fd number, non-null when there
// is a socket, epoll or other object of ours under it (perhaps a stale one). Slots are published
// before `size`; the table is never freed.
struct FdSlots {
    std::atomic<std::atomic<void*>*> slot{nullptr};
    std::atomic<unsigned> size{0};  // 0 until the first object exists
};
extern FdSlots fd_slots;

// False: certainly the kernel's. True: ask the function. Two loads, no call, any context.
inline bool maybe_ours(int fd) {
    if (unsigned(fd) >= fd_slots.size.load(std::memory_order_acquire)) return false;
    return fd_slots.slot.load(std::memory_order_relaxed)[fd].load(std::memory_order_relaxed) !=
           nullptr;
}
// True when no object was ever made in this process: poll and select hooks need not look at their
// sets.
inline bool nothing_ours() { return fd_slots.size.load(std::memory_order_relaxed) == 0; }

// ---- Start. Called before socket_created for AF_INET/AF_INET6 STREAM and DGRAM sockets, every
// time (cheap when done). Reads the configuration at the first one. `secure` is AT_SECURE:
// variables naming files or pointers are ignored. False: this process stays on the kernel.
bool start(bool secure);

// ---- Life of a descriptor.
// libc has just made `fd`; `type` still carries SOCK_NONBLOCK/SOCK_CLOEXEC. Cannot fail: at worst
// it stays kernel.
void socket_created(int fd, int domain, int type, int protocol);
// An epoll descriptor was made by libc (epoll_create passes flags 0).
void epoll_created(int fd, int flags);
// `fd` was just returned by a call that makes descriptors (open, pipe, accept on the kernel path,
// SCM_RIGHTS ...) and maybe_ours(fd) holds: what the table knows under this number is stale, the
// program closed it where we did not see.
void fd_reused(int fd);
// libc dup of oldfd into newfd has succeeded (dup, dup2, dup3, F_DUPFD*). newfd's former object is
// gone.
void dup(int oldfd, int newfd);
// Before libc closes `fd` by itself (dup2 and dup3 onto it, fclose, freopen): as close(), but the descriptor stays open
// for libc to close. maybe_ours(fd) holds.
void implicit_close(int fd);
// kernel: the hook closes it in libc (the usual answer, after our state is settled). close_range and closefrom call it for
// each of their descriptors that may be ours.
Outcome close(int fd);
Outcome shutdown(int fd, int how);

// ---- Addresses and options.
Outcome bind(int fd, const sockaddr* addr, socklen_t len);
Outcome connect(int fd, const sockaddr* addr, socklen_t len);
Outcome listen(int fd, int backlog);
Outcome accept4(int fd, sockaddr* addr, socklen_t* len, int flags);  // accept: flags 0
// Connections that waited for a listener that became the kernel's (handover.h): may there be any? Then each connection that
// libc has accepted is shown to settle_accepted(): `fd` itself, or another connection in its place with its peer's name, or
// -1: it was nothing and is closed, accept again. Also under a system call filter: no call but close, and fcntl if `flags`
// ask for it.
bool handovers();
int settle_accepted(int listener, int fd, sockaddr_storage& name, socklen_t& len, int flags);
// libc has accepted `fd` from `listener`, which may be unknown here; start() was called.
void accepted_by_kernel(int listener, int fd, int flags);
Outcome getsockname(int fd, sockaddr* addr, socklen_t* len);
Outcome getpeername(int fd, sockaddr* addr, socklen_t* len);
Outcome setsockopt(int fd, int level, int name, const void* value, socklen_t len);
Outcome getsockopt(int fd, int level, int name, void* value, socklen_t* len);
Outcome fcntl(int fd, int cmd,
              long arg);  // F_DUPFD*: answer kernel (after whatever is needed); dup() follows
Outcome ioctl(int fd, unsigned long request, void* arg);

// ---- Data. read, readv, recv, recvfrom, recvmsg all arrive as a msghdr; `call` says which one it
// was (a zero-byte read, a null msg_name with a non-null length and the like differ). The caller's
// msg_namelen, msg_controllen and msg_flags are results as in recvmsg(2).
enum class RecvCall : uint8_t { read, readv, recv, recvfrom, recvmsg };
// A send flag of the extra API: goes all the way but onto the wire. A number that Linux's sends ignore (MSG_SYN).
inline constexpr int kSendDummy = 0x400;
enum class SendCall : uint8_t { write, writev, send, sendto, sendmsg };
// `taker`: takes packets instead of bytes as far as it can (kept.h).
class Taker;
Outcome recvmsg(int fd, msghdr* msg, int flags, RecvCall call, Taker* taker = nullptr);
Outcome recvmmsg(int fd, mmsghdr* vec, unsigned n, int flags, timespec* timeout);
// After the kernel has answered a recvmsg() that was left to it: control messages that tell of the twin tell of the socket.
void received_by_kernel(int fd, msghdr& msg);
Outcome sendmsg(int fd, const msghdr* msg, int flags, SendCall call);
Outcome sendmmsg(int fd, mmsghdr* vec, unsigned n, int flags);
Outcome sendfile(int out_fd, int in_fd, off_t* offset, size_t count);
Outcome sockatmark(int fd);

// ---- Waiting. Called when !nothing_ours(). A null timeout waits for ever; the hook has checked
// tv_nsec ranges.
Outcome poll(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask);
// On return *timeout (when given) holds the time left, as Linux's select reports it.
Outcome select(int nfds, fd_set* read, fd_set* write, fd_set* except, timespec* timeout,
               const sigset_t* mask);
Outcome epoll_ctl(int ep, int op, int fd, epoll_event* event);
Outcome epoll_pwait2(int ep, epoll_event* events, int max, const timespec* timeout,
                     const sigset_t* mask);
// After a wait on the kernel set alone that gave n events: without the one by which the library calls back who waits there.
// 0: wait again by epoll_pwait2.
int epoll_without_call(epoll_event* events, int n);

// ---- Hand-back: something that only the kernel can do is about to happen to `fd` (maybe_ours(fd)
// holds). On return the kernel socket is the live one, or the fd stays ours because it could not be
// handed back (the call then meets the twin).
void hand_back(int fd,
               Reason why);    // splice family, preadv2, aio, SCM_RIGHTS (fd_passed), spawn (exec)
void fd_enters_stdio(int fd);  // fdopen, dprintf, dup2 to 0..2
void io_uring_seen();  // io_uring_setup or io_uring_enter went by: new sockets stay kernel, ours go
                       // back

// ---- Process life.
// Before fork, _Fork, vfork, daemon, forkpty and fork-like clone. only_exec: a vfork, whose child execs or exits at once:
// listeners then stay where they are.
void fork_prepare(bool only_exec);
void fork_parent(pid_t child);  // after, in the parent; -1: fork failed
void fork_child();    // first act of the child: close ring fds, forget shards. No malloc, no locks
                      // taken
void exec_prepare();  // exec in place: hand back every descriptor without CLOEXEC
// What the new program must know, a line for its environment: the listeners that it inherits together with connections that
// wait for them. False: nothing. `wanted`: it loads this library; else those connections are closed.
inline constexpr const char kInheritance[] = "LIBVMA_LISTENERS=";
bool exec_inheritance(bool wanted, char* line, size_t room);
void exec_inherited(const char* text);  // the value; start() was called
void exec_failed();                     // exec returned
void exit_prepare();  // exit, _exit, quick_exit and the library's unload: orphans go to the kernel
void seccomp_prepare();  // a filter is about to be installed: hand everything back, become
                         // pass-through
void setid_prepare();    // before setuid family, capset, PR_CAPBSET_DROP ...: privileges may go
void chroot_prepare();   // files that are needed later may be out of reach
// unshare or setns for a user namespace has failed. True: it may be tried again, our thread was in the way and is gone.
bool user_namespace_prepare();
// left: what the process may now counts nothing for its sockets. restart: user_namespace_prepare() was true.
void user_namespace_done(bool left, bool restart);
void thread_changed_privileges();  // one thread alone has: capset, or a system call by number
void thread_keeps_capabilities(bool keep);  // PR_SET_KEEPCAPS, of one thread alone
void netns_changed();  // setns or unshare(CLONE_NEWNET) succeeded in this thread
int release();         // vma_exit(): give back what can be given; 0, or -1 with nothing done

}  // namespace vma::sock
