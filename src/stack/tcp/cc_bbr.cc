// BBR version 1 (draft-cardwell-iccrg-bbr-congestion-control-00) with the constants of Linux: a model of the path out of the
// largest delivery rate of ten round trips and the least round-trip time of ten seconds; pacing at the one, a window of
// twice their product. Loss only bounds the window, except where losses of a fifth at an even rate tell of a policer.
#include <algorithm>

#include "stack/tcp/cc.h"

namespace vma::tcp {
namespace {

constexpr double kHighGain = 2.885, kDrainGain = 1 / 2.885, kWindowGain = 2;
constexpr double kCycle[8] = {1.25, 0.75, 1, 1, 1, 1, 1, 1};
constexpr double kMargin = 0.99;  // paced slightly below the estimate, so that queues drain
constexpr Duration kMinRttLife = Duration::seconds(10), kProbeRttTime = Duration::millis(200);
constexpr uint32_t kLeastSegments = 4;

// Of a policer: at least this part lost over 4 rounds or more, twice at nearly the same rate; believed for 48 rounds.
constexpr double kPolicerLoss = 50.0 / 256, kPolicerSame = 1.0 / 8, kPolicerSameRate = 500;
constexpr uint32_t kPolicerLeastRounds = 4, kPolicerMostRounds = 16, kPolicerHold = 48;

double max_rate(const BbrState& b) { return *std::max_element(b.rates, b.rates + 10); }
double path_rate(const BbrState& b) { return b.lt_use ? b.lt_rate : max_rate(b); }

uint32_t bdp(const Cc& cc, double gain, uint32_t mss) {
    const BbrState& b = cc.bbr;
    if (b.min_rtt == Duration::max()) return initial_window(mss);
    const double bytes = path_rate(b) * double(b.min_rtt.ns) * 1e-9 * gain;
    return uint32_t(std::min(bytes, double(kMaxCwnd)));
}

// What pacing in super-frames and delayed ACKs need on top.
uint32_t target_window(const Cc& cc, double gain, uint32_t mss) {
    const uint64_t frame = std::clamp<uint64_t>(cc.pacing_rate / 1000, 2 * mss, 65536);
    uint64_t target = bdp(cc, gain, mss) + 3 * frame;
    if (cc.bbr.mode == BbrState::probe_bw && gain > 1) target += 2 * mss;
    return uint32_t(std::min<uint64_t>(target, kMaxCwnd));
}

void enter_probe_bw(BbrState& b, Instant now) {
    b.mode = BbrState::probe_bw;
    // Not at the draining phase; which of the others follows from the clock, so that flows do not move in step.
    b.phase = uint8_t((now.ns >> 20) % 7);
    if (b.phase >= 1) ++b.phase;
    b.phase_start = now;
}

void restart_interval(BbrState& b, const CcSample& s) {
    b.lt_since = s.now;
    b.lt_delivered = s.delivered;
    b.lt_lost = s.lost_ever;
    b.lt_rounds = 0;
}

void forget_policer(BbrState& b, const CcSample& s) {
    b.lt_rate = 0;
    b.lt_use = b.lt_sampling = false;
    restart_interval(b, s);
}

// A token bucket passes bursts and then drops what exceeds its rate: the largest rate seen is not the path's.
void look_for_policer(BbrState& b, const CcSample& s) {
    if (b.lt_use) {
        if (b.mode == BbrState::probe_bw && b.round_start && ++b.lt_rounds >= kPolicerHold) {
            forget_policer(b, s);
            enter_probe_bw(b, s.now);
        }
        return;
    }
    if (!b.lt_sampling) {
        if (s.lost == 0) return;
        restart_interval(b, s);
        b.lt_sampling = true;
    }
    if (s.app_limited) return forget_policer(b, s);
    if (b.round_start) ++b.lt_rounds;
    if (b.lt_rounds < kPolicerLeastRounds) return;
    if (b.lt_rounds > kPolicerMostRounds) return forget_policer(b, s);
    if (s.lost == 0) return;  // an interval ends with a loss
    const double delivered = double(s.delivered - b.lt_delivered);
    const double lost = double(s.lost_ever - b.lt_lost);
    const Duration time = s.now - b.lt_since;
    if (delivered <= 0 || lost < kPolicerLoss * delivered || time < Duration::millis(1)) return;
    const double rate = delivered * 1e9 / double(time.ns);
    const double change = rate > b.lt_rate ? rate - b.lt_rate : b.lt_rate - rate;
    if (b.lt_rate > 0 && (change <= kPolicerSame * b.lt_rate || change <= kPolicerSameRate)) {
        b.lt_rate = (rate + b.lt_rate) / 2;
        b.lt_use = true;
        b.lt_rounds = 0;
        return;
    }
    b.lt_rate = rate;
    restart_interval(b, s);
}

void update_rate(Cc& cc, const CcSample& s) {
    BbrState& b = cc.bbr;
    b.round_start = false;
    if (!s.valid) return;
    if (s.prior_delivered >= b.next_round) {
        b.next_round = s.delivered;
        ++b.round;
        b.rates[b.round % 10] = 0;
        b.round_start = true;
        b.conserve = false;
    }
    look_for_policer(b, s);
    const double rate = double(s.bytes) * 1e9 / double(s.interval.ns);
    if (!s.app_limited || rate >= max_rate(b))
        b.rates[b.round % 10] = std::max(b.rates[b.round % 10], rate);
}

void check_full_pipe(BbrState& b, const CcSample& s) {
    if (b.full || !b.round_start || s.app_limited) return;
    const double rate = max_rate(b);
    if (rate >= b.full_rate * 1.25) {
        b.full_rate = rate;
        b.full_rounds = 0;
        return;
    }
    b.full = ++b.full_rounds >= 3;
}

void update_phase(Cc& cc, const CcSample& s) {
    BbrState& b = cc.bbr;
    if (b.mode == BbrState::startup && b.full) b.mode = BbrState::drain;
    if (b.mode == BbrState::drain && s.pipe <= bdp(cc, 1, s.mss)) enter_probe_bw(b, s.now);
    if (b.mode != BbrState::probe_bw) return;
    const bool elapsed = s.now - b.phase_start > b.min_rtt;
    const double gain = kCycle[b.phase];
    bool next = elapsed;
    if (gain > 1)
        next = elapsed && (s.lost > 0 || s.pipe + s.acked >= target_window(cc, gain, s.mss));
    else if (gain < 1)
        next = elapsed || s.pipe <= bdp(cc, 1, s.mss);
    if (!next) return;
    b.phase = uint8_t((b.phase + 1) % 8);
    b.phase_start = s.now;
}

void update_min_rtt(Cc& cc, const CcSample& s) {
    BbrState& b = cc.bbr;
    const bool old = b.min_rtt != Duration::max() && s.now - b.min_rtt_at > kMinRttLife;
    if (s.rtt.ns > 0 && (s.rtt < b.min_rtt || old)) {
        b.min_rtt = s.rtt;
        b.min_rtt_at = s.now;
    }
    if (old && !b.idle && b.mode != BbrState::probe_rtt) {
        b.mode = BbrState::probe_rtt;
        b.saved_cwnd = std::max(b.saved_cwnd, cc.cwnd);
        b.probe_rtt_end = {};
    }
    if (s.acked > 0) b.idle = false;
    if (b.mode != BbrState::probe_rtt) return;
    const uint32_t least = kLeastSegments * s.mss;
    if (b.probe_rtt_end.ns == 0) {
        if (s.pipe > least) return;
        b.probe_rtt_end = s.now + kProbeRttTime;
        b.probe_rtt_round = false;
        b.next_round = s.delivered;
        return;
    }
    if (b.round_start) b.probe_rtt_round = true;
    if (!b.probe_rtt_round || s.now < b.probe_rtt_end) return;
    b.min_rtt_at = s.now;
    cc.cwnd = std::max(cc.cwnd, b.saved_cwnd);
    b.saved_cwnd = 0;
    if (b.full)
        enter_probe_bw(b, s.now);
    else
        b.mode = BbrState::startup;
}

double pacing_gain(const BbrState& b) {
    switch (b.mode) {
        case BbrState::startup:
            return kHighGain;
        case BbrState::drain:
            return kDrainGain;
        case BbrState::probe_bw:
            return b.lt_use ? 1 : kCycle[b.phase];
        case BbrState::probe_rtt:
            break;
    }
    return 1;
}

double window_gain(const BbrState& b) {
    if (b.mode == BbrState::probe_rtt) return 1;
    return b.mode == BbrState::startup || b.mode == BbrState::drain ? kHighGain : kWindowGain;
}

void set_pacing(Cc& cc, const CcSample& s) {
    const BbrState& b = cc.bbr;
    double rate = path_rate(b) * pacing_gain(b) * kMargin;
    if (cc.pacing_rate == 0 || rate == 0) {
        // Before the first sample: the window per round trip, a millisecond if even that is unknown.
        const double rtt = s.srtt.ns > 0 ? double(s.srtt.ns) * 1e-9 : 1e-3;
        rate = std::max(rate, double(cc.cwnd) * kHighGain / rtt);
    }
    const auto next = uint64_t(std::max(rate, 1000.0));
    if (b.full || next > cc.pacing_rate) cc.pacing_rate = next;
}

// Loss: packet conservation for a round trip, then the model's window again.
bool bound_by_loss(Cc& cc, const CcSample& s, uint32_t& cwnd) {
    BbrState& b = cc.bbr;
    if (s.lost > 0) cwnd = cwnd > s.lost + s.mss ? cwnd - s.lost : s.mss;
    if (s.recovering && !b.recovering) {
        b.conserve = true;
        b.next_round = s.delivered;
        cwnd = s.pipe + s.acked;
    } else if (!s.recovering && b.recovering) {
        cwnd = std::max(cwnd, b.saved_cwnd);
        b.saved_cwnd = 0;
        b.conserve = false;
    }
    b.recovering = s.recovering;
    if (!b.conserve) return false;
    cwnd = std::max(cwnd, s.pipe + s.acked);
    return true;
}

void set_window(Cc& cc, const CcSample& s) {
    const BbrState& b = cc.bbr;
    uint32_t cwnd = cc.cwnd;
    if (s.acked > 0 && !bound_by_loss(cc, s, cwnd)) {
        const uint32_t target = target_window(cc, window_gain(b), s.mss);
        if (b.full)
            cwnd = std::min(cwnd + s.acked, target);
        else if (cwnd < target || s.delivered < initial_window(s.mss))
            cwnd += s.acked;
        cwnd = std::max(cwnd, kLeastSegments * s.mss);
    }
    if (b.mode == BbrState::probe_rtt) cwnd = std::min(cwnd, kLeastSegments * s.mss);
    cc.cwnd = std::clamp(cwnd, s.mss, kMaxCwnd);
}

void bbr_control(Cc& cc, const CcSample& s) {
    update_rate(cc, s);
    check_full_pipe(cc.bbr, s);
    update_phase(cc, s);
    update_min_rtt(cc, s);
    set_pacing(cc, s);
    set_window(cc, s);
}

void bbr_grow(Cc&, const CcAck&) {}

// Loss is no order to slow down: the window before it comes back afterwards.
uint32_t bbr_reduce(Cc& cc, uint32_t, Instant) {
    BbrState& b = cc.bbr;
    b.saved_cwnd =
        b.recovering || b.mode == BbrState::probe_rtt ? std::max(b.saved_cwnd, cc.cwnd) : cc.cwnd;
    return cc.ssthresh;
}

void bbr_restart(Cc& cc, Duration, Duration, uint32_t, Instant) {
    cc.bbr.idle = true;
    if (cc.bbr.mode == BbrState::probe_bw)
        cc.pacing_rate = uint64_t(std::max(path_rate(cc.bbr) * kMargin, 1000.0));
}

}  // namespace

BbrView bbr_view(const Cc& cc) {
    BbrView v;
    v.bytes_per_second = uint64_t(path_rate(cc.bbr));
    v.min_rtt = cc.bbr.min_rtt;
    v.pacing_gain = pacing_gain(cc.bbr);
    v.window_gain = window_gain(cc.bbr);
    return v;
}

const CcAlgorithm kBbr{"bbr", bbr_grow, bbr_reduce, bbr_restart, bbr_control};

}  // namespace vma::tcp
