// Loss: fast retransmit with and without SACK, RTO, PRR, reneging, hostile blocks. RFC 5681, 6582, 6675, 6937, 6298.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

// Ten segments of 1000 in flight, numbered 0..9 from 1001.
struct Flight : Conn {
    explicit Flight(bool sack = true) {
        cfg.tail_probe = false;  // the probe has its own tests; here the timer is the RTO
        established(1000, 60000, -1, sack);
        t.rtt = {};
        t.rtt.sample(Duration::millis(100), now);
        t.cc.cwnd = 10000;
        t.out.limit = 1 << 20;
        send(std::string(10000, 'x'));
        EXPECT_EQ(pull_all().size(), 10u);
        now = now + Duration::millis(100);
    }
    static uint32_t at(unsigned segment) { return 1001 + segment * 1000; }
    void ack(unsigned segment, std::vector<std::pair<unsigned, unsigned>> sacked = {}) {
        Seg s{5001, at(segment), kAck};
        for (auto [a, b] : sacked) s.opt.sack[s.opt.sack_count++] = {{at(a)}, {at(b)}};
        recv(s);
    }
};

TEST(FastRetransmit, ThreeSackedSegmentsAboveTheHole) {
    Flight f;
    f.ack(0, {{1, 2}});
    EXPECT_EQ(f.pull_all().size(), 0u);
    f.ack(0, {{1, 3}});
    EXPECT_EQ(f.t.loss.state, Recovery::open);
    f.pull_all();
    f.ack(0, {{1, 4}});
    EXPECT_EQ(f.t.loss.state, Recovery::fast);
    EXPECT_EQ(f.t.loss.recover.v, Flight::at(10));
    auto out = f.pull_all();
    ASSERT_GE(out.size(), 1u);
    EXPECT_TRUE(out[0].retransmission);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    EXPECT_EQ(out[0].text.size(), 1000u);
    EXPECT_EQ(f.t.cc.ssthresh, 7000u);  // CUBIC's 0.7
    // Everything is acknowledged: recovery is over at ssthresh.
    f.ack(10);
    EXPECT_EQ(f.t.loss.state, Recovery::open);
    EXPECT_EQ(f.t.cc.cwnd, 7000u);
    EXPECT_EQ(f.t.board.head, nullptr);
    EXPECT_EQ(f.t.timers.kind, Rtx::none);
}

TEST(FastRetransmit, SeveralHolesInOneRoundTrip) {
    Flight f;
    f.send(std::string(20000, 'y'));
    f.ack(0, {{1, 2}});
    f.ack(0, {{3, 4}, {1, 2}});
    f.ack(0, {{5, 6}, {3, 4}, {1, 2}});
    std::vector<uint32_t> again;
    auto note = [&] {
        for (auto& s : f.pull_all())
            if (s.retransmission) again.push_back((s.seq - 1001) / 1000);
    };
    note();
    f.ack(0, {{5, 7}, {3, 4}, {1, 2}});
    note();
    f.ack(0, {{5, 8}, {3, 4}, {1, 2}});
    note();
    f.ack(0, {{5, 10}, {3, 4}, {1, 2}});
    note();
    EXPECT_EQ(again, (std::vector<uint32_t>{0, 2, 4}));
    // Nothing is retransmitted twice in the same recovery.
    f.ack(2, {{5, 10}, {3, 4}});
    note();
    EXPECT_EQ(again.size(), 3u);
}

TEST(FastRetransmit, PrrSendsAboutHalfWhileReducing) {
    // RFC 6937: with the pipe above ssthresh, sending is spread over the ACKs and ends near ssthresh.
    Flight f;
    f.cfg.cc = CcKind::newreno;
    f.t.cc.kind = CcKind::newreno;
    f.send(std::string(50000, 'y'));
    unsigned sent = 0;
    for (unsigned n = 2; n <= 10; ++n) {
        f.ack(0, {{1, n}});
        sent += unsigned(f.pull_all().size());
    }
    EXPECT_EQ(f.t.cc.ssthresh, 5000u);
    EXPECT_GE(sent, 4u);
    EXPECT_LE(sent, 8u);
    EXPECT_LE(f.t.board.pipe(f.t.snd.una, f.t.snd.nxt), 7000u);
}

TEST(FastRetransmit, LostRetransmissionIsRepeatedWithoutTimeout) {
    Flight f;
    f.t.cc.kind = CcKind::none;
    f.t.cc.cwnd = kMaxCwnd;
    f.ack(0, {{1, 4}});
    auto out = f.pull_all();
    ASSERT_GE(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    // Text sent right behind the retransmission arrives first; nothing was ever reordered here.
    f.send(std::string(1000, 'y'));
    EXPECT_EQ(f.pull_all().size(), 1u);
    f.now = f.now + Duration::millis(50);
    f.send(std::string(1000, 'z'));
    EXPECT_EQ(f.pull_all().size(), 1u);
    f.now = f.now + Duration::millis(60);
    f.ack(0, {{1, 11}});
    out = f.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    // Text sent before the second repetition proves nothing about it.
    f.now = f.now + Duration::millis(50);
    f.ack(0, {{1, 12}});
    EXPECT_EQ(f.pull_all().size(), 0u);
    f.send(std::string(1000, 'w'));
    EXPECT_EQ(f.pull_all().size(), 1u);
    f.now = f.now + Duration::millis(100);
    f.ack(0, {{1, 13}});
    out = f.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    EXPECT_EQ(f.t.count.timeouts, 0u);
    f.ack(13);
    EXPECT_EQ(f.t.board.head, nullptr);
}

TEST(NewReno, ThreeDuplicatesThenPartialAcks) {
    // RFC 6582 section 3.2.
    Flight f(false);
    f.t.cc.kind = CcKind::newreno;
    f.ack(0);
    f.ack(0);
    EXPECT_EQ(f.t.loss.state, Recovery::open);
    f.pull_all();
    f.ack(0);
    EXPECT_EQ(f.t.loss.state, Recovery::fast);
    auto out = f.pull_all();
    ASSERT_GE(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    EXPECT_EQ(out[0].text.size(), 1000u);
    for (int i = 0; i < 5; ++i) f.ack(0);
    f.pull_all();
    f.ack(4);  // partial: the next hole at once
    out = f.pull_all();
    ASSERT_GE(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(4));
    EXPECT_EQ(f.t.loss.state, Recovery::fast);
    f.ack(10);
    EXPECT_EQ(f.t.loss.state, Recovery::open);
    EXPECT_EQ(f.t.cc.cwnd, f.t.cc.ssthresh);
    EXPECT_EQ(f.t.board.reno_sacked, 0u);
}

TEST(NewReno, WhatIsNoDuplicate) {
    // RFC 5681 section 2: text, a window change or nothing in flight make it none.
    Flight f(false);
    for (int i = 0; i < 5; ++i) f.recv({5001 + uint32_t(i), 1001, kAck, "x"});
    EXPECT_EQ(f.t.loss.dup_acks, 0);
    for (int i = 0; i < 5; ++i) f.recv({5006, 1001, kAck, "", uint16_t(60000 + i * 10 + 1)});
    EXPECT_EQ(f.t.loss.dup_acks, 0);
    EXPECT_EQ(f.t.loss.state, Recovery::open);
}

TEST(LimitedTransmit, NewTextOnTheFirstDuplicates) {
    // RFC 3042.
    for (bool sack : {true, false}) {
        Flight f(sack);
        f.send(std::string(5000, 'y'));
        EXPECT_EQ(f.pull_all().size(), 0u);  // cwnd is used up
        if (sack)
            f.ack(0, {{1, 2}});
        else
            f.ack(0);
        auto out = f.pull_all();
        ASSERT_EQ(out.size(), 1u);
        EXPECT_EQ(out[0].seq, Flight::at(10));
        EXPECT_FALSE(out[0].retransmission);
    }
}

TEST(Rto, OneSegmentThenSlowStart) {
    Flight f;
    f.t.cfg.frto = false;
    f.send(std::string(20000, 'y'));
    const Instant due = deadline(f.t);
    // srtt 100 ms, and Linux's floor of 200 ms for the variance term.
    EXPECT_EQ(due - (f.now - Duration::millis(100)), Duration::millis(300));
    f.now = due;
    deadline_reached(f.t, f.now, f.fresh());
    EXPECT_EQ(f.t.cc.cwnd, 1000u);
    EXPECT_EQ(f.t.cc.ssthresh, 7000u);
    EXPECT_EQ(f.t.loss.state, Recovery::timeout);
    auto out = f.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(0));
    EXPECT_EQ(deadline(f.t) - f.now, Duration::millis(600));  // RFC 6298 (5.5)
    f.now = f.now + Duration::millis(100);
    f.ack(1);
    out = f.pull_all();
    ASSERT_EQ(out.size(), 2u);  // cwnd 2
    EXPECT_EQ(out[0].seq, Flight::at(1));
    EXPECT_EQ(out[1].seq, Flight::at(2));
    EXPECT_EQ(f.t.timers.backoff, 0);
    f.ack(10);
    EXPECT_EQ(f.t.loss.state, Recovery::open);
}

TEST(Rto, SackedTextIsNotRepeatedUnlessTheHeadIs) {
    Flight f;
    f.ack(0, {{1, 3}});
    f.pull_all();
    while (f.t.count.timeouts == 0) {  // the reordering timer comes first
        f.now = deadline(f.t);
        deadline_reached(f.t, f.now, f.fresh());
        f.pull_all();
    }
    f.ack(1, {});
    f.ack(3);
    std::vector<uint32_t> again;
    for (auto& s : f.pull_all()) again.push_back((s.seq - 1001) / 1000);
    ASSERT_FALSE(again.empty());
    EXPECT_EQ(again[0], 3u);

    // RFC 2018 section 8: the receiver threw sacked text away.
    Flight g;
    g.ack(0, {{1, 10}});
    g.pull_all();
    g.ack(1);  // the hole was filled, but 2 is not acknowledged although "sacked"
    EXPECT_TRUE(g.t.board.head->sacked);
    g.now = deadline(g.t);
    deadline_reached(g.t, g.now, g.fresh());
    auto out = g.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, Flight::at(1));
}

TEST(Rto, BacksOffTo120SecondsAndGivesUp) {
    Flight f;
    std::vector<Seg> out;
    Duration last{0};
    int expiries = 0;
    const Instant began = f.now;
    while (f.t.state == State::ESTABLISHED && expiries < 50) {
        const Instant due = deadline(f.t);
        ASSERT_FALSE(due.is_never());
        if (expiries > 0) {
            EXPECT_GE(due - f.now, last);
            EXPECT_LE(due - f.now, kRtoMax);
            last = due - f.now;
        }
        f.now = due;
        deadline_reached(f.t, f.now, f.fresh());
        f.note();
        ++expiries;
        for (auto& s : f.pull_all()) EXPECT_EQ(s.seq, Flight::at(0));
    }
    EXPECT_EQ(expiries, 16);  // tcp_retries2 15
    EXPECT_EQ(f.t.error, ETIMEDOUT);
    EXPECT_TRUE(f.seen & kFailed);
    EXPECT_GT(f.now - began, Duration::seconds(100));  // RFC 9293 MUST-20: R2
    EXPECT_EQ(last, kRtoMax);
}

TEST(Rto, UserTimeoutEndsIt) {
    Flight f;
    f.t.cfg.user_timeout = Duration::seconds(5);
    f.pass(Duration::seconds(3));
    EXPECT_EQ(f.t.state, State::ESTABLISHED);
    f.pass(Duration::seconds(12));
    EXPECT_EQ(f.t.state, State::CLOSED);
    EXPECT_EQ(f.t.error, ETIMEDOUT);
}

TEST(Rto, TimestampsGiveSamplesOfRetransmissions) {
    // RFC 7323 section 4.1: the echo tells which copy was acknowledged.
    Conn c;
    c.cfg.timestamps = true;
    c.stamps = true;
    c.established(1000);
    c.send("x");
    c.pull_all();
    c.pass(Duration::seconds(3));
    ASSERT_GE(c.t.timers.retries, 1);
    c.pull_all();
    const Duration before = c.t.rtt.srtt;
    Seg s{5001, 1002, kAck};
    s.opt.has_timestamps = true;
    s.opt.ts_val = 100;
    s.opt.ts_ecr = c.t.ts.value(c.now) - 400;
    c.recv(s);
    EXPECT_EQ(c.t.rtt.latest, Duration::millis(400));
    EXPECT_NE(c.t.rtt.srtt, before);
    EXPECT_EQ(c.t.timers.kind, Rtx::none);
}

TEST(Rto, StallIsNoRoundTrip) {
    // The ACK of text sent once was lost; what the timeout repeats brings the news of it, 300 ms late.
    Conn c;
    c.cfg.timestamps = true;
    c.cfg.tail_probe = false;
    c.stamps = true;
    c.established(1000);
    c.t.rtt = {};
    c.t.rtt.sample(Duration::millis(100), c.now);
    c.t.cc.cwnd = 10000;
    c.send(std::string(2000, 'x'));
    ASSERT_EQ(c.pull_all().size(), 3u);  // of 988 bytes
    const Duration rto = c.t.rtt.rto;
    c.pass(rto);
    ASSERT_EQ(c.t.loss.state, Recovery::timeout);
    c.pull_all();
    const uint32_t repeated_at = c.t.ts.value(c.now);
    c.now = c.now + Duration::millis(100);
    Seg s{5001, 3001, kAck};
    s.opt.has_timestamps = true;
    s.opt.ts_val = 100;
    s.opt.ts_ecr = repeated_at;
    c.recv(s);
    EXPECT_EQ(c.t.board.head, nullptr);
    EXPECT_LE(c.t.rtt.latest, Duration::millis(101));
    EXPECT_LT(c.t.rtt.rto, rto + Duration::millis(1));
}

TEST(Sack, LiesAreIgnored) {
    Flight f;
    // Beyond SND.NXT, empty, inverted, below SND.UNA.
    f.ack(0, {{8, 12}});
    f.ack(0, {{3, 3}});
    f.ack(0, {{5, 4}});
    EXPECT_EQ(f.t.board.sacked, 0u);
    Seg s{5001, 1001, kAck};
    s.opt.sack_count = 1;
    s.opt.sack[0] = {{500}, {900}};
    f.recv(s);
    EXPECT_EQ(f.t.board.sacked, 0u);
    EXPECT_EQ(f.t.count.dsacks_in, 1u);
    // A record per byte is not kept: splits fall on segment borders.
    for (uint32_t i = 0; i < 4000; i += 2) {
        Seg b{5001, 1001, kAck};
        b.opt.sack_count = 1;
        b.opt.sack[0] = {{1101 + i}, {1102 + i}};
        f.recv(b);
    }
    EXPECT_LE(f.world.memory->ranges_out(), 12u);
}

TEST(Sack, PartialCoverOfASuperFrame) {
    Conn c;
    c.cfg.max_gso_bytes = 65536;
    c.established(1000);
    c.send(std::string(10000, 'x'));
    EXPECT_EQ(c.pull_all().size(), 1u);
    Seg s{5001, 1001, kAck};
    s.opt.sack_count = 1;
    s.opt.sack[0] = {{4001}, {8001}};
    c.recv(s);
    EXPECT_EQ(c.t.board.sacked, 4000u);
    EXPECT_EQ(c.t.board.lost, 3000u);  // the three in front; behind it nothing is sacked
    auto out = c.pull_all();
    std::string again;
    for (auto& o : out)
        if (o.retransmission) again += o.text;
    EXPECT_GE(again.size(), 1000u);
    EXPECT_EQ(out[0].seq, 1001u);
    c.recv({5001, 11001, kAck});
    EXPECT_EQ(c.t.board.head, nullptr);
    EXPECT_EQ(c.t.board.lost + c.t.board.sacked + c.t.board.retransmitted, 0u);
}

// The scoreboard's counters equal a recount of its ranges, whatever arrives.
TEST(Sack, CountersEqualRecount) {
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Conn c;
        c.cfg.nodelay = true;
        c.cfg.max_gso_bytes = rng.chance(1, 2) ? 65536 : 0;
        c.established(1000, 60000, -1, rng.chance(3, 4));
        c.t.out.limit = 1 << 20;
        for (int i = 0; i < 300; ++i) {
            if (rng.chance(1, 2)) c.send(std::string(1 + rng.below(5000), 'x'));
            c.pull_all();
            Seg s{5001, c.t.snd.una.v, kAck};
            if (rng.chance(1, 3)) s.ack += rng.below(c.t.flight() + 1);
            for (unsigned b = rng.below(4); b > 0; --b) {
                const uint32_t left = c.t.snd.una.v + rng.below(c.t.flight() + 10);
                s.opt.sack[s.opt.sack_count++] = {{left}, {left + rng.below(6000)}};
            }
            c.recv(s);
            if (rng.chance(1, 20)) c.pass(Duration::millis(rng.below(800)));
            uint32_t sacked = 0, lost = 0, again = 0, waiting = 0;
            Seq at = c.t.snd.una;
            for (TxRange* r = c.t.board.head; r; r = r->next) {
                ASSERT_EQ(r->start.v, at.v);
                at = r->end;
                if (r->sacked) sacked += r->len();
                if (r->lost) lost += r->len();
                if (r->retransmitted) again += r->len();
                ASSERT_FALSE(r->sacked && r->lost);
                if (r->lost && !r->retransmitted) waiting += r->len();
            }
            ASSERT_EQ(at.v, c.t.snd.nxt.v);
            ASSERT_EQ(sacked, c.t.board.sacked);
            ASSERT_EQ(lost, c.t.board.lost);
            ASSERT_EQ(again, c.t.board.retransmitted);
            ASSERT_EQ(waiting, c.t.board.waiting);
            TxRange* first = c.t.board.head;
            while (first && !(first->lost && !first->retransmitted)) first = first->next;
            ASSERT_EQ(c.t.board.next_lost(), first);
            ASSERT_TRUE(c.t.snd.una <= c.t.snd.nxt);
            ASSERT_GE(c.t.cc.cwnd, 1000u);
            if (c.t.flight() > 0) {
                ASSERT_NE(c.t.timers.kind, Rtx::none);
                ASSERT_NE(c.t.timers.kind, Rtx::persist);
            }
        }
    }
}

TEST(Rtt, EstimatorFollowsRfc6298) {
    RttEstimator e;
    EXPECT_EQ(e.rto, Duration::seconds(1));
    e.sample(Duration::millis(100), Instant{1});
    EXPECT_EQ(e.srtt, Duration::millis(100));
    EXPECT_EQ(e.rttvar, Duration::millis(50));
    EXPECT_EQ(e.rto, Duration::millis(300));
    e.sample(Duration::millis(200), Instant{2});
    EXPECT_EQ(e.srtt.ns, (100000000 * 7 + 200000000) / 8);
    EXPECT_EQ(e.rttvar.ns, (50000000 * 3 + 100000000) / 4);
    EXPECT_EQ(e.min_rtt, Duration::millis(100));
    for (int i = 0; i < 100; ++i) e.sample(Duration::micros(50), Instant{3});
    EXPECT_LT(e.rto, Duration::millis(210));
    EXPECT_GE(e.rto, Duration::millis(200));
    for (int i = 0; i < 100; ++i) e.sample(Duration::seconds(300), Instant{4});
    EXPECT_EQ(e.rto, kRtoMax);
    EXPECT_EQ(e.backed_off(3), kRtoMax);
}

TEST(Congestion, InitialWindow) {
    EXPECT_EQ(initial_window(1460), 14600u);  // RFC 6928
    EXPECT_EQ(initial_window(536), 5360u);
    EXPECT_EQ(initial_window(9000), 18000u);
}

CcAck one_ack(uint32_t acked, Instant now) {
    CcAck a;
    a.now = now;
    a.srtt = a.min_rtt = Duration::millis(100);
    a.acked = acked;
    a.mss = 1000;
    a.cwnd_limited = true;
    return a;
}

TEST(Congestion, NewRenoOneSegmentPerRoundTrip) {
    Cc cc;
    cc.kind = CcKind::newreno;
    cc.cwnd = 10000;
    cc.ssthresh = 20000;
    for (int i = 0; i < 10; ++i) kNewReno.grow(cc, one_ack(1000, Instant{1}));
    EXPECT_EQ(cc.cwnd, 20000u);  // slow start doubled it
    for (int i = 0; i < 20; ++i) kNewReno.grow(cc, one_ack(1000, Instant{1}));
    EXPECT_EQ(cc.cwnd, 21000u);
    EXPECT_EQ(kNewReno.reduce(cc, 1000, Instant{1}), 10500u);
    EXPECT_EQ(kNewReno.reduce(cc, 20000, Instant{1}), 40000u);  // two segments at least
    CcAck idle = one_ack(1000, Instant{1});
    idle.cwnd_limited = false;
    const uint32_t before = cc.cwnd;
    for (int i = 0; i < 100; ++i) kNewReno.grow(cc, idle);
    EXPECT_EQ(cc.cwnd, before);
}

TEST(Congestion, CubicReturnsToWmaxAfterK) {
    // RFC 9438: after a loss at 1000 segments the window is back there at K = cbrt(1000 * 0.3 / 0.4) = 9.09 s.
    Cc cc;
    cc.cwnd = 1000 * 1000;
    cc.ssthresh = cc_algorithm(CcKind::cubic).reduce(cc, 1000, Instant{1});
    EXPECT_EQ(cc.ssthresh, 700000u);
    cc.cwnd = cc.ssthresh;
    Instant now{1000000000};
    const Instant began = now;
    uint32_t previous = cc.cwnd;
    while (cc.cwnd < 990 * 1000 && now - began < Duration::seconds(60)) {
        for (uint32_t i = 0, n = cc.cwnd / 1000; i < n; ++i) kCubic.grow(cc, one_ack(1000, now));
        EXPECT_GE(cc.cwnd, previous);
        previous = cc.cwnd;
        now = now + Duration::millis(100);
    }
    const double seconds = double((now - began).ns) * 1e-9;
    EXPECT_GT(seconds, 5.5);
    EXPECT_LT(seconds, 9.5);
}

TEST(Congestion, CubicIsRenoFriendlyWhenSmall) {
    // Section 4.3: on a short path it must not be slower than Reno would be.
    Cc cubic, reno;
    cubic.cwnd = reno.cwnd = 10000;
    cubic.ssthresh = cc_algorithm(CcKind::cubic).reduce(cubic, 1000, Instant{1});
    cubic.cwnd = cubic.ssthresh;
    reno.cwnd = reno.ssthresh = 5000;
    Instant now{1};
    for (int round = 0; round < 30; ++round) {
        for (uint32_t i = 0, n = cubic.cwnd / 1000; i < n; ++i) {
            CcAck a = one_ack(1000, now);
            a.srtt = Duration::millis(1);
            kCubic.grow(cubic, a);
        }
        now = now + Duration::millis(1);
    }
    // 30 rounds at alpha 0.53 from 7 segments, 1 once past W_max.
    EXPECT_GT(cubic.cwnd, 18000u);
}

TEST(Congestion, NoneIgnoresLoss) {
    Conn c;
    c.cfg.cc = CcKind::none;
    c.established(1000);
    c.t.out.limit = 1 << 20;
    c.send(std::string(50000, 'x'));
    EXPECT_EQ(c.pull_all().size(), 50u);
    Seg s{5001, 1001, kAck};
    s.opt.sack_count = 1;
    s.opt.sack[0] = {{2001}, {9001}};
    c.recv(s);
    EXPECT_EQ(c.t.cc.cwnd, kMaxCwnd);
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, 1001u);
}

}  // namespace
}  // namespace vma::tcp
