// State x segment for the states that segment_table_test.cc does not have: CLOSED, LISTEN, the half-open record, SYN-SENT,
// SYN-RECEIVED and TIME-WAIT. RFC 9293 section 3.10.7, RFC 5961.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

constexpr uint8_t kNothing = 0;  // no answer
constexpr uint8_t SA = kSyn | kAck, A = kAck, R = kRst, RA = kRst | kAck;

std::string letters(uint8_t flags) {
    std::string s;
    for (const auto& [bit, letter] : {std::pair{kSyn, 'S'}, {kFin, 'F'}, {kRst, 'R'}, {kAck, 'A'}})
        if (flags & bit) s += letter;
    return s.empty() ? "nothing" : s;
}

TEST(StateTable, Closed) {
    // Section 3.10.7.1: everything but a RST is answered by a RST that its sender believes.
    for (unsigned flags = 0; flags < 64; ++flags) {
        SCOPED_TRACE(letters(uint8_t(flags)));
        Conn c;
        c.recv({500, 700, uint8_t(flags), "ab"});
        EXPECT_EQ(c.t.state, State::CLOSED);
        ASSERT_EQ(c.last.has_reply, (flags & kRst) == 0);
        if (!c.last.has_reply) continue;
        EXPECT_EQ(c.last.reply.flags, flags & kAck ? R : RA);
        EXPECT_EQ(c.last.reply.seq.v, flags & kAck ? 700u : 0u);
        const uint32_t len = 2 + ((flags & kSyn) != 0) + ((flags & kFin) != 0);
        if (!(flags & kAck)) {
            EXPECT_EQ(c.last.reply.ack.v, 500u + len);
        }
    }
}

TEST(StateTable, Listen) {
    struct {
        const char* what;
        uint8_t flags;
        ListenVerdict::Kind kind;
        uint8_t answer;
    } rows[] = {
        {"RST", kRst, ListenVerdict::drop, kNothing},
        {"RST with ACK", RA, ListenVerdict::drop, kNothing},
        {"RST with SYN", kRst | kSyn, ListenVerdict::drop, kNothing},
        {"ACK", kAck, ListenVerdict::reset, R},
        {"SYN with ACK", SA, ListenVerdict::reset, R},
        {"FIN with ACK", kFin | kAck, ListenVerdict::reset, R},
        {"SYN", kSyn, ListenVerdict::half_open, SA},
        {"SYN with PSH", kSyn | kPsh, ListenVerdict::half_open, SA},
        {"SYN with FIN", kSyn | kFin, ListenVerdict::drop, kNothing},
        {"FIN", kFin, ListenVerdict::drop, kNothing},
        {"no flag", 0, ListenVerdict::drop, kNothing},
        {"URG", kUrg, ListenVerdict::drop, kNothing},
    };
    for (const auto& r : rows) {
        SCOPED_TRACE(r.what);
        Conn c;
        ListenState listener;
        listener.backlog = 4;
        SegView s = in_seg(*c.world.pool, {5000, 700, r.flags, "x"});
        const ListenVerdict v = on_syn(listener, c.cfg, s, c.params(), c.now, c.fresh());
        EXPECT_EQ(v.kind, r.kind);
        ASSERT_EQ(c.last.has_reply, r.answer != kNothing);
        if (r.answer) {
            EXPECT_EQ(letters(c.last.reply.flags), letters(r.answer));
        }
        if (r.answer == R) {
            EXPECT_EQ(c.last.reply.seq.v, 700u);
        }
        if (r.answer == SA) {
            EXPECT_EQ(c.last.reply.ack.v, 5001u);
        }  // text in a SYN waits
    }
}

TEST(StateTable, HalfOpen) {
    constexpr auto keep = HalfOpenVerdict::keep, remove = HalfOpenVerdict::remove,
                   establish = HalfOpenVerdict::establish;
    struct {
        const char* what;
        uint8_t flags;
        int32_t seq;  // relative to the number after the SYN
        int32_t ack;  // relative to the number after ours
        const char* text;
        HalfOpenVerdict verdict;
        uint8_t answer;
    } rows[] = {
        {"the ACK", A, 0, 0, "", establish, kNothing},
        {"the ACK with text", A, 0, 0, "abc", establish, kNothing},
        {"the ACK with FIN", A | kFin, 0, 0, "", establish, kNothing},
        {"ACK of an old number", A, 0, -1, "", keep, R},
        {"ACK of a number to come", A, 0, 1, "", keep, R},
        {"ACK above the window", A, 70000, 0, "", keep, A},
        {"ACK below the window", A, -2, 0, "", keep, A},
        {"the SYN again", kSyn, -1, 0, "", keep, SA},
        {"another SYN in the window", kSyn, 5, 0, "", keep, A},
        {"another SYN above the window", kSyn, 70000, 0, "", keep, A},
        {"SYN with ACK", SA, 0, 0, "", keep, A},
        {"RST", kRst, 0, 0, "", remove, kNothing},
        {"RST with ACK", RA, 0, 0, "", remove, kNothing},
        {"RST in the window", kRst, 7, 0, "", keep, kNothing},
        {"RST below", kRst, -1, 0, "", keep, kNothing},
        {"no flag", 0, 0, 0, "abc", keep, kNothing},
        {"FIN without ACK", kFin, 0, 0, "", keep, kNothing},
    };
    for (const auto& r : rows) {
        SCOPED_TRACE(r.what);
        Conn c;
        ListenState listener;
        listener.backlog = 4;
        SegView syn = in_seg(*c.world.pool, {5000, 0, kSyn});
        ListenVerdict v = on_syn(listener, c.cfg, syn, c.params(), c.now, c.fresh());
        ASSERT_EQ(v.kind, ListenVerdict::half_open);
        HalfOpen& h = v.record;
        SegView s = in_seg(*c.world.pool, {5001 + uint32_t(r.seq), h.iss.v + 1 + uint32_t(r.ack),
                                           r.flags, r.text});
        EXPECT_EQ(segment_arrives(h, listener, c.cfg, s, c.now, c.fresh()), r.verdict);
        ASSERT_EQ(c.last.has_reply, r.answer != kNothing);
        if (r.answer) {
            EXPECT_EQ(letters(c.last.reply.flags), letters(r.answer));
        }
    }
}

struct Row {
    const char* what;
    uint8_t flags;
    int32_t seq;  // relative to what is expected
    int32_t ack;  // relative to SND.NXT
    const char* text;
    State state;
    uint8_t answer;
    int error = 0;
};

uint8_t answer_of(Conn& c) {
    if (c.last.has_reply) return c.last.reply.flags;
    const auto out = c.pull_all();
    EXPECT_LE(out.size(), 1u);
    return out.empty() ? kNothing : uint8_t(out[0].flags & (kSyn | kAck | kRst | kFin));
}

TEST(StateTable, SynSent) {
    constexpr State S = State::SYN_SENT, E = State::ESTABLISHED, X = State::CLOSED,
                    Q = State::SYN_RECEIVED;
    const Row rows[] = {
        {"SYN with ACK", SA, 0, 0, "", E, A},
        {"SYN with ACK and text", SA, 0, 0, "abc", E, A},
        {"SYN with an old ACK", SA, 0, -1, "", S, R},
        {"SYN with an ACK to come", SA, 0, 1, "", S, R},
        {"SYN", kSyn, 0, 0, "", Q, SA},
        {"ACK alone", A, 0, 0, "", S, kNothing},
        {"ACK alone of another number", A, 0, 5, "", S, R},
        {"FIN with ACK", A | kFin, 0, 0, "", S, kNothing},
        {"text with ACK", A, 0, 0, "abc", S, kNothing},
        {"RST with ACK", RA, 0, 0, "", X, kNothing, ECONNREFUSED},
        {"RST with an old ACK", RA, 0, -1, "", S, kNothing},
        {"RST with an ACK to come", RA, 0, 9, "", S, kNothing},
        {"RST without ACK", kRst, 0, 0, "", S, kNothing},
        {"no flag", 0, 0, 0, "abc", S, kNothing},
        {"FIN", kFin, 0, 0, "", S, kNothing},
    };
    for (const Row& r : rows) {
        SCOPED_TRACE(r.what);
        Conn c;
        c.syn_sent();
        c.recv({5000 + uint32_t(r.seq), 1001 + uint32_t(r.ack), r.flags, r.text});
        EXPECT_STREQ(state_name(c.t.state), state_name(r.state));
        EXPECT_EQ(letters(answer_of(c)), letters(r.answer));
        EXPECT_EQ(c.t.error, r.error);
        EXPECT_EQ(c.t.in.bytes, 0u);  // text beside a SYN comes again
    }
}

TEST(StateTable, SynReceived) {
    constexpr State E = State::ESTABLISHED, X = State::CLOSED, Q = State::SYN_RECEIVED,
                    W = State::CLOSE_WAIT;
    const Row rows[] = {
        {"the ACK", A, 0, 0, "", E, kNothing},
        {"the SYN-ACK of a simultaneous open", SA, -1, 0, "", E, kNothing},
        {"the ACK with text", A, 0, 0, "abc", E, A},
        {"the ACK with FIN", A | kFin, 0, 0, "", W, A},
        {"an old ACK", A, 0, -1, "", Q, R},
        {"an ACK to come", A, 0, 1, "", Q, R},
        {"no ACK", 0, 0, 0, "abc", Q, kNothing},
        {"FIN without ACK", kFin, 0, 0, "", Q, kNothing},
        {"SYN in the window", kSyn, 10, 0, "", Q, A},
        {"text above the window", A, 60001, 0, "abc", Q, A},
        {"RST", kRst, 0, 0, "", X, kNothing, ECONNREFUSED},
        {"RST in the window", kRst, 10, 0, "", Q, A},
        {"RST below", kRst, -1, 0, "", Q, kNothing},
        {"RST above", kRst, 70000, 0, "", Q, kNothing},
    };
    for (const Row& r : rows) {
        SCOPED_TRACE(r.what);
        Conn c;
        c.syn_received();
        ASSERT_EQ(c.t.state, Q);
        c.pull_all();
        c.recv({c.t.rcv.nxt.v + uint32_t(r.seq), c.t.snd.nxt.v + uint32_t(r.ack), r.flags, r.text});
        EXPECT_STREQ(state_name(c.t.state), state_name(r.state));
        EXPECT_EQ(letters(answer_of(c)), letters(r.answer));
        EXPECT_EQ(c.t.error, r.error);
    }
}

TEST(StateTable, TimeWait) {
    constexpr auto keep = TimeWaitVerdict::keep, remove = TimeWaitVerdict::remove,
                   reuse = TimeWaitVerdict::reuse;
    struct {
        const char* what;
        uint8_t flags;
        int32_t seq;  // relative to RCV.NXT
        const char* text;
        TimeWaitVerdict verdict;
        uint8_t answer;
        bool longer;  // the wait starts over
    } rows[] = {
        {"RST", kRst, 0, "", remove, kNothing, false},
        {"RST with ACK", RA, 0, "", remove, kNothing, false},
        {"RST in the window", kRst, 10, "", keep, kNothing, false},
        {"RST below", kRst, -1, "", keep, kNothing, false},
        {"SYN above", kSyn, 1000, "", reuse, kNothing, false},
        {"SYN at RCV.NXT", kSyn, 0, "", keep, A, false},
        {"SYN below", kSyn, -5, "", keep, A, false},
        {"SYN with ACK", SA, 1000, "", keep, A, false},
        {"the FIN again", A | kFin, -1, "", keep, A, true},
        {"ACK", A, 0, "", keep, kNothing, false},
        {"ACK of an old number", A, -1, "", keep, A, false},
        {"text", A, 0, "abc", keep, A, false},
        {"no flag", 0, 0, "", keep, kNothing, false},
    };
    for (const bool record : {false, true}) {
        for (const auto& r : rows) {
            SCOPED_TRACE(testing::Message() << r.what << (record ? ", record" : ", Tcb"));
            Conn c;
            c.fin_wait_2();
            c.recv({5001, 1002, A | kFin});
            ASSERT_EQ(c.t.state, State::TIME_WAIT);
            c.pull_all();
            c.now = c.now + Duration::seconds(5);
            TimeWait tw = time_wait_of(c.t);
            const Instant end = tw.expires;
            const Seg s{c.t.rcv.nxt.v + uint32_t(r.seq), 1002, r.flags, r.text};
            if (record) {
                Seq above;
                const SegView v = in_seg(*c.world.pool, s);
                EXPECT_EQ(segment_arrives(tw, v, c.now, c.fresh(), above), r.verdict);
                if (r.verdict == reuse) {
                    EXPECT_TRUE(above > tw.snd_nxt);
                }
                EXPECT_EQ(tw.expires > end, r.longer);
            } else {
                c.recv(s);
                EXPECT_EQ(c.t.state, r.verdict == keep ? State::TIME_WAIT : State::CLOSED);
                if (r.verdict == keep) {
                    EXPECT_EQ(deadline(c.t) > end, r.longer);
                }
            }
            ASSERT_EQ(c.last.has_reply, r.answer != kNothing);
            if (r.answer) {
                EXPECT_EQ(letters(c.last.reply.flags), letters(r.answer));
            }
        }
    }
}

}  // namespace
}  // namespace vma::tcp
