// RttEstimator: smoothed round-trip time and retransmission timeout. RFC 6298 with Linux's bounds: the variance term is
// never below 200 ms, the timeout never above 120 s, 1 s before the first sample. Pure.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace vma::tcp {

inline constexpr Duration kRtoInitial = Duration::seconds(1);
inline constexpr Duration kRtoMin = Duration::millis(200);
inline constexpr Duration kRtoMax = Duration::seconds(120);

struct RttEstimator {
    Duration srtt{0};  // zero: no sample yet
    Duration rttvar{0};
    Duration min_rtt = Duration::max();
    Duration latest{0};
    Instant min_at;
    Duration rto = kRtoInitial;

    bool has_sample() const { return srtt.ns != 0; }

    // One measurement; the caller keeps to Karn's rule.
    void sample(Duration r, Instant now) {
        if (r.ns <= 0) r = Duration::nanos(1);
        latest = r;
        // The minimum of the last five minutes, as Linux's tcp_min_rtt_wlen.
        if (r <= min_rtt || now - min_at > Duration::seconds(300)) {
            min_rtt = r;
            min_at = now;
        }
        if (!has_sample()) {
            srtt = r;
            rttvar = r / 2;
        } else {
            const Duration error = srtt > r ? srtt - r : r - srtt;
            rttvar = (rttvar * 3 + error) / 4;
            srtt = (srtt * 7 + r) / 8;
            if (srtt.ns == 0) srtt.ns = 1;
        }
        rto = std::min(kRtoMax, srtt + std::max(kRtoMin, rttvar * 4));
    }

    // RTO after `n` expiries in a row (RFC 6298 rule 5.5), bounded.
    Duration backed_off(unsigned n) const {
        Duration d = rto;
        while (n-- > 0 && d < kRtoMax) d = d * 2;
        return std::min(d, kRtoMax);
    }
};

}  // namespace vma::tcp
