// What the path tells: path MTU (RFC 1191, RFC 8201), ICMP errors with the checks of RFC 5927, black holes (RFC 4821
// section 7.7).
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr uint32_t kMinPathMtu = 552;  // Linux's net.ipv4.route.min_pmtu
constexpr uint16_t kMinProbedMss = 48;

// RFC 5927 section 4.1: an attacker does not know what is in flight.
bool in_flight(const Tcb& t, Seq quoted) {
    return t.state >= State::SYN_SENT && quoted >= t.snd.una && quoted < t.snd.nxt;
}

}  // namespace

bool path_too_big(Tcb& t, Seq quoted, uint32_t mtu, uint32_t headers, Actions& out) {
    if (!in_flight(t, quoted)) return false;
    const uint32_t mss = std::max(mtu, kMinPathMtu) - headers;
    if (mss >= t.cfg.mss) return true;  // older news than what we know
    path_mss_changed(t, uint16_t(mss), out);
    if (!t.synchronised()) return true;
    // No sign of congestion: what does not fit goes out again at once, at the same window (Linux).
    const uint32_t marked = t.board.mark_larger_lost(t.snd.mss);
    if (marked == 0) return true;
    t.count.bytes_lost += marked;
    LossState& l = t.loss;
    if (l.state <= Recovery::cwr) {
        l.state = Recovery::timeout;
        l.recover = t.snd.nxt;
        l.frto = l.new_first = false;
        l.undo.armed = false;
        l.dup_acks = 0;
    }
    return true;
}

bool path_error(Tcb& t, Seq quoted, int error, Actions& out) {
    if (!in_flight(t, quoted)) return false;
    if (t.state == State::SYN_SENT) {
        fail(t, error, out);
    } else {
        t.soft_error = error;
    }
    return true;
}

void suspect_black_hole(Tcb& t, Actions& out) {
    if (!t.cfg.mtu_probing || t.timers.retries < t.cfg.retries1 || !t.synchronised()) return;
    const uint16_t next =
        t.count.black_holes == 0 ? std::min(t.cfg.mss, t.cfg.base_mss) : uint16_t(t.cfg.mss / 2);
    if (next < kMinProbedMss || next >= t.cfg.mss) return;
    ++t.count.black_holes;
    path_mss_changed(t, next, out);
}

}  // namespace vma::tcp
