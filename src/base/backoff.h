// Backoff: a bounded spin before a thread goes to sleep on a futex. No clock: the bound is a number of pauses.
#pragma once

#include <cstdint>

namespace vma {

class Backoff {
  public:
    explicit constexpr Backoff(uint32_t pauses) : left_(pauses) {}
    // One short pause of the CPU; false when the bound is used up and the caller should sleep.
    bool spin() {
        if (left_ == 0) return false;
        --left_;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
        return true;
    }

  private:
    uint32_t left_;
};

}  // namespace vma
