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

TEST(Memory, RecordsAreSmall) {
    // RFC 4987 section 3.1: what a stranger's SYN costs; two addresses of either family are most of it.
    EXPECT_LE(sizeof(HalfOpen), 128u);
    EXPECT_LE(sizeof(TimeWait), 128u);
    EXPECT_LE(sizeof(TxRange), 96u);
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
