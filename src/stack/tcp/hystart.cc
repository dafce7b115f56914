// HyStart++, RFC 9406. Not paced, but without the limit L per ACK: as Linux, an ACK for a large frame counts in full.
#include <algorithm>

#include "stack/tcp/cc.h"

namespace vma::tcp {
namespace {

// Section 4.3.
constexpr Duration kMinThreshold = Duration::millis(4), kMaxThreshold = Duration::millis(16);
constexpr int64_t kDivisor = 8;
constexpr uint8_t kSamples = 8;
constexpr uint32_t kSlowDivisor = 4;
constexpr uint8_t kSlowRounds = 5;

void start_round(HyStart& h, Seq end) {
    h.last_min = h.now_min;
    h.now_min = Duration::max();
    h.samples = 0;
    h.round_end = end;
    h.in_round = true;
}

// True when the slow rounds are over.
bool judge_round_trip(HyStart& h, const CcAck& ack) {
    if (!h.in_round) {
        start_round(h, ack.nxt);
    } else if (ack.una >= h.round_end) {
        if (h.slow_rounds > 0 && ++h.slow_rounds > kSlowRounds) return true;
        start_round(h, ack.nxt);
    }
    if (ack.rtt.ns > 0) {
        h.now_min = std::min(h.now_min, ack.rtt);
        if (h.samples < 255) ++h.samples;
    }
    if (h.samples < kSamples) return false;
    if (h.slow_rounds > 0) {
        // It was a passing queue: back to slow start proper.
        if (h.now_min < h.base_min) h.slow_rounds = 0;
        return false;
    }
    if (h.last_min == Duration::max()) return false;
    const Duration threshold = std::clamp(h.last_min / kDivisor, kMinThreshold, kMaxThreshold);
    if (h.now_min >= h.last_min + threshold) {
        h.base_min = h.now_min;
        h.slow_rounds = 1;
    }
    return false;
}

}  // namespace

uint32_t grow_slow_start_carefully(Cc& cc, const CcAck& ack) {
    // Section 4.2: only before the first loss.
    if (cc.ssthresh < kInfiniteSsthresh) return grow_slow_start(cc, ack);
    if (judge_round_trip(cc.hystart, ack)) {
        cc.ssthresh = cc.cwnd;
        return ack.acked;
    }
    CcAck slower = ack;
    if (cc.hystart.slow_rounds > 0) slower.acked = std::max(ack.acked / kSlowDivisor, 1u);
    (void)grow_slow_start(cc, slower);
    return 0;
}

}  // namespace vma::tcp
