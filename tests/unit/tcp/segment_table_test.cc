// State x segment: for every synchronised state, what each kind of segment does. RFC 9293 section 3.10.7.4, RFC 5961.
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

using Prepare = void (Conn::*)();
struct Start {
    State state;
    Prepare setup;
    uint32_t snd_nxt;  // ours when the segment arrives
    uint32_t rcv_nxt;
};

const Start kStarts[] = {
    {State::ESTABLISHED, nullptr, 1001, 5001},
    {State::FIN_WAIT_1, &Conn::fin_wait_1, 1002, 5001},
    {State::FIN_WAIT_2, &Conn::fin_wait_2, 1002, 5001},
    {State::CLOSE_WAIT, &Conn::close_wait, 1001, 5002},
    {State::CLOSING, &Conn::closing, 1002, 5002},
    {State::LAST_ACK, &Conn::last_ack, 1002, 5002},
};

enum class Reply { none, ack, rst };

struct Row {
    const char* what;
    uint8_t flags;
    int32_t seq;  // relative to RCV.NXT
    int32_t ack;  // relative to SND.NXT
    const char* text;
    // Expected, per start in the order of kStarts.
    State state[6];
    Reply reply[6];
};

constexpr State EST = State::ESTABLISHED, FW1 = State::FIN_WAIT_1, FW2 = State::FIN_WAIT_2,
                CW = State::CLOSE_WAIT, CLG = State::CLOSING, LA = State::LAST_ACK,
                TW = State::TIME_WAIT, X = State::CLOSED;
constexpr Reply N = Reply::none, A = Reply::ack;

// The ACK column -1 in states with an unacknowledged FIN means "FIN not acknowledged", 0 "acknowledged".
const Row kRows[] = {
    {"exact RST", kRst, 0, 0, "", {X, X, X, X, X, X}, {N, N, N, N, N, N}},
    {"RST in the window", kRst, 100, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"RST below the window", kRst, -1, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {N, N, N, N, N, N}},
    {"RST above the window", kRst, 70000, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {N, N, N, N, N, N}},
    {"SYN in the window", kSyn, 10, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"SYN at RCV.NXT", kSyn, 0, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"SYN below the window", kSyn, -100, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"segment without ACK", 0, 0, 0, "x", {EST, FW1, FW2, CW, CLG, LA}, {N, N, N, N, N, N}},
    {"ACK beyond SND.NXT", kAck, 0, 1, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"ACK beyond SND.NXT with text",
     kAck,
     0,
     5,
     "x",
     {EST, FW1, FW2, CW, CLG, LA},
     {A, A, A, A, A, A}},
    {"ACK older than the largest window",
     kAck,
     0,
     -60100,
     "",
     {EST, FW1, FW2, CW, CLG, LA},
     {A, A, A, A, A, A}},
    {"keep-alive probe", kAck, -1, 0, "", {EST, FW1, FW2, CW, CLG, LA}, {A, A, A, A, A, A}},
    {"text wholly below", kAck, -4, 0, "abcd", {EST, FW2, FW2, CW, TW, X}, {A, A, A, A, A, N}},
    {"text above the window",
     kAck,
     60001,
     0,
     "abcd",
     {EST, FW1, FW2, CW, CLG, LA},
     {A, A, A, A, A, A}},
    {"ACK of all", kAck, 0, 0, "", {EST, FW2, FW2, CW, TW, X}, {N, N, N, N, N, N}},
    {"text in order", kAck, 0, 0, "abcd", {EST, FW2, FW2, CW, TW, X}, {A, A, A, A, A, N}},
    {"text after a gap", kAck, 10, 0, "abcd", {EST, FW2, FW2, CW, TW, X}, {A, A, A, A, A, N}},
    {"FIN in order", kFin | kAck, 0, 0, "", {CW, TW, TW, CW, TW, X}, {A, A, A, A, A, N}},
    {"FIN with text in order",
     kFin | kAck,
     0,
     0,
     "ab",
     {CW, TW, TW, CW, TW, X},
     {A, A, A, A, A, N}},
    {"FIN after a gap", kFin | kAck, 10, 0, "", {EST, FW2, FW2, CW, TW, X}, {A, A, A, A, A, N}},
};

TEST(SegmentTable, EveryStateAndSegment) {
    for (const Row& row : kRows) {
        for (unsigned i = 0; i < 6; ++i) {
            const Start& start = kStarts[i];
            SCOPED_TRACE(testing::Message() << row.what << " in " << state_name(start.state));
            Conn c;
            if (start.setup)
                (c.*start.setup)();
            else
                c.established();
            ASSERT_EQ(c.t.state, start.state);
            ASSERT_EQ(c.t.snd.nxt.v, start.snd_nxt);
            ASSERT_EQ(c.t.rcv.nxt.v, start.rcv_nxt);
            c.t.ack.quick = 16;  // acknowledges text at once
            c.t.ack.pingpong = false;
            c.recv({start.rcv_nxt + uint32_t(row.seq), start.snd_nxt + uint32_t(row.ack), row.flags,
                    row.text});
            EXPECT_STREQ(state_name(c.t.state), state_name(row.state[i]));
            const auto sent = c.pull_all();
            const Reply reply = row.reply[i];
            EXPECT_FALSE(c.last.has_reply);
            if (reply == Reply::none) {
                EXPECT_EQ(sent.size(), 0u);
            } else {
                ASSERT_EQ(sent.size(), 1u);
                EXPECT_EQ(sent[0].flags, kAck);
                EXPECT_EQ(sent[0].seq, start.snd_nxt);
                EXPECT_EQ(sent[0].ack, c.t.rcv.nxt.v);
                EXPECT_EQ(sent[0].text, "");
            }
        }
    }
}

TEST(SegmentTable, RefusedSegmentsChangeNothing) {
    // Text that comes with an unacceptable ACK is not taken.
    Conn c;
    c.established();
    const Verdict v = c.recv({5001, 1002, kAck, "text"});
    EXPECT_EQ(v, Verdict::reply(DropReason::tcp_ack_range));
    EXPECT_EQ(c.t.rcv.nxt.v, 5001u);
    EXPECT_EQ(c.t.in.bytes, 0u);
    EXPECT_EQ(c.seen & kReadable, 0u);
}

TEST(SegmentTable, ResetErrors) {
    struct {
        Prepare setup;
        int error;
    } rows[] = {{nullptr, ECONNRESET},
                {&Conn::fin_wait_1, ECONNRESET},
                {&Conn::fin_wait_2, ECONNRESET},
                {&Conn::close_wait, EPIPE},
                {&Conn::closing, 0},
                {&Conn::last_ack, 0},
                {&Conn::syn_received, ECONNREFUSED}};
    for (auto& r : rows) {
        Conn c;
        if (r.setup)
            (c.*r.setup)();
        else
            c.established();
        const uint32_t nxt = c.t.rcv.nxt.v;
        EXPECT_EQ(c.recv({nxt, 0, kRst}), Verdict::drop(DropReason::tcp_reset));
        EXPECT_EQ(c.t.state, State::CLOSED);
        EXPECT_EQ(c.t.error, r.error);
        EXPECT_EQ((c.seen & kFailed) != 0, r.error != 0);
        EXPECT_TRUE(c.seen & kReleasable);
        EXPECT_TRUE(deadline(c.t).is_never());
        EXPECT_FALSE(c.pull());
    }
}

TEST(SegmentTable, ChallengeAcksAreLimited) {
    // RFC 5961 section 7.
    Conn c;
    c.established();
    unsigned answers = 0;
    for (int i = 0; i < 100; ++i) {
        c.recv({5001 + 10, 0, kRst});
        answers += unsigned(c.pull_all().size());
    }
    EXPECT_EQ(answers, 10u);
    c.now = c.now + Duration::millis(1001);
    c.recv({5011, 0, kRst});
    EXPECT_EQ(c.pull_all().size(), 1u);
}

TEST(SegmentTable, ClosedAnswersWithReset) {
    // RFC 9293 section 3.10.7.1.
    TcpWorld w;
    SegmentHead rst;
    EXPECT_FALSE(reset_for(in_seg(*w.pool, {10, 20, kRst}), rst));
    EXPECT_FALSE(reset_for(in_seg(*w.pool, {10, 20, kRst | kAck}), rst));
    ASSERT_TRUE(reset_for(in_seg(*w.pool, {10, 20, kAck, "abc"}), rst));
    EXPECT_EQ(rst.seq.v, 20u);
    EXPECT_EQ(rst.flags, kRst);
    ASSERT_TRUE(reset_for(in_seg(*w.pool, {10, 20, kSyn}), rst));
    EXPECT_EQ(rst.seq.v, 0u);
    EXPECT_EQ(rst.ack.v, 11u);
    EXPECT_EQ(rst.flags, kRst | kAck);
    Conn c;
    EXPECT_EQ(c.recv({10, 20, kAck, "abc"}).kind, Verdict::Reply);
    EXPECT_TRUE(c.last.has_reply);
    EXPECT_EQ(c.last.reply.flags, kRst);
}

TEST(SegmentTable, SequenceWrap) {
    // RFC 9293 section 3.4: numbers run through zero in both directions.
    Conn c;
    c.cfg.nodelay = true;
    OpenParams p = c.params(0xfffffffeu);
    connect(c.t, p, c.cfg, c.now);
    c.pull();
    c.recv({0xfffffff0u, 0xffffffffu, kSyn | kAck});
    ASSERT_EQ(c.t.state, State::ESTABLISHED);
    c.pull_all();
    EXPECT_EQ(c.send("abcdef"), 6u);
    auto out = c.pull_all();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].seq, 0xffffffffu);
    c.recv({0xfffffff1u, 5, kAck, std::string(40, 'x')});
    EXPECT_EQ(c.t.snd.una.v, 5u);
    EXPECT_EQ(c.t.rcv.nxt.v, 0x19u);
    EXPECT_EQ(c.receive(), std::string(40, 'x'));
    EXPECT_EQ(c.t.out.bytes, 0u);
}

TEST(SegmentTable, Paws) {
    // RFC 7323 section 5.3: R1 refuses an older stamp with an ACK, except a RST, which just goes.
    Conn c;
    c.cfg.timestamps = true;
    c.stamps = true;
    c.established();
    ASSERT_TRUE(c.t.ts.on);
    c.tsval = 200;
    c.recv({5001, 1001, kAck, "a"});
    EXPECT_EQ(c.t.ts.recent, 200u);
    c.pull_all();
    c.pass(Duration::seconds(2));
    c.tsval = 150;
    EXPECT_EQ(c.recv({5002, 1001, kAck, "b"}), Verdict::reply(DropReason::tcp_paws));
    EXPECT_EQ(c.t.rcv.nxt.v, 5002u);
    auto ack = c.pull_all();
    ASSERT_EQ(ack.size(), 1u);
    EXPECT_EQ(ack[0].ack, 5002u);
    EXPECT_EQ(c.recv({5002, 0, kRst}), Verdict::drop(DropReason::tcp_paws));
    EXPECT_EQ(c.t.state, State::ESTABLISHED);
    // The stamp wraps.
    c.tsval = 200 + 0x7fffffffu;
    EXPECT_EQ(c.recv({5002, 1001, kAck, "b"}).kind, Verdict::Continue);
    // After 24 days of silence any stamp is good.
    c.tsval = 100;
    c.now = c.now + Duration::seconds(25 * 24 * 3600);
    EXPECT_EQ(c.recv({5003, 1001, kAck, "c"}).kind, Verdict::Continue);
    // R3: a stamp of a segment ahead of Last.ACK.sent is not recorded.
    c.pull_all();
    const uint32_t recent = c.t.ts.recent;
    c.tsval = recent + 50;
    c.recv({5010, 1001, kAck, "z"});
    EXPECT_EQ(c.t.ts.recent, recent);
}

}  // namespace
}  // namespace vma::tcp
