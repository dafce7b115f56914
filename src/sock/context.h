// Context: what the socket layer asks the engine and the configuration for, in the words of this layer.
#pragma once

#include <atomic>
#include <span>

#include "engine/runtime.h"
#include "sock/wait.h"

namespace vma::sock {

struct Context {
    static std::span<Shard* const> shards() { return Runtime::shards(); }
    // Blocking socket calls: VMA_RX_POLL, and SO_RCVTIMEO or SO_SNDTIMEO from now on (0: for ever).
    static WaitLimits receive_limits(Duration timeout = {});
    static WaitLimits iomux_limits();  // select, poll, epoll: VMA_SELECT_POLL
    // Looks at a ring between two looks at the kernel socket; the variable unset, only the empty looks of calls that do not wait.
    static uint32_t kernel_poll_ratio();
    static bool kernel_poll_ratio_is_set();
    // How often a ring is looked at also while the socket has data; 0: not then.
    static Duration drain_spacing() {
        return Duration::nanos(Runtime::options().rx_cq_drain_rate_nsec);
    }
    // poll and select: the turns of a call's polling in which the kernel's descriptors are looked at (the first always), and
    // whether they are, too, once something of ours is ready, so that the answer is complete. It always is, as Linux's, while
    // VMA_SELECT_SKIP_OS is unset.
    struct KernelTurns {
        uint32_t every;
        bool complete;
    };
    static KernelTurns kernel_turns(std::atomic<uint32_t>& calls);
};

// Where a call looks that waits for many sockets: at the rings of their lanes; at all while there is only one lane.
class LaneShards {
  public:
    std::span<Shard* const> of(uint64_t lanes) {
        const auto all = Context::shards();
        if (!Runtime::lanes().several()) return all;
        size_t n = 0;
        for (Shard* shard : all)
            if (shard->lane() == Shard::kEveryLane || (lanes & shard->lane_bit()) != 0)
                chosen_[n++] = shard;
        return {chosen_, n};
    }

  private:
    Shard* chosen_[Runtime::kMaxShards];
};

}  // namespace vma::sock
