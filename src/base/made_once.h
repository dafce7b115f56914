// A value that whoever needs it first makes, for the life of the process. No lock, which a forked child would inherit held by a
// thread that it does not have (function-local statics are built under one): several threads may make the value at once, and
// one of them is kept for all.
#pragma once

#include <atomic>

namespace vma {

template <class T>
class MadeOnce {
  public:
    constexpr MadeOnce() = default;
    // `fill(T&)` completes a default-constructed T that nobody else sees; it may run more than once, also in a child.
    template <class Fill>
    T& get(Fill&& fill) {
        T* there = kept_.load(std::memory_order_acquire);
        if (there) return *there;
        T* const made = new T;
        fill(*made);
        if (kept_.compare_exchange_strong(there, made, std::memory_order_acq_rel)) return *made;
        delete made;
        return *there;
    }

  private:
    std::atomic<T*> kept_{nullptr};  // never given back: threads may outlive exit handlers
};

}  // namespace vma
