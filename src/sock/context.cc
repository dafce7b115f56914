#include "sock/context.h"

#include <algorithm>

#include "base/clock.h"

namespace vma::sock {
namespace {

// The variable unset: adaptive within VMA_SPIN_MAX_USEC. Set: VMA's meaning, -1 for ever, no learning.
Duration spin_bound(const Options& options) { return Duration::micros(options.spin_max_usec); }

}  // namespace

WaitLimits Context::receive_limits(Duration timeout) {
    const Options& options = Runtime::options();
    WaitLimits limits;
    if (options.is_set(Opt::rx_poll)) {
        limits.adaptive = false;
        limits.spin = Duration{-1};
        limits.spin_loops = options.rx_poll;
    } else {
        limits.spin = spin_bound(options);
    }
    if (timeout.ns) limits.deadline = monotonic_now() + timeout;
    return limits;
}

WaitLimits Context::iomux_limits() {
    const Options& options = Runtime::options();
    WaitLimits limits;
    if (options.is_set(Opt::select_poll)) {
        limits.adaptive = false;
        limits.spin =
            options.select_poll < 0 ? Duration{-1} : Duration::micros(options.select_poll);
    } else {
        limits.spin = spin_bound(options);
    }
    return limits;
}

uint32_t Context::kernel_poll_ratio() {
    const Options& options = Runtime::options();
    if (!kernel_poll_ratio_is_set()) return 16;
    return options.rx_udp_poll_os_ratio ? options.rx_udp_poll_os_ratio : UINT32_MAX;
}

bool Context::kernel_poll_ratio_is_set() {
    return Runtime::options().is_set(Opt::rx_udp_poll_os_ratio);
}

Context::KernelTurns Context::kernel_turns(std::atomic<uint32_t>& calls) {
    const Options& options = Runtime::options();
    KernelTurns turns{32, true};
    if (options.is_set(Opt::select_poll_os_ratio))
        turns.every = options.select_poll_os_ratio ? options.select_poll_os_ratio : UINT32_MAX;
    if (options.is_set(Opt::select_skip_os)) {
        const uint32_t skip = std::max(options.select_skip_os, 1u);
        turns.complete = calls.fetch_add(1, std::memory_order_relaxed) % skip == 0;
    }
    return turns;
}

}  // namespace vma::sock
