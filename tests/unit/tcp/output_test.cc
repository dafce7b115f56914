// What is sent, when, and how large: Nagle, cork, silly windows, probes, super-frames, PSH, pacing, delayed ACK.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

std::string letters(size_t n) {
    std::string s(n, 0);
    for (size_t i = 0; i < n; ++i) s[i] = char('a' + i % 26);
    return s;
}

TEST(Output, TextGoesOutInSegments) {
    Conn c;
    c.established(1000);
    c.send(letters(2500));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 3u);
    EXPECT_EQ(out[0].text.size(), 1000u);
    EXPECT_EQ(out[2].text.size(), 500u);
    EXPECT_EQ(out[0].seq, 1001u);
    EXPECT_EQ(out[2].seq, 3001u);
    EXPECT_EQ(out[0].flags, kAck);
    EXPECT_EQ(out[2].flags, kAck | kPsh);  // MUST-60: PSH on the last
    EXPECT_EQ(out[0].text + out[1].text + out[2].text, letters(2500));
    EXPECT_EQ(c.t.timers.kind, Rtx::tlp);  // RFC 8985 section 7.2
}

TEST(Output, SuperFrameIsOnePlan) {
    Conn c;
    c.cfg.max_gso_bytes = 65536;
    c.cfg.send_buffer = 1 << 20;
    c.established(1000);
    c.send(letters(9500));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].gso_size, 1000);
    EXPECT_EQ(out[0].text, letters(9500));
    EXPECT_EQ(out[0].flags, kAck | kPsh);
    EXPECT_EQ(c.t.count.segs_out, 1u + 1u + 10u);
    // cwnd is 10 segments: 500 bytes of quota left, a further full segment must wait.
    c.send(letters(2000));
    EXPECT_FALSE(c.pull());
    c.recv({5001, 1001 + 2000, kAck});
    EXPECT_TRUE(c.pull());
}

TEST(Output, ManySmallWritesMakeFewSlices) {
    Conn c;
    c.cfg.max_gso_bytes = 65536;
    c.cfg.nodelay = true;
    c.established(1460);
    c.t.cc.cwnd = 1 << 20;
    std::string all;
    for (int i = 0; i < 500; ++i) {
        c.send(letters(100));
        all += letters(100);
    }
    auto out = c.pull_all();
    std::string got;
    for (auto& s : out) got += s.text;
    EXPECT_EQ(got, all);
    EXPECT_LE(out.size(), 2u);
}

TEST(Nagle, OneShortSegmentInFlight) {
    Conn c;
    c.established(1000);
    c.send("a");
    EXPECT_EQ(c.pull_all().size(), 1u);
    c.send("b");
    EXPECT_EQ(c.pull_all().size(), 0u);  // SHLD-7
    c.send(letters(1200));
    auto out = c.pull_all();  // a full segment may go, its tail waits
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 1000u);
    c.recv({5001, 1002, kAck});
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 201u);
}

TEST(Nagle, MinshallLetsTailOfLargeWriteGo) {
    Conn c;
    c.established(1000);
    c.send(letters(1500));
    auto out = c.pull_all();
    EXPECT_EQ(out.size(), 2u);  // only full segments were unacknowledged
    c.send("x");
    EXPECT_EQ(c.pull_all().size(), 0u);
}

TEST(Nagle, NodelayAndFinOverride) {
    Conn c;
    c.cfg.nodelay = true;
    c.established(1000);
    for (int i = 0; i < 3; ++i) {
        c.send("a");
        EXPECT_EQ(c.pull_all().size(), 1u);
    }
    Conn d;
    d.established(1000);
    d.send("a");
    d.pull_all();
    d.send("b");
    shutdown_write(d.t, d.now, d.fresh());
    auto out = d.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text, "b");
    EXPECT_EQ(out[0].flags, kAck | kPsh | kFin);
}

TEST(Cork, HoldsShortSegmentsUntilUncorkedOrTimer) {
    Conn c;
    c.cfg.cork = true;
    c.established(1000);
    c.send(letters(1500));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 1000u);
    c.recv({5001, 2001, kAck});
    EXPECT_FALSE(c.pull());
    c.t.cfg.cork = false;
    config_changed(c.t, c.now, c.fresh());
    EXPECT_TRUE(c.last.has(kOutput));
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 500u);

    Conn d;  // nothing in flight: the ceiling
    d.cfg.cork = true;
    d.established(1000);
    d.send("abc");
    EXPECT_FALSE(d.pull());
    out.clear();
    d.pass(Duration::millis(250), &out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text, "abc");
}

TEST(Window, NothingBeyondIt) {
    Conn c;
    c.established(1000, 2500);
    c.send(letters(6000));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 2u);  // 500 bytes of window are not worth a segment
    c.recv({5001, 3001, kAck, "", 2500});
    EXPECT_EQ(c.pull_all().size(), 2u);
    c.recv({5001, 5001, kAck, "", 500});
    EXPECT_EQ(c.pull_all().size(), 0u);  // less than half of the largest window
    EXPECT_EQ(c.t.timers.kind, Rtx::persist);
    c.recv({5001, 5001, kAck, "", 1300});
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 1000u);
}

TEST(Window, SmallWindowsOfTinyPeersAreUsed) {
    // A peer whose largest window is below our segment size: half of it is enough (RFC 9293 section 3.8.6.2.1).
    Conn c;
    c.established(1460, 400);
    c.send(letters(1000));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text.size(), 400u);
}

TEST(Window, OldSegmentsDoNotUpdateIt) {
    Conn c;
    c.established(1000, 2000);
    c.recv({5001, 1001, kAck, "0123456789", 4000});
    EXPECT_EQ(c.t.snd.wnd, 4000u);
    c.recv({5001, 1001, kAck, "", 100});  // WL1 is 5001 and this is the same: newer or equal
    EXPECT_EQ(c.t.snd.wnd, 100u);
    c.recv({5011, 1001, kAck, "", 3000});
    c.recv({5003, 1001, kAck, "", 50});
    EXPECT_EQ(c.t.snd.wnd, 3000u);
}

TEST(Persist, ProbesAZeroWindow) {
    // RFC 9293 section 3.8.6.1: MUST-36, first probe after an RTO, then exponentially.
    Conn c;
    c.established(1000, 1000);
    c.send(letters(3000));
    EXPECT_EQ(c.pull_all().size(), 1u);
    c.recv({5001, 2001, kAck, "", 0});
    EXPECT_EQ(c.pull_all().size(), 0u);
    EXPECT_EQ(c.t.timers.kind, Rtx::persist);
    std::vector<int64_t> gaps;
    Instant before = c.now;
    for (int i = 0; i < 6; ++i) {
        c.now = deadline(c.t);
        deadline_reached(c.t, c.now, c.fresh());
        auto out = c.pull_all();
        ASSERT_EQ(out.size(), 1u);
        EXPECT_TRUE(out[0].probe);
        EXPECT_EQ(out[0].seq, 2000u);
        EXPECT_EQ(out[0].text, "");
        gaps.push_back((c.now - before).to_millis());
        before = c.now;
        c.recv({5001, 2001, kAck, "", 0});  // the peer answers: probing goes on for ever
        EXPECT_EQ(c.t.timers.probes, 0);
    }
    for (size_t i = 1; i < gaps.size(); ++i) EXPECT_EQ(gaps[i], 2 * gaps[i - 1]);
    // It opens.
    c.recv({5001, 2001, kAck, "", 5000});
    EXPECT_EQ(c.pull_all().size(), 2u);
    EXPECT_EQ(c.t.timers.kind, Rtx::tlp);
}

TEST(Persist, LostWindowUpdateIsRepaired) {
    Conn c;
    c.established(1000, 1000);
    c.send(letters(2000));
    c.pull_all();
    c.recv({5001, 2001, kAck, "", 0});
    c.pull_all();
    std::vector<Seg> out;
    c.pass(Duration::seconds(2), &out);
    ASSERT_GE(out.size(), 1u);
    c.recv({5001, 2001, kAck, "", 4000});  // the answer to the probe
    EXPECT_EQ(c.pull_all().size(), 1u);
}

TEST(Persist, UnansweredProbesEndIt) {
    Conn c;
    c.established(1000, 1000);
    c.send(letters(2000));
    c.pull_all();
    c.recv({5001, 2001, kAck, "", 0});
    c.pull_all();
    std::vector<Seg> out;
    c.pass(Duration::seconds(3600), &out);
    EXPECT_EQ(c.t.state, State::CLOSED);
    EXPECT_EQ(c.t.error, ETIMEDOUT);
    EXPECT_EQ(out.size(), 15u);  // retries2
}

TEST(Window, ShrunkWindowRetransmitsHeadOnly) {
    Conn c;
    c.established(1000, 5000);
    c.send(letters(5000));
    EXPECT_EQ(c.pull_all().size(), 5u);
    c.recv({5001, 1001, kAck, "", 0});  // the peer took its window back
    std::vector<Seg> out;
    c.pass(Duration::seconds(10), &out);
    for (auto& s : out) EXPECT_EQ(s.seq, 1001u);
    EXPECT_GE(out.size(), 3u);
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
}

TEST(Pacing, NotBefore) {
    Conn c;
    c.cfg.pacing_rate = 1000000;  // 1 ms per 1000 bytes
    c.cfg.tail_probe = false;
    c.established(1000);
    c.send(letters(3000));
    EXPECT_TRUE(c.pull());
    EXPECT_FALSE(c.pull());
    EXPECT_EQ(deadline(c.t), c.now + Duration::millis(1));
    std::vector<Seg> out;
    const Instant began = c.now;
    c.pass(Duration::millis(5), &out);
    EXPECT_EQ(out.size(), 2u);
    EXPECT_LT(c.t.timers.last_snd - began, Duration::millis(3));
}

TEST(Urgent, PointerNamesByteAfter) {
    Conn c;
    c.cfg.nodelay = true;
    c.established(1000);
    c.send("abcX");
    mark_urgent(c.t);
    auto s = c.pull();
    ASSERT_TRUE(s);
    EXPECT_TRUE(s->has(kUrg));
    EXPECT_EQ(s->urg, 4);
    c.send("def");
    s = c.pull();
    EXPECT_FALSE(s->has(kUrg));
    // Receiving.
    Seg u{5001, 1001, kAck | kUrg, "xyz"};
    u.urg = 3;
    c.recv(u);
    EXPECT_TRUE(c.seen & kUrgent);
    EXPECT_EQ(c.t.rcv.up.v, 5004u);
}

TEST(Buffer, FullSendBufferTakesPart) {
    Conn c;
    c.cfg.send_buffer = 5000;
    c.established(1000);
    EXPECT_EQ(c.send(letters(8000)), 5000u);
    EXPECT_EQ(c.send("x"), 0u);
    c.pull_all();
    c.recv({5001, 2001, kAck});
    EXPECT_TRUE(c.last.has(kWritable));
    EXPECT_EQ(c.send(letters(3000)), 1000u);
    EXPECT_EQ(unacked_bytes(c.t), 5000u);
}

TEST(PathMss, FlightIsCutAnew) {
    Conn c;
    c.cfg.tail_probe = false;
    c.established(1460);
    c.send(letters(2920));
    EXPECT_EQ(c.pull_all().size(), 2u);
    path_mss_changed(c.t, 1000, c.fresh());
    std::vector<Seg> out;
    c.pass(Duration::millis(300), &out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text, letters(2920).substr(0, 1000));
    c.recv({5001, 2001, kAck});
    std::string rest;
    for (auto& s : c.pull_all()) {
        EXPECT_LE(s.text.size(), 1000u);
        rest += s.text;
    }
    c.recv({5001, 3001, kAck});
    for (auto& s : c.pull_all()) rest += s.text;
    c.recv({5001, 3921, kAck});
    EXPECT_EQ(rest, letters(2920).substr(1000));
    EXPECT_EQ(unacked_bytes(c.t), 0u);
}

TEST(Idle, WindowRestartsAfterIdle) {
    // RFC 5681 section 4.1, RFC 2861 as Linux: halved per RTO, not below the initial window.
    Conn c;
    c.established(1000);
    c.t.cc.cwnd = 100000;
    c.send(letters(1000));
    c.pull_all();
    c.recv({5001, 2001, kAck});
    c.pass(Duration::seconds(60));
    c.send(letters(1000));
    c.pull_all();
    EXPECT_EQ(c.t.cc.cwnd, initial_window(1000));
}

}  // namespace
}  // namespace vma::tcp
