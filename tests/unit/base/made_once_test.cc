#include "base/made_once.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

using vma::MadeOnce;

TEST(MadeOnce, ThreadsThatComeTogetherGetTheSame) {
    for (int round = 0; round < 200; round++) {
        MadeOnce<int> made;
        std::latch start(4);
        std::vector<int*> seen(4);
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&, i] {
                start.arrive_and_wait();
                seen[i] = &made.get([&](int& v) { v = i + 1; });
            });
        for (std::thread& t : threads) t.join();
        for (const int* s : seen) ASSERT_EQ(s, seen[0]);
        EXPECT_EQ(&made.get([](int& v) { v = -1; }), seen[0]) << "made again";
        EXPECT_GT(*seen[0], 0);
        delete seen[0];
    }
}

// A function-local static would hang the child: its guard is held by a thread that the child does not have.
TEST(MadeOnce, AChildOfAForkInTheMiddleDoesNotWait) {
    static constinit MadeOnce<int> made;
    std::latch inside(1), go_on(1);
    std::thread slow([&] {
        made.get([&](int& v) {
            inside.count_down();
            go_on.wait();
            v = 1;
        });
    });
    inside.wait();
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(made.get([](int& v) { v = 2; }));
    }
    int status = 0;
    waitpid(child, &status, 0);
    go_on.count_down();
    slow.join();
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 2);
    EXPECT_EQ(made.get([](int& v) { v = 3; }), 1);
}
