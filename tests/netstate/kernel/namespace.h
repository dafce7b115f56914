// What tests of the network monitor in a namespace of their own share.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "engine/network_monitor.h"
#include "support/namespace.h"

namespace vma::test {

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
