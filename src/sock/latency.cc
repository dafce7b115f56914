#include "sock/latency.h"

#include <new>
#include <utility>

#include "sock/slab.h"

namespace vma::sock {
namespace {

Slab<LatencyProbe> g_probes;

}  // namespace

bool LatencySwitch::turn(bool on) {
    if (!on) {
        on_.store(nullptr, std::memory_order_relaxed);
        return true;
    }
    if (probe()) return true;
    if (memory_ == nullptr) {
        bool recycled;
        memory_ = static_cast<LatencyProbe*>(g_probes.take(&recycled));
        if (memory_ == nullptr) return false;
    }
    on_.store(new (memory_) LatencyProbe, std::memory_order_relaxed);
    return true;
}

void LatencySwitch::name_threads(stats::SocketIdentity& id) const {
    const LatencyProbe* const on = probe();
    if (on == nullptr) return;
    id.rx_thread = on->rx_thread.load(std::memory_order_relaxed);
    id.tx_thread = on->tx_thread.load(std::memory_order_relaxed);
}

void LatencySwitch::forget() {
    on_.store(nullptr, std::memory_order_relaxed);
    if (memory_ != nullptr) g_probes.give(std::exchange(memory_, nullptr));
}

void latency_forget_in_child() { g_probes.forget_lock_in_child(); }

}  // namespace vma::sock
