// Anything may arrive at any time in any state: invariants hold, deadlines make progress, nothing leaks.
#include <functional>

#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

uint32_t near(Rng& rng, uint32_t at) {
    switch (rng.below(8)) {
        case 0:
            return uint32_t(rng.next());
        case 1:
            return at + rng.below(70000);
        case 2:
            return at - rng.below(70000);
        case 3:
            return at + 0x7fffffffu + rng.below(3);
        case 4:
            return at + 1;
        case 5:
            return at - 1;
        default:
            return at;
    }
}

Seg anything(Rng& rng, const Tcb& t) {
    Seg s;
    s.seq = near(rng, t.rcv.nxt.v);
    s.ack = near(rng, rng.chance(1, 2) ? t.snd.una.v : t.snd.nxt.v);
    s.flags = rng.chance(2, 3) ? kAck : uint8_t(rng.next() >> 20);
    if (rng.chance(7, 8)) s.flags &= uint8_t(~kRst);
    s.wnd = uint16_t(rng.chance(1, 4) ? rng.below(3) : rng.next() >> 30);
    s.urg = uint16_t(rng.next() >> 30);
    if (rng.chance(1, 2))
        s.text = std::string(rng.chance(1, 2) ? rng.below(5) : rng.below(3000), 'h');
    if (rng.chance(1, 4)) {
        s.opt.sack_count = uint8_t(1 + rng.below(4));
        for (unsigned i = 0; i < s.opt.sack_count; ++i) {
            const uint32_t left = near(rng, t.snd.una.v + rng.below(t.flight() + 1));
            s.opt.sack[i] = {{left}, {near(rng, left + rng.below(5000))}};
        }
    }
    s.opt.has_timestamps = rng.chance(1, 2);
    s.opt.ts_val = near(rng, t.ts.recent);
    s.opt.ts_ecr = uint32_t(rng.next());
    s.opt.has_mss = rng.chance(1, 8);
    s.opt.mss = uint16_t(rng.next() >> 25);
    s.opt.has_wscale = rng.chance(1, 8);
    s.opt.wscale = uint8_t(rng.next());
    s.gso_size = rng.chance(1, 10) ? uint16_t(1 + rng.below(1460)) : uint16_t(0);
    return s;
}

void check(const Tcb& t, std::optional<Seq>& edge) {
    if (t.state == State::CLOSED) return;
    ASSERT_TRUE(t.snd.una <= t.snd.nxt);
    if (t.state >= State::ESTABLISHED) {
        if (edge) {
            ASSERT_TRUE(t.rcv.adv >= *edge);
        }
        edge = t.rcv.adv;
        if (t.state != State::TIME_WAIT) {
            ASSERT_TRUE(t.snd.una <= t.out.start || t.snd.fin_sent);
            ASSERT_LE(t.in.charge() + t.ooo.charge(), 3 * t.rcv.buffer + 300000);
        }
    }
    ASSERT_LE(t.board.lost + t.board.sacked, t.flight());
    ASSERT_LE(t.board.retransmitted, t.flight());
    ASSERT_LE(t.board.waiting, t.board.lost);
    ASSERT_LE(t.ooo.block_count, 4);
    ASSERT_GE(t.snd.mss, 48);
}

TEST(Hostile, RandomSegmentsCallsAndTime) {
    void (Conn::*starts[])() = {&Conn::syn_sent,   &Conn::syn_received, nullptr,
                                &Conn::fin_wait_1, &Conn::fin_wait_2,   &Conn::close_wait,
                                &Conn::closing,    &Conn::last_ack,     &Conn::time_wait};
    for (uint64_t seed = 1; seed <= 900; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Conn c;
        c.cfg.timestamps = rng.chance(1, 2);
        c.stamps = c.cfg.timestamps;
        c.cfg.max_gso_bytes = rng.chance(1, 2) ? 65536 : 0;
        c.cfg.keepalive = rng.chance(1, 4);
        c.cfg.cc = CcKind(rng.below(4));
        c.cfg.receive_buffer_max = rng.chance(1, 2) ? 1 << 20 : 60000;
        auto start = starts[seed % std::size(starts)];
        if (start)
            (c.*start)();
        else
            c.established(uint16_t(1 + rng.below(9000)), 60000,
                          rng.chance(1, 2) ? int(rng.below(15)) : -1);
        c.stamps = false;
        std::optional<Seq> edge;  // none before the peer's SYN
        for (int i = 0; i < 150; ++i) {
            c.recv(anything(rng, c.t), rng.chance(1, 2));
            ASSERT_NO_FATAL_FAILURE(check(c.t, edge)) << i;
            switch (rng.below(12)) {
                case 0:
                    c.send(std::string(1 + rng.below(20000), 's'));
                    break;
                case 1:
                    c.receive(rng.below(20000));
                    break;
                case 2:
                    c.pass(Duration::micros(rng.below(2000000)));
                    break;
                case 3:
                    if (rng.chance(1, 30)) shutdown_write(c.t, c.now, c.fresh());
                    break;
                case 4:
                    if (rng.chance(1, 60)) close(c.t, c.now, c.fresh());
                    break;
                case 5:
                    path_mss_changed(c.t, uint16_t(88 + rng.below(9000)), c.fresh());
                    break;
                case 6:
                    set_buffers(c.t, rng.below(100000), 1 + rng.below(200000), false);
                    break;
                default:
                    break;
            }
            for (auto& s : c.pull_all()) ASSERT_LE(tcp_options_size(s.opt), 40u);
            ASSERT_NO_FATAL_FAILURE(check(c.t, edge)) << i;
        }
        // Left alone, every connection ends or has nothing more to do.
        Actions out;
        close(c.t, c.now, out);
        c.pull_all();
        c.pass(Duration::seconds(4000));
        EXPECT_EQ(c.t.state, State::CLOSED);
        EXPECT_TRUE(deadline(c.t).is_never());
    }
}

TEST(Hostile, OutOfMemoryOnlyDelays) {
    // An arena that is full: sending stops, nothing breaks, and goes on when blocks come back.
    Conn c;
    c.established(1000);
    std::vector<SendChunk*> hoard;
    while (SendChunk* chunk = c.world.memory->take_chunk(30000, false)) hoard.push_back(chunk);
    while (SendChunk* chunk = c.world.memory->take_chunk(1, false)) hoard.push_back(chunk);
    EXPECT_EQ(c.send(std::string(5000, 'x')), 0u);
    EXPECT_FALSE(c.pull());
    for (SendChunk* chunk : hoard) c.world.memory->give_chunk(chunk);
    EXPECT_EQ(c.send(std::string(5000, 'x')), 5000u);
    EXPECT_EQ(c.pull_all().size(), 5u);
}

}  // namespace
}  // namespace vma::tcp
