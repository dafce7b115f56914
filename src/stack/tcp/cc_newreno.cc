// RFC 5681 slow start and congestion avoidance with appropriate byte counting (RFC 3465), and the "none" algorithm.
#include <algorithm>

#include "stack/tcp/cc.h"

namespace vma::tcp {

uint32_t initial_window(uint32_t mss) {
    return std::min(10 * mss, std::max<uint32_t>(2 * mss, 14600));
}

uint32_t grow_slow_start(Cc& cc, const CcAck& ack) {
    const uint32_t room = cc.ssthresh - cc.cwnd;
    const uint32_t step = std::min(ack.acked, room);
    cc.cwnd = std::min(cc.cwnd + step, kMaxCwnd);
    return ack.acked - step;
}

void restart_after_idle(Cc& cc, Duration idle, Duration rto, uint32_t mss, Instant) {
    const uint32_t floor = std::min(initial_window(mss), cc.cwnd);
    cc.ssthresh = std::max(cc.ssthresh, cc.cwnd / 4 * 3);
    while (idle > rto && cc.cwnd > floor) {
        cc.cwnd = std::max(cc.cwnd / 2, floor);
        idle = idle - rto;
    }
    cc.acked_bytes = 0;
}

namespace {

void newreno_grow(Cc& cc, const CcAck& ack) {
    if (!ack.cwnd_limited) return;
    uint32_t acked = ack.acked;
    if (cc.in_slow_start()) {
        acked = grow_slow_start(cc, ack);
        if (acked == 0) return;
    }
    cc.acked_bytes += acked;
    if (cc.acked_bytes >= cc.cwnd) {
        cc.acked_bytes -= cc.cwnd;
        cc.cwnd = std::min(cc.cwnd + ack.mss, kMaxCwnd);
    }
}

uint32_t newreno_reduce(Cc& cc, uint32_t mss, Instant) {
    cc.acked_bytes = 0;
    return std::max(cc.cwnd / 2, 2 * mss);
}

// "none": no congestion window; flow control alone limits sending.
void none_grow(Cc& cc, const CcAck&) { cc.cwnd = kMaxCwnd; }
uint32_t none_reduce(Cc&, uint32_t, Instant) { return kMaxCwnd; }
void none_restart(Cc&, Duration, Duration, uint32_t, Instant) {}

constexpr CcAlgorithm kNone{"none", none_grow, none_reduce, none_restart};

}  // namespace

const CcAlgorithm kNewReno{"reno", newreno_grow, newreno_reduce, restart_after_idle};

const CcAlgorithm& cc_algorithm(CcKind kind) {
    switch (kind) {
        case CcKind::newreno:
            return kNewReno;
        case CcKind::none:
            return kNone;
        case CcKind::bbr:
            return kBbr;
        case CcKind::cubic:
            break;
    }
    return kCubic;
}

}  // namespace vma::tcp
