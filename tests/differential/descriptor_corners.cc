// fcntl(), ioctl(), close() and duplicates of sockets: corners.
#include <linux/close_range.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "differential/behaviour.h"

namespace {
void stays() {
    connected();
    step("over");
}
void echo() {
    const int s = connected();
    char buffer[4096];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) put(s, std::string(buffer, size_t(n)));
}
}  // namespace

BEHAVIOUR(status_flags, "F_GETFL, F_SETFL: which flags stay, which are refused");
void status_flags::a() {
    const int s = connected(), u = udp_pair(1);
    for (const int fd : {s, u}) {
        SEE(fcntl(fd, F_GETFL));
        for (const int flags : {O_NONBLOCK, O_APPEND, O_RDONLY, O_WRONLY, O_DIRECT, O_NOATIME,
                                O_SYNC, O_CLOEXEC, 0}) {
            SEE(fcntl(fd, F_SETFL, flags));
            SEE(fcntl(fd, F_GETFL));
        }
    }
    step("over");
}
void status_flags::b() {
    connected();
    udp_pair(1);
    step("over");
}

BEHAVIOUR(locks_on_sockets,
          "flock(), F_SETLK, F_OFD_SETLK, leases, pipe sizes and seals of a socket");
void locks_on_sockets::a() {
    const int s = connected();
    SEE(flock(s, LOCK_EX | LOCK_NB));
    SEE(flock(s, LOCK_UN));
    struct flock lock {};
    lock.l_type = F_WRLCK;
    SEE(fcntl(s, F_SETLK, &lock));
    SEE(fcntl(s, F_GETLK, &lock));
    SEE(fcntl(s, F_OFD_SETLK, &lock));
    SEE(fcntl(s, F_SETLEASE, F_RDLCK));
    SEE(fcntl(s, F_GETLEASE));
    SEE(fcntl(s, F_GETPIPE_SZ));
    SEE(fcntl(s, F_SETPIPE_SZ, 4096));
    SEE(fcntl(s, F_ADD_SEALS, 0));
    SEE(fcntl(s, F_NOTIFY, 0));
    step("over");
}
void locks_on_sockets::b() { stays(); }

BEHAVIOUR(owners, "F_SETOWN, F_GETOWN, F_SETOWN_EX, F_GETOWN_EX, F_SETSIG, F_GETSIG");
void owners::a() {
    const int s = connected();
    SEE(fcntl(s, F_GETOWN));
    SEE(fcntl(s, F_GETSIG));
    SEE(fcntl(s, F_SETOWN, getpid()));
    SEE(fcntl(s, F_GETOWN) == getpid());
    SEE(fcntl(s, F_SETOWN, 0x7ffffff0));
    SEE(fcntl(s, F_SETSIG, 1000));
    SEE(fcntl(s, F_SETSIG, 10));
    SEE(fcntl(s, F_GETSIG));
    struct f_owner_ex ex {
        F_OWNER_TID, own_tid()
    };
    SEE(fcntl(s, F_SETOWN_EX, &ex));
    ex = {};
    SEE(fcntl(s, F_GETOWN_EX, &ex));
    SEE(ex.type == F_OWNER_TID && ex.pid == own_tid());
    SEE(fcntl(s, F_SETOWN, 0));
    step("over");
}
void owners::b() { stays(); }

BEHAVIOUR(files_of_sockets,
          "fstat(), fstatfs(), extended attributes, mmap(), fallocate() of a socket");
void files_of_sockets::a() {
    const int s = connected();
    struct stat st {
    }, copy{};
    SEE(fstat(s, &st));
    SEE(long(st.st_mode & S_IFMT) == S_IFSOCK);
    SEE(long(st.st_nlink));
    SEE(long(st.st_blocks));
    const int d = dup(s);
    SEE(fstat(d, &copy));
    SEE(copy.st_ino == st.st_ino);
    char room[64] = {};
    SEE(fgetxattr(s, "system.sockprotoname", room, sizeof room));
    SEE(std::string(room));
    SEE(fallocate(s, 0, 0, 10));
    SEE(fchown(s, 0, 0));
    SEE(futimens(s, nullptr));
    SEE(syncfs(s));
    SEE(posix_fallocate(s, 0, 10));
    SEE(ftruncate(s, 0));
    SEE(readahead(s, 0, 10));
    step("over");
}
void files_of_sockets::b() { stays(); }

BEHAVIOUR(dup_corners, "dup2() onto itself, onto closed numbers, beyond the limit; dup3() flags");
void dup_corners::a() {
    const int s = connected();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int beyond = int(limit.rlim_cur);
    SEE(dup2(s, beyond));
    SEE(dup2(s, beyond + 1000));
    SEE(dup3(s, beyond, 0));
    SEE(fcntl(s, F_DUPFD, beyond));
    SEE(dup2(100, 100));
    SEE(dup3(s, 101, 0x12345));
    SEE(dup2(s, 100));
    SEE(fcntl(100, F_GETFD));
    SEE(dup3(100, 102, O_CLOEXEC));
    SEE(fcntl(102, F_GETFD));
    SEE(close(100));
    SEE(put(102, "through the copy"));
    SEE(got(s, 16, MSG_WAITALL));
    SEE(shutdown(102, SHUT_WR));
}
void dup_corners::b() { echo(); }

BEHAVIOUR(dup_many,
          "a hundred duplicates, closed in another order; the last one ends the connection");
void dup_many::a() {
    const int s = connected();
    std::vector<int> copies;
    for (int i = 0; i < 100; i++) copies.push_back(dup(s));
    close(s);
    for (size_t i = 0; i < copies.size(); i += 2) close(copies[i]);
    SEE(put(copies[99], "alive"));
    SEE(got(copies[1], 5, MSG_WAITALL));
    for (size_t i = 1; i < copies.size(); i += 2) close(copies[i]);
    SEE(put(copies[99], "x"));
}
void dup_many::b() { echo(); }

BEHAVIOUR(raw_calls, "system calls by number on a connection: dup, fcntl, close");
void raw_calls::a() {
    const int s = connected();
    const int copy = int(syscall(SYS_dup, s));
    SEE(copy == s + 1);
    SEE(syscall(SYS_fcntl, s, F_GETFD, 0));
    SEE(put(s, "by name"));
    SEE(got(s, 7, MSG_WAITALL));
    SEE(syscall(SYS_close, copy));
    SEE(put(s, "still"));
    SEE(got(s, 5, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
}
void raw_calls::b() { echo(); }

BEHAVIOUR(close_twice, "close() twice; close() of a number that is used again in between");
void close_twice::a() {
    const int s = connected();
    SEE(close(s));
    SEE(close(s));
    const int null = open("/dev/null", O_RDWR);
    SEE(null == s);
    SEE(write(s, "x", 1));
    SEE(close(s));
    const int t = connected(1);
    SEE(t == s);
    SEE(put(t, "another"));
    SEE(close(t));
}
void close_twice::b() {
    SEE(rest(connected()));
    SEE(rest(connected(1)));
}

BEHAVIOUR(unshared_range, "close_range() with CLOSE_RANGE_UNSHARE in a thread");
void unshared_range::a() {
    const int s = connected();
    std::string inside;
    Thread thread([&] {
        const int result = close_range(unsigned(s), ~0u, CLOSE_RANGE_UNSHARE);
        inside = std::to_string(result);
    });
    thread.join();
    SEE(inside);
    SEE(put(s, "mine"));
    SEE(got(s, 4, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
}
void unshared_range::b() { echo(); }

BEHAVIOUR(types_and_protocols,
          "socket(): types, protocols and flags that are refused; what is told of the others",
          a_kernel);
void types_and_protocols::a() {
    const int on = tcp(), u = udp_pair();
    on_ring(u);
    SEE(socket(AF_INET, SOCK_STREAM | 0x100000, 0));
    SEE(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    SEE(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
    SEE(socket(AF_INET, SOCK_SEQPACKET, 0));
    SEE(socket(AF_INET, 0, 0));
    SEE(socket(AF_INET, SOCK_STREAM, 300));
    SEE(socket(-1, SOCK_STREAM, 0));
    SEE(socket(AF_INET, SOCK_STREAM, IPPROTO_TCP) > on);
    SEE(socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP) > on);
    const int flagged = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    SEE((fcntl(flagged, F_GETFL) & O_NONBLOCK) != 0);
    SEE(fcntl(flagged, F_GETFD));
    SEE(option(flagged, SOL_SOCKET, SO_TYPE));
    SEE(option(flagged, SOL_SOCKET, SO_PROTOCOL));
    SEE(socketpair(AF_INET, SOCK_DGRAM, 0, nullptr));
}
void types_and_protocols::b() { udp_pair(); }

BEHAVIOUR(names_short, "getsockname() and getpeername() with room that is short, none or negative");
void names_short::a() {
    const int s = connected(), u = udp_pair(1);
    for (const int fd : {s, u}) {
        for (const int room : {16, 8, 2, 1, 0, 100, -1}) {
            sockaddr_in name{};
            socklen_t len = socklen_t(room);
            SEE(getsockname(fd, raw(name), &len));
            SEE(long(int(len)));
            len = socklen_t(room);
            SEE(getpeername(fd, raw(name), &len));
            SEE(long(int(len)));
        }
        socklen_t len = 16;
        SEE(getsockname(fd, nullptr, &len));
        SEE(getpeername(fd, nullptr, &len));
    }
    step("over");
}
void names_short::b() {
    connected();
    udp_pair(1);
    step("over");
}
