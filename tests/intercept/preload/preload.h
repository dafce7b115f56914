// What the preloaded test program needs: the probe's state and a connected pair of sockets that are "ours".
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "intercept/probe.h"

inline ProbeState& probe() {
    static ProbeState* state = nullptr;
    if (state == nullptr) {
        close(socket(AF_INET, SOCK_DGRAM, 0));  // starts the probe
        socklen_t len = sizeof(state);
        if (getsockopt(-1, SOL_SOCKET, 2800, &state, &len) != 0 || state == nullptr) {
            fprintf(stderr, "not preloaded: LD_PRELOAD must name libvma_probe.so\n");
            abort();
        }
    }
    return *state;
}

// Two UDP sockets on 127.0.0.1, connected to each other.
struct Pair {
    int a = -1, b = -1;
    Pair() {
        probe();
        a = socket(AF_INET, SOCK_DGRAM, 0);
        b = socket(AF_INET, SOCK_DGRAM, 0);
        for (int fd : {a, b}) {
            sockaddr_in any{};
            any.sin_family = AF_INET;
            any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
        }
        join(a, b);
        join(b, a);
    }
    ~Pair() {
        close(a);
        close(b);
    }
    static void join(int from, int to) {
        sockaddr_in name{};
        socklen_t len = sizeof(name);
        EXPECT_EQ(getsockname(to, reinterpret_cast<sockaddr*>(&name), &len), 0);
        EXPECT_EQ(connect(from, reinterpret_cast<sockaddr*>(&name), len), 0);
    }
};

// Waits, bounded, until the thread `tid` of this process sleeps in the kernel.
bool wait_asleep(int tid);
// Runs `body` in a forked child and returns its wait status.
int in_child(const std::function<void()>& body);
