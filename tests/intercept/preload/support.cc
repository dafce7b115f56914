#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <string>

#include "intercept/preload/preload.h"

bool wait_asleep(int tid) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const std::string path = "/proc/self/task/" + std::to_string(tid) + "/stat";
    while (std::chrono::steady_clock::now() < end) {
        std::ifstream file(path);
        std::string line;
        std::getline(file, line);
        const auto paren = line.rfind(')');
        if (paren != std::string::npos && line.size() > paren + 2 && line[paren + 2] == 'S')
            return true;
        std::this_thread::yield();
    }
    return false;
}

int in_child(const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}
