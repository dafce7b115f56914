// Latency histograms of one socket (stats/histogram.h) and the threads that used it last: off until a viewer asks
// (Verb::latency) or the log is at debug, and then off costs a call that moves data one load and one branch. Switched by
// the internal thread, written by the threads that use the socket.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/process.h"
#include "stats/layout.h"

namespace vma::sock {

struct LatencyProbe {
    stats::Histogram receive, send;
    std::atomic<uint32_t> rx_thread{0}, tx_thread{0};
    void received(Instant arrival) {
        receive.record(uint64_t((monotonic_now() - arrival).ns));
        rx_thread.store(uint32_t(self_identity()), std::memory_order_relaxed);
    }
    void sent(Instant called) {
        send.record(uint64_t((monotonic_now() - called).ns));
        tx_thread.store(uint32_t(self_identity()), std::memory_order_relaxed);
    }
};

class LatencySwitch {
  public:
    LatencySwitch() = default;
    LatencySwitch(const LatencySwitch&) = delete;
    ~LatencySwitch() { forget(); }
    // Null: off.
    LatencyProbe* probe() const { return on_.load(std::memory_order_relaxed); }
    // On starts at zero unless it is on already. False: no memory.
    bool turn(bool on);
    // The threads into what viewers see; as it is while off.
    void name_threads(stats::SocketIdentity& id) const;
    void forget();  // off; the socket is gone

  private:
    std::atomic<LatencyProbe*> on_{nullptr};
    LatencyProbe* memory_ = nullptr;  // kept while off: a thread may still write to it
};

void latency_forget_in_child();

}  // namespace vma::sock
