// Lease: the lock of a shard (process-model.md sections 1 and 7). Lives in the shard arena, shared with forked children.
//
// Biased: the thread that uses it mostly holds the bias and enters by a plain store and a compiler fence. Another thread
// takes the lock word by CAS, withdraws the bias, runs membarrier(2) (after it, either it sees the biased thread inside or
// that thread sees the bias gone), and waits until the biased thread is outside. Who enters kBiasAfter times in a row
// through the lock word gets the bias. Where membarrier is missing (ENOSYS, seccomp) and in TSan builds, which cannot
// see that membarrier orders anything, it is a plain CAS lock.
//
// A thread that has lost the bias may be between its look at the bias and its store, for as long as it is not running; it
// takes the store back afterwards. So each thread that gets the bias has a place of its own for it, which nobody else ever
// uses: kPlaces threads at most, the others go through the lock word.
//
// Waiting: a bounded spin, then a futex. Entering twice in one thread is a programming error (asserted in debug).
// Robust: who holds it (pid, tid), which process owns the shard, and a generation are in the memory. enter() by another
// process than the owner works (slower), but waits for ever on a holder that was killed: use enter_until() there and, once
// owner_process_dead(), take_over().
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>

#include "base/process.h"
#include "base/thread_safety.h"
#include "base/time.h"

namespace vma {

#if defined(__SANITIZE_THREAD__)
#define VMA_LEASE_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VMA_LEASE_PLAIN 1
#endif
#endif
#ifndef VMA_LEASE_PLAIN
#define VMA_LEASE_PLAIN 0
#endif

enum class LeaseMode : uint8_t { biased, plain };

enum class TakeOver : uint8_t {
    owner_alive,  // nothing done
    busy,  // another living process holds the lock or was faster: try again or leave it to that one
    was_free,  // taken: nobody was inside when the owner died, the state is consistent
    was_held,  // taken: somebody died inside, the state may be half changed
};

class VMA_CAPABILITY("shard lease") Lease {
  public:
    // 64 uncontended CAS entries cost about as much as one withdrawal of the bias.
    static constexpr uint32_t kBiasAfter = 64;
    static constexpr uint32_t kSpins = 100;  // pauses before the futex
    static constexpr unsigned kPlaces = 8;

    // Registers the process with membarrier, for whoever is about to start the process's first thread: in a process of one
    // thread that costs two system calls, later two RCU grace periods (22 ms were seen). The first lease does it otherwise.
    static void prepare();
    // The calling process becomes the owner. The first biased lease registers the process with membarrier.
    explicit Lease(LeaseMode wanted = LeaseMode::biased);
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    void enter() VMA_ACQUIRE() {
        if (!enter_biased(self_identity())) enter_slow(Instant::never());
    }
    // False if somebody is inside; never waits.
    bool try_enter() VMA_TRY_ACQUIRE(true) {
        return enter_biased(self_identity()) || try_enter_slow();
    }
    // False if the lock was not free before `deadline` (CLOCK_MONOTONIC).
    bool enter_until(Instant deadline) VMA_TRY_ACQUIRE(true) {
        return enter_biased(self_identity()) || enter_slow(deadline);
    }
    void leave() VMA_RELEASE() {
        const uint64_t me = self_identity();
        if (holder_of(word_.load(std::memory_order_relaxed)) == me) {
            leave_slow(me);
            return;
        }
        const uint64_t bias = bias_.load(std::memory_order_relaxed);
        const bool still = thread_of(bias) == me;
        std::atomic<uint32_t>& inside = inside_[still ? place_of(bias) : place_for(me)];
        assert(inside.load(std::memory_order_relaxed) == 1);
        inside.store(0, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (!still || bias_.load(std::memory_order_relaxed) != bias) wake_withdrawer(inside);
    }

    // A hint for the holder: somebody waits or has announced itself.
    bool contended() const {
        const uint64_t word = word_.load(std::memory_order_relaxed);
        return (word & kWaiters) != 0 || (word != 0 && is_biased_inside());
    }

    // True when the process that owns the shard has ended, reaped or not. False in that process, and when nothing can be
    // said (another pid namespace). Some system calls.
    bool owner_process_dead() const;
    // Makes the calling process the owner if the owner has ended. On was_free and was_held the caller is inside.
    TakeOver take_over() VMA_NO_THREAD_SAFETY_ANALYSIS;

    // Somebody is inside, or died there. For readers of a dead process's memory; anybody else enters.
    bool held() const {
        return holder_of(word_.load(std::memory_order_acquire)) != 0 || is_biased_inside();
    }

    LeaseMode mode() const { return mode_.load(std::memory_order_relaxed); }
    uint64_t biased_to() const {
        return thread_of(bias_.load(std::memory_order_relaxed));
    }  // self_identity() of it, 0: nobody
    uint32_t owner_pid() const { return owner_pid_.load(std::memory_order_relaxed); }
    uint32_t generation() const {
        return generation_.load(std::memory_order_relaxed);
    }  // owners so far, from 1
    uint64_t withdrawals() const { return withdrawals_.load(std::memory_order_relaxed); }

  private:
    // word_: pid << 32 | kWaiters | tid of the holder; 0 free. The futex is its low half.
    static constexpr uint64_t kWaiters = uint64_t(1) << 31;
    static uint64_t holder_of(uint64_t word) { return word & ~kWaiters; }
    // bias_: self_identity() of the thread, and its place in bits that no thread id has (PID_MAX_LIMIT is 1 << 22).
    static constexpr unsigned kPlaceShift = 22;
    static constexpr uint64_t kPlaceMask = uint64_t(kPlaces - 1) << kPlaceShift;
    static_assert((kPlaces & (kPlaces - 1)) == 0 && (kPlaceMask & kWaiters) == 0);
    static uint64_t thread_of(uint64_t bias) { return bias & ~kPlaceMask; }
    static unsigned place_of(uint64_t bias) { return unsigned((bias & kPlaceMask) >> kPlaceShift); }

    bool enter_biased(uint64_t me) {
        const uint64_t bias = bias_.load(std::memory_order_relaxed);
        if (thread_of(bias) != me) return false;
        std::atomic<uint32_t>& inside = inside_[place_of(bias)];
        assert(inside.load(std::memory_order_relaxed) == 0);
        inside.store(1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (bias_.load(std::memory_order_acquire) == bias) [[likely]]
            return true;
        inside.store(0, std::memory_order_release);
        wake_withdrawer(inside);
        return false;
    }
    // Of a thread that has one, or under the word a free one for it; kPlaces: there is none.
    unsigned place_for(uint64_t me) const {
        for (unsigned i = 0; i < kPlaces; i++)
            if (const uint64_t of = places_[i].load(std::memory_order_relaxed); of == me || of == 0)
                return i;
        return kPlaces;
    }
    bool is_biased_inside() const {
        for (const auto& inside : inside_)
            if (inside.load(std::memory_order_acquire) != 0) return true;
        return false;
    }
    bool enter_slow(Instant deadline);
    bool try_enter_slow();
    void leave_slow(uint64_t me);
    bool acquire_word(uint64_t me, Instant deadline);
    void release_word();
    void withdraw_bias();
    bool wait_outside(Instant deadline);
    void note_entry(uint64_t me);
    void become_owner(uint32_t pid);
    static void wake_withdrawer(std::atomic<uint32_t>& inside);

    alignas(64) std::atomic<uint64_t> bias_{0};
    std::atomic<uint32_t> inside_[kPlaces] = {};  // each written by its own thread only; futexes
    alignas(64) std::atomic<uint64_t> word_{0};
    uint64_t last_ = 0;  // who entered last through the word, how often in a row; under the word
    uint32_t streak_ = 0;
    uint32_t left_ = 0;  // the place of the bias that was withdrawn last; under the word
    std::atomic<uint64_t> places_[kPlaces] = {};  // whose place it is; set under the word, for good
    std::atomic<LeaseMode> mode_;
    std::atomic<uint32_t> generation_{0};
    std::atomic<uint32_t> owner_pid_{0};
    std::atomic<uint64_t> owner_start_{0};      // process_start_ticks
    std::atomic<uint64_t> owner_namespace_{0};  // pid_namespace
    std::atomic<uint64_t> withdrawals_{0};
};

class VMA_SCOPED_CAPABILITY LeaseGuard {
  public:
    explicit LeaseGuard(Lease& lease) VMA_ACQUIRE(lease) : lease_(lease) { lease_.enter(); }
    ~LeaseGuard() VMA_RELEASE() { lease_.leave(); }
    LeaseGuard(const LeaseGuard&) = delete;
    LeaseGuard& operator=(const LeaseGuard&) = delete;

  private:
    Lease& lease_;
};

// Two at once: whoever needs that takes them in one order.
class VMA_SCOPED_CAPABILITY TwoLeases {
  public:
    TwoLeases(Lease& a, Lease& b) VMA_ACQUIRE(a, b)
        : first_(&a < &b ? a : b), second_(&a < &b ? b : a) {
        first_.enter();
        second_.enter();
    }
    ~TwoLeases() VMA_RELEASE() {
        second_.leave();
        first_.leave();
    }
    TwoLeases(const TwoLeases&) = delete;
    TwoLeases& operator=(const TwoLeases&) = delete;

  private:
    Lease &first_, &second_;
};

}  // namespace vma
