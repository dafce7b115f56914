#include "sock/api.h"

// Every socket is the kernel's.
namespace vma::sock {

FdSlots fd_slots;

bool start(bool) { return false; }
void socket_created(int, int, int, int) {}
void epoll_created(int, int) {}
void fd_reused(int) {}
void dup(int, int) {}
void implicit_close(int) {}
Outcome close(int) { return Outcome::kernel(); }
Outcome shutdown(int, int) { return Outcome::kernel(); }
Outcome bind(int, const sockaddr*, socklen_t) { return Outcome::kernel(); }
Outcome connect(int, const sockaddr*, socklen_t) { return Outcome::kernel(); }
Outcome listen(int, int) { return Outcome::kernel(); }
Outcome accept4(int, sockaddr*, socklen_t*, int) { return Outcome::kernel(); }
Outcome getsockname(int, sockaddr*, socklen_t*) { return Outcome::kernel(); }
Outcome getpeername(int, sockaddr*, socklen_t*) { return Outcome::kernel(); }
Outcome setsockopt(int, int, int, const void*, socklen_t) { return Outcome::kernel(); }
Outcome getsockopt(int, int, int, void*, socklen_t*) { return Outcome::kernel(); }
Outcome fcntl(int, int, long) { return Outcome::kernel(); }
Outcome ioctl(int, unsigned long, void*) { return Outcome::kernel(); }
Outcome recvmsg(int, msghdr*, int, RecvCall) { return Outcome::kernel(); }
Outcome recvmmsg(int, mmsghdr*, unsigned, int, timespec*) { return Outcome::kernel(); }
Outcome sendmsg(int, const msghdr*, int, SendCall) { return Outcome::kernel(); }
Outcome sendmmsg(int, mmsghdr*, unsigned, int) { return Outcome::kernel(); }
Outcome sendfile(int, int, off_t*, size_t) { return Outcome::kernel(); }
Outcome sockatmark(int) { return Outcome::kernel(); }
Outcome poll(pollfd*, nfds_t, const timespec*, const sigset_t*) { return Outcome::kernel(); }
Outcome select(int, fd_set*, fd_set*, fd_set*, timespec*, const sigset_t*) {
    return Outcome::kernel();
}
Outcome epoll_ctl(int, int, int, epoll_event*) { return Outcome::kernel(); }
Outcome epoll_pwait2(int, epoll_event*, int, const timespec*, const sigset_t*) {
    return Outcome::kernel();
}
void hand_back(int, Reason) {}
void fd_enters_stdio(int) {}
void io_uring_seen() {}
void fork_prepare() {}
void fork_parent(pid_t) {}
void fork_child() {}
void exec_prepare() {}
void exec_failed() {}
void exit_prepare() {}
void seccomp_prepare() {}
void setid_prepare() {}
void netns_changed() {}
int release() { return 0; }

}  // namespace vma::sock
