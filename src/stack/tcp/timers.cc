// Deadlines: RFC 6298 (RTO), RFC 9293 section 3.8.3 (R1, R2), 3.8.4 (keep-alive), 3.8.6.1 (window probes), RFC 5482,
// RFC 8985 (probe and reordering timers).
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

// Has the time that this connection may live without progress run out? `series` is when it stopped making some.
bool user_timeout_over(const Tcb& t, Instant series, Instant now) {
    return t.cfg.user_timeout.ns > 0 && series.ns != 0 && now - series >= t.cfg.user_timeout;
}

// tcp_retries2 and the like are times in Linux: as long as that many expiries take from an RTO of 200 ms.
Duration time_of_retries(unsigned retries) {
    Duration total{0}, step = kRtoMin;
    for (unsigned i = 0; i <= retries; ++i) {
        total = total + step;
        step = std::min(step * 2, kRtoMax);
    }
    return total;
}

bool retries_over(const Tcb& t, unsigned retries, Instant now) {
    return t.timers.retries > 0 && now - t.timers.stalled_since >= time_of_retries(retries);
}

void syn_expired(Tcb& t, Instant now, Actions& out) {
    const uint8_t most = t.passive ? t.cfg.synack_retries : t.cfg.syn_retries;
    if (t.timers.retries >= most || user_timeout_over(t, t.timers.stalled_since, now)) {
        enter_closed(t, t.soft_error ? t.soft_error : ETIMEDOUT, out);
        return;
    }
    if (t.timers.retries == 0) {
        if (t.timers.stalled_since.ns == 0) t.timers.stalled_since = t.timers.rtx_at - t.rtt.rto;
        ++t.count.timeout_series;
    }
    ++t.timers.retries;
    ++t.timers.backoff;
    ++t.count.retransmits;
    VMA_PROBE3(tcp_retransmit, &t, t.snd.iss.v, 1u);
    ++t.count.timeouts;
    t.syn_due = true;
    arm(t, Rtx::rto, now + t.rtt.backed_off(t.timers.backoff));
    out.set(kOutput);
}

void rto_expired(Tcb& t, Instant now, Actions& out) {
    if (t.state == State::SYN_SENT || t.state == State::SYN_RECEIVED) {
        syn_expired(t, now, out);
        return;
    }
    if (t.timers.retries == 0) t.timers.stalled_since = now;
    // A peer that closed its window but still answers is alive: as long as it does, only the user timeout ends it.
    const bool alive = t.snd.wnd == 0 && now - t.timers.last_rcv < kRtoMax;
    const uint8_t most = t.orphan ? t.cfg.orphan_retries : t.cfg.retries2;
    if ((!alive && retries_over(t, most, now)) ||
        user_timeout_over(t, t.timers.stalled_since, now)) {
        enter_closed(t, t.soft_error ? t.soft_error : ETIMEDOUT, out);
        return;
    }
    if (t.timers.retries == 0) ++t.count.timeout_series;
    if (t.timers.retries < 255) ++t.timers.retries;
    if (t.timers.backoff < 32) ++t.timers.backoff;
    suspect_black_hole(t, now, out);
    enter_timeout_recovery(t, now);
    arm(t, Rtx::rto, now + t.rtt.backed_off(t.timers.backoff));
    out.set(kOutput);
}

// Section 7.3 of RFC 8985. The RTO runs on beside the probe.
void probe_expired(Tcb& t, Instant now, Actions& out) {
    t.loss.tlp.due = true;
    continue_rto(t, now);
    out.set(kOutput);
}

// RFC 8985 section 6.3: what was only suspected is lost by now.
void reorder_expired(Tcb& t, Instant now, Actions& out) {
    disarm(t);
    t.loss.rack.advanced = true;
    const RackLoss loss = rack_detect(t, now);
    if (loss.marked > 0) {
        if (t.loss.state <= Recovery::cwr || (t.loss.state == Recovery::timeout && loss.again > 0))
            enter_fast_recovery(t, now);
        if (t.loss.state == Recovery::fast) reduce_by_prr(t, 0, false);
        out.set(kOutput);
    }
    if (!loss.waiting) continue_rto(t, now);
}

void persist_expired(Tcb& t, Instant now, Actions& out) {
    if (t.timers.probes == 0) t.timers.stalled_since = now;
    const uint8_t most = t.orphan ? t.cfg.orphan_retries : t.cfg.retries2;
    if (t.timers.probes >= most || user_timeout_over(t, t.timers.stalled_since, now)) {
        enter_closed(t, t.soft_error ? t.soft_error : ETIMEDOUT, out);
        return;
    }
    ++t.timers.probes;  // back to zero with every ACK
    if (t.timers.backoff < 32) ++t.timers.backoff;
    t.timers.probe_due = true;
    arm(t, Rtx::persist, now + t.rtt.backed_off(t.timers.backoff));
    out.set(kOutput);
}

void keepalive_expired(Tcb& t, Instant now, Actions& out) {
    t.timers.keepalive_at = Instant::never();
    if (!t.cfg.keepalive || t.state == State::SYN_SENT || t.state == State::TIME_WAIT) return;
    // Data in flight or waiting: the other timers watch the peer.
    if (t.flight() > 0 || unsent_bytes(t) > 0) {
        t.timers.keepalive_at = now + t.cfg.keepalive_idle;
        return;
    }
    const Instant idle_end = t.timers.last_rcv + t.cfg.keepalive_idle;
    if (t.timers.keepalives == 0 && now < idle_end) {
        t.timers.keepalive_at = idle_end;
        return;
    }
    const bool over = t.cfg.user_timeout.ns > 0
                          ? t.timers.keepalives > 0 && now - t.timers.last_rcv >= t.cfg.user_timeout
                          : t.timers.keepalives >= t.cfg.keepalive_probes;
    if (over) {
        t.rst_due = true;
        enter_closed(t, t.soft_error ? t.soft_error : ETIMEDOUT, out);
        return;
    }
    ++t.timers.keepalives;
    t.timers.probe_due = true;
    t.timers.keepalive_at = now + t.cfg.keepalive_interval;
    out.set(kOutput);
}

void delack_expired(Tcb& t, Actions& out) {
    t.timers.delack_at = Instant::never();
    if (!t.ack.pending) return;
    if (t.ack.pingpong) {
        // The answer did not come in time: back to acknowledging promptly.
        t.ack.pingpong = false;
        t.ack.ato = Duration::millis(40);
    } else {
        t.ack.ato = std::min(t.ack.ato * 2, t.rtt.rto);
    }
    t.ack.now = true;
    out.set(kOutput);
}

}  // namespace

void arm(Tcb& t, Rtx kind, Instant at) {
    t.timers.kind = kind;
    t.timers.rtx_at = kind == Rtx::none ? Instant::never() : at;
}

void end_series(Tcb& t, Instant now) {
    if (t.timers.retries > 0)
        t.count.timeout_time = t.count.timeout_time + (now - t.timers.stalled_since);
    t.timers.retries = t.timers.backoff = 0;
}

void stop_timers(Tcb& t) {
    disarm(t);
    t.timers.delack_at = t.timers.keepalive_at = t.timers.state_at = Instant::never();
    t.timers.probe_due = t.timers.pace_wait = false;
}

void start_keepalive(Tcb& t, Instant now) {
    t.timers.keepalive_at = t.cfg.keepalive ? now + t.cfg.keepalive_idle : Instant::never();
}

Instant deadline(const Tcb& t) {
    if (t.state == State::CLOSED) return Instant::never();
    Instant d =
        std::min({t.timers.rtx_at, t.timers.delack_at, t.timers.keepalive_at, t.timers.state_at});
    if (t.timers.pace_wait) d = std::min(d, t.timers.pace_at);
    return d;
}

void deadline_reached(Tcb& t, Instant now, Actions& out) {
    if (t.state == State::CLOSED) return;
    if (t.timers.state_at <= now) {
        // TIME_WAIT is over, or an orphan's FIN_WAIT_2.
        enter_closed(t, 0, out);
        return;
    }
    if (t.timers.rtx_at <= now) {
        switch (t.timers.kind) {
            case Rtx::persist:
                persist_expired(t, now, out);
                break;
            case Rtx::none:
                disarm(t);
                break;
            case Rtx::tlp:
                probe_expired(t, now, out);
                break;
            case Rtx::reorder:
                reorder_expired(t, now, out);
                break;
            case Rtx::rto:
                rto_expired(t, now, out);
                break;
        }
    }
    if (t.state == State::CLOSED) return;
    if (t.timers.delack_at <= now) delack_expired(t, out);
    if (t.timers.keepalive_at <= now) keepalive_expired(t, now, out);
    if (t.timers.pace_wait && t.timers.pace_at <= now) {
        t.timers.pace_wait = false;
        out.set(kOutput);
    }
}

}  // namespace vma::tcp
