#include "base/own_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace vma {
namespace {

int open_fd() { return open("/dev/null", O_RDWR); }
bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }
int soft_limit() {
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur > 1000000 ? 1000000 : int(limit.rlim_cur);
}
int high_base() { return std::min(soft_limit() - soft_limit() / 4, 49152); }

template <class F>
int in_child(F f) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        // Not _exit: TSan's version would report the parent's threads as leaked.
        syscall(SYS_exit_group, f());
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

TEST(OwnFd, AdoptMovesHighSetsCloexecAndKeepsTheProgramsNumbers) {
    const int lowest = open_fd();
    ASSERT_GE(lowest, 0);
    OwnFd own;
    EXPECT_FALSE(own.valid());
    ASSERT_TRUE(own.adopt(lowest).ok());
    EXPECT_GE(own.fd(), high_base());
    EXPECT_EQ(fcntl(own.fd(), F_GETFD), FD_CLOEXEC);
    EXPECT_FALSE(is_open(lowest));
    EXPECT_TRUE(is_own_fd(own.fd()));
    EXPECT_FALSE(is_own_fd(lowest));
    const int next = open_fd();
    EXPECT_EQ(next, lowest);
    close(next);
    const int was = own.fd();
    own.reset();
    EXPECT_FALSE(is_open(was));
    EXPECT_FALSE(is_own_fd(was));
    EXPECT_FALSE(own.valid());
    own.reset();
}

TEST(OwnFd, UnknownNumbersAreNotOurs) {
    for (int fd : {-1, 0, 1, 2, INT32_MAX, INT32_MIN}) {
        EXPECT_FALSE(is_own_fd(fd)) << fd;
        EXPECT_FALSE(own_fd_relocate(fd)) << fd;
    }
    OwnFd own;
    EXPECT_EQ(own.adopt(-1).error(), EBADF);
    EXPECT_EQ(own.adopt(high_base() + 100).error(), EBADF);  // closed descriptor
    EXPECT_FALSE(own.valid());
}

TEST(OwnFd, AdoptReplacesWhatItHeldAndDestructorCloses) {
    int first, second;
    {
        OwnFd own;
        ASSERT_TRUE(own.adopt(open_fd()).ok());
        first = own.fd();
        ASSERT_TRUE(own.adopt(open_fd()).ok());
        second = own.fd();
        if (first != second) {
            EXPECT_FALSE(is_own_fd(first));
        }
        EXPECT_TRUE(is_own_fd(second));
    }
    EXPECT_FALSE(is_open(second));
    EXPECT_FALSE(is_own_fd(second));
}

TEST(OwnFd, RelocationFreesTheNumberAndKeepsTheFile) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    OwnFd own;
    ASSERT_TRUE(own.adopt(ends[1]).ok());
    const int was = own.fd();
    ASSERT_TRUE(own_fd_relocate(was));
    EXPECT_NE(own.fd(), was);
    EXPECT_GE(own.fd(), high_base());
    EXPECT_FALSE(is_open(was));
    EXPECT_FALSE(is_own_fd(was));
    EXPECT_TRUE(is_own_fd(own.fd()));
    EXPECT_EQ(fcntl(own.fd(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(dup2(0, was), was);  // what the program wanted
    EXPECT_FALSE(is_own_fd(was));
    ASSERT_EQ(write(own.fd(), "x", 1), 1);
    char c = 0;
    EXPECT_EQ(read(ends[0], &c, 1), 1);
    EXPECT_EQ(c, 'x');
    own.reset();
    EXPECT_TRUE(is_open(was));  // the program's
    close(was);
    close(ends[0]);
}

TEST(OwnFd, LowSoftLimitFallsToLowerQuarters) {
    const int code = in_child([] {
        const rlimit limit{16, 16};
        for (int fd = 3; fd < 4096; ++fd) close(fd);
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 90;
        OwnFd own[14];
        for (int i = 0; i < 4; ++i) {
            if (!own[i].adopt(open_fd()).ok()) return 10 + i;
            if (own[i].fd() != 12 + i) return 20 + i;
        }
        int n = 4;  // the top quarter is full; 3 to 11 remain
        while (n < 14) {
            const int fd = open_fd();
            if (fd < 0) break;
            if (!own[n].adopt(fd).ok()) return 30 + n;
            if (own[n].fd() < 3 || !is_own_fd(own[n].fd())) return 50 + n;
            if (fcntl(own[n].fd(), F_GETFD) != FD_CLOEXEC) return 70 + n;
            ++n;
        }
        if (n != 13) return 91;
        if (own_fd_relocate(own[0].fd())) return 92;  // nowhere to go: it stays
        if (!is_own_fd(12) || !is_open(12)) return 93;
        own[5].reset();
        if (!own_fd_relocate(12) || is_open(12)) return 94;
        return 0;
    });
    EXPECT_EQ(code, 0);
}

TEST(OwnFd, StandardNumbersAreNeverKept) {
    const int code = in_child([] {
        const rlimit limit{6, 6};
        for (int fd = 3; fd < 4096; ++fd) close(fd);
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 90;
        close(0);
        while (open_fd() >= 0) {
        }
        OwnFd own;  // the table is full and our descriptor is number 0
        if (own.adopt(0).error() != EMFILE) return 1;
        if (own.valid() || is_own_fd(0)) return 2;
        return is_open(0) ? 3 : 0;  // closed on every path
    });
    EXPECT_EQ(code, 0);
}

TEST(OwnFd, RegistryIsBoundedAndRecovers) {
    const int code = in_child([] {
        rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_max < 2048) return 80;
        limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2048);
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 81;
        auto own = std::make_unique<OwnFd[]>(kMaxOwnFds);
        for (int i = 0; i < kMaxOwnFds; ++i)
            if (!own[i].adopt(open_fd()).ok()) return 1;
        OwnFd more;
        const int fd = open_fd();
        if (more.adopt(fd).error() != EMFILE || is_open(fd)) return 2;
        own[100].reset();
        return more.adopt(open_fd()).ok() ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
}

TEST(OwnFd, ChildClosesAllAndTheParentKeepsThem) {
    std::vector<std::unique_ptr<OwnFd>> own;
    for (int i = 0; i < 10; ++i) {
        own.push_back(std::make_unique<OwnFd>());
        ASSERT_TRUE(own.back()->adopt(open_fd()).ok());
    }
    const int code = in_child([&] {
        std::vector<int> were;
        for (auto& o : own) were.push_back(o->fd());
        own_fds_close_in_child();
        for (int fd : were)
            if (is_open(fd) || is_own_fd(fd)) return 1;
        for (auto& o : own)
            if (o->valid()) return 2;
        // The numbers belong to the program now; later destructors must not close them.
        if (dup2(0, were[3]) != were[3]) return 3;
        own.clear();
        if (!is_open(were[3])) return 4;
        OwnFd fresh;
        return fresh.adopt(open_fd()).ok() && is_own_fd(fresh.fd()) ? 0 : 5;
    });
    EXPECT_EQ(code, 0);
    for (auto& o : own) {
        EXPECT_TRUE(is_open(o->fd()));
        EXPECT_TRUE(is_own_fd(o->fd()));
    }
}

TEST(OwnFd, ThreadsAdoptRelocateAndForkAtOnce) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 1500; ++i) {
                OwnFd own;
                if (!own.adopt(open_fd()).ok() || !is_own_fd(own.fd())) ++wrong;
                const int was = own.fd();
                if (!own_fd_relocate(was) || own.fd() == was || !is_open(own.fd())) ++wrong;
            }
        });
    }
    int failed_children = 0;
    for (int i = 0; i < 20; ++i) {
        failed_children +=
            in_child([] {
                own_fds_close_in_child();  // another thread may have been in the middle
                OwnFd own;
                return own.adopt(open_fd()).ok() ? 0 : 1;
            }) != 0;
    }
    for (auto& t : threads) t.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(failed_children, 0);
}

}  // namespace
}  // namespace vma
