// Hand-back and adoption: a connection moved in mid-stream goes on where it was.
#include "stack/tcp/snapshot.h"

#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

std::string unacked_of(const Conn& c) {
    std::string s(unacked_bytes(c.t), 0);
    EXPECT_EQ(export_unacked(c.t, c.t.out.start, s.data(), s.size()), s.size());
    return s;
}
std::string unread_of(Conn& c) {
    std::string s(unread_bytes(c.t), 0);
    EXPECT_EQ(export_unread(c.t, 0, s.data(), s.size()), s.size());
    return s;
}
ByteView view(const std::string& s) {
    return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// The kernel does not tell TS.Recent of a connection that it gives away.
TEST(Snapshot, UnknownTsRecentTakesTheNextTimestamp) {
    Conn a;
    a.cfg.timestamps = a.stamps = true;
    a.established(1000, 2500, 4);
    auto made = export_snapshot(a.t, a.now);
    ASSERT_TRUE(made.ok());
    Snapshot s = made.value();
    for (const uint32_t far : {1u, 0x7fffffffu, 0x80000001u, 0xffffffffu}) {
        Conn b;
        b.cfg = a.cfg;
        b.now = a.now;
        s.ts_recent = 0;
        ASSERT_TRUE(
            import_snapshot(b.t, s, {}, {}, b.cfg, *b.world.memory, *b.world.pool, b.now).ok());
        EXPECT_FALSE(b.t.ts.is_old(far));
        b.t.ts.recent = far;
        EXPECT_TRUE(b.t.ts.is_old(far - 1) || far == 1);
        EXPECT_FALSE(b.t.ts.is_old(far + 1));
        release(b.t);
    }
}

TEST(Snapshot, MovesBothQueues) {
    Conn a;
    a.cfg.timestamps = a.stamps = true;
    a.cfg.nodelay = true;
    a.established(1000, 2500, 4);
    a.recv({5001, 1001, kAck, "unread text", 2500 >> 4});
    a.send(std::string(2000, 'p') + std::string(2000, 'q'));
    a.pull_all();
    a.recv({5012, 2001, kAck, "", 2500 >> 4});
    auto made = export_snapshot(a.t, a.now);
    ASSERT_TRUE(made.ok());
    const Snapshot s = made.value();
    EXPECT_EQ(s.snd_una.v, 2001u);
    EXPECT_EQ(s.snd_end.v, 5001u);
    EXPECT_EQ(s.rcv_nxt.v, 5012u);
    EXPECT_EQ(s.unread, 11u);

    Conn b;
    b.cfg = a.cfg;
    b.now = Instant{77000000000};  // another clock base
    const std::string unacked = unacked_of(a), unread = unread_of(a);
    EXPECT_EQ(unacked.size(), 3000u);
    ASSERT_TRUE(import_snapshot(b.t, s, view(unacked), view(unread), b.cfg, *b.world.memory,
                                *b.world.pool, b.now)
                    .ok());
    EXPECT_EQ(b.t.state, State::ESTABLISHED);
    EXPECT_EQ(b.receive(), "unread text");
    EXPECT_EQ(b.t.ts.value(b.now), a.t.ts.value(a.now));
    EXPECT_EQ(b.t.snd.wscale, a.t.snd.wscale);
    b.stamps = true;
    b.tsval = a.tsval;
    // It goes on: the rest is sent, lost text is repeated, new text arrives.
    std::vector<Seg> out;
    for (auto& o : b.pull_all()) out.push_back(o);
    b.recv({5012, s.snd_nxt.v, kAck, "more", 60000 >> 4});
    for (auto& o : b.pull_all()) out.push_back(o);
    std::string sent;
    for (auto& o : out) sent += o.text;
    EXPECT_EQ(sent, unacked.substr(s.snd_nxt - s.snd_una));
    EXPECT_EQ(b.receive(), "more");
    b.recv({5016, 5001, kAck, "", 60000 >> 4});
    EXPECT_EQ(unacked_bytes(b.t), 0u);
}

// Between two shards of a process: the peer sees nothing of it, and nothing has to be learned again.
TEST(Snapshot, AQuietConnectionMovesWithoutATrace) {
    Conn a;
    a.cfg.timestamps = a.stamps = true;
    a.established(1000, 2500, 4);
    for (uint32_t i = 0; i < 20; i++) {
        a.send(std::string(1000, 'p'));
        a.pull_all();
        a.now = a.now + Duration::millis(3);
        a.recv({5001, 2001 + 1000 * i, kAck, "", 2500 >> 4});
        a.pull_all();
    }
    a.recv({5001, 21001, kAck, "unread", 2500 >> 4});
    a.send("on its way");
    a.pull_all();
    ASSERT_TRUE(is_quiet(a.t));
    const Snapshot s = export_snapshot(a.t, a.now).value();
    Conn b;
    b.now = a.now;
    const std::string unacked = unacked_of(a), unread = unread_of(a);
    ASSERT_TRUE(import_snapshot(b.t, s, view(unacked), view(unread), a.cfg, *b.world.memory,
                                *b.world.pool, b.now)
                    .ok());
    carry_over(b.t, a.t);
    EXPECT_TRUE(is_quiet(b.t));
    EXPECT_TRUE(b.pull_all().empty());
    EXPECT_EQ(b.t.snd.iss, a.t.snd.iss);
    EXPECT_EQ(b.t.snd.mss, a.t.snd.mss);
    EXPECT_EQ(b.t.rcv.adv, a.t.rcv.adv);
    EXPECT_EQ(b.t.cc.cwnd, a.t.cc.cwnd);
    EXPECT_EQ(b.t.cc.ssthresh, a.t.cc.ssthresh);
    EXPECT_EQ(b.t.rtt.srtt.ns, a.t.rtt.srtt.ns);
    EXPECT_EQ(b.t.rtt.rto.ns, a.t.rtt.rto.ns);
    EXPECT_EQ(b.t.rtt.min_rtt.ns, a.t.rtt.min_rtt.ns);
    EXPECT_EQ(b.t.ts.value(b.now), a.t.ts.value(a.now));
    EXPECT_EQ(b.t.timers.delack_at, a.t.timers.delack_at);
    EXPECT_EQ(b.t.count.bytes_acked, 20000u);
    EXPECT_EQ(b.t.count.data_segs_out, a.t.count.data_segs_out);
    EXPECT_EQ(b.receive(), "unread");
    b.stamps = true;
    b.tsval = a.tsval;
    b.recv({5007, 21011, kAck, "", 2500 >> 4});
    EXPECT_EQ(unacked_bytes(b.t), 0u);
}

TEST(Snapshot, WhatASnapshotWouldLoseIsNotQuiet) {
    struct Case {
        const char* name;
        void (*disturb)(Conn&);
    };
    const Case cases[] = {
        {"text out of order",
         [](Conn& c) {
             c.recv({5101, 1001, kAck, "later"});
         }},
        {"urgent text", [](Conn& c) { c.t.rcv.urgent = true; }},
        {"a direction shut down", [](Conn& c) { shutdown_read(c.t); }},
        {"the peer's FIN",
         [](Conn& c) {
             c.recv({5001, 1001, kAck | kFin});
         }},
        {"a timeout",
         [](Conn& c) {
             c.send("lost");
             c.pull_all();
             c.pass(Duration::seconds(3));
         }},
    };
    for (const Case& each : cases) {
        Conn c;
        c.established(1000);
        EXPECT_TRUE(is_quiet(c.t)) << each.name;
        each.disturb(c);
        EXPECT_FALSE(is_quiet(c.t)) << each.name;
    }
}

TEST(Snapshot, LostFlightIsRepeated) {
    Conn a;
    a.established(1000);
    a.send(std::string(3000, 'x'));
    a.pull_all();
    const Snapshot s = export_snapshot(a.t, a.now).value();
    Conn b;
    const std::string unacked = unacked_of(a);
    ASSERT_TRUE(
        import_snapshot(b.t, s, view(unacked), {}, b.cfg, *b.world.memory, *b.world.pool, b.now)
            .ok());
    std::vector<Seg> out;
    b.pull_all();
    b.pass(Duration::seconds(3), &out);
    ASSERT_GE(out.size(), 1u);
    EXPECT_EQ(out[0].seq, 1001u);
    EXPECT_TRUE(out[0].retransmission);
    b.recv({5001, 4001, kAck});
    EXPECT_EQ(b.t.flight(), 0u);
}

TEST(Snapshot, EveryClosingState) {
    struct {
        void (Conn::*prepare)();
    } rows[] = {{&Conn::fin_wait_1},
                {&Conn::fin_wait_2},
                {&Conn::close_wait},
                {&Conn::closing},
                {&Conn::last_ack}};
    for (auto& r : rows) {
        Conn a;
        (a.*r.prepare)();
        SCOPED_TRACE(state_name(a.t.state));
        auto made = export_snapshot(a.t, a.now);
        ASSERT_TRUE(made.ok());
        const Snapshot s = made.value();
        Conn b;
        ASSERT_TRUE(
            import_snapshot(b.t, s, {}, {}, b.cfg, *b.world.memory, *b.world.pool, b.now).ok());
        EXPECT_EQ(b.t.state, a.t.state);
        EXPECT_EQ(b.t.snd.nxt.v, a.t.snd.nxt.v);
        EXPECT_EQ(b.t.rcv.nxt.v, a.t.rcv.nxt.v);
        EXPECT_EQ(s.peer_fin, a.t.rcv.fin_done);
        b.pull_all();
        // Ours acknowledged, theirs sent: the end that the state leads to.
        b.recv({b.t.rcv.nxt.v, b.t.snd.nxt.v, uint8_t(a.t.rcv.fin_done ? kAck : kFin | kAck)});
        a.recv({a.t.rcv.nxt.v, a.t.snd.nxt.v, uint8_t(a.t.rcv.fin_done ? kAck : kFin | kAck)});
        EXPECT_EQ(b.t.state, a.t.state);
    }
}

TEST(Snapshot, RefusesWhatCannotMove) {
    Conn c;
    EXPECT_EQ(export_snapshot(c.t, c.now).error(), EINVAL);
    c.syn_sent();
    EXPECT_EQ(export_snapshot(c.t, c.now).error(), EINVAL);
    Conn d;
    d.time_wait();
    EXPECT_EQ(export_snapshot(d.t, d.now).error(), EINVAL);
    Conn e;
    e.established();
    Snapshot s = export_snapshot(e.t, e.now).value();
    s.unread = 5;
    Conn f;
    EXPECT_EQ(import_snapshot(f.t, s, {}, {}, f.cfg, *f.world.memory, *f.world.pool, f.now).error(),
              EINVAL);
    s.unread = 0;
    s.snd_nxt = s.snd_end + 3;
    EXPECT_EQ(import_snapshot(f.t, s, {}, {}, f.cfg, *f.world.memory, *f.world.pool, f.now).error(),
              EINVAL);
}

}  // namespace
}  // namespace vma::tcp
