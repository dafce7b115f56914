// property_sequences COUNT [SEED]: COUNT random sequences of segments, calls and time steps into two connections, one with
// the fast path and one without. After each step both are in the same state, answer the same and send the same, and what
// must hold of any connection holds. The number of a failing sequence is printed; `property_sequences 1 NUMBER` repeats it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/arena.h"
#include "base/rng.h"
#include "pkt/pool.h"
#include "stack/tcp/steps.h"

using namespace vma;
using namespace vma::tcp;

namespace {

uint64_t g_sequence = 0;
int g_step = 0;

[[noreturn]] void fail(const char* what, int line) {
    std::printf("FAILED: sequence %llu, step %d: %s (line %d)\n", (unsigned long long)g_sequence,
                g_step, what, line);
    std::exit(1);
}
#define CHECK(condition) \
    if (!(condition)) fail(#condition, __LINE__)

struct World {
    Arena* arena = *Arena::create(size_t(64) << 20);
    PacketPool pool{*arena};
    TcpMemory memory{*arena};
};

struct Lane {
    World& world;
    bool fast;
    Tcb t{};
    Actions actions{};
    SegmentPlan plan{};

    Verdict arrive(SegView s, uint32_t text, Instant now) {
        if (text > 0) {
            s.packet = world.pool.take(text);
            CHECK(bool(s.packet));
            std::memset(s.packet->data, 'a' + int(s.seq.v % 26), text);
            s.packet->len = text;
            s.payload_len = text;
        }
        actions = {};
        return fast ? segment_arrives(t, s, now, actions)
                    : segment_arrives_slow(t, s, now, actions);
    }
};

bool same_head(const SegmentHead& a, const SegmentHead& b) {
    return a.seq == b.seq && a.ack == b.ack && a.wnd == b.wnd && a.urg == b.urg &&
           a.flags == b.flags && a.ect == b.ect && a.opt == b.opt;
}

bool same_plan(const SegmentPlan& a, const SegmentPlan& b) {
    return same_head(a.head, b.head) && a.payload_len == b.payload_len &&
           a.gso_size == b.gso_size && a.retransmission == b.retransmission && a.probe == b.probe;
}

// What a later segment, deadline or call can see.
bool same(const Tcb& a, const Tcb& b) {
    if (a.state != b.state || a.error != b.error || a.rst_due != b.rst_due) return false;
    const Snd &s = a.snd, &z = b.snd;
    if (!(s.una == z.una && s.nxt == z.nxt && s.wl1 == z.wl1 && s.wl2 == z.wl2 && s.sml == z.sml &&
          s.pushed == z.pushed && s.wnd == z.wnd && s.max_wnd == z.max_wnd && s.mss == z.mss &&
          s.urgent == z.urgent && s.fin_queued == z.fin_queued && s.fin_sent == z.fin_sent))
        return false;
    const Rcv &r = a.rcv, &q = b.rcv;
    if (!(r.nxt == q.nxt && r.adv == q.adv && r.acked == q.acked && r.buffer == q.buffer &&
          r.urgent == q.urgent && r.fin_seen == q.fin_seen && r.fin_done == q.fin_done))
        return false;
    if (a.ts.recent != b.ts.recent || !(a.ts.recent_at == b.ts.recent_at)) return false;
    const AckState &k = a.ack, &l = b.ack;
    if (k.now != l.now || k.pending != l.pending || k.challenges != l.challenges ||
        k.pingpong != l.pingpong || k.quick != l.quick || k.rcv_mss != l.rcv_mss ||
        k.ato != l.ato || !(k.last_data == l.last_data) || k.dsack != l.dsack)
        return false;
    if (a.rtt.srtt != b.rtt.srtt || a.rtt.rto != b.rtt.rto || a.rtt.min_rtt != b.rtt.min_rtt)
        return false;
    if (a.cc.cwnd != b.cc.cwnd || a.cc.ssthresh != b.cc.ssthresh) return false;
    const LossState &m = a.loss, &n = b.loss;
    if (m.state != n.state || m.dup_acks != n.dup_acks || m.delivered != n.delivered ||
        m.limited != n.limited || m.tlp.out != n.tlp.out || m.rack.steps != n.rack.steps)
        return false;
    const Timers &v = a.timers, &w = b.timers;
    if (v.kind != w.kind || !(v.rtx_at == w.rtx_at) || !(v.delack_at == w.delack_at) ||
        !(v.keepalive_at == w.keepalive_at) || !(v.state_at == w.state_at) ||
        !(v.last_rcv == w.last_rcv) || v.backoff != w.backoff || v.retries != w.retries ||
        v.probes != w.probes || v.probe_due != w.probe_due)
        return false;
    return a.board.sacked == b.board.sacked && a.board.lost == b.board.lost &&
           a.board.retransmitted == b.board.retransmitted && a.board.waiting == b.board.waiting &&
           a.out.bytes == b.out.bytes && a.in.bytes == b.in.bytes && a.in.frames == b.in.frames &&
           a.ooo.bytes == b.ooo.bytes && a.charged == b.charged &&
           a.count.bytes_received == b.count.bytes_received &&
           a.count.bytes_acked == b.count.bytes_acked && a.rate.bytes == b.rate.bytes;
}

// What holds of any connection, whatever came.
void check_invariants(const Tcb& t) {
    if (t.state < State::ESTABLISHED || t.state == State::TIME_WAIT) return;
    CHECK(t.snd.una <= t.snd.nxt && t.snd.nxt <= t.write_seq() + 1);
    CHECK(t.flight() == 0 || t.timers.kind != Rtx::none);
    CHECK(t.cc.cwnd >= 48);
    CHECK(t.charged == t.in.charge() + t.ooo.charge());
}

struct Sequence {
    Lane a, b;
    Rng rng;
    Instant now{1000000000};
    uint32_t peer_clock = 100;
    uint64_t segments = 0;

    Sequence(World& wa, World& wb, uint64_t seed) : a{wa, true}, b{wb, false}, rng(seed) {}

    TcpConfig config() {
        TcpConfig c;
        c.timestamps = rng.chance(1, 2);
        c.sack = rng.chance(3, 4);
        c.nodelay = rng.chance(1, 3);
        c.max_gso_bytes = rng.chance(1, 4) ? 65536 : 0;
        c.receive_buffer = 2000 + rng.below(60000);
        c.receive_buffer_max = rng.chance(1, 2) ? 200000 : c.receive_buffer;
        c.ecn = uint8_t(rng.below(3));
        c.cc = CcKind(rng.below(4));
        c.keepalive = rng.chance(1, 8);
        return c;
    }

    SegView random_segment() {
        const Tcb& t = a.t;
        SegView s;
        s.flags = kAck;
        s.seq = t.rcv.nxt;
        s.ack = t.snd.una;
        s.wnd = uint16_t(rng.chance(3, 4)   ? 30000
                         : rng.chance(1, 4) ? rng.below(8)
                                            : rng.below(65536));
        if (rng.chance(1, 2)) s.ack += rng.below(t.flight() + 1);
        if (rng.chance(1, 3)) s.flags |= kPsh;
        if (rng.chance(1, 8)) s.seq += rng.below(4000) - 2000;
        if (rng.chance(1, 20)) s.ack += rng.below(400) - 200;
        if (rng.chance(1, 30)) s.flags = uint8_t(rng.below(256));
        if (rng.chance(1, 40)) s.flags |= kFin;
        if ((s.flags & kRst) && rng.chance(3, 4)) s.flags &= uint8_t(~kRst);
        if (rng.chance(1, 20)) s.urg = uint16_t(rng.below(2000));
        if (rng.chance(1, 30)) s.ecn = kEcnCe;
        if (rng.chance(1, 6) && t.flight() > 0) {
            s.opt.sack_count = uint8_t(1 + rng.below(3));
            for (unsigned i = 0; i < s.opt.sack_count; ++i) {
                const Seq left = t.snd.una + rng.below(t.flight() + 100);
                s.opt.sack[i] = {left, left + rng.below(3000)};
            }
        }
        if (t.ts.on && rng.chance(19, 20)) {
            peer_clock += rng.below(20);
            s.opt.has_timestamps = true;
            s.opt.ts_val = rng.chance(1, 30) ? peer_clock - rng.below(1000) : peer_clock;
            s.opt.ts_ecr = t.ts.value(now) - rng.below(20);
        }
        return s;
    }

    void segment(const SegView& shape, uint32_t text) {
        ++segments;
        SegView sa, sb;
        for (SegView* s : {&sa, &sb}) {
            s->seq = shape.seq, s->ack = shape.ack, s->wnd = shape.wnd, s->urg = shape.urg;
            s->flags = shape.flags, s->ecn = shape.ecn, s->opt = shape.opt;
            s->gso_size = text > 1460 ? 1460 : 0;
        }
        const Verdict va = a.arrive(std::move(sa), text, now),
                      vb = b.arrive(std::move(sb), text, now);
        CHECK(va == vb);
        CHECK(a.actions.events == b.actions.events && a.actions.error == b.actions.error);
        CHECK(a.actions.has_reply == b.actions.has_reply);
        CHECK(!a.actions.has_reply || same_head(a.actions.reply, b.actions.reply));
    }

    template <class Call>
    void both(Call call) {
        for (Lane* l : {&a, &b}) {
            l->actions = {};
            call(*l);
        }
        CHECK(a.actions.events == b.actions.events);
    }

    void pull() {
        for (int i = 0; i < 200; ++i) {
            const bool more = next_segment(a.t, now, a.plan),
                       more2 = next_segment(b.t, now, b.plan);
            CHECK(more == more2);
            if (!more) return;
            CHECK(same_plan(a.plan, b.plan));
        }
    }

    void step() {
        static const char text[20000] = {};
        static char sink[20000];
        const uint32_t n = rng.below(100);
        if (n < 55) {
            const uint32_t len = rng.chance(1, 3)   ? 0
                                 : rng.chance(1, 6) ? 1 + rng.below(4000)
                                                    : 1 + rng.below(200);
            segment(random_segment(), len);
        } else if (n < 70) {
            const size_t len = rng.below(rng.chance(1, 8) ? 20000 : 3000);
            both([&](Lane& l) { write(l.t, text, len, now, l.actions); });
        } else if (n < 80) {
            const size_t len = rng.below(20000);
            both([&](Lane& l) { read(l.t, sink, len, now, l.actions); });
        } else if (n < 96) {
            now = now + Duration::micros(rng.below(rng.chance(1, 10) ? 300000 : 2000));
            if (deadline(a.t) <= now) both([&](Lane& l) { deadline_reached(l.t, now, l.actions); });
        } else if (n < 98) {
            now = std::max(now, std::min(deadline(a.t), now + Duration::seconds(100)));
            both([&](Lane& l) { deadline_reached(l.t, now, l.actions); });
        } else if (rng.chance(1, 4)) {
            both([&](Lane& l) { close(l.t, now, l.actions); });
        } else if (rng.chance(1, 2)) {
            both([&](Lane& l) { shutdown_write(l.t, now, l.actions); });
        }
        if (rng.chance(7, 8)) pull();
        CHECK(same(a.t, b.t));
        check_invariants(a.t);
    }

    void run() {
        const TcpConfig cfg = config();
        const uint32_t iss = rng.next() & 0xffffffff, irs = rng.next() & 0xffffffff;
        for (Lane* l : {&a, &b}) {
            OpenParams p;
            p.local = {IpAddr::v4(10, 0, 0, 1), 4000};
            p.remote = {IpAddr::v4(10, 0, 0, 2), 80};
            p.iss = {iss};
            p.memory = &l->world.memory;
            connect(l->t, p, cfg, now);
        }
        pull();
        SegView synack;
        synack.flags = kSyn | kAck;
        synack.seq = {irs};
        synack.ack = {iss + 1};
        synack.wnd = uint16_t(1000 + rng.below(64000));
        synack.opt.has_mss = true;
        synack.opt.mss = uint16_t(rng.chance(1, 4) ? 100 + rng.below(9000) : 1460);
        synack.opt.sack_permitted = rng.chance(3, 4);
        synack.opt.has_wscale = rng.chance(1, 2);
        synack.opt.wscale = uint8_t(rng.below(15));
        if (cfg.timestamps) {
            synack.opt.has_timestamps = true;
            synack.opt.ts_val = peer_clock;
        }
        now = now + Duration::micros(rng.below(200000));
        segment(synack, 0);
        pull();
        const int steps = 4 + int(rng.below(28));
        for (g_step = 0; g_step < steps && a.t.state != State::CLOSED; ++g_step) step();
        release(a.t);
        release(b.t);
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::printf("usage: property_sequences COUNT [SEED]\n");
        return 2;
    }
    const uint64_t count = std::strtoull(argv[1], nullptr, 10);
    const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    std::printf("%llu sequences from seed %llu\n", (unsigned long long)count,
                (unsigned long long)seed);
    static World wa, wb;
    uint64_t segments = 0;
    for (uint64_t i = 0; i < count; ++i) {
        g_sequence = seed + i;
        Sequence s(wa, wb, g_sequence);
        s.run();
        segments += s.segments;
        CHECK(wa.memory.chunks_out() == 0 && wa.memory.ranges_out() == 0);
        CHECK(wa.memory.frame_bytes() == 0 && wa.pool.counters().in_use == 0);
        if ((i + 1) % 1000000 == 0) {
            std::printf("%llu sequences, %llu segments\n", (unsigned long long)(i + 1),
                        (unsigned long long)segments);
            std::fflush(stdout);
        }
    }
    std::printf("done: %llu sequences, %llu segments, no difference\n", (unsigned long long)count,
                (unsigned long long)segments);
    return 0;
}
