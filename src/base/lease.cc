#include "base/lease.h"

#include <linux/futex.h>
#include <linux/membarrier.h>

#include <bit>

#include "base/backoff.h"
#include "base/sys.h"

namespace vma {
namespace {

int membarrier(int command) { return int(sys::raw(SYS_membarrier, command, 0, 0)); }

// Both registrations: private for the threads of this process, global so that a forked child can withdraw a bias.
bool register_membarrier() {
    return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
           membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0 &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

// Not FUTEX_PRIVATE: waiters may be in other processes. The deadline is absolute, so no clock is read here.
long futex_wait(uint32_t* word, uint32_t value, Instant deadline) {
    const timespec at{time_t(deadline.ns / 1000000000), long(deadline.ns % 1000000000)};
    return sys::raw(SYS_futex, sys::ptr(word), FUTEX_WAIT_BITSET, value,
                    deadline.is_never() ? 0 : sys::ptr(&at), 0, long(FUTEX_BITSET_MATCH_ANY));
}

uint32_t* low_half(std::atomic<uint64_t>& word) {
    static_assert(std::endian::native == std::endian::little);
    return reinterpret_cast<uint32_t*>(&word);
}

}  // namespace

void Lease::prepare() {
    if (!VMA_LEASE_PLAIN) (void)register_membarrier();
}

Lease::Lease(LeaseMode wanted) : mode_(LeaseMode::plain) {
    if (!VMA_LEASE_PLAIN && wanted == LeaseMode::biased && register_membarrier())
        mode_.store(LeaseMode::biased, std::memory_order_relaxed);
    become_owner(uint32_t(self_identity() >> 32));
}

void Lease::become_owner(uint32_t pid) {
    owner_start_.store(process_start_ticks(pid), std::memory_order_relaxed);
    owner_namespace_.store(pid_namespace(), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_relaxed);
    owner_pid_.store(pid, std::memory_order_release);
}

bool Lease::acquire_word(uint64_t me, Instant deadline) {
    assert(holder_of(word_.load(std::memory_order_relaxed)) != me);
    Backoff backoff(kSpins);
    do {
        uint64_t free = 0;
        if (word_.load(std::memory_order_relaxed) == 0 &&
            word_.compare_exchange_weak(free, me, std::memory_order_acquire,
                                        std::memory_order_relaxed))
            return true;
    } while (backoff.spin());
    for (;;) {
        uint64_t word = word_.load(std::memory_order_relaxed);
        if (word == 0) {
            // Others may sleep: from here on the word is taken with the mark, which costs at most one needless wake-up.
            if (word_.compare_exchange_weak(word, me | kWaiters, std::memory_order_acquire,
                                            std::memory_order_relaxed))
                return true;
            continue;
        }
        if ((word & kWaiters) == 0 &&
            !word_.compare_exchange_weak(word, word | kWaiters, std::memory_order_relaxed,
                                         std::memory_order_relaxed))
            continue;
        if (futex_wait(low_half(word_), uint32_t(word | kWaiters), deadline) == -ETIMEDOUT)
            return false;
    }
}

void Lease::release_word() {
    const uint64_t word = word_.exchange(0, std::memory_order_release);
    if (word & kWaiters) sys::futex(low_half(word_), FUTEX_WAKE, 1);
}

// Holding the word. Afterwards its place tells the truth about the thread that had the bias.
void Lease::withdraw_bias() {
    left_ = place_of(bias_.load(std::memory_order_relaxed));
    bias_.store(0, std::memory_order_relaxed);
    withdrawals_.fetch_add(1, std::memory_order_relaxed);
    const bool same_process = uint32_t(self_identity() >> 32) == owner_pid();
    if (membarrier(same_process ? MEMBARRIER_CMD_PRIVATE_EXPEDITED
                                : MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0)
        return;
    // Refused though it worked at the start: a seccomp filter came in between. No bias any more, and this once a pause that
    // is a thousand times longer than a store can stay in a CPU's buffer stands in for the barrier; a thread that is
    // not running has passed one at its context switch.
    mode_.store(LeaseMode::plain, std::memory_order_relaxed);
    bias_.store(0, std::memory_order_seq_cst);
    const timespec pause{0, 1000000};
    sys::raw(SYS_nanosleep, sys::ptr(&pause), 0);
}

// Holding the word: the thread that had the bias may still be inside, also after an earlier caller of ours gave up.
bool Lease::wait_outside(Instant deadline) {
    Backoff backoff(kSpins);
    std::atomic<uint32_t>& inside = inside_[left_];
    while (inside.load(std::memory_order_acquire) != 0) {
        if (backoff.spin()) continue;
        auto* futex = reinterpret_cast<uint32_t*>(&inside);
        if (futex_wait(futex, 1, deadline) == -ETIMEDOUT)
            return inside.load(std::memory_order_acquire) == 0;
    }
    return true;
}

void Lease::wake_withdrawer(std::atomic<uint32_t>& inside) {
    sys::futex(reinterpret_cast<uint32_t*>(&inside), FUTEX_WAKE, 1);
}

void Lease::note_entry(uint64_t me) {
    streak_ = last_ == me ? streak_ + 1 : 1;
    last_ = me;
}

bool Lease::enter_slow(Instant deadline) {
    const uint64_t me = self_identity();
    if (!acquire_word(me, deadline)) return false;
    if (bias_.load(std::memory_order_relaxed) != 0) withdraw_bias();
    if (!wait_outside(deadline)) {
        release_word();
        return false;
    }
    note_entry(me);
    return true;
}

bool Lease::try_enter_slow() {
    const uint64_t me = self_identity();
    // A look first: a biased thread that is seen inside keeps its bias.
    if (const uint64_t bias = bias_.load(std::memory_order_relaxed);
        bias != 0 && inside_[place_of(bias)].load(std::memory_order_relaxed) != 0)
        return false;
    uint64_t free = 0;
    if (!word_.compare_exchange_strong(free, me, std::memory_order_acquire,
                                       std::memory_order_relaxed))
        return false;
    if (bias_.load(std::memory_order_relaxed) != 0) withdraw_bias();
    if (inside_[left_].load(std::memory_order_acquire) != 0) {
        release_word();
        return false;
    }
    note_entry(me);
    return true;
}

void Lease::leave_slow(uint64_t me) {
    if (streak_ >= kBiasAfter && mode() == LeaseMode::biased && uint32_t(me >> 32) == owner_pid() &&
        (word_.load(std::memory_order_relaxed) & kWaiters) == 0) {
        streak_ = 0;
        if (const unsigned place = place_for(me); place < kPlaces) {
            places_[place].store(me, std::memory_order_relaxed);
            // Seen by whoever takes the word after its release.
            bias_.store(me | uint64_t(place) << kPlaceShift, std::memory_order_relaxed);
        }
    }
    release_word();
}

bool Lease::owner_process_dead() const {
    const uint32_t pid = owner_pid_.load(std::memory_order_acquire);
    if (pid == uint32_t(self_identity() >> 32)) return false;
    const uint64_t theirs = owner_namespace_.load(std::memory_order_relaxed),
                   ours = pid_namespace();
    if (theirs != ours || ours == 0) return false;
    return !process_alive(pid, owner_start_.load(std::memory_order_relaxed));
}

TakeOver Lease::take_over() {
    // Two children may come here at once. The generation is read before the owner is judged: whoever takes the word and
    // finds another one knows that the shard has a new owner, and gives the word back.
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (!owner_process_dead()) return TakeOver::owner_alive;
    const uint64_t me = self_identity();
    uint64_t word = word_.load(std::memory_order_acquire);
    const auto holder = uint32_t(holder_of(word) >> 32);
    // The holder is judged by itself, not by being the owner: the owner may be a new, living one by now.
    if (holder != 0 && process_alive(holder, 0)) return TakeOver::busy;
    if (!word_.compare_exchange_strong(word, me | (word & kWaiters), std::memory_order_acquire))
        return TakeOver::busy;
    if (generation_.load(std::memory_order_relaxed) != generation) {
        release_word();
        return TakeOver::busy;
    }
    const bool held = holder != 0 || is_biased_inside();
    bias_.store(0, std::memory_order_relaxed);
    for (unsigned i = 0; i < kPlaces; i++) {
        inside_[i].store(0, std::memory_order_relaxed);
        places_[i].store(0, std::memory_order_relaxed);
    }
    last_ = 0;
    streak_ = 0;
    left_ = 0;
    if (mode() == LeaseMode::biased && !register_membarrier())
        mode_.store(LeaseMode::plain, std::memory_order_relaxed);
    become_owner(uint32_t(me >> 32));
    return held ? TakeOver::was_held : TakeOver::was_free;
}

}  // namespace vma
