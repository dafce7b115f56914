// LaneFit: whether a socket's lane still fits the thread or CPU that uses it (VMA_RING_MIGRATION_RATIO_*). Every so many accesses
// the key of the caller is looked at; when it is another than the lane's, and every single access of a whole further window is of
// that key, too, the socket should move. Whoever comes in turns with others stays where he is; and after a move the next one takes
// twice the window, unless the socket has stayed for long, so that sockets that are handed to and fro settle.
//
// Threads: any; racing ones may count one access for two.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace vma {

class LaneFit {
  public:
    // From now on the accesses of a socket count, whose lane is of the key `own`. `ratio` < 1: they do not.
    void begin(int32_t ratio, uint64_t own) {
        set(own_, own);
        if (ratio < 1) return;
        set(ratio_, uint32_t(ratio));
        set(window_, uint64_t(ratio));
        set(left_, uint64_t(ratio));
        is_on_.store(true, std::memory_order_release);
    }
    bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
    uint64_t own() const { return get(own_); }

    // One access. True: the socket should move to the lane of the caller, whose key is what key() says.
    template <class Key>
    bool access(Key&& key) {
        const uint64_t left = get(left_);
        if (!get(doubts_) && left > 1) {
            set(left_, left - 1);
            return false;
        }
        const uint64_t callers = key();
        set(stayed_, get(stayed_) + (get(doubts_) ? 1 : get(ratio_)));
        if (callers == get(own_) || (get(doubts_) && callers != get(candidate_))) {
            settle();
            return false;
        }
        if (get(doubts_)) {
            set(left_, left - (left != 0));
            return left <= 1;
        }
        set(candidate_, callers);
        set(left_, get(window_));
        set(doubts_, true);
        return false;
    }
    // It has: the lane is of the key `own` now.
    void moved(uint64_t own) {
        const uint64_t most = uint64_t(get(ratio_)) * kMostWindow;
        const bool soon = get(has_moved_) && get(stayed_) < kLong * get(window_);
        set(window_, soon ? std::min(2 * get(window_), most) : uint64_t(get(ratio_)));
        set(has_moved_, true);
        set(stayed_, uint64_t{0});
        set(own_, own);
        settle();
    }
    // Not now, or it need not.
    void stays() { settle(); }
    // It cannot, and may be able to some time: it is tried ever more seldom.
    void refused() {
        set(window_, std::min(2 * get(window_), uint64_t(get(ratio_)) * kMostWindow));
        settle();
    }
    void shared(uint64_t own) { set(own_, own); }
    void forget_in_child() { is_on_.store(false, std::memory_order_relaxed); }

  private:
    static constexpr uint64_t kMostWindow = 1024;  // in ratios
    static constexpr uint64_t kLong = 8;           // in windows
    template <class T>
    static T get(const std::atomic<T>& value) {
        return value.load(std::memory_order_relaxed);
    }
    template <class T>
    static void set(std::atomic<T>& value, T to) {
        value.store(to, std::memory_order_relaxed);
    }
    void settle() {
        set(doubts_, false);
        set(left_, uint64_t(get(ratio_)));
    }

    std::atomic<bool> is_on_{false}, doubts_{false}, has_moved_{false};
    std::atomic<uint32_t> ratio_{0};
    std::atomic<uint64_t> left_{0};  // accesses: to the next look, or of the candidate to the move
    std::atomic<uint64_t> window_{0};  // how many a candidate needs
    std::atomic<uint64_t> stayed_{0};  // since the last move, about
    std::atomic<uint64_t> own_{0}, candidate_{0};
};

}  // namespace vma
