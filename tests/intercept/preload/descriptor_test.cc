// The library's own descriptors are not there for the program; duplicates, stale numbers and errno.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "intercept/preload/preload.h"

namespace {

bool open_fd(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(OwnDescriptor, IsRefusedToTheProgram) {
    const int own = probe().own_fd();
    ASSERT_GT(own, 100);
    EXPECT_TRUE(fcntl(own, F_GETFD) & FD_CLOEXEC);
    errno = 0;
    EXPECT_EQ(close(own), -1);
    EXPECT_EQ(errno, EBADF);
    errno = 0;
    EXPECT_EQ(syscall(SYS_close, own), -1);
    EXPECT_EQ(errno, EBADF);
    errno = 0;
    EXPECT_EQ(dup(own), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT_TRUE(open_fd(own));
}

TEST(OwnDescriptor, RangesGoAroundIt) {
    const int own = probe().own_fd();
    const auto fill = [&] {
        for (int fd : {own - 2, own - 1, own + 1, own + 2}) ASSERT_EQ(dup2(2, fd), fd);
    };
    const auto check = [&] {
        for (int fd : {own - 2, own - 1, own + 1, own + 2}) EXPECT_FALSE(open_fd(fd)) << fd - own;
        EXPECT_TRUE(open_fd(own));
        EXPECT_EQ(probe().own_fd(), own);
    };
    fill();
    errno = 77;
    EXPECT_EQ(close_range(unsigned(own) - 2, ~0U, 0), 0);
    EXPECT_EQ(errno, 77);
    check();
    fill();
    EXPECT_EQ(close_range(unsigned(own) - 2, unsigned(own) + 2, 0), 0);
    check();
    fill();
    EXPECT_EQ(close_range(unsigned(own), unsigned(own), 0), 0);
    EXPECT_TRUE(open_fd(own));
    closefrom(own - 2);
    check();
    fill();
    EXPECT_EQ(syscall(SYS_close_range, own - 2, ~0U, 0), 0);
    check();
    errno = 0;
    EXPECT_EQ(close_range(9, 8, 0), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST(OwnDescriptor, MovesWhenTheProgramWantsItsNumber) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    for (int variant = 0; variant < 2; variant++) {
        const int own = probe().own_fd();
        ASSERT_EQ(variant ? dup3(fds[1], own, 0) : dup2(fds[1], own), own);
        const int moved = probe().own_fd();
        EXPECT_NE(moved, own);
        EXPECT_TRUE(open_fd(moved));
        ASSERT_EQ(write(own, "m", 1), 1);
        char byte = 0;
        ASSERT_EQ(read(fds[0], &byte, 1), 1);
        EXPECT_EQ(byte, 'm');
        EXPECT_EQ(close(own), 0) << "the number is the program's now";
    }
    const int own = probe().own_fd();
    errno = 0;
    EXPECT_EQ(dup2(1999999999, own), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT_EQ(probe().own_fd(), own) << "a call that fails moves nothing";
    close(fds[0]);
    close(fds[1]);
}

TEST(Descriptor, DuplicatesReachTheSocketLayer) {
    Pair pair;
    ProbeState& p = probe();
    const int copy = dup(pair.a);
    EXPECT_EQ(p.dup_from, pair.a);
    EXPECT_EQ(p.dup_to, copy);
    const int high = fcntl(pair.a, F_DUPFD_CLOEXEC, 300);
    EXPECT_GE(high, 300);
    EXPECT_EQ(p.dup_to, high);
    ASSERT_EQ(dup2(pair.a, high), high);
    EXPECT_EQ(p.implicitly_closed, high);
    // A number that came back from open is not a socket any more, even if libc closed it behind our back.
    ASSERT_EQ(syscall(SYS_close, copy), 0);
    const int file = open("/dev/null", O_WRONLY);
    EXPECT_EQ(file, copy);
    const unsigned asks = p.asks;
    EXPECT_EQ(write(file, "x", 1), 1);
    EXPECT_EQ(p.asks, asks);
    close(file);
    close(high);
}

TEST(Descriptor, StdioPassingAndAioHandBack) {
    ProbeState& p = probe();
    {
        Pair pair;
        EXPECT_EQ(dprintf(pair.a, "x%d", 1), 2);
        EXPECT_EQ(p.stdio_fd, pair.a);
        FILE* f = fdopen(dup(pair.b), "r+");
        ASSERT_NE(f, nullptr);
        EXPECT_EQ(p.stdio_fd, fileno(f));
        EXPECT_EQ(fclose(f), 0);
    }
    Pair pair;
    int unix_pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair), 0);
    char control[CMSG_SPACE(sizeof(int))] = {};
    char byte = 'p';
    iovec iov{&byte, 1};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    *reinterpret_cast<int*>(CMSG_DATA(c)) = pair.a;
    ASSERT_EQ(sendmsg(unix_pair[0], &msg, 0), 1);
    EXPECT_EQ(p.passed_fd, pair.a);
    close(unix_pair[0]);
    close(unix_pair[1]);
}

// errno: 77 goes in, 77 comes out of every call that succeeds.
TEST(Errno, IsUntouchedOnSuccess) {
    Pair pair;
    sockaddr_in name{};
    socklen_t len = sizeof(name);
    auto* addr = reinterpret_cast<sockaddr*>(&name);
    int value = 1;
    char byte = 0;
    iovec iov{&byte, 1};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    fd_set set;
    timeval zero{};
    timespec zero_ts{};
    pollfd p{pair.a, POLLOUT, 0};
    int fds[2] = {-1, -1};
    int made = -1;
#define KEEPS_ERRNO(call, ok)            \
    do {                                 \
        errno = 77;                      \
        const auto result = call;        \
        EXPECT_TRUE(result ok) << #call; \
        EXPECT_EQ(errno, 77) << #call;   \
    } while (0)
    KEEPS_ERRNO(made = socket(AF_INET, SOCK_STREAM, 0), >= 0);
    KEEPS_ERRNO(listen(made, 1), == 0);
    KEEPS_ERRNO(close(made), == 0);
    KEEPS_ERRNO(getsockname(pair.a, addr, &len), == 0);
    KEEPS_ERRNO(getpeername(pair.a, addr, &len), == 0);
    KEEPS_ERRNO(setsockopt(pair.a, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)), == 0);
    KEEPS_ERRNO(getsockopt(pair.a, SOL_SOCKET, SO_REUSEADDR, &value, &len), == 0);
    KEEPS_ERRNO(send(pair.a, &byte, 1, 0), == 1);
    KEEPS_ERRNO(recv(pair.b, &byte, 1, 0), == 1);
    KEEPS_ERRNO(write(pair.a, &byte, 1), == 1);
    KEEPS_ERRNO(read(pair.b, &byte, 1), == 1);
    KEEPS_ERRNO(writev(pair.a, &iov, 1), == 1);
    KEEPS_ERRNO(readv(pair.b, &iov, 1), == 1);
    KEEPS_ERRNO(sendto(pair.a, &byte, 1, 0, nullptr, 0), == 1);
    len = sizeof(name);
    KEEPS_ERRNO(recvfrom(pair.b, &byte, 1, 0, addr, &len), == 1);
    EXPECT_EQ(len, sizeof(name));
    KEEPS_ERRNO(sendmsg(pair.a, &msg, 0), == 1);
    KEEPS_ERRNO(recvmsg(pair.b, &msg, 0), == 1);
    KEEPS_ERRNO(poll(&p, 1, 0), == 1);
    KEEPS_ERRNO(ppoll(&p, 1, &zero_ts, nullptr), == 1);
    FD_ZERO(&set);
    FD_SET(pair.a, &set);
    KEEPS_ERRNO(select(pair.a + 1, nullptr, &set, nullptr, &zero), == 1);
    KEEPS_ERRNO(pselect(pair.a + 1, nullptr, &set, nullptr, &zero_ts, nullptr), == 1);
    KEEPS_ERRNO(fcntl(pair.a, F_GETFL), >= 0);
    KEEPS_ERRNO(made = dup(pair.a), >= 0);
    KEEPS_ERRNO(dup2(pair.b, made), == made);
    KEEPS_ERRNO(close(made), == 0);
    KEEPS_ERRNO(pipe(fds), == 0);
    KEEPS_ERRNO(close(fds[0]), == 0);
    KEEPS_ERRNO(close(fds[1]), == 0);
    KEEPS_ERRNO(shutdown(pair.a, SHUT_WR), == 0);
    errno = 77;
    EXPECT_EQ(recv(pair.a, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EAGAIN);
}

// Two processors' worth of threads ask at once; nothing is lost in the answers.
TEST(Descriptor, ManyThreads) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            Pair pair;
            char byte = 0;
            for (int i = 0; i < 2000; i++) {
                ASSERT_EQ(send(pair.a, "x", 1, 0), 1);
                ASSERT_EQ(recv(pair.b, &byte, 1, 0), 1);
            }
        });
    for (auto& t : threads) t.join();
}

}  // namespace
