#include "stack/tcp/snapshot.h"

#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {

// Also read from what a killed process left, where a byte of a flag may be anything: not 0 is true.
__attribute__((no_sanitize("bool", "enum"))) Result<Snapshot> export_snapshot(const Tcb& t,
                                                                              Instant now) {
    if (t.state < State::ESTABLISHED || t.state == State::TIME_WAIT) return Errno{EINVAL};
    Snapshot s;
    s.local = t.local;
    s.remote = t.remote;
    s.state = t.state;
    s.passive = t.passive;
    s.snd_una = t.snd.una;
    s.snd_nxt = t.snd.nxt;
    s.snd_end = t.write_seq();
    s.fin_queued = t.snd.fin_queued;
    s.fin_sent = t.snd.fin_sent;
    s.peer_fin = t.rcv.fin_done;
    s.rcv_nxt = t.rcv.fin_done ? t.rcv.nxt - 1 : t.rcv.nxt;
    s.unread = t.in.bytes;
    s.snd_wl1 = t.snd.wl1;
    s.snd_wnd = t.snd.wnd;
    s.max_window = t.snd.max_wnd;
    s.rcv_wup = Seq::min(t.rcv.acked, s.rcv_nxt);
    s.rcv_wnd = uint32_t(Seq::max(t.rcv.adv, t.rcv.nxt) - s.rcv_wup);
    s.peer_mss = t.snd.peer_mss;
    s.snd_wscale = t.snd.wscale;
    s.rcv_wscale = t.rcv.wscale;
    s.scaling = t.snd.scaling;
    s.sack = t.loss.sack_ok;
    s.timestamps = t.ts.on;
    s.ecn = t.ecn.on;
    s.ts_value = t.ts.value(now);
    s.ts_recent = t.ts.recent;
    s.srtt = t.rtt.srtt;
    s.rttvar = t.rtt.rttvar;
    s.cwnd = t.cc.cwnd;
    s.ssthresh = t.cc.ssthresh;
    return s;
}

size_t export_unacked(const Tcb& t, Seq from, void* to, size_t n) {
    if (from < t.out.start) return 0;
    return t.out.copy_out(from, to, n);
}

size_t export_unread(Tcb& t, size_t skip, void* to, size_t n) {
    const iovec one{to, n};
    return t.in.peek(&one, 1, skip);
}

namespace {

bool consistent(const Snapshot& s, ByteView unacked, ByteView unread) {
    if (s.state < State::ESTABLISHED || s.state >= State::TIME_WAIT) return false;
    const bool fin_acked = s.fin_sent && s.snd_una == s.snd_end + 1;
    if ((s.snd_end < s.snd_una && !fin_acked) || s.snd_nxt < s.snd_una) return false;
    if (s.fin_sent ? !(s.snd_nxt == s.snd_end + 1) : s.snd_nxt > s.snd_end) return false;
    if (fin_acked) return unacked.empty() && unread.size() == s.unread;
    return unacked.size() == uint32_t(s.snd_end - s.snd_una) && unread.size() == s.unread &&
           s.snd_wscale <= 14 && s.rcv_wscale <= 14;
}

// Frames of the pool filled with `bytes`, the last of which precedes RCV.NXT.
bool fill_unread(Tcb& t, ByteView bytes, PacketPool& pool) {
    Seq seq = t.rcv.nxt - uint32_t(bytes.size());
    while (!bytes.empty()) {
        const size_t n = std::min<size_t>(bytes.size(), PacketPool::kLargeRoom);
        Packet p = pool.take(n);
        if (!p) return false;
        std::memcpy(p->data, bytes.data(), n);
        p->len = uint32_t(n);
        text_of(*p) = {seq, 0, uint32_t(n)};
        t.in.append(static_cast<Packet&&>(p));
        charge_frames(t);
        seq += uint32_t(n);
        bytes = bytes.subspan(n);
    }
    return true;
}

}  // namespace

Status import_snapshot(Tcb& t, const Snapshot& s, ByteView unacked, ByteView unread,
                       const TcpConfig& cfg, TcpMemory& memory, PacketPool& pool, Instant now) {
    if (!consistent(s, unacked, unread)) return Errno{EINVAL};
    t.cfg = cfg;
    t.memory = &memory;
    t.local = s.local;
    t.remote = s.remote;
    t.passive = s.passive;
    t.out.limit = cfg.send_buffer;
    t.rcv.buffer = std::max(cfg.receive_buffer, s.unread);
    t.cc.kind = cfg.cc;
    t.snd.iss = s.snd_una - 1;
    t.snd.scaling = s.scaling;
    t.snd.wscale = s.snd_wscale;
    t.rcv.wscale = s.rcv_wscale;
    t.ts.on = s.timestamps;
    t.ecn.on = s.ecn;
    t.ts.offset = s.ts_value - uint32_t(now.ns / 1000000);
    t.ts.recent = s.ts_recent;
    t.ts.recent_at = now;
    t.loss.sack_ok = s.sack;
    t.rcv.nxt = s.rcv_nxt;
    t.rcv.irs = s.rcv_nxt - 1;
    t.rcv.acked = s.rcv_wup;
    t.rcv.adv = s.rcv_wup + s.rcv_wnd;
    negotiated(t, s.peer_mss);
    if (!fill_unread(t, unread, pool)) return Errno{ENOMEM};
    if (s.peer_fin) {
        t.rcv.fin_seen = t.rcv.fin_done = true;
        t.rcv.fin = s.rcv_nxt;
        t.rcv.nxt += 1;
        t.rcv.adv = Seq::max(t.rcv.adv, t.rcv.nxt);
    }
    t.snd.una = s.snd_una;
    t.snd.nxt = s.snd_nxt;
    t.snd.wl1 = s.snd_wl1;
    t.snd.wl2 = s.snd_una;
    t.snd.wnd = s.snd_wnd;
    t.snd.max_wnd = std::max(s.max_window, s.snd_wnd);
    t.snd.fin_queued = s.fin_queued || s.fin_sent;
    t.snd.fin_sent = s.fin_sent;
    t.snd.sml = t.snd.pushed = s.snd_una;
    t.out.start = Seq::min(s.snd_una, s.snd_end);
    t.loss.recover = t.loss.limited_at = s.snd_una - 1;
    if (!t.out.append_all(memory, unacked.data(), unacked.size())) return Errno{ENOMEM};
    t.rtt.srtt = s.srtt;
    t.rtt.rttvar = s.rttvar;
    if (t.rtt.has_sample()) {
        t.rtt.rto = std::min(kRtoMax, s.srtt + std::max(kRtoMin, s.rttvar * 4));
        t.rtt.min_rtt = s.srtt;
        t.rtt.min_at = now;
    }
    if (s.cwnd > 0 && cfg.cc != CcKind::none) t.cc.cwnd = s.cwnd;
    if (s.ssthresh > 0) t.cc.ssthresh = s.ssthresh;
    t.state = s.state;
    t.timers.last_rcv = t.timers.last_snd = now;
    if (t.flight() > 0) {
        if (!t.board.sent(memory, s.snd_una, s.snd_nxt, now, 0, t.snd.mss)) return Errno{ENOMEM};
        t.board.head->ever_retransmitted = true;  // when it left is not known: no RTT sample
        rearm_rto(t, now);
    }
    start_keepalive(t, now);
    t.ack.now = true;  // the peer learns the window, and we whether it is still there
    return {};
}

// BBR's model counts deliveries from the beginning of the connection.
bool is_quiet(const Tcb& t) {
    return t.state == State::ESTABLISHED && !t.orphan && !t.read_shutdown && !t.rst_due &&
           t.error == 0 && !t.snd.urgent && !t.rcv.urgent && !t.snd.fin_queued && !t.rcv.fin_seen &&
           t.ooo.empty() && t.kept.charge() == 0 && t.loss.state == Recovery::open &&
           t.loss.dup_acks == 0 && !t.loss.tlp.out && !t.loss.rto_head && !t.loss.frto &&
           t.timers.retries == 0 && t.timers.probes == 0 && t.timers.keepalives == 0 &&
           t.timers.kind != Rtx::persist && t.timers.kind != Rtx::reorder && t.search.size == 0 &&
           t.cc.kind != CcKind::bbr && t.snd.wnd != 0;
}

void carry_over(Tcb& t, const Tcb& from) {
    t.snd.iss = from.snd.iss;
    t.snd.mss = from.snd.mss;
    t.snd.sml = from.snd.sml;
    t.snd.pushed = from.snd.pushed;
    t.snd.wl2 = from.snd.wl2;
    t.rcv.irs = from.rcv.irs;
    t.ts = from.ts;
    t.ack = from.ack;
    t.timers.delack_at = from.timers.delack_at;
    t.timers.pace_at = from.timers.pace_at;
    t.rtt = from.rtt;
    t.cc = from.cc;
    t.ecn = from.ecn;
    t.search = from.search;
    t.count = from.count;
    t.busy = from.busy;
    t.autotune = from.autotune;
    t.soft_error = from.soft_error;
    carry_messages(t, from);
}

}  // namespace vma::tcp
