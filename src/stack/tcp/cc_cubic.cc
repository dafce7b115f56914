// CUBIC, RFC 9438. Windows in segments inside, bytes outside; C and beta as in section 4.1 and 4.6.
#include <algorithm>

#include "stack/tcp/cc.h"

namespace vma::tcp {
namespace {

constexpr double kC = 0.4;
constexpr double kBeta = 0.7;
constexpr double kAlpha = 3.0 * (1.0 - kBeta) / (1.0 + kBeta);  // section 4.3

// Newton; libm stays unlinked. x >= 0.
double cube_root(double x) {
    if (x <= 0) return 0;
    double r = x > 1 ? x / 3 + 1 : 1;
    for (int i = 0; i < 64; ++i) {
        const double next = (2 * r + x / (r * r)) / 3;
        if (next > r - 1e-9 && next < r + 1e-9) return next;
        r = next;
    }
    return r;
}

void start_epoch(Cc& cc, double cwnd, Instant now) {
    CubicState& c = cc.cubic;
    c.in_epoch = true;
    c.epoch = now;
    c.w_est = cwnd;
    if (cwnd < c.w_max) {
        c.k = cube_root((c.w_max - cwnd) / kC);
        c.origin = c.w_max;
    } else {
        c.k = 0;
        c.origin = cwnd;
    }
}

void cubic_grow(Cc& cc, const CcAck& ack) {
    if (!ack.cwnd_limited) return;
    uint32_t acked = ack.acked;
    if (cc.in_slow_start()) {
        acked = grow_slow_start_carefully(cc, ack);
        if (acked == 0) return;
    }
    CubicState& c = cc.cubic;
    const double mss = ack.mss;
    const double cwnd = cc.cwnd / mss;
    if (!c.in_epoch) start_epoch(cc, cwnd, ack.now);
    const double rtt = double(ack.srtt.ns) * 1e-9;
    const double t = double((ack.now - c.epoch).ns) * 1e-9;
    // W_cubic one RTT ahead, bounded to [cwnd, 1.5 cwnd] (section 4.2).
    const double d = t + rtt - c.k;
    const double target = std::clamp(c.origin + kC * d * d * d, cwnd, 1.5 * cwnd);
    const double segments = acked / mss;
    // Section 4.3, but alpha does not become 1 beyond the window before the reduction: Linux's does not, and two of ours
    // would leave one of its flows less than its part of a bottleneck.
    c.w_est += kAlpha * segments / cwnd;
    double next = cwnd + (target - cwnd) / cwnd * segments;
    const double now_d = t - c.k;
    const double w_now = c.origin + kC * now_d * now_d * now_d;
    if (w_now < c.w_est) next = std::max(next, c.w_est);
    cc.cwnd = uint32_t(std::min(next * mss, double(kMaxCwnd)));
}

uint32_t cubic_reduce(Cc& cc, uint32_t mss, Instant) {
    CubicState& c = cc.cubic;
    const double cwnd = double(cc.cwnd) / mss;
    c.in_epoch = false;
    // Fast convergence (section 4.7).
    c.w_max = cwnd < c.w_max ? cwnd * (1.0 + kBeta) / 2 : cwnd;
    // Section 4.6. Of the window, as Linux: it grows only while it is used, and decays when idle.
    return std::max(uint32_t(cc.cwnd * kBeta), 2 * mss);
}

void cubic_restart(Cc& cc, Duration idle, Duration rto, uint32_t mss, Instant now) {
    // Section 5.8: time spent idle does not count.
    if (cc.cubic.in_epoch) cc.cubic.epoch = cc.cubic.epoch + idle;
    if (cc.cubic.epoch > now) cc.cubic.epoch = now;
    restart_after_idle(cc, idle, rto, mss, now);
}

}  // namespace

const CcAlgorithm kCubic{"cubic", cubic_grow, cubic_reduce, cubic_restart};

}  // namespace vma::tcp
