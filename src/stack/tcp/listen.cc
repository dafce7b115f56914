// The listener's side: RFC 9293 section 3.10.7.2, RFC 4987 (small records), Linux's backlog rules.
#include <algorithm>

#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

SegmentHead synack(const HalfOpen& h, const TcpConfig& cfg, Instant now, bool cookie = false) {
    SegmentHead s;
    s.seq = h.iss;
    s.ack = h.irs + 1;
    s.flags = uint8_t(kSyn | kAck | (h.ecn ? kEce : 0));
    s.wnd = uint16_t(std::min<uint32_t>(cfg.receive_buffer, 65535));
    s.opt.has_mss = true;
    s.opt.mss = cfg.max_seg ? std::min(cfg.mss, cfg.max_seg) : cfg.mss;
    s.opt.sack_permitted = h.sack_ok;
    if (h.has_ts) {
        s.opt.has_timestamps = true;
        s.opt.ts_val = cookie ? cookie_timestamp(h, now) : uint32_t(now.ns / 1000000) + h.ts_offset;
        s.opt.ts_ecr = h.ts_recent;
    }
    if (h.wscale != kNoScale) {
        s.opt.has_wscale = true;
        const uint32_t most = std::max(cfg.receive_buffer, cfg.receive_buffer_max);
        s.opt.wscale = scale_for(std::min(most, cfg.window_clamp));
    }
    return s;
}

// How long after the last cookie an ACK may still return one.
constexpr Duration kCookieLife = Duration::seconds(120);

// An ACK for a connection that is not there. True: it returned a cookie, or was dropped.
bool take_cookie(ListenState& listener, const TcpConfig& cfg, const SegView& seg,
                 const OpenParams& open, Instant now, ListenVerdict& v) {
    if (!cfg.syn_cookies || open.secret == nullptr || seg.has(kSyn)) return false;
    if (now >= listener.cookies_until) return false;
    if (!open_cookie(open, cfg, seg, now, v.record)) {
        ++listener.cookies_wrong;
        return false;
    }
    if (listener.full()) {
        v.reason = DropReason::tcp_backlog;
        return true;
    }
    ++listener.cookies_taken;
    v.kind = ListenVerdict::established;
    return true;
}

// Linux: cookies when the queue of half-open connections is full; without them the SYN is dropped, and already when only
// a quarter of tcp_max_syn_backlog is left.
bool wants_cookie(const ListenState& listener, const TcpConfig& cfg, const OpenParams& open) {
    return listener.half_open_full() && cfg.syn_cookies && open.secret != nullptr;
}
bool no_room(const ListenState& listener, const TcpConfig& cfg, const OpenParams& open) {
    if (listener.full()) return true;
    if (cfg.syn_cookies && open.secret != nullptr) return false;
    return listener.half_open_full() ||
           listener.half_open + listener.max_half_open / 4 > listener.max_half_open;
}

// RFC 7413 section 4.2.2. The option to answer with is in `give`.
bool takes_fast_open(ListenState& listener, const TcpConfig& cfg, const SegView& seg,
                     const OpenParams& open, Cookie& give) {
    if (listener.fast_open_limit == 0 || open.fast_open_keys == nullptr) return false;
    const bool free = (cfg.fast_open & fast_open::server_no_cookie) != 0 && seg.payload_len > 0;
    if (!free && !seg.opt.has_fast_open) return false;
    if (!free && seg.opt.fast_open_len == 0) {
        give = make_cookie(*open.fast_open_keys, 0, open.remote.addr, open.local.addr);
        return false;
    }
    bool old = false;
    if (!free &&
        !cookie_good(*open.fast_open_keys, open.remote.addr, open.local.addr, seg.opt, old)) {
        ++listener.fast_open_wrong;
        give = make_cookie(*open.fast_open_keys, 0, open.remote.addr, open.local.addr);
        return false;
    }
    // Section 5.1: who sends SYNs from forged addresses must not be able to fill us.
    if (listener.fast_open >= listener.fast_open_limit) {
        ++listener.fast_open_full;
        return false;
    }
    if (old) give = make_cookie(*open.fast_open_keys, 0, open.remote.addr, open.local.addr);
    return true;
}

}  // namespace

ListenVerdict on_syn(ListenState& listener, const TcpConfig& cfg, const SegView& seg,
                     const OpenParams& open, Instant now, Actions& out) {
    ListenVerdict v;
    // First RST, second ACK, third SYN.
    if (seg.has(kRst)) {
        v.reason = DropReason::tcp_state;
        return v;
    }
    if (seg.has(kAck)) {
        if (take_cookie(listener, cfg, seg, open, now, v)) return v;
        reset_for(seg, out.reply);
        out.has_reply = true;
        v.kind = ListenVerdict::reset;
        return v;
    }
    // SYN+FIN is no connection request (Linux drops it too).
    if (!seg.has(kSyn) || seg.has(kFin)) {
        v.reason = DropReason::tcp_state;
        return v;
    }
    if (no_room(listener, cfg, open)) {
        v.reason = DropReason::tcp_backlog;
        return v;
    }
    HalfOpen& h = v.record;
    h.local = open.local;
    h.remote = open.remote;
    h.irs = seg.seq;
    h.iss = open.iss;
    h.ts_offset = open.ts_offset;
    h.mss = seg.opt.has_mss && seg.opt.mss ? seg.opt.mss : uint16_t(536);
    h.wnd = seg.wnd;
    if (cfg.window_scaling && seg.opt.has_wscale) h.wscale = std::min<uint8_t>(seg.opt.wscale, 14);
    h.has_ts = cfg.timestamps && seg.opt.has_timestamps;
    h.ts_recent = seg.opt.ts_val;
    h.sack_ok = cfg.sack && seg.opt.sack_permitted;
    // A SYN that is marked ECT itself comes from something broken (Linux).
    h.ecn = cfg.ecn != 0 && seg.has(kEce | kCwr) && seg.ecn == 0;
    h.sent_at = now;
    h.resend_at = now + kRtoInitial;
    v.kind = ListenVerdict::half_open;
    Cookie give;
    if (takes_fast_open(listener, cfg, seg, open, give)) {
        ++listener.fast_opens;
        v.kind = ListenVerdict::fast_open;
        v.newer = give;
        return v;
    }
    if (wants_cookie(listener, cfg, open)) {
        h.iss = make_cookie(open, seg, now);
        // Without timestamps there is no place to keep these.
        if (!h.has_ts) {
            h.wscale = kNoScale;
            h.sack_ok = h.ecn = false;
        }
        listener.cookies_until = now + kCookieLife;
        ++listener.cookies_sent;
        v.kind = ListenVerdict::cookie;
    }
    out.answer(synack(h, cfg, now, v.kind == ListenVerdict::cookie));
    if (give.len > 0 && v.kind == ListenVerdict::half_open) {
        out.reply.opt.has_fast_open = true;
        out.reply.opt.fast_open_len = give.len;
        out.reply.opt.fast_open = give.bytes;
    }
    return v;
}

HalfOpenVerdict segment_arrives(HalfOpen& h, const ListenState& listener, const TcpConfig& cfg,
                                const SegView& seg, Instant now, Actions& out) {
    // RFC 7323: an old duplicate from an earlier incarnation.
    if (h.has_ts && seg.opt.has_timestamps && !seg.has(kRst) &&
        int32_t(seg.opt.ts_val - h.ts_recent) < 0)
        return HalfOpenVerdict::keep;
    if (seg.has(kSyn) && !seg.has(kAck) && !seg.has(kRst) && seg.seq == h.irs) {
        // The SYN again: our answer was lost.
        if (h.has_ts && seg.opt.has_timestamps) h.ts_recent = seg.opt.ts_val;
        out.answer(synack(h, cfg, now));
        return HalfOpenVerdict::keep;
    }
    const Seq nxt = h.irs + 1;
    const Seq right = nxt + std::min<uint32_t>(cfg.receive_buffer, 65535);
    const bool acceptable = seg.end() >= nxt && seg.seq <= right;
    if (seg.has(kRst)) return seg.seq == nxt ? HalfOpenVerdict::remove : HalfOpenVerdict::keep;
    if (!acceptable || seg.has(kSyn)) {
        SegmentHead ack;
        ack.seq = h.iss + 1;
        ack.ack = nxt;
        ack.flags = kAck;
        ack.wnd = uint16_t(std::min<uint32_t>(cfg.receive_buffer, 65535));
        if (h.has_ts) {
            ack.opt.has_timestamps = true;
            ack.opt.ts_val = uint32_t(now.ns / 1000000) + h.ts_offset;
            ack.opt.ts_ecr = h.ts_recent;
        }
        out.answer(ack);
        return HalfOpenVerdict::keep;
    }
    if (!seg.has(kAck)) return HalfOpenVerdict::keep;
    if (!(seg.ack == h.iss + 1)) {
        reset_for(seg, out.reply);
        out.has_reply = true;
        return HalfOpenVerdict::keep;
    }
    if (cfg.defer_accept > h.retries && seg.len() == 0) {
        h.acked = true;  // TCP_DEFER_ACCEPT: the connection begins with its first text
        return HalfOpenVerdict::keep;
    }
    if (listener.full()) {
        // Linux: the ACK is forgotten, the SYN-ACK timer asks for another one.
        h.acked = true;
        return HalfOpenVerdict::keep;
    }
    return HalfOpenVerdict::establish;
}

HalfOpenVerdict deadline_reached(HalfOpen& h, const TcpConfig& cfg, Instant now, Actions& out) {
    if (now < h.resend_at) return HalfOpenVerdict::keep;
    const uint8_t defer = cfg.defer_accept;
    if (h.retries >= cfg.synack_retries && (!h.acked || h.retries >= defer))
        return HalfOpenVerdict::remove;
    // Deferred: silence until the end of the time, then a last chance.
    const bool resend = defer == 0 || !h.acked || h.retries + 1 >= defer;
    ++h.retries;
    Duration next = kRtoInitial;
    for (unsigned i = 0; i < h.retries && next < kRtoMax; ++i) next = next * 2;
    h.resend_at = now + std::min(next, kRtoMax);
    if (resend) out.answer(synack(h, cfg, now));
    return HalfOpenVerdict::keep;
}

}  // namespace vma::tcp
