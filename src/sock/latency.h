// Latency histograms of one socket (stats/histogram.h): off until a viewer asks (Verb::latency), and then off costs a call
// that moves data one load and one branch. Switched by the internal thread, written by the threads that use the socket.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "stats/histogram.h"

namespace vma::sock {

struct LatencyProbe {
    stats::Histogram receive, send;
    void received(Instant arrival) { receive.record(uint64_t((monotonic_now() - arrival).ns)); }
    void sent(Instant called) { send.record(uint64_t((monotonic_now() - called).ns)); }
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
    void forget();  // off; the socket is gone

  private:
    std::atomic<LatencyProbe*> on_{nullptr};
    LatencyProbe* memory_ = nullptr;  // kept while off: a thread may still write to it
};

void latency_forget_in_child();

}  // namespace vma::sock
