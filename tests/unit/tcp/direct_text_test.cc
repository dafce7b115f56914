// Text past the segments: two ends on a path that loses and reorders nothing, where some of the text goes so and the rest, with
// all that is not text, in segments.
#include <deque>

#include "stack/tcp/snapshot.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

struct End : Conn {
    // What is on its way here, in order.
    struct Item {
        bool direct = false;
        Seg seg;
    };
    std::deque<Item> path;
    std::string read_so_far;
    uint64_t direct_sent = 0, segments_sent = 0;
};

struct Pair {
    End end[2];
    explicit Pair(uint32_t buffer) {
        for (int i = 0; i < 2; ++i) {
            End& e = end[i];
            e.cfg.receive_buffer = e.cfg.receive_buffer_max = buffer;
            e.cfg.mss = 65495;
            e.cfg.send_buffer = e.cfg.send_buffer_max = 4 << 20;
            Snapshot s;
            s.local = {IpAddr::v4(10, 0, 0, uint8_t(1 + i)), 4000};
            s.remote = {IpAddr::v4(10, 0, 0, uint8_t(2 - i)), 4000};
            s.state = State::ESTABLISHED;
            s.snd_una = s.snd_nxt = s.snd_end = Seq{i ? 5000u : 1000u};
            s.rcv_nxt = s.rcv_wup = Seq{i ? 1000u : 5000u};
            s.snd_wl1 = s.rcv_nxt - 1;
            s.snd_wnd = s.max_window = s.rcv_wnd = std::min(buffer, 256u * 1024);
            s.peer_mss = 65495;
            s.scaling = true;
            s.snd_wscale = s.rcv_wscale = 7;
            EXPECT_TRUE(
                import_snapshot(e.t, s, {}, {}, e.cfg, *e.world.memory, *e.world.pool, e.now));
        }
        flush();
    }
    // What either has to say is on its way.
    void flush() {
        for (int i = 0; i < 2; ++i)
            for (Seg& s : end[i].pull_all()) {
                end[i].segments_sent++;
                end[1 - i].path.push_back({false, std::move(s)});
            }
    }
    void send(int from, const std::string& text) {
        End& e = end[from];
        const uint32_t n = std::min<uint32_t>(direct_room(e.t), uint32_t(text.size()));
        if (n > 0) {
            Seg s;
            s.seq = e.t.snd.nxt.v;
            s.text = text.substr(0, n);
            end[1 - from].path.push_back({true, std::move(s)});
            sent_directly(e.t, n, e.now);
            e.direct_sent += n;
        }
        ASSERT_EQ(e.send(text.substr(n)), text.size() - n);
        flush();
    }
    void deliver(int to) {
        End& e = end[to];
        if (e.path.empty()) return;
        const End::Item item = std::move(e.path.front());
        e.path.pop_front();
        SegView v = in_seg(*e.world.pool, item.seg);
        if (item.direct) {
            EXPECT_EQ(direct_text_arrives(e.t, v, e.now, e.fresh()), Verdict::go_on());
        } else {
            renew_ack(e.t, v);
            const Verdict verdict = segment_arrives(e.t, v, e.now, e.fresh());
            // A probe is of an old number or beyond the window; what nobody delivered for long is repeated.
            if (!item.seg.probe && verdict.reason != DropReason::tcp_duplicate) {
                EXPECT_EQ(verdict.reason, DropReason::none) << int(verdict.reason);
            }
        }
        flush();
    }
    void read(int at, size_t most) {
        end[at].read_so_far += end[at].receive(most);
        flush();
    }
    void pass(Duration d) {
        for (End& e : end) {
            e.now = e.now + d;
            while (deadline(e.t) <= e.now) {
                deadline_reached(e.t, e.now, e.fresh());
                flush();
            }
        }
    }
    void settle() {
        for (int guard = 0; guard < 100000; ++guard) {
            bool any = false;
            for (int i = 0; i < 2; ++i) {
                any |= !end[i].path.empty() || unread_bytes(end[i].t) > 0 ||
                       unacked_bytes(end[i].t) > 0;
                deliver(i);
                read(i, 1 << 20);
            }
            if (!any) return;
            pass(Duration::millis(50));
        }
        ADD_FAILURE() << "it does not come to rest";
    }
};

TEST(DirectText, EveryByteInOrderWhateverGoesWhichWay) {
    uint64_t direct = 0, all = 0, segments = 0;
    for (uint64_t seed = 1; seed <= 120; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Pair p(seed % 3 == 0 ? 4096 : seed % 3 == 1 ? 70000 : 1 << 20);
        std::string sent[2];
        for (int step = 0; step < 600; ++step) {
            const int i = int(rng.below(2));
            switch (rng.below(6)) {
                case 0:
                case 1: {
                    std::string text(1 + rng.below(rng.chance(1, 10) ? 30000 : 300), ' ');
                    for (char& c : text) c = char('a' + rng.below(26));
                    if (unacked_bytes(p.end[i].t) > 100000) break;
                    sent[i] += text;
                    p.send(i, text);
                    break;
                }
                case 2:
                case 3:
                    p.deliver(i);
                    break;
                case 4:
                    p.read(i, 1 + rng.below(5000));
                    break;
                default:
                    p.pass(Duration::millis(rng.below(30)));
            }
            if (HasFatalFailure()) return;
        }
        p.settle();
        for (int i = 0; i < 2; ++i) {
            ASSERT_TRUE(p.end[i].read_so_far == sent[1 - i]);
            EXPECT_EQ(p.end[i].t.rcv.nxt, p.end[1 - i].t.snd.nxt);
            EXPECT_EQ(p.end[i].t.count.windows_shrunk, 0u);
            direct += p.end[i].direct_sent;
            all += sent[i].size();
            segments += p.end[i].segments_sent;
        }
        // Both say that they have no more, behind all of it.
        for (int i = 0; i < 2; ++i) shutdown_write(p.end[i].t, p.end[i].now, p.end[i].fresh());
        p.flush();
        p.settle();
        for (End& e : p.end) EXPECT_TRUE(at_eof(e.t));
    }
    EXPECT_GT(direct, all / 10) << "hardly any went past the segments";
    EXPECT_LT(direct, all) << "none went in segments";
    EXPECT_GT(segments, 1000u);
}

// Nobody acknowledges such text; windows are told, and no timer runs for it.
TEST(DirectText, CostsNoSegmentWhileTheWindowIsOpen) {
    Pair p(1 << 20);
    p.settle();
    const uint64_t before = p.end[0].segments_sent + p.end[1].segments_sent;
    for (int i = 0; i < 1000; ++i) {
        p.send(i % 2, "ping");
        p.deliver(1 - i % 2);
        p.read(1 - i % 2, 100);
    }
    EXPECT_EQ(p.end[0].direct_sent + p.end[1].direct_sent, 4000u);
    EXPECT_LE(p.end[0].segments_sent + p.end[1].segments_sent, before + 2);
    for (End& e : p.end) {
        EXPECT_EQ(e.t.timers.kind, Rtx::none);
        EXPECT_TRUE(e.t.timers.delack_at.is_never());
        EXPECT_EQ(unacked_bytes(e.t), 0u);
        EXPECT_EQ(numbers(e.t, e.now).unacked, 0u);
    }
}

// What segments keep up must not be left half the number space behind: it would then count as ahead.
class FarBeyond : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(DirectText, FarBeyond, testing::Values(3, 5));  // GiB
TEST_P(FarBeyond, SegmentsAreAsGoodAsBefore) {
    Pair p(1 << 20);
    const std::string text(60000, 'x');
    uint64_t done = 0;
    while (done < GetParam() << 30) {
        const uint32_t room = direct_room(p.end[0].t);
        if (room == 0) {
            p.settle();
            ASSERT_GT(direct_room(p.end[0].t), 0u) << done;
            continue;
        }
        const uint32_t n = std::min<uint32_t>(room, uint32_t(text.size()));
        while (!p.end[1].path.empty()) p.deliver(1);
        SegView v;
        v.seq = p.end[0].t.snd.nxt;
        v.payload_len = n;
        v.payload_offset = 8;
        v.packet = p.end[1].world.pool->take(8 + n);
        v.packet->len = 8 + n;
        sent_directly(p.end[0].t, n, p.end[0].now);
        ASSERT_EQ(direct_text_arrives(p.end[1].t, v, p.end[1].now, p.end[1].fresh()),
                  Verdict::go_on());
        done += n;
        consume(p.end[1].t, n, p.end[1].now, p.end[1].fresh());
        p.flush();
        p.deliver(0);
    }
    for (int i = 0; i < 2; ++i) p.end[i].cfg.cork = p.end[i].t.cfg.cork = true;
    p.send(0, std::string(300000, 'y'));
    p.send(1, std::string(2500000, 'z'));  // more than fits until somebody reads
    for (int i = 0; i < 2; ++i) p.end[i].t.cfg.cork = false;
    p.flush();
    while (!p.end[0].path.empty() || !p.end[1].path.empty()) p.deliver(0), p.deliver(1);
    EXPECT_GT(unread_bytes(p.end[0].t), 1000000u);
    p.settle();
    EXPECT_TRUE(p.end[0].read_so_far == std::string(2500000, 'z'));
    EXPECT_TRUE(p.end[1].read_so_far == std::string(300000, 'y'));
}

TEST(DirectText, OnlyPlainTextOfAnUndisturbedConnection) {
    const auto room = [](auto&& change) {
        Pair p(1 << 20);
        change(p.end[0].t);
        const uint32_t n = direct_room(p.end[0].t);
        p.end[0].t.cfg.messages = false;
        return n;
    };
    EXPECT_GT(room([](Tcb&) {}), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.cfg.cork = true; }), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.cfg.messages = true; }), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.cfg.pacing_rate = 1000; }), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.snd.urgent = true; }), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.snd.fin_queued = true; }), 0u);
    EXPECT_EQ(room([](Tcb& t) { t.snd.wnd = 0; }), 0u);
    EXPECT_EQ(room([](Tcb& t) {
                  Actions a;
                  write(t, "x", 1, Instant{1}, a);
              }),
              0u);
}

// A neighbour that sends beyond what it may, or what it has sent before, harms its own stream only.
TEST(DirectText, WhatDoesNotFitIsTreatedAsASegment) {
    Pair p(4096);
    End& e = p.end[1];
    const auto arrives = [&](Seq seq, size_t n) {
        Seg s;
        s.seq = seq.v;
        s.text = std::string(n, 'q');
        SegView v = in_seg(*e.world.pool, s);
        return direct_text_arrives(e.t, v, e.now, e.fresh());
    };
    const Seq at = e.t.rcv.nxt;
    arrives(at, 5000);
    EXPECT_EQ(unread_bytes(e.t), 4096u);
    EXPECT_EQ(arrives(at, 100).reason, DropReason::tcp_duplicate);
    EXPECT_EQ(unread_bytes(e.t), 4096u);
    e.receive();
    arrives(e.t.rcv.nxt + 1000, 100);
    EXPECT_EQ(unread_bytes(e.t), 0u);
    e.t.ooo.clear();
    close(e.t, e.now, e.fresh());  // nobody reads any more
    EXPECT_EQ(arrives(e.t.rcv.nxt, 10).reason, DropReason::tcp_closed_reader);
    EXPECT_EQ(e.t.state, State::CLOSED);
}

}  // namespace
}  // namespace vma::tcp
