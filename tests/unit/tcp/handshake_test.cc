// Opening: active, passive, simultaneous; options; retransmission. RFC 9293 sections 3.5 and 3.10.7.2-3.
#include "stack/isn.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

TEST(ActiveOpen, SynCarriesLinuxOptions) {
    Conn c;
    c.cfg.timestamps = true;
    c.cfg.receive_buffer_max = 3 << 20;
    connect(c.t, c.params(), c.cfg, c.now);
    EXPECT_EQ(c.t.state, State::SYN_SENT);
    auto syn = c.pull();
    ASSERT_TRUE(syn);
    EXPECT_EQ(syn->flags, kSyn);
    EXPECT_EQ(syn->seq, 1000u);
    EXPECT_EQ(syn->opt.mss, 1460);
    EXPECT_TRUE(syn->opt.sack_permitted);
    EXPECT_TRUE(syn->opt.has_timestamps);
    EXPECT_TRUE(syn->opt.has_wscale);
    EXPECT_EQ(syn->opt.wscale, 6);  // 65535 << 6 is the first to hold 3 MiB
    EXPECT_EQ(syn->wnd, 60000);
    EXPECT_FALSE(c.pull());
}

TEST(ActiveOpen, SynAckConnects) {
    Conn c;
    c.cfg.timestamps = true;
    c.cfg.receive_buffer_max = 3 << 20;
    connect(c.t, c.params(), c.cfg, c.now);
    c.pull();
    c.now = c.now + Duration::millis(30);
    Seg s{5000, 1001, kSyn | kAck, "", 1000};
    s.opt.has_mss = true;
    s.opt.mss = 1400;
    s.opt.has_wscale = true;
    s.opt.wscale = 20;  // RFC 7323 section 2.3: taken as 14
    s.opt.has_timestamps = true;
    s.opt.ts_val = 77;
    s.opt.ts_ecr = c.t.ts.value(c.now);
    s.opt.sack_permitted = true;
    c.recv(s);
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    EXPECT_TRUE(c.seen & kConnected);
    EXPECT_EQ(c.t.snd.wscale, 14);
    EXPECT_EQ(c.t.snd.wnd, 1000u);  // a SYN's window is never scaled
    EXPECT_EQ(c.t.snd.mss, 1400 - 12);
    EXPECT_EQ(c.t.rtt.srtt, Duration::millis(30));
    EXPECT_EQ(c.t.cc.cwnd, initial_window(1388));
    auto ack = c.pull_all();
    ASSERT_EQ(ack.size(), 1u);
    EXPECT_EQ(ack[0].flags, kAck);
    EXPECT_EQ(ack[0].seq, 1001u);
    EXPECT_EQ(ack[0].ack, 5001u);
    EXPECT_EQ(ack[0].opt.ts_ecr, 77u);
    EXPECT_TRUE(deadline(c.t).is_never());
}

TEST(ActiveOpen, OptionsNotOfferedAreNotUsed) {
    Conn c;
    c.cfg.timestamps = true;
    c.cfg.receive_buffer = 60000;
    c.cfg.receive_buffer_max = 3 << 20;
    connect(c.t, c.params(), c.cfg, c.now);
    c.pull();
    c.recv({5000, 1001, kSyn | kAck});
    EXPECT_EQ(c.t.snd.mss, 536);  // MUST-15
    EXPECT_FALSE(c.t.ts.on);
    EXPECT_FALSE(c.t.loss.sack_ok);
    EXPECT_EQ(c.t.rcv.wscale, 0);
    auto ack = c.pull();
    ASSERT_TRUE(ack);
    EXPECT_FALSE(ack->opt.has_timestamps);
    EXPECT_EQ(ack->wnd, 60000);
}

TEST(ActiveOpen, RefusedOnlyByAcceptableReset) {
    Conn c;
    c.syn_sent();
    c.recv({5000, 0, kRst});  // no ACK: not believed
    EXPECT_EQ(c.t.state, State::SYN_SENT);
    c.recv({5000, 1000, kRst | kAck});  // wrong ACK
    EXPECT_EQ(c.t.state, State::SYN_SENT);
    EXPECT_FALSE(c.last.has_reply);
    c.recv({0, 1001, kRst | kAck});
    EXPECT_EQ(c.t.state, State::CLOSED);
    EXPECT_EQ(c.t.error, ECONNREFUSED);
    EXPECT_TRUE(c.seen & kFailed);
}

TEST(ActiveOpen, WrongAckIsReset) {
    Conn c;
    c.syn_sent();
    c.recv({5000, 900, kSyn | kAck});
    EXPECT_EQ(c.t.state, State::SYN_SENT);
    ASSERT_TRUE(c.last.has_reply);
    EXPECT_EQ(c.last.reply.flags, kRst);
    EXPECT_EQ(c.last.reply.seq.v, 900u);
    c.recv({5000, 1001, kAck});  // an ACK without SYN says nothing
    EXPECT_EQ(c.t.state, State::SYN_SENT);
}

TEST(ActiveOpen, SynIsRepeatedSixTimesThenTimesOut) {
    Conn c;
    c.syn_sent();
    const Instant began = c.now;
    std::vector<int64_t> at;
    while (c.t.state == State::SYN_SENT) {
        ASSERT_FALSE(deadline(c.t).is_never());
        c.now = deadline(c.t);
        deadline_reached(c.t, c.now, c.fresh());
        c.note();
        for (auto& s : c.pull_all()) {
            EXPECT_EQ(s.flags, kSyn);
            EXPECT_EQ(s.seq, 1000u);
            at.push_back((c.now - began).to_millis());
        }
    }
    EXPECT_EQ(at, (std::vector<int64_t>{1000, 3000, 7000, 15000, 31000, 63000}));
    EXPECT_EQ((c.now - began).to_millis(), 127000);  // Linux with tcp_syn_retries 6
    EXPECT_EQ(c.t.error, ETIMEDOUT);
    EXPECT_EQ(c.t.timers.kind, Rtx::none);
}

TEST(ActiveOpen, RetransmittedSynGivesNoRttSample) {
    Conn c;  // Karn
    c.syn_sent();
    c.pass(Duration::millis(1500));
    c.recv({5000, 1001, kSyn | kAck});
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    EXPECT_FALSE(c.t.rtt.has_sample());
}

TEST(ActiveOpen, DataWrittenBeforeConnectingIsSent) {
    Conn c;
    c.syn_sent();
    EXPECT_EQ(c.send("early"), 5u);
    EXPECT_FALSE(c.pull());
    c.recv({5000, 1001, kSyn | kAck});
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);  // the text carries the handshake's ACK
    EXPECT_EQ(out[0].text, "early");
    EXPECT_EQ(out[0].ack, 5001u);
}

TEST(ActiveOpen, ShutdownBeforeConnectedSendsFinAfterHandshake) {
    Conn c;
    c.syn_sent();
    shutdown_write(c.t, c.now, c.fresh());
    EXPECT_EQ(c.t.state, State::SYN_SENT);
    c.recv({5000, 1001, kSyn | kAck});
    EXPECT_EQ(c.t.state, State::FIN_WAIT_1);
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].flags, kFin | kAck);
    EXPECT_EQ(out[0].seq, 1001u);
}

TEST(SimultaneousOpen, BothSynThenBothSynAck) {
    Conn c;
    c.syn_received();
    EXPECT_EQ(c.t.rcv.nxt.v, 5001u);
    // The peer's SYN-ACK repeats its SYN and acknowledges ours.
    c.recv({5000, 1001, kSyn | kAck});
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    EXPECT_TRUE(c.seen & kConnected);
    EXPECT_EQ(c.t.rcv.nxt.v, 5001u);
    EXPECT_EQ(c.t.snd.una.v, 1001u);
    EXPECT_EQ(c.t.snd.wnd, 60000u);
}

TEST(SimultaneousOpen, PlainAckAlsoCompletes) {
    Conn c;
    c.syn_received();
    c.recv({5001, 1001, kAck, "hi"});
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    EXPECT_EQ(c.receive(), "hi");
}

TEST(SimultaneousOpen, BadAckIsReset) {
    Conn c;
    c.syn_received();
    c.recv({5001, 1000, kAck});
    EXPECT_EQ(c.t.state, State::SYN_RECEIVED);
    ASSERT_TRUE(c.last.has_reply);
    EXPECT_EQ(c.last.reply.flags, kRst);
    EXPECT_EQ(c.last.reply.seq.v, 1000u);
}

TEST(SimultaneousOpen, SynAckIsRepeated) {
    Conn c;
    c.syn_received();
    std::vector<Seg> out;
    c.pass(Duration::millis(1100), &out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].flags, kSyn | kAck);
}

struct Listener {
    Conn c;
    ListenState state;
    Seg syn{5000, 0, kSyn};
    HalfOpen half;

    Listener() {
        state.backlog = 8;
        c.cfg.timestamps = true;
        c.cfg.receive_buffer_max = 3 << 20;
        syn.opt.has_mss = true;
        syn.opt.mss = 1460;
        syn.opt.has_wscale = true;
        syn.opt.wscale = 7;
        syn.opt.has_timestamps = true;
        syn.opt.ts_val = 100;
        syn.opt.sack_permitted = true;
    }
    ListenVerdict offer(const Seg& s) {
        SegView v = in_seg(*c.world.pool, s);
        ListenVerdict r = on_syn(state, c.cfg, v, c.params(), c.now, c.fresh());
        if (r.kind == ListenVerdict::half_open) half = r.record;
        return r;
    }
    HalfOpenVerdict give(Seg s) {
        if (!s.opt.has_timestamps) {
            s.opt.has_timestamps = true;
            s.opt.ts_val = 101;
        }
        SegView v = in_seg(*c.world.pool, s);
        return segment_arrives(half, state, c.cfg, v, c.now, c.fresh());
    }
};

TEST(PassiveOpen, HalfOpenThenEstablished) {
    Listener l;
    ASSERT_EQ(l.offer(l.syn).kind, ListenVerdict::half_open);
    ASSERT_TRUE(l.c.last.has_reply);
    const SegmentHead& sa = l.c.last.reply;
    EXPECT_EQ(sa.flags, kSyn | kAck);
    EXPECT_EQ(sa.seq.v, 1000u);
    EXPECT_EQ(sa.ack.v, 5001u);
    EXPECT_EQ(sa.opt.wscale, 6);
    EXPECT_EQ(sa.opt.ts_ecr, 100u);
    EXPECT_TRUE(sa.opt.sack_permitted);
    EXPECT_LE(sizeof(HalfOpen), 128u);

    l.c.now = l.c.now + Duration::millis(10);
    Seg ack{5001, 1001, kAck, "GET", 500};
    ack.opt.has_timestamps = true;
    ack.opt.ts_val = 110;
    ASSERT_EQ(l.give(ack), HalfOpenVerdict::establish);
    establish(l.c.t, l.half, l.c.cfg, *l.c.world.memory, l.c.now);
    l.c.recv(ack);
    EXPECT_EQ(l.c.t.state, State::ESTABLISHED);
    EXPECT_TRUE(l.c.seen & kConnected);
    EXPECT_TRUE(l.c.seen & kReadable);
    EXPECT_EQ(l.c.t.snd.wnd, 500u << 7);
    EXPECT_EQ(l.c.t.rtt.srtt, Duration::millis(10));
    EXPECT_EQ(l.c.t.snd.mss, 1448);
    EXPECT_EQ(l.c.receive(), "GET");
}

TEST(PassiveOpen, NothingOfferedNothingAnswered) {
    Listener l;
    ASSERT_EQ(l.offer({5000, 0, kSyn}).kind, ListenVerdict::half_open);
    const SegmentHead& sa = l.c.last.reply;
    EXPECT_FALSE(sa.opt.has_wscale);
    EXPECT_FALSE(sa.opt.has_timestamps);
    EXPECT_FALSE(sa.opt.sack_permitted);
    EXPECT_TRUE(sa.opt.has_mss);
}

TEST(PassiveOpen, ListenerRefusesWhatIsNoRequest) {
    Listener l;
    EXPECT_EQ(l.offer({5000, 0, kRst}).kind, ListenVerdict::drop);
    EXPECT_FALSE(l.c.last.has_reply);
    EXPECT_EQ(l.offer({5000, 7, kAck}).kind, ListenVerdict::reset);
    EXPECT_EQ(l.c.last.reply.seq.v, 7u);
    EXPECT_EQ(l.offer({5000, 0, kSyn | kFin}).kind, ListenVerdict::drop);
    EXPECT_EQ(l.offer({5000, 0, 0}).kind, ListenVerdict::drop);
    l.state.accept_queue = 9;  // backlog 8: Linux admits one more than said
    EXPECT_EQ(l.offer(l.syn).reason, DropReason::tcp_backlog);
    l.state.accept_queue = 8;
    EXPECT_EQ(l.offer(l.syn).kind, ListenVerdict::half_open);
    l.state.max_half_open = 4;
    l.state.half_open = 8;
    EXPECT_EQ(l.offer(l.syn).reason, DropReason::tcp_backlog);
}

TEST(PassiveOpen, HalfOpenTable) {
    Listener l;
    l.offer(l.syn);
    // The SYN again: the SYN-ACK again.
    EXPECT_EQ(l.give(l.syn), HalfOpenVerdict::keep);
    EXPECT_EQ(l.c.last.reply.flags, kSyn | kAck);
    // Wrong ACK: RST, the record stays.
    EXPECT_EQ(l.give({5001, 1002, kAck}), HalfOpenVerdict::keep);
    EXPECT_EQ(l.c.last.reply.flags, kRst);
    EXPECT_EQ(l.c.last.reply.seq.v, 1002u);
    // Another SYN number: challenge.
    EXPECT_EQ(l.give({6000, 0, kSyn}), HalfOpenVerdict::keep);
    EXPECT_EQ(l.c.last.reply.flags, kAck);
    EXPECT_EQ(l.c.last.reply.ack.v, 5001u);
    // RST: only the exact number.
    EXPECT_EQ(l.give({5002, 0, kRst}), HalfOpenVerdict::keep);
    EXPECT_FALSE(l.c.last.has_reply);
    EXPECT_EQ(l.give({5001, 0, kRst}), HalfOpenVerdict::remove);
    // Full accept queue: the ACK is forgotten.
    l.state.accept_queue = 9;
    EXPECT_EQ(l.give({5001, 1001, kAck}), HalfOpenVerdict::keep);
    EXPECT_TRUE(l.half.acked);
    l.state.accept_queue = 0;
    EXPECT_EQ(l.give({5001, 1001, kAck}), HalfOpenVerdict::establish);
}

TEST(PassiveOpen, SynAckIsRepeatedFiveTimes) {
    Listener l;
    l.offer(l.syn);
    const Instant began = l.c.now;
    std::vector<int64_t> at;
    for (;;) {
        l.c.now = deadline(l.half);
        const auto v = deadline_reached(l.half, l.c.cfg, l.c.now, l.c.fresh());
        if (v == HalfOpenVerdict::remove) break;
        ASSERT_TRUE(l.c.last.has_reply);
        at.push_back((l.c.now - began).to_millis());
        ASSERT_LT(at.size(), 20u);
    }
    EXPECT_EQ(at, (std::vector<int64_t>{1000, 3000, 7000, 15000, 31000}));
    EXPECT_EQ((l.c.now - began).to_millis(), 63000);
}

TEST(Isn, KeyedAndMoving) {
    // SipHash-2-4's published vector for 15 bytes 0..14 under key 0..15.
    uint8_t in[15];
    for (int i = 0; i < 15; ++i) in[i] = uint8_t(i);
    EXPECT_EQ(siphash24(0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull, in, 15),
              0xa129ca6149be45e5ull);
    IsnSecret s{1, 2}, other{1, 3};
    Endpoint a{IpAddr::v4(10, 0, 0, 1), 1}, b{IpAddr::v4(10, 0, 0, 2), 2},
        b2{IpAddr::v4(10, 0, 0, 2), 3};
    const Instant t0{1000000};
    EXPECT_NE(initial_seq(s, a, b, t0).v, initial_seq(s, a, b2, t0).v);
    EXPECT_NE(initial_seq(s, a, b, t0).v, initial_seq(other, a, b, t0).v);
    // RFC 6528: per tuple it moves with time, so that a new incarnation is above the old one.
    EXPECT_EQ(initial_seq(s, a, b, t0 + Duration::micros(64)) - initial_seq(s, a, b, t0), 1000);
    EXPECT_EQ(timestamp_offset(s, a, b), timestamp_offset(s, a, b2));
}

}  // namespace
}  // namespace vma::tcp
