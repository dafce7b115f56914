#include "engine/lanes.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/log.h"
#include "base/sys.h"

namespace vma {
namespace {

// Threads that were pinned, by number of the thread and CPU. One that has ended frees its place when the next is pinned.
struct Pinned {
    int tid = 0;  // 0: free
    int cpu = 0;
};
constexpr unsigned kMostPinned = 256;
SpinLock g_pinned_lock;
std::array<Pinned, kMostPinned> g_pinned;
thread_local int t_cpu = -1;  // that this thread is pinned to

// The CPU that the thread is pinned to from now on: of those it may run on, the one with the fewest pinned threads.
int pin_thread() {
    if (t_cpu >= 0) return t_cpu;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return sched_getcpu();
    const int pid = sys::getpid(), tid = int(sys::raw(SYS_gettid));
    SpinGuard guard(g_pinned_lock);
    std::array<unsigned, CPU_SETSIZE> threads{};
    Pinned* place = nullptr;
    for (Pinned& p : g_pinned) {
        // The number may be another thread's by now: this one's is not pinned yet.
        if (p.tid != 0 && (p.tid == tid || sys::raw(SYS_tgkill, pid, p.tid, 0) == -ESRCH)) p = {};
        if (p.tid == 0)
            place = &p;
        else
            threads[size_t(p.cpu)]++;
    }
    int best = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && (best < 0 || threads[size_t(cpu)] < threads[size_t(best)]))
            best = cpu;
    if (best < 0) return sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(best, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return sched_getcpu();
    if (place != nullptr) *place = {tid, best};
    vma_log(debug, "engine", "thread {} stays on CPU {}", tid, best);
    return t_cpu = best;
}

}  // namespace

void lanes_forget_in_child() {
    new (&g_pinned_lock) SpinLock;
    g_pinned = {};  // of threads that are not here; the one that is joins anew
    t_cpu = -1;
}

LaneKey lane_key(RingLogic logic, int fd, const IpAddr& local, uint32_t user) {
    switch (logic) {
        case RingLogic::interface:
            break;
        case RingLogic::address:
            return {logic, local.is_v4() ? local.v4_host() : 0};
        case RingLogic::socket:
            return {logic, uint64_t(fd)};
        case RingLogic::user:
            return {logic, user};
        case RingLogic::thread:
            return {logic, uint64_t(pthread_self())};
        case RingLogic::core:
            return {logic, uint64_t(std::max(sched_getcpu(), 0))};
        case RingLogic::pinned_core:
            return {logic, uint64_t(std::max(pin_thread(), 0))};
    }
    return {};
}

unsigned Lanes::choose(const LaneKey& key, unsigned limit) {
    const unsigned count = count_.load(std::memory_order_relaxed);
    unsigned unused = kMost, least = 0;
    for (unsigned i = 0; i < count; i++) {
        if (lanes_[i].uses == 0 && (unused == kMost || lanes_[i].last == key)) unused = i;
        if (lanes_[i].uses < lanes_[least].uses) least = i;
    }
    if (unused != kMost) return unused;
    const unsigned most = limit == 0 || key.logic == RingLogic::user ? kMost : limit;
    if (count >= std::min(most, kMost)) return least;
    count_.store(count + 1, std::memory_order_release);
    return count;
}

LaneUse Lanes::take(const LaneKey& key, unsigned limit) {
    SpinGuard guard(lock_);
    uint32_t at = kNoEntry;
    for (uint32_t i = 0; i < entry_count_; i++) {
        if (entries_[i].uses != 0 && entries_[i].key == key) {
            at = i;
            break;
        }
        if (at == kNoEntry && entries_[i].uses == 0) at = i;
    }
    if (at == kNoEntry && entry_count_ < kMostKeys) at = entry_count_++;
    LaneUse use;
    if (at != kNoEntry && entries_[at].uses != 0) {
        use.value_ = at << 8 | entries_[at].lane;
    } else {
        const unsigned lane = choose(key, limit);
        if (lanes_[lane].uses == 0) lanes_[lane].last = key;
        if (at != kNoEntry) entries_[at] = {key, 0, uint8_t(lane)};
        use.value_ = at << 8 | lane;
    }
    if (at != kNoEntry) entries_[at].uses++;
    lanes_[use.lane()].uses++;
    return use;
}

void Lanes::share(LaneUse use) {
    SpinGuard guard(lock_);
    lanes_[use.lane()].uses++;
    if (const uint32_t at = use.value_ >> 8; at != kNoEntry) entries_[at].uses++;
}

void Lanes::give(LaneUse use) {
    SpinGuard guard(lock_);
    lanes_[use.lane()].uses--;
    if (const uint32_t at = use.value_ >> 8; at != kNoEntry) entries_[at].uses--;
}

unsigned LaneChoice::make(Lanes& lanes, const LaneKey& key, unsigned limit) {
    uint32_t known = value_.load(std::memory_order_acquire);
    if (known != kNone) return use(known).lane();
    const LaneUse mine = lanes.take(key, limit);
    if (value_.compare_exchange_strong(known, mine.value_)) return mine.lane();
    lanes.give(mine);
    return use(known).lane();
}

void LaneChoice::share(Lanes& lanes, const LaneChoice& other) {
    const uint32_t value = other.value_.load(std::memory_order_acquire);
    if (value == kNone) return;
    lanes.share(use(value));
    value_.store(value, std::memory_order_release);
}

void LaneChoice::replace(Lanes& lanes, LaneUse by) {
    const uint32_t before = value_.exchange(by.value_, std::memory_order_acq_rel);
    if (before != kNone) lanes.give(use(before));
}

void LaneChoice::give_back(Lanes& lanes) {
    const uint32_t value = value_.exchange(kNone, std::memory_order_acq_rel);
    if (value != kNone) lanes.give(use(value));
}

}  // namespace vma
