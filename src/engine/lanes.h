// Lanes: which of the rings of an interface a socket uses (VMA_RING_ALLOCATION_LOGIC_TX and _RX). A lane is a set of rings, one
// of each interface that needs one, for the sockets that have an allocation key in common: those of one thread, of one
// address... Its rings are opened when a socket first needs them and stay; a lane that no socket uses any more is given to the
// next new key, so there are as many as keys were in use at the same time (docs/decisions/0023-rings-of-an-interface.md).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ip_addr.h"
#include "base/spin_lock.h"

namespace vma {

// The numbers are VMA's.
enum class RingLogic : uint8_t {
    interface = 0,
    address = 1,
    socket = 10,
    user = 11,  // a number of the program's (SO_VMA_RING_ALLOC_LOGIC)
    thread = 20,
    core = 30,
    pinned_core = 31,  // and the thread stays on it
};

struct LaneKey {
    RingLogic logic = RingLogic::interface;
    uint64_t id = 0;
    bool operator==(const LaneKey&) const = default;
};

// The key of a socket for the calling thread; pinned_core may move the thread.
LaneKey lane_key(RingLogic logic, int fd, const IpAddr& local, uint32_t user);
void lanes_forget_in_child();

// One socket's use of a lane.
class LaneUse {
  public:
    unsigned lane() const { return value_ & 0xff; }
    bool operator==(const LaneUse&) const = default;

  private:
    friend class Lanes;
    friend class LaneChoice;
    uint32_t value_ = 0;  // the entry of its key << 8 | the lane
};

// Any thread.
class Lanes {
  public:
    static constexpr unsigned kMost = 64;
    static constexpr unsigned kMostKeys = 256;  // further keys get a lane for each of their uses

    // `limit`: most lanes, 0 for kMost. A key beyond it shares the lane with the fewest uses; one of the user never does.
    LaneUse take(const LaneKey& key, unsigned limit);
    void share(LaneUse use);  // once more
    void give(LaneUse use);
    // Is there more than one?
    bool several() const { return count_.load(std::memory_order_acquire) > 1; }
    unsigned uses(unsigned lane) const { return lanes_[lane].uses; }

  private:
    static constexpr uint32_t kNoEntry = kMostKeys;
    struct Lane {
        LaneKey last;  // the key that it was given to
        uint32_t uses = 0;
    };
    struct Entry {
        LaneKey key;
        uint32_t uses = 0;  // 0: free
        uint8_t lane = 0;
    };
    unsigned choose(const LaneKey& key, unsigned limit);

    SpinLock lock_;
    std::atomic<unsigned> count_{0};
    Lane lanes_[kMost];
    Entry entries_[kMostKeys];
    uint32_t entry_count_ = 0;  // entries behind these were never used
};

// What a socket has chosen, until it is closed or moves.
class LaneChoice {
  public:
    bool made() const { return value_.load(std::memory_order_acquire) != kNone; }
    // Threads may make it at the same time; one of them does.
    unsigned make(Lanes& lanes, const LaneKey& key, unsigned limit);
    unsigned lane() const { return LaneChoice::use(value_.load(std::memory_order_acquire)).lane(); }
    // That of another socket.
    void share(Lanes& lanes, const LaneChoice& other);
    // Another one, which the caller has taken: it is this socket's now, and what that had before is given back.
    void replace(Lanes& lanes, LaneUse by);
    void give_back(Lanes& lanes);
    void forget_in_child() { value_.store(kNone, std::memory_order_relaxed); }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;
    static LaneUse use(uint32_t value) {
        LaneUse use;
        use.value_ = value;
        return use;
    }
    std::atomic<uint32_t> value_{kNone};
};

}  // namespace vma
