// cache_line CPU CPU: one-way time of a cache line between two cores, "ns=<median>". Printed beside every benchmark
// because a shared host moves the cores apart and together again, and with them every other figure.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr int kRounds = 200;
constexpr int kTripsPerRound = 1000;
alignas(64) std::atomic<int> ball{0};

void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

void play(int mine, int theirs) {
    while (ball.load(std::memory_order_acquire) != mine) {
    }
    ball.store(theirs, std::memory_order_release);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    std::thread peer([cpu = atoi(argv[2])] {
        pin(cpu);
        for (int i = 0; i < kRounds * kTripsPerRound; ++i) play(1, 0);
    });
    pin(atoi(argv[1]));
    std::array<double, kRounds> one_way_ns;
    for (double& ns : one_way_ns) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < kTripsPerRound; ++i) play(0, 1);
        const auto spent = std::chrono::steady_clock::now() - begin;
        ns = static_cast<double>(std::chrono::nanoseconds(spent).count()) / (2.0 * kTripsPerRound);
    }
    peer.join();
    std::nth_element(one_way_ns.begin(), one_way_ns.begin() + kRounds / 2, one_way_ns.end());
    printf("ns=%.0f\n", one_way_ns[kRounds / 2]);
    return 0;
}
