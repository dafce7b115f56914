// The fast path does what the ladder does: two connections get the same history, one with the fast path and one without.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

// Everything that a later segment, deadline or application call can see.
std::string state_of(const Tcb& t) {
    std::string s;
    auto add = [&s](auto v) { s += std::to_string(v) + " "; };
    add(int(t.state)), add(t.snd.una.v), add(t.snd.nxt.v), add(t.snd.wnd), add(t.snd.wl1.v),
        add(t.snd.wl2.v);
    add(t.snd.max_wnd), add(t.snd.sml.v), add(t.rcv.nxt.v), add(t.rcv.adv.v), add(t.rcv.acked.v),
        add(t.rcv.buffer);
    add(t.ts.recent), add(t.ts.recent_at.ns), add(t.ack.now), add(t.ack.pending), add(t.ack.quick),
        add(t.ack.pingpong);
    add(t.ack.rcv_mss), add(t.ack.ato.ns), add(t.ack.last_data.ns), add(t.ack.dsack),
        add(t.rtt.srtt.ns), add(t.rtt.rto.ns);
    add(t.cc.cwnd), add(t.cc.ssthresh), add(int(t.loss.state)), add(t.loss.dup_acks),
        add(t.loss.delivered);
    add(t.timers.rtx_at.ns), add(int(t.timers.kind)), add(t.timers.delack_at.ns),
        add(t.timers.backoff), add(t.timers.retries);
    add(t.timers.last_rcv.ns), add(t.board.sacked), add(t.board.lost), add(t.out.bytes),
        add(t.in.bytes), add(t.in.frames);
    add(t.ooo.bytes), add(t.count.bytes_received), add(t.count.bytes_acked), add(t.loss.limited),
        add(t.error);
    return s;
}

Seg random_segment(Rng& rng, const Tcb& t) {
    Seg s{t.rcv.nxt.v, t.snd.una.v, kAck};
    if (rng.chance(2, 3)) s.text = std::string(1 + rng.below(1460), char('a' + rng.below(26)));
    if (rng.chance(1, 2)) s.ack += rng.below(t.flight() + 1);
    if (rng.chance(1, 3)) s.flags |= kPsh;
    s.wnd = uint16_t(rng.chance(3, 4) ? 60000 : rng.below(65536));
    // Disturbances.
    if (rng.chance(1, 20)) s.seq += rng.below(3000) - 1500;
    if (rng.chance(1, 20)) s.ack += rng.below(200) - 100;
    if (rng.chance(1, 40)) s.flags = uint8_t(rng.below(64));
    if (rng.chance(1, 400)) s.flags |= kFin;
    if ((s.flags & kRst) && rng.chance(9, 10)) s.flags &= uint8_t(~kRst);
    if (rng.chance(1, 10) && t.flight() > 0) {
        s.opt.sack_count = 1;
        const uint32_t left = t.snd.una.v + rng.below(t.flight());
        s.opt.sack[0] = {{left}, {left + 1 + rng.below(3000)}};
    }
    if (rng.chance(1, 10)) s.gso_size = 536;
    return s;
}

TEST(FastPath, EqualsLadder) {
    uint64_t fast_taken = 0;
    for (uint64_t seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Conn a, b;
        for (Conn* c : {&a, &b}) {
            c->cfg.timestamps = c->stamps = seed % 2 == 0;
            c->cfg.nodelay = seed % 3 == 0;
            c->cfg.max_gso_bytes = seed % 5 == 0 ? 65536 : 0;
            c->established(1460, 60000, seed % 2 ? 2 : -1);
        }
        for (int i = 0; i < 200 && a.t.state != State::CLOSED; ++i) {
            const Seg s = random_segment(rng, a.t);
            if (rng.chance(1, 20)) {
                a.tsval += rng.below(50) - 5;
                b.tsval = a.tsval;
            }
            SegView probe = in_seg(*a.world.pool, s);
            (void)probe;
            const Verdict va = a.recv(s, false), vb = b.recv(s, true);
            ASSERT_EQ(va, vb) << i;
            ASSERT_EQ(a.last.events, b.last.events) << i;
            ASSERT_EQ(a.last.has_reply, b.last.has_reply) << i;
            ASSERT_EQ(state_of(a.t), state_of(b.t)) << i;
            if (rng.chance(1, 2)) {
                const std::string text(1 + rng.below(4000), 'w');
                a.send(text);
                b.send(text);
            }
            const auto oa = a.pull_all(), ob = b.pull_all();
            ASSERT_EQ(oa.size(), ob.size()) << i;
            for (size_t k = 0; k < oa.size(); ++k) {
                ASSERT_EQ(oa[k].seq, ob[k].seq);
                ASSERT_EQ(oa[k].ack, ob[k].ack);
                ASSERT_EQ(oa[k].wnd, ob[k].wnd);
                ASSERT_EQ(oa[k].text, ob[k].text);
                ASSERT_EQ(oa[k].flags, ob[k].flags);
                ASSERT_EQ(oa[k].opt, ob[k].opt);
            }
            if (rng.chance(1, 3)) {
                const size_t n = rng.below(5000);
                ASSERT_EQ(a.receive(n), b.receive(n));
            }
            const Duration d = Duration::micros(rng.below(rng.chance(1, 20) ? 400000 : 2000));
            a.pass(d);
            b.pass(d);
            ASSERT_EQ(state_of(a.t), state_of(b.t)) << i;
        }
        // The property says nothing if the fast path is never taken.
        Conn c;
        c.established();
        SegView v = in_seg(*c.world.pool, {5001, 1001, kAck, "x"});
        Verdict verdict;
        Actions out;
        if (fast_path(c.t, v, c.now, out, verdict)) ++fast_taken;
    }
    EXPECT_EQ(fast_taken, 300u);
}

TEST(FastPath, RefusesWhatNeedsTheLadder) {
    struct Row {
        const char* why;
        Seg seg;
    } rows[] = {{"FIN", {5001, 1001, kFin | kAck}},
                {"URG", {5001, 1001, kUrg | kAck, "x"}},
                {"no ACK", {5001, 1001, 0, "x"}},
                {"RST", {5001, 1001, kRst | kAck}},
                {"gap", {5002, 1001, kAck, "x"}},
                {"old", {5000, 1001, kAck, "x"}},
                {"ACK ahead", {5001, 1002, kAck}},
                {"too long", {5001, 1001, kAck, std::string(60001, 'x')}}};
    for (auto& r : rows) {
        Conn c;
        c.established();
        SegView v = in_seg(*c.world.pool, r.seg);
        Verdict verdict;
        Actions out;
        EXPECT_FALSE(fast_path(c.t, v, c.now, out, verdict)) << r.why;
        EXPECT_EQ(c.t.rcv.nxt.v, 5001u);
    }
}

}  // namespace
}  // namespace vma::tcp
