// Runs a test body in a forked child inside a fresh network namespace. Nothing has a name outside and nothing is left: the
// namespace goes with the child, and the child with its parent (PR_SET_PDEATHSIG) or after kChildSeconds.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "support/root.h"

namespace vma::test {

inline constexpr unsigned kChildSeconds = 90;

// Exit status of the child: 0 passed, 1 failed (the child printed why), 77 no namespace.
inline int run_in_namespace(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(kChildSeconds);
        if (unshare(CLONE_NEWNET) != 0) _exit(77);
        body();
        fflush(nullptr);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return 2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define IN_NAMESPACE(...)                                                          \
    do {                                                                           \
        NEEDS_ROOT("a network namespace");                                         \
        const int exit_status = ::vma::test::run_in_namespace(__VA_ARGS__);        \
        ASSERT_NE(exit_status, 77) << "unshare(CLONE_NEWNET) was refused to root"; \
        EXPECT_EQ(exit_status, 0) << "see the child's output above";               \
    } while (0)

}  // namespace vma::test
