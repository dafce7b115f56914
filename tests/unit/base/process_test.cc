#include "base/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace vma {
namespace {

uint64_t real_identity() { return uint64_t(getpid()) << 32 | uint64_t(syscall(SYS_gettid)); }

TEST(Process, IdentityIsThatOfTheThread) {
    EXPECT_EQ(self_identity(), real_identity());
    EXPECT_EQ(self_identity(), real_identity());
    std::thread([] { EXPECT_EQ(self_identity(), real_identity()); }).join();
}

TEST(Process, IdentityFollowsForkAndRawClone) {
    self_identity();
    for (bool raw : {false, true}) {
        const pid_t pid =
            raw ? pid_t(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)) : fork();
        if (pid == 0) {
            const uint64_t expect =
                uint64_t(syscall(SYS_getpid)) << 32 | uint64_t(syscall(SYS_gettid));
            syscall(SYS_exit_group, self_identity() == expect ? 0 : 1);
        }
        ASSERT_GT(pid, 0);
        int status = 0;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "raw " << raw;
    }
    forget_process_identity();
    EXPECT_EQ(self_identity(), real_identity());
}

TEST(Process, AliveZombieReapedAndReused) {
    const auto self = uint32_t(getpid());
    const uint64_t start = process_start_ticks(self);
    EXPECT_GT(start, 0u);
    EXPECT_TRUE(process_alive(self, start));
    EXPECT_TRUE(process_alive(self, 0));
    EXPECT_FALSE(
        process_alive(self, start + 1));  // the pid of a process that started at another time
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        for (;;) pause();
    }
    const uint64_t child_start = process_start_ticks(uint32_t(pid));
    EXPECT_GE(child_start, start);
    EXPECT_TRUE(process_alive(uint32_t(pid), child_start));
    const int pidfd = int(syscall(SYS_pidfd_open, pid, 0));
    kill(pid, SIGKILL);
    pollfd p{pidfd, POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, 20000), 1);
    close(pidfd);
    EXPECT_FALSE(process_alive(uint32_t(pid), child_start));  // a zombie
    EXPECT_FALSE(process_alive(uint32_t(pid), 0));
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    EXPECT_FALSE(process_alive(uint32_t(pid), child_start));
}

TEST(Process, NamespaceIsKnown) { EXPECT_GT(pid_namespace(), 0u); }

}  // namespace
}  // namespace vma
