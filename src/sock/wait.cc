#include "sock/wait.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/deferred_signal.h"
#include "base/own_fd.h"
#include "engine/runtime.h"
#include "sock/screen.h"
#include "sock/socket.h"

namespace vma::sock {
namespace {

constexpr unsigned kClockEvery = 16;  // spin loops between clock reads (20 ns each)
// Between looks at the kernel twins while we spin: each is a system call, and what comes by the kernel takes longer anyway.
constexpr Duration kTwinsEvery = Duration::micros(10);
constexpr Duration kYieldAfter = Duration::micros(5);
constexpr Duration kYieldEvery = Duration::micros(2);
constexpr unsigned kMostFollowed = 16;  // rings that others may attend for one thread
constexpr unsigned kFewPollFds = 16;  // twins, own eventfd, rings and the kernel fds of the caller

// A signal that the p-variants unblock must end the wait at once, also while we spin: ask the kernel with a poll of nothing.
bool mask_would_interrupt(const sigset_t* mask) {
    if (mask == nullptr) return false;
    const timespec zero{};
    return sys::blocking_ppoll(nullptr, 0, &zero, mask) == -EINTR;
}

constexpr int kReady = INT32_MAX;

class Follower final : public RingSleeper {
  public:
    void wake() override { sleeper->notify(); }
    Sleeper* sleeper = nullptr;
};

// The shards that this thread has attended, or was called to, and may leave to others.
class Led {
  public:
    void add(Shard& shard) {
        if (count_ < shards_.size()) shards_[count_++] = &shard;
    }
    void pass_on() {
        while (count_ != 0) shards_[--count_]->pass_on();
    }

  private:
    std::array<Shard*, Runtime::kMaxShards> shards_;
    unsigned count_ = 0;
};

// Sleeps until something may have changed. Returns -EINTR, kReady when the target said so, else >= 0.
int sleep_once(WaitTarget& target, const WaitLimits& limits, Instant now, Led& led) {
    Sleeper sleeper;
    sleeper.thread = ThreadSleep::mine();
    target.watch(sleeper);
    const auto shards = target.shards();
    const auto kernel = target.kernel_fds();

    bool pending = !target.may_sleep();
    std::array<Follower, kMostFollowed> followers;
    // Whom nobody could wake attends.
    const size_t may_follow = sleeper.thread ? followers.size() : 0;
    const auto follower = [&](size_t i) { return i < may_follow ? &followers[i] : nullptr; };
    const auto attends = [&](size_t i) { return i >= may_follow || followers[i].attends; };
    size_t attended = 0;
    for (size_t i = 0; i < shards.size(); i++) {
        Follower* const f = follower(i);
        if (f) f->sleeper = &sleeper;
        if (!shards[i]->arm(f)) pending = true;
        if (attends(i)) attended++;
    }
    // What it attended before and does not now.
    led.pass_on();

    int result = 0;
    const bool ready = !pending && target.ready(false);
    // Nobody else may come to show what arrived just now.
    if (!pending && !ready && !Screens::waiting()) {
        // The kernel wants one array: the caller's descriptors are copied behind ours and the answers copied back.
        std::array<pollfd, kFewPollFds> few;
        pollfd* all = few.data();
        size_t room = kFewPollFds;
        const size_t total = 2 + attended + kernel.size();
        void* big = nullptr;
        if (total > room) {
            big = sys::mmap(nullptr, total * sizeof(pollfd), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (!sys::failed(big)) {
                all = static_cast<pollfd*>(big);
                room = total;
            } else {
                big = nullptr;
            }
        }
        size_t own = 0;
        // Who attends a ring tells what comes by the kernel, too.
        if ((attended != 0 || shards.empty()) && TwinEvents::fd() >= 0)
            all[own++] = {TwinEvents::fd(), POLLIN, 0};
        if (sleeper.thread) all[own++] = {sleeper.thread->event.fd(), POLLIN, 0};
        size_t rings = 0;
        for (size_t i = 0; i < shards.size() && own < room; i++) {
            if (!attends(i)) continue;
            all[own++] = {shards[i]->wake_fd(), POLLIN, 0};
            rings++;
        }
        const size_t extra = std::min(kernel.size(), room - own);
        std::copy(kernel.begin(), kernel.begin() + ptrdiff_t(extra), all + own);

        Duration left = limits.deadline.is_never() ? Duration::max() : limits.deadline - now;
        if (left.ns < 0) left = {};
        // Without an eventfd of its own, or with descriptors that did not fit, nobody could wake this thread: short slices.
        if (sleeper.thread == nullptr || rings < attended || extra < kernel.size())
            left = std::min(left, Duration::millis(1));
        const timespec ts{left.ns / 1000000000, left.ns % 1000000000};
        result = sys::blocking_ppoll(all, own + extra, left == Duration::max() ? nullptr : &ts,
                                     limits.sigmask);
        for (size_t i = 0; i < extra; i++)
            kernel[i].revents = result > 0 ? all[own + i].revents : short(0);
        if (big) sys::munmap(big, total * sizeof(pollfd));
    }
    for (size_t i = 0; i < shards.size(); i++) {
        Follower* const f = follower(i);
        shards[i]->disarm(f);
        if (!f || f->attends || f->called) led.add(*shards[i]);
    }
    target.unwatch(sleeper);
    if (sleeper.notified.load(std::memory_order_acquire) && sleeper.thread) {
        uint64_t drained;
        sys::read(sleeper.thread->event.fd(), &drained, sizeof drained);
    }
    return ready ? kReady : result;
}

}  // namespace

Duration SpinGovernor::budget(Duration bound, bool adaptive) {
    if (!adaptive || bound.ns <= 0) return bound;
    calls_++;
    if (expected_ns_ < 2 * bound.ns) return bound;
    // Spinning did not pay lately. A short try now and then notices when the traffic changed.
    return calls_ % 16 == 0 ? bound / 8 : Duration{};
}

void SpinGovernor::learn(Duration waited, Duration spun, WaitEnd end, bool spinning) {
    if (end == WaitEnd::timeout)
        add(timeouts_, 1);
    else if (end == WaitEnd::ready)
        add(spinning ? hits_ : misses_, 1);
    add(spun_ns_, uint64_t(spun.ns));
    constexpr int64_t kLongest =
        Duration::millis(2).ns;  // so that a few short waits outweigh a long idle time
    expected_ns_ = (3 * expected_ns_ + std::min(waited.ns, kLongest)) / 4;
}

SpinGovernor::Counts SpinGovernor::counts() const {
    const auto get = [](const std::atomic<uint64_t>& counter) {
        return counter.load(std::memory_order_relaxed);
    };
    return {get(hits_), get(misses_), get(timeouts_), get(spun_ns_)};
}

stats::WaitNumbers wait_numbers(const SpinGovernor& governor, const ReadyCounts& counts) {
    const SpinGovernor::Counts waits = governor.counts();
    stats::WaitNumbers n;
    n.poll_hit = waits.hits;
    n.poll_miss = waits.misses;
    n.timeouts = waits.timeouts;
    n.polling_ns = waits.spun_ns;
    n.errors = counts.errors.load(std::memory_order_relaxed);
    n.ready = counts.ours.load(std::memory_order_relaxed);
    n.os_ready = counts.kernel.load(std::memory_order_relaxed);
    return n;
}

Outcome interrupted_call(Duration timeout) {
    return pending_signal() == PendingSignal::restart && timeout.ns == 0 ? Outcome::restart()
                                                                         : Outcome::error(EINTR);
}

WaitEnd wait_until(WaitTarget& target, SpinGovernor& governor, const WaitLimits& limits) {
    // Rings that always have something must not hide what came by the kernel.
    if (governor.turn_of_twins()) TwinEvents::drain();
    Screens::run();
    if (target.ready(false)) return WaitEnd::ready;
    const Instant start = monotonic_now();
    Instant now = start;
    const Duration budget = governor.budget(limits.spin, limits.adaptive);
    const Instant spin_end = budget.ns < 0 ? Instant::never() : start + budget;
    Instant next_yield = start + kYieldAfter, next_twins = start;
    bool spinning = budget.ns != 0 && limits.spin_loops != 0;
    Duration spun{};  // known once it has ended
    Led led;

    auto finish = [&](WaitEnd end) {
        const Duration waited = monotonic_now() - start;
        governor.learn(waited, spinning ? waited : spun, end, spinning);
        led.pass_on();
        return end;
    };
    for (unsigned loop = 1;; loop++) {
        if (pending_signal() != PendingSignal::none) return finish(WaitEnd::interrupted);
        target.progress();
        Screens::run();
        if (target.ready(false)) return finish(WaitEnd::ready);
        if (now >= next_twins) {
            next_twins = now + kTwinsEvery;
            if (TwinEvents::drain() && target.ready(false)) return finish(WaitEnd::ready);
        }
        if (loop % kClockEvery == 0 || !spinning) {
            now = monotonic_now();
            if (now >= limits.deadline) return finish(WaitEnd::timeout);
            if (spinning &&
                (now >= spin_end || (limits.spin_loops >= 0 && loop >= limits.spin_loops))) {
                spinning = false;
                spun = now - start;
            }
            if (spinning && now >= next_yield) {
                // The peer, or the thread we wait for, may need this very core.
                sys::raw(SYS_sched_yield);
                next_yield = now + kYieldEvery;
                if (mask_would_interrupt(limits.sigmask)) return finish(WaitEnd::interrupted);
            }
        }
        if (spinning) {
            cpu_relax();
            continue;
        }
        const int slept = sleep_once(target, limits, now, led);
        if (slept == -EINTR) return finish(WaitEnd::interrupted);
        if (slept == kReady) return finish(WaitEnd::ready);
        target.progress();
        TwinEvents::drain();
        Screens::run();
        if (target.ready(true)) return finish(WaitEnd::ready);
    }
}

namespace {
OwnFd g_twins;
SpinLock g_twins_lock;
std::atomic<int64_t> g_drained_at{0};  // monotonic, ns: what came to a twin before is known
}  // namespace

int TwinEvents::fd() { return g_twins.fd(); }

bool TwinEvents::add(int twin_fd, void* socket, uint32_t generation) {
    {
        SpinGuard guard(g_twins_lock);
        if (!g_twins.valid()) {
            const int fd = sys::epoll_create1(EPOLL_CLOEXEC);
            if (fd < 0 || !g_twins.adopt(fd)) return false;
        }
    }
    // Sockets live below 2^47: the upper 16 bits carry the low bits of the generation.
    epoll_event event{};
    event.events = EPOLLIN | EPOLLERR | EPOLLET;
    event.data.u64 = reinterpret_cast<uint64_t>(socket) | uint64_t(generation & 0xffff) << 48;
    return sys::epoll_ctl(g_twins.fd(), EPOLL_CTL_ADD, twin_fd, &event) == 0;
}

void TwinEvents::remove(int twin_fd) {
    epoll_event unused{};
    if (g_twins.valid()) sys::epoll_ctl(g_twins.fd(), EPOLL_CTL_DEL, twin_fd, &unused);
}

bool TwinEvents::drain() {
    if (!g_twins.valid()) return false;
    bool any = false;
    const Instant begun = monotonic_now();
    epoll_event events[16];
    for (;;) {
        const int n = sys::epoll_wait(g_twins.fd(), events, 16, 0);
        for (int i = 0; i < n; i++) {
            auto* socket = reinterpret_cast<Socket*>(events[i].data.u64 & 0xffffffffffffull);
            any |= socket->twin_event(uint16_t(events[i].data.u64 >> 48), events[i].events);
        }
        if (n < 16) break;
    }
    g_drained_at.store(begun.ns, std::memory_order_release);
    return any;
}

bool TwinEvents::is_due(Instant taken) {
    return taken.ns > g_drained_at.load(std::memory_order_acquire) + kTwinsEvery.ns;
}

void TwinEvents::forget_in_child() {
    // The descriptor itself was closed with the other own fds of the parent (own_fds_close_in_child).
    g_twins.reset();
    new (&g_twins_lock) SpinLock;
}

}  // namespace vma::sock
