// Spsc: a bounded ring of trivially copyable T between one producer and one consumer, threads or processes.
//
// For memory shared with a process that is not trusted: every index is masked before use and every count is clamped, so
// whatever the other side writes, access stays inside `slots_`; the values read are then garbage, to be judged by the
// caller. Zero-filled memory is a valid empty ring. Neither side blocks or makes a system call. Each side keeps its view of
// the other's index on its own cache line, so that a ring neither full nor empty costs no shared line per item.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace vma {

template <class T, uint32_t Capacity>
class Spsc {
    static_assert(std::is_trivially_copyable_v<T>);
    static_assert(Capacity >= 2 && (Capacity & (Capacity - 1)) == 0 && Capacity <= (1u << 30),
                  "a power of two");
    static_assert(std::atomic<uint32_t>::is_always_lock_free);

  public:
    static constexpr uint32_t capacity() { return Capacity; }

    // Producer. False when full.
    bool push(const T& item) { return push(&item, 1) == 1; }
    // Producer. Takes as many of the n items as fit, from the front; returns how many. They become visible together.
    uint32_t push(const T* items, uint32_t n) {
        const uint32_t tail = producer_.index.load(std::memory_order_relaxed);
        if (Capacity - used(producer_.other, tail) < n)
            producer_.other = consumer_.index.load(std::memory_order_acquire);
        const uint32_t room = Capacity - used(producer_.other, tail);
        if (n > room) n = room;
        for (uint32_t i = 0; i < n; ++i) slots_[(tail + i) & kMask] = items[i];
        if (n) producer_.index.store(tail + n, std::memory_order_release);
        return n;
    }

    // Consumer. False when empty.
    bool pop(T& out) { return pop(&out, 1) == 1; }
    // Consumer. Moves up to n items to `out`, oldest first; returns how many.
    uint32_t pop(T* out, uint32_t n) {
        const uint32_t head = consumer_.index.load(std::memory_order_relaxed);
        if (used(head, consumer_.other) < n)
            consumer_.other = producer_.index.load(std::memory_order_acquire);
        const uint32_t there = used(head, consumer_.other);
        if (n > there) n = there;
        for (uint32_t i = 0; i < n; ++i) out[i] = slots_[(head + i) & kMask];
        if (n) consumer_.index.store(head + n, std::memory_order_release);
        return n;
    }

    // Either side or an onlooker; exact only for the side whose own index moves.
    uint32_t size() const {
        return used(consumer_.index.load(std::memory_order_acquire),
                    producer_.index.load(std::memory_order_acquire));
    }
    bool empty() const { return size() == 0; }

  private:
    static constexpr uint32_t kMask = Capacity - 1;
    // Items between the free-running indices; at most Capacity even when one of them is garbage.
    static uint32_t used(uint32_t head, uint32_t tail) {
        const uint32_t n = tail - head;
        return n > Capacity ? Capacity : n;
    }

    struct alignas(64) Side {
        std::atomic<uint32_t> index{0};
        uint32_t other = 0;  // the other side's index as last seen
    };
    Side producer_;
    Side consumer_;
    alignas(64) T slots_[Capacity];
};

}  // namespace vma
