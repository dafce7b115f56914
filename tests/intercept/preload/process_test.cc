// fork, vfork, clone, spawn, exec, daemon, setid, seccomp, namespaces, io_uring: what the socket layer is told, and that
// the calls still do what they say.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>

#include "intercept/preload/preload.h"

extern char** environ;
extern "C" ssize_t __recv_chk(int, void*, size_t, size_t, int);

namespace {

// Runs `body` in a child whose standard output is a pipe; returns what came out.
std::string output_of(const std::function<void()>& body) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        body();
        _exit(111);
    }
    close(fds[1]);
    std::string text;
    char chunk[256];
    for (ssize_t n; (n = read(fds[0], chunk, sizeof(chunk))) > 0;) text.append(chunk, size_t(n));
    close(fds[0]);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    return text;
}

bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

TEST(Fork, ParentAndChildAreTold) {
    ProbeState& p = probe();
    const unsigned prepares = p.fork_prepares, parents = p.fork_parents, children = p.fork_children;
    EXPECT_TRUE(exited(
        in_child([&] { _exit(p.fork_children == children + 1 && p.depth() == 0 ? 0 : 1); }), 0));
    EXPECT_EQ(p.fork_prepares, prepares + 1);
    EXPECT_EQ(p.fork_parents, parents + 1);
    EXPECT_EQ(p.fork_children, children);
}

// The parent is held until the child has exec'ed or exited, the child is told, and its memory is its own.
TEST(Fork, VforkHolds) {
    ProbeState& p = probe();
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_NONBLOCK), 0);
    for (int i = 0; i < 20; i++) {
        const unsigned children = p.fork_children;
        const pid_t pid = vfork();
        if (pid == 0) {
            const char told = p.fork_children == children + 1 ? 'y' : 'n';
            sched_yield();
            if (write(fds[1], &told, 1) != 1) _exit(1);
            execl("/bin/true", "true", nullptr);
            _exit(2);
        }
        ASSERT_GT(pid, 0);
        char told = 0;
        ASSERT_EQ(read(fds[0], &told, 1), 1) << "the parent ran before the child was done";
        EXPECT_EQ(told, 'y');
        int status = 0;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(exited(status, 0));
    }
    close(fds[0]);
    close(fds[1]);
}

TEST(Fork, CloneWithoutSharedMemory) {
    const unsigned children = probe().fork_children;
    static char stack[65536] __attribute__((aligned(64)));
    const pid_t pid = clone(
        [](void* arg) {
            return probe().fork_children == *static_cast<const unsigned*>(arg) + 1 ? 7 : 1;
        },
        stack + sizeof(stack), SIGCHLD, const_cast<unsigned*>(&children));
    ASSERT_GT(pid, 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(exited(status, 7));
    const long by_number = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (by_number == 0) _exit(probe().fork_children == children + 1 ? 8 : 1);
    ASSERT_EQ(waitpid(pid_t(by_number), &status, 0), by_number);
    EXPECT_TRUE(exited(status, 8));
}

// A handler installed before the fork works in the child, whatever another thread was doing with dispositions.
TEST(Fork, DispositionsSurviveBesideABusyThread) {
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            signal(SIGUSR2, SIG_IGN);
            signal(SIGUSR2, SIG_DFL);
        }
    });
    for (int i = 0; i < 100; i++) {
        const int status = in_child([] {
            alarm(20);
            signal(SIGUSR1, [](int) { _exit(9); });
            raise(SIGUSR1);
            _exit(1);
        });
        ASSERT_TRUE(exited(status, 9));
    }
    stop = true;
    busy.join();
}

TEST(Spawn, PosixSpawnSystemPopen) {
    pid_t pid = 0;
    char arg0[] = "true";
    char* argv[] = {arg0, nullptr};
    ASSERT_EQ(posix_spawn(&pid, "/bin/true", nullptr, nullptr, argv, environ), 0);
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(exited(status, 0));
    ASSERT_EQ(posix_spawnp(&pid, "true", nullptr, nullptr, argv, environ), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(exited(status, 0));
    EXPECT_EQ(posix_spawn(&pid, "/no/such/file", nullptr, nullptr, argv, environ), ENOENT);
    EXPECT_EQ(WEXITSTATUS(system("exit 5")), 5);
    FILE* f = popen("echo popen", "r");
    ASSERT_NE(f, nullptr);
    char line[32] = {};
    EXPECT_NE(fgets(line, sizeof(line), f), nullptr);
    EXPECT_STREQ(line, "popen\n");
    EXPECT_EQ(pclose(f), 0);
}

TEST(Exec, EveryForm) {
    char name[] = "echo", one[] = "1", two[] = "2";
    char* argv[] = {name, one, two, nullptr};
    char setting[] = "VMA_TEST_SETTING=seen";
    char* envp[] = {setting, nullptr};
    EXPECT_EQ(output_of([&] { execv("/bin/echo", argv); }), "1 2\n");
    EXPECT_EQ(output_of([&] { execvp("echo", argv); }), "1 2\n");
    EXPECT_EQ(output_of([&] { execve("/bin/echo", argv, envp); }), "1 2\n");
    EXPECT_EQ(output_of([&] { execvpe("echo", argv, envp); }), "1 2\n");
    EXPECT_EQ(output_of([&] { execl("/bin/echo", "echo", "1", "2", "3", "4", "5", "6", nullptr); }),
              "1 2 3 4 5 6\n");
    EXPECT_EQ(output_of([&] { execlp("echo", "echo", nullptr); }), "\n");
    EXPECT_EQ(output_of([&] { execle("/usr/bin/env", "env", nullptr, envp); }),
              "VMA_TEST_SETTING=seen\n");
    EXPECT_EQ(output_of([&] { fexecve(open("/bin/echo", O_RDONLY | O_CLOEXEC), argv, envp); }),
              "1 2\n");
    EXPECT_EQ(output_of([&] { execveat(AT_FDCWD, "/bin/echo", argv, envp, 0); }), "1 2\n");
    const unsigned execs = probe().execs;
    errno = 0;
    EXPECT_EQ(execl("/no/such/file", "x", nullptr), -1);
    EXPECT_EQ(errno, ENOENT);
    EXPECT_EQ(probe().execs, execs) << "nothing is given up for a program that is not there";
    EXPECT_EQ(execl("/dev/null", "x", nullptr), -1);
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(probe().execs, execs + 1);
}

// A child on this process's memory with descriptors of its own: what it closes is still open here.
TEST(Fork, BorrowedMemory) {
    Pair pair;
    static char stack[65536] __attribute__((aligned(64)));
    const unsigned children = probe().fork_children;
    probe().dup_to = -1;
    const pid_t pid = clone(
        [](void* arg) {
            const auto& p = *static_cast<const Pair*>(arg);
            const int copy = dup(p.a);
            close(p.a);
            return copy >= 0 && recv(p.a, nullptr, 0, MSG_DONTWAIT) == -1 && errno == EBADF ? 7 : 1;
        },
        stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &pair);
    ASSERT_GT(pid, 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(exited(status, 7));
    EXPECT_EQ(probe().fork_children, children);
    EXPECT_EQ(probe().dup_to, -1) << "its duplicate is not in this process";
    const unsigned asks = probe().asks;
    ASSERT_EQ(send(pair.b, "x", 1, 0), 1);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 1);
    EXPECT_EQ(probe().asks, asks + 2) << "the socket is still ours";
}

TEST(Daemon, GoesOnInTheGrandchild) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const int status = in_child([&] {
        const unsigned children = probe().fork_children;
        if (daemon(0, 0) != 0) _exit(1);
        char cwd[8] = {};
        const bool good = probe().fork_children == children + 1 && getsid(0) == getpid() &&
                          getcwd(cwd, sizeof(cwd)) && std::string(cwd) == "/";
        if (write(fds[1], good ? "y" : "n", 1) != 1) _exit(1);
    });
    EXPECT_TRUE(exited(status, 0));
    char good = 0;
    ASSERT_EQ(read(fds[0], &good, 1), 1);
    EXPECT_EQ(good, 'y');
    close(fds[0]);
    close(fds[1]);
}

TEST(Privilege, ChangesAreAnnounced) {
    ProbeState& p = probe();
    EXPECT_TRUE(exited(in_child([&] {
                           const unsigned before = p.setids;
                           if (setgid(getgid()) || setuid(getuid())) _exit(1);
                           if (syscall(SYS_setuid, getuid())) _exit(2);
                           _exit(p.setids == before + 3 ? 0 : 3);
                       }),
                       0));
    EXPECT_TRUE(exited(in_child([&] {
                           // Mode 1 with nothing after it would kill: a filter that is refused is noticed all the same.
                           errno = 0;
                           if (prctl(PR_SET_SECCOMP, 2, nullptr) != -1) _exit(1);
                           if (syscall(SYS_seccomp, 1, 0, nullptr) != -1) _exit(2);
                           _exit(p.filters == 2 ? 0 : 3);
                       }),
                       0));
    EXPECT_TRUE(exited(in_child([&] {
                           if (unshare(CLONE_NEWNET) != 0) _exit(errno == EPERM ? 0 : 1);
                           _exit(p.namespaces == 1 ? 0 : 2);
                       }),
                       0));
}

// What only the calling thread has changed; libc's own setuid() changes all.
TEST(Privilege, ChangesOfOneThreadAreToldApart) {
    ProbeState& p = probe();
    EXPECT_TRUE(exited(in_child([&] {
                           if (setuid(getuid()) || p.own_changes != 0) _exit(1);
                           if (syscall(SYS_setuid, getuid()) || p.own_changes != 1) _exit(2);
                           __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
                           __user_cap_data_struct data[2] = {};
                           if (syscall(SYS_capget, &head, data)) _exit(3);
                           if (syscall(SYS_capset, &head, data) || p.own_changes != 2) _exit(4);
                           if (syscall(SYS_capset, nullptr, data) != -1 || p.own_changes != 2)
                               _exit(5);
                           if (prctl(PR_SET_KEEPCAPS, 0) || p.keeps != 1) _exit(6);
                           if (chroot("/no/such/place") != -1 || p.chroots != 1) _exit(7);
                           _exit(syscall(SYS_chroot, nullptr) == -1 && p.chroots == 2 ? 0 : 8);
                       }),
                       0));
}

// A child that runs on the program's memory is another process: what it gives up is not the program's.
TEST(Privilege, ChildrenOnBorrowedMemoryChangeNothing) {
    ProbeState& p = probe();
    EXPECT_TRUE(exited(
        in_child([&] {
            static char stack[1 << 16];
            const auto drop = [](void*) {
                return syscall(SYS_setuid, getuid()) == 0 && prctl(PR_SET_KEEPCAPS, 0) == 0 ? 0 : 1;
            };
            const int child =
                clone(drop, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
            int status = -1;
            if (child < 0 || waitpid(child, &status, 0) != child || status) _exit(1);
            _exit(p.setids == 0 && p.own_changes == 0 && p.keeps == 0 ? 0 : 2);
        }),
        0));
}

TEST(Privilege, IoUringIsNoticed) {
    const unsigned rings = probe().rings;
    EXPECT_EQ(syscall(SYS_io_uring_setup, 0, nullptr), -1);
    EXPECT_EQ(probe().rings, rings + 1);
}

TEST(Fortify, OverflowEndsTheProgramAsInGlibc) {
    Pair pair;
    char small[4];
    char* room = small;
    const int status = in_child([&] {
        close(2);
        __recv_chk(pair.a, room, 64, sizeof(small), MSG_DONTWAIT);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ASSERT_EQ(send(pair.b, "ab", 2, 0), 2);
    EXPECT_EQ(__recv_chk(pair.a, room, 4, sizeof(small), 0), 2);
}

}  // namespace
