// Text in: order, overlap, SACK generation, window, delayed ACK. RFC 9293 section 3.10.7.4, RFC 2018, 2883, 5681.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

std::vector<std::pair<uint32_t, uint32_t>> blocks(const Seg& s) {
    std::vector<std::pair<uint32_t, uint32_t>> v;
    for (unsigned i = 0; i < s.opt.sack_count; ++i)
        v.emplace_back(s.opt.sack[i].left.v, s.opt.sack[i].right.v);
    return v;
}
using Blocks = std::vector<std::pair<uint32_t, uint32_t>>;

Seg one(Conn& c) {
    auto out = c.pull_all();
    EXPECT_EQ(out.size(), 1u);
    return out.empty() ? Seg{} : out[0];
}

TEST(Receive, InOrder) {
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, "hello "});
    c.recv({5007, 1001, kAck, "world"});
    EXPECT_TRUE(c.seen & kReadable);
    EXPECT_EQ(unread_bytes(c.t), 11u);
    char buf[4];
    const iovec iov{buf, 4};
    EXPECT_EQ(peek(c.t, &iov, 1, 6), 4u);
    EXPECT_EQ(std::string(buf, 4), "worl");
    EXPECT_EQ(c.receive(5), "hello");
    EXPECT_EQ(c.receive(), " world");
    EXPECT_EQ(c.receive(), "");
    EXPECT_FALSE(at_eof(c.t));
}

TEST(Receive, GapsAreReportedMostRecentFirst) {
    // RFC 2018 section 4.
    Conn c;
    c.established();
    c.recv({5011, 1001, kAck, std::string(10, 'b')});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5011, 5021}}));
    c.recv({5031, 1001, kAck, std::string(10, 'd')});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5031, 5041}, {5011, 5021}}));
    c.recv({5051, 1001, kAck, std::string(10, 'f')});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5051, 5061}, {5031, 5041}, {5011, 5021}}));
    c.recv({5021, 1001, kAck, std::string(10, 'c')});  // joins two
    EXPECT_EQ(blocks(one(c)), (Blocks{{5011, 5041}, {5051, 5061}}));
    c.recv({5001, 1001, kAck, std::string(10, 'a')});
    Seg s = one(c);
    EXPECT_EQ(s.ack, 5041u);
    EXPECT_EQ(blocks(s), (Blocks{{5051, 5061}}));
    c.recv({5041, 1001, kAck, std::string(10, 'e')});
    s = one(c);
    EXPECT_EQ(s.ack, 5061u);
    EXPECT_EQ(blocks(s), (Blocks{}));
    std::string all;
    for (char ch = 'a'; ch <= 'f'; ++ch) all += std::string(10, ch);
    EXPECT_EQ(c.receive(), all);
    EXPECT_TRUE(c.t.ooo.empty());
}

TEST(Receive, ThreeBlocksBesideTimestampsFourWithout) {
    for (bool stamps : {false, true}) {
        Conn c;
        c.cfg.timestamps = stamps;
        c.stamps = stamps;
        c.established();
        for (uint32_t i = 0; i < 6; ++i) {
            c.recv({5101 + i * 100, 1001, kAck, "xxxxxxxxxx"});
            const Seg s = one(c);
            EXPECT_EQ(s.opt.sack_count, std::min(i + 1, stamps ? 3u : 4u));
            EXPECT_LE(tcp_options_size(s.opt), 40u);
        }
    }
}

TEST(Receive, NoSackWithoutPermission) {
    Conn c;
    c.established(1460, 60000, -1, false);
    c.recv({5011, 1001, kAck, "x"});
    const Seg s = one(c);
    EXPECT_EQ(s.ack, 5001u);
    EXPECT_EQ(s.opt.sack_count, 0);
}

TEST(Receive, DuplicateIsReportedAsDsack) {
    // RFC 2883 section 4.
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, "0123456789"});
    c.pull_all();
    EXPECT_EQ(c.recv({5001, 1001, kAck, "0123456789"}).reason, DropReason::tcp_duplicate);
    EXPECT_EQ(blocks(one(c)), (Blocks{{5001, 5011}}));
    // Out of order and twice: both blocks.
    c.recv({5021, 1001, kAck, "0123456789"});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5021, 5031}}));
    c.recv({5021, 1001, kAck, "0123456789"});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5021, 5031}, {5021, 5031}}));
    // Reported once.
    c.recv({5041, 1001, kAck, "0123456789"});
    EXPECT_EQ(blocks(one(c)), (Blocks{{5041, 5051}, {5021, 5031}}));
}

TEST(Receive, OverlapIsTrimmedAndHeldTextWins) {
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, "abcd"});
    c.recv({5003, 1001, kAck, "XXef"});  // two old bytes in front
    EXPECT_EQ(c.receive(), "abcdef");
    c.recv({5010, 1001, kAck, "jkl"});
    c.recv({5012, 1001, kAck, "YmnYY"});   // front cut at 5013
    c.recv({5007, 1001, kAck, "ghiZZZ"});  // reaches into held text
    EXPECT_EQ(c.receive(), "ghiZZZ" + std::string("mnYY"));
}

TEST(Receive, WindowBoundsText) {
    Conn c;
    c.cfg.receive_buffer = c.cfg.receive_buffer_max = 4000;
    c.established();
    // Cut at the right edge.
    c.recv({5001, 1001, kAck, std::string(3990, 'x')});
    c.recv({8991, 1001, kAck, std::string(20, 'y')});
    EXPECT_EQ(c.t.rcv.nxt.v, 9001u);
    Seg s = one(c);
    EXPECT_EQ(s.ack, 9001u);
    EXPECT_EQ(s.wnd, 0);
    // A probe with text into the closed window: ACK, no text.
    c.recv({9001, 1001, kAck, "p"});
    s = one(c);
    EXPECT_EQ(s.ack, 9001u);
    EXPECT_EQ(unread_bytes(c.t), 4000u);
    // An ACK at a zero window still counts.
    EXPECT_EQ(c.recv({9001, 1001, kAck, "", 777}).kind, Verdict::Continue);
    EXPECT_EQ(c.t.snd.wnd, 777u);
    // Reading opens the window with a segment of its own.
    c.receive(100);
    EXPECT_FALSE(c.pull());  // a sliver is not offered
    c.receive(3000);
    s = one(c);
    EXPECT_GE(s.wnd, 3000);
}

TEST(Receive, WindowNeverRetreats) {
    Conn c;
    c.cfg.receive_buffer = 40000;
    c.cfg.receive_buffer_max = 1 << 20;
    c.established(1460, 60000, 3);
    Rng rng(99);
    Seq edge = c.t.rcv.adv;
    uint32_t seq = 5001;
    for (int i = 0; i < 3000; ++i) {
        if (i == 1000) set_buffers(c.t, 10000, 3000, true);
        const uint32_t room = c.t.rcv.wnd();
        const uint32_t n = std::min(1 + rng.below(1460), room);
        if (n > 0) c.recv({seq, 1001, kAck, std::string(n, 'x')});
        seq = c.t.rcv.nxt.v;
        for (auto& s : c.pull_all()) {
            const Seq right = Seq{s.ack} + (uint32_t(s.wnd) << c.t.rcv.wscale);
            ASSERT_TRUE(right >= edge) << i;
            edge = right;
        }
        if (rng.chance(1, 3)) c.receive(rng.below(6000));
        c.pass(Duration::millis(rng.below(50)));
    }
}

TEST(DelayedAck, QuickAtStartThenEverySecondSegmentOrTimer) {
    Conn c;
    c.established(1460);
    unsigned acks = 0;
    uint32_t seq = 5001;
    auto feed = [&](size_t n) {
        c.recv({seq, 1001, kAck, std::string(n, 'x')});
        seq += uint32_t(n);
        c.receive();
        return c.pull_all().size();
    };
    for (int i = 0; i < 16; ++i) acks += unsigned(feed(1460));
    EXPECT_EQ(acks, 16u);  // quick-ACK at the start
    // Then every second full segment.
    acks = 0;
    for (int i = 0; i < 20; ++i) acks += unsigned(feed(1460));
    EXPECT_EQ(acks, 10u);
    // A single short one waits for the timer, at most 200 ms (MUST-58: below 500).
    EXPECT_EQ(feed(10), 0u);
    const Duration wait = deadline(c.t) - c.now;
    EXPECT_GE(wait, Duration::millis(20));
    EXPECT_LE(wait, Duration::millis(200));
    std::vector<Seg> out;
    c.pass(Duration::millis(200), &out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].ack, seq);
}

TEST(DelayedAck, AnswerCarriesIt) {
    Conn c;
    c.cfg.nodelay = true;
    c.established(1460);
    uint32_t seq = 5001, mine = 1001;
    unsigned bare = 0;
    for (int i = 0; i < 20; ++i) {
        c.recv({seq, mine, kAck, "ping"});
        seq += 4;
        c.receive();
        c.send("pong");
        for (auto& s : c.pull_all()) {
            if (s.text.empty()) ++bare;
            EXPECT_EQ(s.ack, seq);
        }
        mine += 4;
        c.pass(Duration::micros(100));
    }
    EXPECT_EQ(bare, 0u);
    EXPECT_TRUE(c.t.ack.pingpong);
    // In this mode a question without an answer is acknowledged late.
    c.recv({seq, mine, kAck, "ping"});
    EXPECT_FALSE(c.pull());
    std::vector<Seg> out;
    c.pass(Duration::millis(200), &out);
    EXPECT_EQ(out.size(), 1u);
}

TEST(DelayedAck, MergedFrameCountsAsItsSegments) {
    Conn c;
    c.established(1460);
    c.t.ack.quick = 0;
    c.t.ack.ato = Duration::millis(40);
    c.t.ack.last_data = c.now;
    Seg s{5001, 1001, kAck, std::string(2920, 'x')};
    s.gso_size = 1460;
    c.recv(s);
    EXPECT_EQ(c.pull_all().size(), 1u);
}

TEST(DelayedAck, GapAndFilledGapAreAcknowledgedAtOnce) {
    Conn c;
    c.established();
    c.t.ack.quick = 0;
    c.t.ack.ato = Duration::millis(40);
    c.t.ack.last_data = c.now;
    c.recv({5002, 1001, kAck, "b"});
    EXPECT_EQ(c.pull_all().size(), 1u);
    c.recv({5001, 1001, kAck, "a"});
    EXPECT_EQ(c.pull_all().size(), 1u);
}

TEST(DelayedAck, QuickackOptionOffAndOn) {
    Conn c;
    c.cfg.quickack = false;
    c.established(1460);
    c.recv({5001, 1001, kAck, "a"});
    EXPECT_FALSE(c.pull());
    c.t.cfg.quickack = true;
    acknowledge_owed(c.t, c.fresh());
    EXPECT_TRUE(c.pull());
}

TEST(Receive, SmallTextsShareFrames) {
    Conn c;
    c.established();
    // Frames of 2 KiB room: later single bytes are copied behind the first.
    for (uint32_t i = 0; i < 100; ++i) {
        c.recv({5001 + i, 1001, kAck, "x"});
        c.pull_all();
    }
    EXPECT_EQ(unread_bytes(c.t), 100u);
    EXPECT_LE(c.t.in.frames, 2u);
    EXPECT_LE(c.world.pool->counters().in_use, 2u);
}

TEST(Receive, ZeroCopyFront) {
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, std::string(1000, 'a')});
    c.recv({6001, 1001, kAck, std::string(1000, 'b')});
    Packet p = keep_front(c.t);
    ASSERT_TRUE(p);
    const RxText text = text_of(*p);
    EXPECT_EQ(text.len, 1000u);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(p->data) + text.offset, 1000),
              std::string(1000, 'a'));
    EXPECT_EQ(unread_bytes(c.t), 1000u);
    p.reset();
    EXPECT_EQ(c.receive(), std::string(1000, 'b'));
    EXPECT_FALSE(keep_front(c.t));
}

// What the application keeps fills the window; what it gives back opens it.
// A front that somebody looks at stays where it is, however the queue loses it.
TEST(Receive, HeldFrontOutlivesTheQueue) {
    const std::string first(1000, 'a'), second(1000, 'b');
    const auto there = [](const Packet& p) {
        const RxText& text = text_of(const_cast<PacketBuf&>(*p));
        return std::string(reinterpret_cast<const char*>(p->data) + text.offset, text.len);
    };
    for (const bool by_release : {true, false}) {
        Conn c;
        c.established();
        Packet kept;
        c.recv({5001, 1001, kAck, first});
        c.t.in.hold_front(kept);
        c.recv({6001, 1001, kAck, "tail"});  // not merged into it
        EXPECT_EQ(text_of(*c.t.in.front()).len, first.size());
        PacketBuf* const front = c.t.in.front();
        if (by_release)
            release(c.t);
        else
            c.t.in.consume(uint32_t(first.size()));
        ASSERT_TRUE(kept);
        EXPECT_EQ(&*kept, front);
        EXPECT_EQ(there(kept), by_release ? first : "");  // consume() leaves its text empty
        EXPECT_FALSE(c.t.in.let_go());
        kept.reset();
    }
    Conn c;
    c.established();
    Packet kept;
    c.recv({5001, 1001, kAck, first});
    c.recv({6001, 1001, kAck, second});
    c.t.in.hold_front(kept);
    EXPECT_EQ(c.receive(10), std::string(10, 'a'));
    EXPECT_TRUE(c.t.in.let_go());
    c.t.in.hold_front(kept);
    const Packet taken = keep_front(c.t);  // its owner is who took it
    EXPECT_EQ(there(taken), first.substr(10));
    EXPECT_FALSE(c.t.in.let_go());
    EXPECT_FALSE(kept);
    EXPECT_EQ(c.receive(), second);
    EXPECT_FALSE(kept);
}

TEST(Receive, KeptTextClosesTheWindow) {
    Conn c;
    c.established();
    const uint32_t right = c.t.rcv.adv.v;
    std::vector<Packet> kept;
    uint32_t seq = 5001;
    while (seq < right) {
        const uint32_t n = std::min(1000u, right - seq);
        c.recv({seq, 1001, kAck, std::string(n, 'x')});
        seq += n;
        kept.push_back(keep_front(c.t));
        ASSERT_TRUE(kept.back());
        c.pull_all();
        ASSERT_EQ(unread_bytes(c.t), 0u);
        ASSERT_LE(c.t.rcv.adv.v, right + 0u);  // the right edge has not moved
    }
    EXPECT_EQ(c.t.kept.bytes, right - 5001);
    EXPECT_EQ(c.t.kept.frames, kept.size());
    EXPECT_EQ(c.t.charged, c.t.kept.charge());
    EXPECT_EQ(c.recv({seq, 1001, kAck, "y"}).reason, DropReason::tcp_sequence);
    c.pull_all();
    for (Packet& p : kept) {
        kept_returned(c.t, text_of(*p).len, c.now, c.fresh());
        c.note();
        p.reset();
    }
    EXPECT_EQ(c.t.kept.charge(), 0u);
    EXPECT_EQ(c.t.charged, 0u);
    c.pull_all();
    EXPECT_GT(c.t.rcv.adv.v, right);
    c.recv({seq, 1001, kAck, "y"});
    EXPECT_EQ(c.receive(), "y");
}

// A connection that ends while text is kept gives its memory account back; the packets are their holder's.
TEST(Receive, ReleaseWithKeptText) {
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, std::string(1000, 'a')});
    Packet p = keep_front(c.t);
    release(c.t);
    EXPECT_EQ(c.t.charged, 0u);
    EXPECT_EQ(c.t.kept.bytes, 0u);
    EXPECT_EQ(text_of(*p).len, 1000u);
}

// Any order of any overlapping cut of a stream gives the stream (against a byte map).
TEST(Receive, ReassemblyEqualsOracle) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Conn c;
        c.established();
        const uint32_t total = 20000;
        std::string stream(total, 0);
        for (auto& ch : stream) ch = char(rng.next() >> 40);
        std::vector<bool> have(total + 1, false);
        std::string got;
        uint32_t nxt = 0;
        for (int i = 0; i < 4000 && nxt < total; ++i) {
            // Mostly near the edge, so that it ends.
            const uint32_t from =
                rng.chance(1, 4) ? nxt : std::min(total - 1, nxt + rng.below(4000));
            const uint32_t start = from > 100 && rng.chance(1, 5) ? from - rng.below(100) : from;
            const uint32_t n = std::min(total - start, 1 + rng.below(700));
            c.recv({5001 + start, 1001, kAck, stream.substr(start, n)});
            for (uint32_t k = start; k < start + n; ++k) have[k] = true;
            while (nxt < total && have[nxt]) ++nxt;
            ASSERT_EQ(c.t.rcv.nxt.v, 5001 + nxt);
            // SACK blocks report only what arrived, above RCV.NXT.
            for (auto& s : c.pull_all())
                for (unsigned b = 0; b < s.opt.sack_count; ++b) {
                    if (b == 0 && s.opt.sack[0].left.v < 5001 + nxt) continue;  // D-SACK
                    for (uint32_t k = s.opt.sack[b].left.v; k < s.opt.sack[b].right.v; ++k)
                        ASSERT_TRUE(have[k - 5001]);
                }
            got += c.receive(rng.below(3000));
        }
        got += c.receive();
        EXPECT_EQ(nxt, total);
        EXPECT_TRUE(got == stream);
    }
}

TEST(Receive, Autotuning) {
    Conn c;
    c.cfg.receive_buffer = 65535;
    c.cfg.receive_buffer_max = 4 << 20;
    c.established(1460, 60000, 7);
    // A sender that fills the window each 10 ms, a reader that keeps up.
    uint32_t seq = 5001;
    for (int round = 0; round < 20; ++round) {
        uint32_t left = c.t.rcv.wnd();
        while (left > 0) {
            const uint32_t n = std::min(left, 1460u);
            c.recv({seq, 1001, kAck, std::string(n, 'x')});
            seq += n;
            left -= n;
            c.receive();
            c.pull_all();
        }
        c.pass(Duration::millis(10));
    }
    EXPECT_GT(c.t.rcv.buffer, 1u << 20);
    EXPECT_LE(c.t.rcv.buffer, 4u << 20);
}

TEST(Receive, AutotuningKeepsAheadOfSlowStart) {
    Conn c;
    c.cfg.timestamps = c.stamps = true;
    c.cfg.receive_buffer = 65535;
    c.cfg.receive_buffer_max = 4 << 20;
    c.syn_sent();
    Seg synack{5000, 1001, kSyn | kAck, ""};
    synack.opt = {};
    synack.opt.has_mss = synack.opt.has_wscale = true;
    synack.opt.mss = 1460;
    synack.opt.wscale = 7;
    c.now = c.now + Duration::millis(20);
    c.recv(synack);
    c.pull_all();
    // Ten segments, then twice as many in each round trip, echoing the ACKs of the last one.
    uint32_t seq = 5001, burst = 14480, echo = c.t.ts.value(c.now);
    while (burst < c.cfg.receive_buffer_max / 4) {
        ASSERT_GE(c.t.rcv.wnd(), burst) << "the window holds the sender back";
        c.now = c.now + Duration::millis(20);
        for (uint32_t left = burst; left > 0; left -= std::min(left, 1448u)) {
            Seg s{seq, 1001, kAck, std::string(std::min(left, 1448u), 'x')};
            s.opt.has_timestamps = true;
            s.opt.ts_val = ++c.tsval;
            s.opt.ts_ecr = echo;
            c.recv(s);
            seq += uint32_t(s.text.size());
            c.receive();
            c.pull_all();
        }
        echo = c.t.ts.value(c.now);
        burst *= 2;
    }
}

// Segments that arrive in one batch, pulled as the engine does it; the ACK numbers sent.
std::vector<uint32_t> acks_of_batch(Conn& c, uint32_t from, unsigned count, unsigned without) {
    std::vector<uint32_t> acks;
    auto pull = [&] {
        for (auto& s : c.pull_all()) acks.push_back(s.ack);
    };
    for (unsigned i = 0; i < count; ++i) {
        if (i == without) continue;
        c.recv({from + i * 1000, 1001, kAck, std::string(1000, 'x')});
        if (c.last.has(kAckNow)) pull();
    }
    pull();
    return acks;
}

TEST(Receive, BatchOnLongPathIsAcknowledgedEverySecondSegment) {
    // RFC 5681 section 4.2; the loss of one ACK then leaves others.
    Conn c;
    c.established();
    c.t.rtt.srtt = Duration::millis(20);
    c.t.ack.rcv_mss = 1000;
    EXPECT_EQ(acks_of_batch(c, 5001, 6, 99), (std::vector<uint32_t>{7001, 9001, 11001}));
}

TEST(Receive, BatchOnShortPathIsAcknowledgedOnce) {
    Conn c;
    c.established();
    c.t.rtt.srtt = Duration::micros(100);
    c.t.ack.rcv_mss = 1000;
    EXPECT_EQ(acks_of_batch(c, 5001, 6, 99), (std::vector<uint32_t>{11001}));
}

TEST(Receive, BatchWithHoleIsThreeDuplicatesAtLeast) {
    for (int64_t us : {100, 20000}) {
        Conn c;
        c.established();
        c.t.rtt.srtt = Duration::micros(us);
        c.t.ack.rcv_mss = 1000;
        const auto acks = acks_of_batch(c, 5001, 8, 0);
        EXPECT_GE(acks.size(), 4u) << us;
        EXPECT_EQ(acks.back(), 5001u);
        // What closes the hole is answered at once, whatever else the batch brings.
        c.recv({5001, 1001, kAck, std::string(1000, 'x')});
        EXPECT_TRUE(c.last.has(kAckNow)) << us;
        EXPECT_EQ(one(c).ack, 13001u);
    }
}

}  // namespace
}  // namespace vma::tcp
