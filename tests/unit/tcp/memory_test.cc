// Memory that peers and applications can make a connection hold: limits, pressure, small segments.
#include "stack/tcp/snapshot.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

TEST(Memory, LimitBoundsWhatWritersPutIn) {
    Conn c;
    c.cfg.send_buffer = 1 << 20;
    c.established(1000, 1000);
    c.world.memory->set_limit(128 << 10);
    const size_t took = c.send(std::string(500000, 'x'));
    EXPECT_GT(took, 60000u);
    EXPECT_LE(c.world.memory->bytes_out(), 128u << 10);
    EXPECT_EQ(c.send("y"), 0u);
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    // An acknowledgement makes room again.
    c.pull_all();
    for (uint32_t at = 2001; at < 40000; at += 1000) {
        c.recv({5001, at, kAck, "", 1000});
        c.pull_all();
    }
    EXPECT_GT(c.send(std::string(50000, 'z')), 0u);
}

TEST(Memory, AnEmptyBufferAlwaysGetsSomething) {
    // Otherwise its writer would wait for an acknowledgement that cannot come.
    Conn c;
    c.established(1000);
    c.world.memory->set_limit(0);
    EXPECT_GT(c.send(std::string(50000, 'x')), 1000u);
    EXPECT_LE(c.world.memory->bytes_out(), kSmallChunk);
}

TEST(Memory, PressureStopsGrowthAndShrinksWindowsWithoutRetreat) {
    Conn c;
    c.cfg.send_buffer = 20000;
    c.cfg.send_buffer_max = 1 << 20;
    c.cfg.receive_buffer = c.cfg.receive_buffer_max = 60000;
    c.established(1000);
    const Seq edge = c.t.rcv.adv;
    c.world.memory->set_pressure(true);
    c.send(std::string(20000, 'x'));
    c.pull_all();
    c.recv({5001, 11001, kAck});
    EXPECT_EQ(c.t.out.limit, 20000u);
    Seg s{5001, 11001, kAck, std::string(1000, 'p')};
    for (int i = 0; i < 70; ++i) {
        c.recv(s);
        c.receive();
        c.pull_all();
        EXPECT_TRUE(c.t.rcv.adv >= edge);
        s.seq += 1000;
    }
    EXPECT_LE(c.t.rcv.wnd(), 5000u);
    EXPECT_GT(c.t.rcv.wnd(), 0u);
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    // It passes: the window opens again.
    c.world.memory->set_pressure(false);
    c.recv(s);
    c.receive();
    c.pull_all();
    EXPECT_GT(c.t.rcv.wnd(), 50000u);
    c.recv({c.t.rcv.nxt.v, c.t.snd.nxt.v, kAck});
    EXPECT_GT(c.t.out.limit, 20000u);
}

TEST(Memory, SmallSegmentsOutOfOrderCostWhatTheyHold) {
    // One byte in every other place: each would keep a frame of its own.
    Conn c;
    c.established(1000);
    for (uint32_t i = 0; i < 29000; ++i) {
        c.recv({5003 + 2 * i, 1001, kAck, "x"});
        if (i % 100 == 0) c.pull_all();
    }
    EXPECT_LE(c.t.in.charge() + c.t.ooo.charge(), 2u * 60000 + 131072 + 4096);
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
}

TEST(Memory, SmallSegmentsInOrderAreMerged) {
    Conn c;
    c.established(1000);
    for (uint32_t i = 0; i < 20000; ++i) {
        c.recv({5001 + i, 1001, kAck, "x"});
        c.pull_all();
    }
    EXPECT_EQ(c.t.in.bytes, 20000u);
    EXPECT_LE(c.t.in.charge(), 4u * 20000 + 8192);
}

// What one connection holds presses on all of the process, and goes back when it ends.
TEST(Memory, BudgetIsTheProcesss) {
    TcpBudget budget;
    budget.set_limits(200000, 300000, 400000);
    {
        Conn a, b;
        a.cfg.send_buffer = 1 << 20;
        a.established(1000, 1000);
        b.cfg.receive_buffer = b.cfg.receive_buffer_max = 300000;
        b.established(1000, 60000, 3);
        a.world.memory->set_budget(&budget);
        b.world.memory->set_budget(&budget);
        EXPECT_FALSE(b.world.memory->pressure());
        EXPECT_GT(a.send(std::string(500000, 'x')), 250000u);
        EXPECT_LE(budget.used(), 400000u);
        EXPECT_TRUE(b.world.memory->pressure());
        EXPECT_EQ(budget.pressures(), 1u);
        EXPECT_EQ(a.send("y"), 0u);
        EXPECT_GT(a.world.memory->refused(), 0u);
        // The other connection lives: its window shrinks, what it reads makes room, its writer gets one small chunk.
        b.pull_all();
        for (int i = 0; i < 320; ++i) {
            b.recv({b.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')});
            b.pull_all();
            EXPECT_EQ(b.receive().size(), 1000u);
        }
        EXPECT_LE(b.t.rcv.wnd(), 5000u);
        EXPECT_GT(b.send("z"), 0u);
        // The writer's connection ends: room for all.
        abort(a.t, 0, a.fresh());
        release(a.t);
        EXPECT_FALSE(b.world.memory->pressure());
        b.recv({b.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')});
        b.receive();
        b.pull_all();
        EXPECT_GT(b.t.rcv.wnd(), 100000u);
    }
    EXPECT_LT(budget.used(), 2 * 65536u);  // told in steps
}

// At the limit text is refused, but never the one that an empty queue waits for, and none that was promised is lost for good.
TEST(Memory, LimitRefusesFramesButNotTheFirst) {
    Conn c;
    c.established(1000);
    c.world.memory->set_limit(10000);
    for (int i = 0; i < 7; ++i) c.recv({c.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')});
    c.recv({c.t.rcv.nxt.v + 3000, 1001, kAck, std::string(1000, 'o')});  // one out of order
    EXPECT_EQ(c.t.ooo.bytes, 1000u);
    const uint32_t before = c.t.rcv.nxt.v;
    // The next one in order pushes the one out of order out, the one after that is refused.
    c.recv({c.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')});
    EXPECT_EQ(c.t.rcv.nxt.v, before + 1000);
    EXPECT_EQ(c.t.ooo.bytes, 0u);
    EXPECT_EQ(c.recv({c.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')}),
              Verdict::drop(DropReason::tcp_memory));
    EXPECT_GT(c.world.memory->refused(), 0u);
    EXPECT_EQ(c.receive().size(), 8000u);
    EXPECT_EQ(c.recv({c.t.rcv.nxt.v, 1001, kAck, std::string(1000, 'p')}).kind, Verdict::Continue);
    EXPECT_EQ(c.world.memory->frame_bytes(), c.t.in.charge());
}

TEST(Memory, RecordsAreSmall) {
    // RFC 4987 section 3.1: what a stranger's SYN costs; two addresses of either family are most of it.
    EXPECT_LE(sizeof(HalfOpen), 128u);
    EXPECT_LE(sizeof(TimeWait), 128u);
    EXPECT_LE(sizeof(TxRange), 128u);
}

TEST(Snapshot, EcnGoesAlong) {
    Conn c;
    c.established(1000);
    c.t.ecn.on = true;
    const auto made = export_snapshot(c.t, c.now);
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(made.value().ecn);
    Conn d;
    ASSERT_TRUE(
        import_snapshot(d.t, made.value(), {}, {}, d.cfg, *d.world.memory, *d.world.pool, d.now)
            .ok());
    EXPECT_TRUE(d.t.ecn.on);
}

}  // namespace
}  // namespace vma::tcp
