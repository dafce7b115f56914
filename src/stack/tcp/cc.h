// Congestion control: plain state inside the Tcb, behaviour in a table of functions chosen by CcKind (an index, not a
// pointer, so that the state can be read by another process). Windows are bytes.
#pragma once

#include <cstdint>

#include "base/seq.h"
#include "base/time.h"

namespace vma::tcp {

// The first three are VMA_TCP_CC_ALGO's values.
enum class CcKind : uint8_t { newreno = 0, cubic = 1, none = 2, bbr = 3 };

inline constexpr uint32_t kInfiniteSsthresh = 0x7fffffff;
inline constexpr uint32_t kMaxCwnd = 0x3fffffff;

struct CubicState {
    double w_max = 0;   // segments
    double k = 0;       // seconds
    double w_est = 0;   // segments, the Reno-friendly estimate
    double origin = 0;  // segments, plateau of the current epoch
    Instant epoch;      // start of the current congestion-avoidance epoch
    bool in_epoch = false;
};

// HyStart++, RFC 9406 section 4.2: leave slow start when the round trip grows, by way of a slower one.
struct HyStart {
    Duration last_min = Duration::max(), now_min = Duration::max(), base_min = Duration::max();
    Seq round_end;
    uint8_t samples = 0;
    uint8_t slow_rounds = 0;  // of conservative slow start, 0: not in it
    bool in_round = false;
};

// cc_bbr.cc
struct BbrState {
    enum Mode : uint8_t { startup, drain, probe_bw, probe_rtt } mode = startup;
    uint8_t phase = 0;  // of probe_bw
    uint8_t full_rounds = 0;
    bool full = false;  // the pipe was filled once
    bool round_start = false, conserve = false, recovering = false, idle = false;
    bool probe_rtt_round = false;
    uint32_t saved_cwnd = 0;
    uint64_t round = 0, next_round = 0;  // round trips, by `delivered`
    double rates[10] = {};               // bytes per second, the largest of each of ten rounds
    double full_rate = 0;
    Duration min_rtt = Duration::max();
    Instant min_rtt_at, phase_start, probe_rtt_end;
    // Long-term sampling: is a policer at work, and at what rate?
    bool lt_sampling = false, lt_use = false;
    uint32_t lt_rounds = 0;
    double lt_rate = 0;  // bytes per second, 0: none yet
    uint64_t lt_delivered = 0, lt_lost = 0;
    Instant lt_since;
};

struct Cc {
    CcKind kind = CcKind::cubic;
    uint32_t cwnd = 0;
    uint32_t ssthresh = kInfiniteSsthresh;
    uint32_t acked_bytes = 0;  // appropriate byte counting below one window (RFC 3465)
    CubicState cubic;
    HyStart hystart;
    BbrState bbr;
    uint64_t pacing_rate = 0;  // bytes per second that the algorithm asks for, 0: none

    bool in_slow_start() const { return cwnd < ssthresh; }
};

// What an ACK brought, for growth outside of recovery.
struct CcAck {
    Instant now;
    Duration srtt;
    Duration min_rtt;
    uint32_t acked = 0;  // bytes newly acknowledged
    uint32_t mss = 0;
    Duration rtt{0};            // of this ACK, zero: no sample
    Seq una, nxt;               // after it
    bool cwnd_limited = false;  // the window, not the application, held sending back
};

// For algorithms that set the window themselves, in recovery too: what one ACK told about the path.
struct CcSample {
    Instant now;
    Duration srtt, rtt;            // rtt zero: no sample
    Duration interval;             // of the rate sample
    uint64_t bytes = 0;            // delivered in it
    uint64_t prior_delivered = 0;  // `delivered` when the newest segment delivered left
    uint64_t delivered = 0;        // bytes, ever
    uint64_t lost_ever = 0;        // bytes
    uint32_t acked = 0, lost = 0;  // bytes delivered by and marked lost because of this ACK
    uint32_t pipe = 0, mss = 0;
    bool valid = false;  // there is a rate sample
    bool app_limited = false, recovering = false;
};

struct CcAlgorithm {
    const char* name;
    void (*grow)(Cc&, const CcAck&);
    // The slow-start threshold after a loss: RFC 5681 equation 4 or its replacement, of the window as in Linux.
    uint32_t (*reduce)(Cc&, uint32_t mss, Instant now);
    // After an idle period of `idle`, before sending again.
    void (*restart)(Cc&, Duration idle, Duration rto, uint32_t mss, Instant now);
    // Not null: instead of grow and of PRR.
    void (*control)(Cc&, const CcSample&) = nullptr;
};

const CcAlgorithm& cc_algorithm(CcKind kind);

// RFC 6928: min(10 MSS, max(2 MSS, 14600)).
uint32_t initial_window(uint32_t mss);
// RFC 5681 slow start; returns the bytes left over when ssthresh was reached.
uint32_t grow_slow_start(Cc& cc, const CcAck& ack);
// The same with HyStart++: while the threshold is still at its start, a growing round trip ends it.
uint32_t grow_slow_start_carefully(Cc& cc, const CcAck& ack);
// Halves once per RTO of idleness, not below the restart window (RFC 2861 as Linux does it).
void restart_after_idle(Cc& cc, Duration idle, Duration rto, uint32_t mss, Instant now);

// TCP_CC_INFO of BBR.
struct BbrView {
    uint64_t bytes_per_second = 0;
    Duration min_rtt = Duration::max();
    double pacing_gain = 0, window_gain = 0;
};
BbrView bbr_view(const Cc& cc);

extern const CcAlgorithm kNewReno;
extern const CcAlgorithm kCubic;
extern const CcAlgorithm kBbr;

}  // namespace vma::tcp
