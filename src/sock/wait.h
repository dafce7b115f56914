// Waiting: spin as long as it pays, then sleep on descriptors (design.md §6). One implementation under blocking calls,
// select, poll and epoll.
#pragma once

#include <poll.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "engine/shard.h"
#include "sock/api.h"
#include "sock/watch.h"
#include "stats/layout.h"

namespace vma::sock {

enum class WaitEnd : uint8_t { ready, timeout, interrupted };

// Descriptors that calls which wait for many have found ready, and their errors. Racy as SpinGovernor.
struct ReadyCounts {
    std::atomic<uint64_t> ours{0}, kernel{0}, errors{0};
    void found(uint64_t of_ours, uint64_t of_kernel) {
        ours.store(ours.load(std::memory_order_relaxed) + of_ours, std::memory_order_relaxed);
        if (of_kernel)
            kernel.store(kernel.load(std::memory_order_relaxed) + of_kernel,
                         std::memory_order_relaxed);
    }
    void failed() {
        errors.store(errors.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
};

// Learns whether spinning pays for one waiting place (a socket, an epoll set, the poll calls of a process), and counts how
// its waits ended. Racy updates by several threads are harmless: it is a hint.
class SpinGovernor {
  public:
    // How long to spin now: `configured` < 0 for ever, 0 never, else the bound. `adaptive`: learn within the bound.
    Duration budget(Duration bound, bool adaptive);
    // Is it time to look at the kernel twins before anything else? One wait in 16.
    bool turn_of_twins() { return ++waits_ % 16 == 0; }
    // The wait lasted `waited`, of which `spun` spinning, and ended by `end`; `spinning`: before it had slept.
    void learn(Duration waited, Duration spun, WaitEnd end, bool spinning);

    struct Counts {
        uint64_t hits = 0;    // waits that spinning ended
        uint64_t misses = 0;  // that gave up and slept
        uint64_t timeouts = 0;
        uint64_t spun_ns = 0;
    };
    Counts counts() const;

  private:
    static void add(std::atomic<uint64_t>& counter, uint64_t n) {
        counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    int64_t expected_ns_ = 0;  // moving average of the waits, 1/4 weight to the newest
    uint32_t calls_ = 0, waits_ = 0;
    std::atomic<uint64_t> hits_{0}, misses_{0}, timeouts_{0}, spun_ns_{0};
};

// The counts of a waiting place for viewers.
stats::WaitNumbers wait_numbers(const SpinGovernor& governor, const ReadyCounts& counts);

// What is waited for.
class WaitTarget {
  public:
    // True when the caller can proceed: it is not asked again then, so a yes may take what is there. Must look at everything
    // that counts, own and kernel side; cheap; called often, also between watch() and unwatch().
    // `slept`: revents of kernel_fds() were just filled by the kernel (else they are stale).
    virtual bool ready(bool slept) = 0;
    // Asked between watch() and the sleep: false when the target has to be looked at anew outside them.
    virtual bool may_sleep() { return true; }
    virtual void watch(Sleeper& sleeper) = 0;
    virtual void unwatch(Sleeper& sleeper) = 0;
    // Shards to poll while spinning and to arm while asleep; the answer holds until the next time it is asked.
    virtual std::span<Shard* const> shards() = 0;
    // Moves frames from the rings into the stack; ready() follows.
    virtual void progress() {
        for (Shard* shard : shards()) shard->progress();
    }
    // Kernel descriptors to sleep on besides the rings; revents is written.
    virtual std::span<pollfd> kernel_fds() { return {}; }

  protected:
    ~WaitTarget() = default;
};

struct WaitLimits {
    Instant deadline = Instant::never();  // monotonic
    Duration spin;                        // upper bound of the spin in time; < 0: for ever
    int64_t spin_loops = -1;              // upper bound in loops (VMA_RX_POLL); < 0: none
    bool adaptive = true;                 // learn whether to spin, within the bounds
    const sigset_t* sigmask = nullptr;    // p-variants: applied while waiting
};

// Returns `interrupted` when a signal handler has to run first; the caller turns that into EINTR or a restart.
WaitEnd wait_until(WaitTarget& target, SpinGovernor& governor, const WaitLimits& limits);
// The answer of a call that was interrupted before it did anything: signal(7), calls with a timeout are never restarted.
Outcome interrupted_call(Duration timeout);

// Kernel side of the process's UDP twins: one epoll set in which every twin with a ring endpoint is registered
// (EPOLLIN|EPOLLERR|EPOLLET). Drained by whoever waits; marks sockets and notifies their watchers.
class TwinEvents {
  public:
    static int fd();  // -1 before the first twin
    static bool add(int twin_fd, void* socket, uint32_t generation);
    static void remove(int twin_fd);
    static bool drain();  // true if some socket was marked
    // What was taken from a ring at `taken` is given to the program next, or there was nothing then. Is the last drain so long
    // ago that something older may wait in a twin? (Then drain. More than one look in 10 us would cost more than it can set right.)
    static bool is_due(Instant taken);
    static void forget_in_child();
};

}  // namespace vma::sock
