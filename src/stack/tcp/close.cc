// CLOSE, ABORT and the ends of a connection: RFC 9293 sections 3.6, 3.10.4, 3.10.5; RFC 2525 section 2.17.
#include "stack/tcp/steps.h"

namespace vma::tcp {

void enter_closed(Tcb& t, int error, Actions& out) {
    enter(t, State::CLOSED);
    t.error = error;
    stop_timers(t);
    t.syn_due = false;
    t.ack.now = t.ack.pending = false;
    // Nothing of ours will be acknowledged any more; what the peer sent stays readable.
    t.board.clear(*t.memory);
    t.out.clear(*t.memory);
    t.ooo.clear();
    charge_frames(t);
    if (error != 0) out.error = error;
    out.set(kReleasable | kReadable | kWritable);
    if (error != 0) out.set(kFailed);
    if (t.rst_due) out.set(kOutput);
}

void enter_time_wait(Tcb& t, Instant now, Actions& out) {
    enter(t, State::TIME_WAIT);
    stop_timers(t);
    t.board.clear(*t.memory);
    t.out.clear(*t.memory);
    t.timers.state_at = now + t.cfg.time_wait;
    out.set(kTimeWait);
}

void shutdown_write(Tcb& t, Instant now, Actions& out) {
    (void)now;
    switch (t.state) {
        case State::SYN_SENT:
        case State::SYN_RECEIVED:
            // The FIN follows the handshake: connected() goes on to FIN_WAIT_1.
            t.snd.fin_queued = true;
            return;
        case State::ESTABLISHED:
            enter(t, State::FIN_WAIT_1);
            break;
        case State::CLOSE_WAIT:
            enter(t, State::LAST_ACK);
            break;
        default:
            return;
    }
    t.snd.fin_queued = true;
    out.set(kOutput | kWritable);
}

void shutdown_read(Tcb& t) { t.read_shutdown = true; }

void abort(Tcb& t, int error, Actions& out) {
    switch (t.state) {
        case State::SYN_RECEIVED:
        case State::ESTABLISHED:
        case State::FIN_WAIT_1:
        case State::FIN_WAIT_2:
        case State::CLOSE_WAIT:
            t.rst_due = true;
            break;
        case State::CLOSED:
            return;
        default:
            break;  // RFC 9293 section 3.10.5: the rest goes silently
    }
    enter_closed(t, error, out);
}

void close(Tcb& t, Instant now, Actions& out) {
    t.orphan = true;
    t.read_shutdown = true;
    // Unread data: the peer must not believe that it arrived.
    if (t.in.bytes > 0 && t.state != State::CLOSED) {
        t.in.clear();
        charge_frames(t);
        if (t.state == State::CLOSING || t.state == State::LAST_ACK || t.state == State::TIME_WAIT)
            return;  // both directions are done already, a RST would only destroy our last ACK
        abort(t, 0, out);
        return;
    }
    switch (t.state) {
        case State::SYN_SENT:
            enter_closed(t, 0, out);
            return;
        case State::FIN_WAIT_2:
            if (t.cfg.fin_timeout.ns == 0) return abort(t, 0, out);  // TCP_LINGER2 below zero
            t.timers.state_at = now + t.cfg.fin_timeout;
            return;
        default:
            shutdown_write(t, now, out);
            return;
    }
}

void fail(Tcb& t, int error, Actions& out) {
    if (t.state != State::CLOSED) enter_closed(t, error, out);
}

void release(Tcb& t) {
    if (t.memory != nullptr) {
        t.board.clear(*t.memory);
        t.out.clear(*t.memory);
        t.memory->give_marks(t.marks);
        t.marks = nullptr;
    }
    t.in.clear();
    t.kept = {};
    t.ooo.clear();
    charge_frames(t);
    enter(t, State::CLOSED);
    stop_timers(t);
}

}  // namespace vma::tcp
