// Runs a test body in a forked child inside a fresh network namespace. Nothing has a name outside and nothing is left: the
// namespace goes with the child, and the child with its parent (PR_SET_PDEATHSIG) or after kChildSeconds.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "engine/network_monitor.h"

namespace vma::test {

inline constexpr unsigned kChildSeconds = 90;

// Exit status of the child: 0 passed, 1 failed (the child printed why), 77 no permission for a namespace.
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

#define IN_NAMESPACE(...)                                                                  \
    do {                                                                                   \
        if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: needs root for a network namespace"; \
        const int exit_status = ::vma::test::run_in_namespace(__VA_ARGS__);                \
        if (exit_status == 77) GTEST_SKIP() << "NOT RUN: unshare(CLONE_NEWNET) refused";   \
        EXPECT_EQ(exit_status, 0) << "see the child's output above";                       \
    } while (0)

// Feeds `input` to a shell command; true when it exits with 0.
inline bool shell(const std::string& command, const std::string& input = "") {
    FILE* pipe = popen(command.c_str(), "w");
    if (pipe == nullptr) return false;
    fwrite(input.data(), 1, input.size(), pipe);
    return pclose(pipe) == 0;
}

// Lets the monitor work until `done` holds; false after five seconds.
inline bool settle(NetworkMonitor& m, const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!done()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        pollfd p{m.fd(), POLLIN, 0};
        poll(&p, 1, m.due().is_never() ? 100 : 10);
        m.process();
    }
    return true;
}

inline std::shared_ptr<NetworkMonitor> open_monitor() {
    auto opened = NetworkMonitor::of_this_namespace();
    EXPECT_TRUE(opened.ok()) << "errno " << opened.error();
    return opened ? *opened : nullptr;
}

}  // namespace vma::test
