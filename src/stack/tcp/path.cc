// What the path tells: path MTU (RFC 1191, RFC 8201), ICMP errors with the checks of RFC 5927, black holes (RFC 4821
// section 7.7).
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr uint32_t kMinPathMtu = 552;  // Linux's net.ipv4.route.min_pmtu
constexpr uint32_t kProbeWindow = 11;  // segments: a lost probe shall be repaired without a timeout

// RFC 5927 section 4.1: an attacker does not know what is in flight.
bool in_flight(const Tcb& t, Seq quoted) {
    return t.state >= State::SYN_SENT && quoted >= t.snd.una && quoted < t.snd.nxt;
}

}  // namespace

bool path_too_big(Tcb& t, Seq quoted, uint32_t mtu, uint32_t headers, Actions& out) {
    if (!in_flight(t, quoted)) return false;
    const uint32_t mss = std::max(mtu, kMinPathMtu) - headers;
    if (mss >= t.cfg.mss) return true;  // older news than what we know
    t.search.high = std::min(t.search.high, uint16_t(mss));
    t.search.low = std::min(t.search.low, uint16_t(mss));
    path_mss_changed(t, uint16_t(mss), out);
    if (!t.synchronised()) return true;
    // No sign of congestion: what does not fit goes out again at once, at the same window (Linux).
    const uint32_t marked = t.board.mark_larger_lost(t.snd.mss);
    if (marked == 0) return true;
    t.count.bytes_lost += marked;
    repeat_without_blame(t);
    return true;
}

void repeat_without_blame(Tcb& t) {
    LossState& l = t.loss;
    if (l.state > Recovery::cwr) return;
    l.state = Recovery::timeout;
    l.recover = t.snd.nxt;
    l.frto = l.new_first = false;
    l.undo.armed = false;
    l.dup_acks = 0;
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

void suspect_black_hole(Tcb& t, Instant now, Actions& out) {
    t.search.size = 0;  // a timeout says nothing about the probe
    if (t.cfg.mtu_probing == 0 || t.timers.retries < t.cfg.retries1 || !t.synchronised()) return;
    SizeSearch& s = t.search;
    const uint16_t base = std::max(t.cfg.base_mss, t.cfg.probe_floor);
    uint16_t next = std::min(t.cfg.mss, base);
    if (s.on) {
        next = std::max<uint16_t>(t.cfg.probe_floor, std::min<uint16_t>(base, t.cfg.mss / 2));
    } else {
        s.on = true;
        s.high = std::min(t.cfg.mss, t.snd.peer_mss);
        s.since = now;
    }
    if (next >= t.cfg.mss) return;
    s.low = next;
    ++t.count.black_holes;
    path_mss_changed(t, next, out);
}

void start_size_search(Tcb& t, Instant now) {
    if (t.cfg.mtu_probing < 2 || t.search.on) return;
    SizeSearch& s = t.search;
    s.on = true;
    s.high = std::min(t.cfg.mss, t.snd.peer_mss);
    s.low = std::min(s.high, std::max(t.cfg.base_mss, t.cfg.probe_floor));
    s.since = now;
    Actions none;
    path_mss_changed(t, s.low, none);
    t.cc.cwnd = t.cc.kind == CcKind::none ? kMaxCwnd : initial_window(t.snd.mss);
}

uint32_t probe_size(Tcb& t, Instant now, bool& later) {
    SizeSearch& s = t.search;
    if (!s.on || s.size != 0 || t.loss.state != Recovery::open || t.board.sacked > 0 ||
        t.ooo.block_count > 0 || t.ack.dsack || t.snd.urgent)
        return 0;
    if (s.high < s.low + t.cfg.probe_threshold) {
        // Found. The path may change: a new search after a while, up to what the interface and the peer take.
        if (now - s.since >= t.cfg.probe_interval) {
            s.high = std::min<uint16_t>(t.snd.peer_mss, std::max(s.ceiling, t.cfg.mss));
            s.low = t.cfg.mss;
            s.since = now;
        }
        if (s.high < s.low + t.cfg.probe_threshold) return 0;
    }
    const uint32_t mss = t.snd.mss;
    const uint32_t size = (uint32_t(s.low) + s.high + 1) / 2 - (t.ts.on ? 12u : 0u);
    // The segments behind it show that it was lost.
    const uint32_t needed = size + (t.loss.rack.reordering + 1u) * mss;
    if (t.cc.cwnd < kProbeWindow * mss || unsent_bytes(t) < needed || t.snd.wnd < needed) return 0;
    if (t.snd.nxt + needed > t.snd.una + t.snd.wnd || t.flight() + size > t.cc.cwnd) {
        later = t.flight() > 0;
        return 0;
    }
    return size;
}

void probe_arrived(Tcb& t) {
    SizeSearch& s = t.search;
    if (s.size == 0 || t.snd.una < s.end) return;
    s.low = s.size;
    s.size = 0;
    Actions none;
    path_mss_changed(t, s.low, none);
}

bool probe_lost(Tcb& t) {
    SizeSearch& s = t.search;
    if (s.size == 0 || !(t.snd.una == s.start) || t.loss.state != Recovery::open) return false;
    s.high = uint16_t(s.size - 1);
    s.size = 0;
    ++t.count.size_probes_lost;
    repeat_without_blame(t);
    return true;
}

}  // namespace vma::tcp
