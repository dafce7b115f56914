// Ends: FIN in every order, half-close, RST with the right numbers, TIME_WAIT and its reuse, keep-alive.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

TEST(Close, ActiveOrder) {
    Conn c;
    c.established();
    c.send("bye");
    shutdown_write(c.t, c.now, c.fresh());
    EXPECT_EQ(c.t.state, State::FIN_WAIT_1);
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].text, "bye");
    EXPECT_TRUE(out[0].has(kFin));
    EXPECT_EQ(c.send("more"), 0u);
    c.recv({5001, 1005, kAck});
    EXPECT_EQ(c.t.state, State::FIN_WAIT_2);
    EXPECT_TRUE(c.seen & kAllAcked);
    // Half-closed: the peer may go on.
    c.recv({5001, 1005, kAck, "tail"});
    EXPECT_EQ(c.receive(), "tail");
    c.pull_all();
    c.recv({5005, 1005, kFin | kAck});
    EXPECT_EQ(c.t.state, State::TIME_WAIT);
    EXPECT_TRUE(c.seen & kTimeWait);
    EXPECT_TRUE(at_eof(c.t));
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].ack, 5006u);
    EXPECT_EQ(deadline(c.t), c.now + Duration::seconds(60));
    c.pass(Duration::seconds(60));
    EXPECT_EQ(c.t.state, State::CLOSED);
    EXPECT_EQ(c.t.error, 0);
}

TEST(Close, PassiveOrder) {
    Conn c;
    c.close_wait();
    EXPECT_TRUE(at_eof(c.t));
    EXPECT_EQ(c.send("answer"), 6u);  // still allowed
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].ack, 5002u);
    close(c.t, c.now, c.fresh());
    EXPECT_EQ(c.t.state, State::LAST_ACK);
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].flags, kFin | kAck);
    EXPECT_EQ(out[0].seq, 1007u);
    c.recv({5002, 1008, kAck});
    EXPECT_EQ(c.t.state, State::CLOSED);
    EXPECT_TRUE(c.seen & kReleasable);
    EXPECT_EQ(c.seen & kFailed, 0u);
}

TEST(Close, Simultaneous) {
    Conn c;
    c.closing();
    c.recv({5002, 1002, kAck});
    EXPECT_EQ(c.t.state, State::TIME_WAIT);
}

TEST(Close, FinAckedAndFinInOneSegment) {
    Conn c;
    c.fin_wait_1();
    c.recv({5001, 1002, kFin | kAck, "last"});
    EXPECT_EQ(c.t.state, State::TIME_WAIT);
    EXPECT_EQ(c.receive(), "last");
    EXPECT_TRUE(at_eof(c.t));
}

TEST(Close, FinWaitsForRoomAndForGaps) {
    Conn c;
    c.established(1000, 1000);
    c.send(std::string(2000, 'x'));
    shutdown_write(c.t, c.now, c.fresh());
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_FALSE(out[0].has(kFin));
    c.recv({5001, 2001, kAck, "", 1000});
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_FALSE(out[0].has(kFin));  // a FIN takes a number too: the window is full
    EXPECT_EQ(c.t.state, State::FIN_WAIT_1);
    c.recv({5001, 3001, kAck, "", 1000});
    out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].flags, kFin | kAck);
    // The peer's FIN ahead of its text.
    c.recv({5005, 3002, kFin | kAck});
    EXPECT_EQ(c.t.state, State::FIN_WAIT_2);
    c.recv({5001, 3002, kAck, "abcd"});
    EXPECT_EQ(c.t.state, State::TIME_WAIT);
    EXPECT_EQ(c.receive(), "abcd");
}

TEST(Close, FinBehindTextCutByTheWindowIsNotTaken) {
    Conn c;
    c.cfg.receive_buffer = c.cfg.receive_buffer_max = 4000;
    c.established();
    c.recv({5001, 1001, kFin | kAck, std::string(5000, 'x')});
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    EXPECT_EQ(c.receive().size(), 4000u);
    EXPECT_FALSE(at_eof(c.t));
    c.pull_all();
    c.recv({9001, 1001, kFin | kAck, std::string(1000, 'x')});
    EXPECT_EQ(c.t.state, State::CLOSE_WAIT);
    EXPECT_EQ(c.receive().size(), 1000u);
    EXPECT_TRUE(at_eof(c.t));
}

TEST(Close, LostFinIsRepeated) {
    for (auto setup : {&Conn::fin_wait_1, &Conn::closing, &Conn::last_ack}) {
        Conn c;
        (c.*setup)();
        std::vector<Seg> out;
        c.pass(Duration::millis(1500), &out);
        ASSERT_GE(out.size(), 1u);
        EXPECT_TRUE(out[0].has(kFin));
        EXPECT_TRUE(out[0].retransmission);
        EXPECT_EQ(out[0].seq, 1001u);
    }
}

TEST(Close, RetransmittedFinIsAcknowledgedAgain) {
    Conn c;
    c.close_wait();
    c.recv({5001, 1001, kFin | kAck});
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].ack, 5002u);
    EXPECT_EQ(c.t.state, State::CLOSE_WAIT);
    // Text after a FIN is refused.
    EXPECT_EQ(c.recv({5002, 1001, kAck, "ghost"}).reason, DropReason::tcp_beyond_fin);
    EXPECT_EQ(unread_bytes(c.t), 0u);
}

TEST(Close, UnreadTextMakesReset) {
    // RFC 2525 section 2.17.
    Conn c;
    c.established();
    c.recv({5001, 1001, kAck, "unread"});
    c.pull_all();
    close(c.t, c.now, c.fresh());
    EXPECT_EQ(c.t.state, State::CLOSED);
    EXPECT_TRUE(c.last.has(kOutput));
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].flags, kRst | kAck);
    EXPECT_EQ(out[0].seq, 1001u);
    EXPECT_EQ(out[0].ack, 5007u);
}

TEST(Close, TextAfterCloseMakesReset) {
    // RFC 1122 section 4.2.2.13.
    Conn c;
    c.established();
    close(c.t, c.now, c.fresh());
    c.pull_all();
    c.recv({5001, 1002, kAck});
    EXPECT_EQ(c.t.state, State::FIN_WAIT_2);
    EXPECT_EQ(c.recv({5001, 1002, kAck, "late"}).reason, DropReason::tcp_closed_reader);
    EXPECT_EQ(c.t.state, State::CLOSED);
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_TRUE(out[0].has(kRst));
    EXPECT_EQ(out[0].seq, 1002u);
    // With shutdown(SHUT_RD) alone there is none.
    Conn d;
    d.established();
    shutdown_read(d.t);
    EXPECT_EQ(d.recv({5001, 1001, kAck, "x"}).kind, Verdict::Continue);
    EXPECT_EQ(d.t.state, State::ESTABLISHED);
}

TEST(Close, OrphanedFinWait2Ends) {
    Conn c;
    c.established();
    close(c.t, c.now, c.fresh());
    c.pull_all();
    c.recv({5001, 1002, kAck});
    EXPECT_EQ(deadline(c.t), c.now + Duration::seconds(60));
    c.pass(Duration::seconds(61));
    EXPECT_EQ(c.t.state, State::CLOSED);
    // Only shutdown: it waits for ever (RFC 9293 section 3.6).
    Conn d;
    d.fin_wait_2();
    EXPECT_TRUE(deadline(d.t).is_never());
    close(d.t, d.now, d.fresh());
    EXPECT_EQ(deadline(d.t), d.now + Duration::seconds(60));
}

TEST(Abort, NumbersByState) {
    struct {
        void (Conn::*prepare)();
        uint32_t seq, ack;
        bool rst;
    } rows[] = {{&Conn::fin_wait_1, 1002, 5001, true}, {&Conn::fin_wait_2, 1002, 5001, true},
                {&Conn::close_wait, 1001, 5002, true}, {&Conn::syn_received, 1001, 5001, true},
                {&Conn::closing, 0, 0, false},         {&Conn::last_ack, 0, 0, false},
                {&Conn::time_wait, 0, 0, false},       {&Conn::syn_sent, 0, 0, false}};
    for (auto& r : rows) {
        Conn c;
        (c.*r.prepare)();
        const char* state = state_name(c.t.state);
        abort(c.t, ECONNABORTED, c.fresh());
        EXPECT_EQ(c.t.state, State::CLOSED) << state;
        auto out = c.pull_all();
        ASSERT_EQ(out.size(), r.rst ? 1u : 0u) << state;
        if (!r.rst) continue;
        EXPECT_EQ(out[0].flags, kRst | kAck) << state;
        EXPECT_EQ(out[0].seq, r.seq) << state;
        EXPECT_EQ(out[0].ack, r.ack) << state;
    }
}

TEST(Abort, UnacknowledgedTextIsSkipped) {
    Conn c;
    c.established();
    c.send("in flight");
    c.pull_all();
    c.send("never sent");
    abort(c.t, 0, c.fresh());
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, 1010u);  // SND.NXT
    EXPECT_EQ(out[0].text, "");
    EXPECT_EQ(c.world.memory->chunks_out(), 0u);
}

TEST(TimeWaitRecord, Table) {
    Conn c;
    c.cfg.timestamps = true;
    c.stamps = true;
    c.time_wait();
    c.tsval = 100;
    auto give = [&](Seg s, uint32_t stamp, Seq* hint = nullptr) {
        TimeWait tw = time_wait_of(c.t);
        s.opt.has_timestamps = true;
        s.opt.ts_val = stamp;
        SegView v = in_seg(*c.world.pool, s);
        Seq h;
        const TimeWaitVerdict r = segment_arrives(tw, v, c.now, c.fresh(), hint ? *hint : h);
        return r;
    };
    // FIN again: ACK, and the wait starts over (tested below).
    EXPECT_EQ(give({5001, 1002, kFin | kAck}, 100), TimeWaitVerdict::keep);
    ASSERT_TRUE(c.last.has_reply);
    EXPECT_EQ(c.last.reply.seq.v, 1002u);
    EXPECT_EQ(c.last.reply.ack.v, 5002u);
    // A plain ACK in place: silence.
    EXPECT_EQ(give({5002, 1002, kAck}, 100), TimeWaitVerdict::keep);
    EXPECT_FALSE(c.last.has_reply);
    // Old text: ACK.
    EXPECT_EQ(give({4990, 1002, kAck, "old"}, 100), TimeWaitVerdict::keep);
    EXPECT_TRUE(c.last.has_reply);
    // RST: only the exact number (RFC 1337).
    EXPECT_EQ(give({5100, 0, kRst}, 100), TimeWaitVerdict::keep);
    EXPECT_EQ(give({5002, 0, kRst}, 100), TimeWaitVerdict::remove);
    // RFC 6191: a SYN with a newer stamp opens again, whatever its number; an older one does not.
    Seq hint;
    EXPECT_EQ(give({100, 0, kSyn}, 101, &hint), TimeWaitVerdict::reuse);
    EXPECT_TRUE(hint > c.t.snd.nxt);
    EXPECT_EQ(give({9000, 0, kSyn}, 99), TimeWaitVerdict::keep);
    EXPECT_TRUE(c.last.has_reply);
    EXPECT_EQ(c.last.reply.flags, kAck);
    // Equal stamp: by number.
    EXPECT_EQ(give({5003, 0, kSyn}, 100), TimeWaitVerdict::reuse);
    EXPECT_EQ(give({5002, 0, kSyn}, 100), TimeWaitVerdict::keep);
    EXPECT_LE(sizeof(TimeWait), 128u);
}

TEST(TimeWaitRecord, ReuseByUs) {
    Conn c;
    c.cfg.timestamps = true;
    c.stamps = true;
    c.time_wait();
    TimeWait tw = time_wait_of(c.t);
    Seq hint;
    EXPECT_FALSE(may_reuse(tw, c.now, hint));
    EXPECT_TRUE(may_reuse(tw, c.now + Duration::seconds(2), hint));
    tw.has_ts = false;
    EXPECT_FALSE(may_reuse(tw, c.now + Duration::seconds(2), hint));
}

TEST(TimeWaitTcb, FinRestartsTheWait) {
    Conn c;
    c.time_wait();
    c.pass(Duration::seconds(30));
    c.recv({5001, 1002, kFin | kAck});
    EXPECT_TRUE(c.last.has_reply);
    EXPECT_EQ(deadline(c.t), c.now + Duration::seconds(60));
    c.recv({6000, 0, kSyn});
    EXPECT_EQ(c.t.state, State::CLOSED);
}

TEST(KeepAlive, ProbesThenReset) {
    // RFC 9293 section 3.8.4.
    Conn c;
    c.cfg.keepalive = true;
    c.established();
    EXPECT_EQ(deadline(c.t), c.now + Duration::seconds(7200));
    std::vector<Seg> out;
    c.pass(Duration::seconds(7199), &out);
    EXPECT_EQ(out.size(), 0u);
    c.pass(Duration::seconds(2), &out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_TRUE(out[0].probe);
    EXPECT_EQ(out[0].seq, 1000u);
    EXPECT_EQ(out[0].ack, 5001u);
    // An answer starts it over.
    c.recv({5001, 1001, kAck});
    out.clear();
    c.pass(Duration::seconds(7190), &out);
    EXPECT_EQ(out.size(), 0u);
    // Silence: nine probes, 75 s apart, then the end with a RST.
    c.pass(Duration::seconds(20 + 9 * 75), &out);
    ASSERT_EQ(out.size(), 10u);
    EXPECT_TRUE(out[9].has(kRst));
    EXPECT_EQ(c.t.error, ETIMEDOUT);
    EXPECT_EQ(c.t.state, State::CLOSED);
}

TEST(KeepAlive, SwitchedOnLater) {
    Conn c;
    c.established();
    EXPECT_TRUE(deadline(c.t).is_never());
    c.pass(Duration::seconds(100));
    c.t.cfg.keepalive = true;
    c.t.cfg.keepalive_idle = Duration::seconds(10);
    config_changed(c.t, c.now, c.fresh());
    std::vector<Seg> out;
    c.pass(Duration::millis(1), &out);
    EXPECT_EQ(out.size(), 1u);
    c.t.cfg.keepalive = false;
    config_changed(c.t, c.now, c.fresh());
    EXPECT_TRUE(deadline(c.t).is_never());
}

TEST(Numbers, TcpInfo) {
    Conn c;
    c.cfg.nodelay = true;
    c.established(1000);
    c.send(std::string(3000, 'x'));
    c.pull_all();
    c.t.cc.cwnd = 3000;
    c.send("tail");
    Numbers n = numbers(c.t, c.now);
    EXPECT_EQ(n.unacked, 3u);
    EXPECT_EQ(n.notsent_bytes, 4u);
    EXPECT_EQ(n.snd_cwnd, 3u);
    EXPECT_EQ(n.snd_mss, 1000u);
    EXPECT_EQ(unacked_bytes(c.t), 3004u);
    EXPECT_EQ(unsent_bytes(c.t), 4u);
    c.recv({5001, 4001, kAck, "abc"});
    n = numbers(c.t, c.now);
    EXPECT_EQ(n.bytes_acked, 3000u);
    EXPECT_EQ(n.bytes_received, 3u);
    EXPECT_EQ(unread_bytes(c.t), 3u);
}

}  // namespace
}  // namespace vma::tcp
