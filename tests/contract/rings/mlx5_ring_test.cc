// What only the mlx5 ring has: entries that it writes itself. The devices are strict about them (docs/SOFTHCA.md), so what is wrong
// in one ends in an error, not in a frame that differs.
#include <netinet/in.h>

#include "dev/device_queues.h"
#include "dev/mlx5/library.h"
#include "device_ring.h"
#include "wait.h"

namespace vma::test {
namespace {

class Mlx5RingTest : public DeviceRingTest {
  protected:
    void open(VerbsRingConfig config = {}) {
        config.mlx5 = true;
        DeviceRingTest::open(config);
    }
    ibv_qp* verbs_qp(int side) { return reinterpret_cast<ibv_qp*>(qp(side).cookie); }
    mlx5dv_qp queue(int side) {
        mlx5dv_qp shown{};
        EXPECT_TRUE(Mlx5Library::get()->show(verbs_qp(side), &shown));
        return shown;
    }
    mlx5dv_cq completions(ibv_cq* cq) {
        mlx5dv_cq shown{};
        EXPECT_TRUE(Mlx5Library::get()->show(cq, &shown));
        return shown;
    }
    // Of a queue's entries, those that the device has ever written.
    unsigned written(ibv_cq* cq) {
        const mlx5dv_cq shown = completions(cq);
        unsigned n = 0;
        for (uint32_t i = 0; i < shown.cqe_cnt; ++i)
            n += static_cast<mlx5_cqe64*>(shown.buf)[i].op_own >> 4 != MLX5_CQE_INVALID;
        return n;
    }
    void expect_one(const Frame& f) {
        Packet p[1];
        ASSERT_EQ(pair->ring[1]->recv(p), 1u);
        EXPECT_TRUE(same_frame(p[0]->view(), f));
    }
};

TEST_F(Mlx5RingTest, other_devices_are_refused) {
    open();
    VerbsRingConfig c;
    c.mlx5 = true;
    c.ifindex = VerbsPair::kFirstInterface;
    c.arena = pair->pools[0].arena.get();
    c.pool = &pair->pools[0].pool;
    std::string why;
    const auto opened = open_verbs_ring(c, &why);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error(), EOPNOTSUPP);
    EXPECT_EQ(why, "the RDMA device of this interface is no mlx5 device");
}

// Long enough for every counter to wrap: blocks and entries are counted in 16 bits, and requests of one to four blocks go on at the
// start of a queue of 256.
TEST_F(Mlx5RingTest, queues_wrap_with_frames_of_every_size) {
    VerbsRingConfig c;
    c.rx_requests = 64;
    c.rx_batching = 8;
    c.tx_requests = 64;
    c.tx_batching = 8;
    open(c);
    ASSERT_LE(queue(0).sq.wqe_cnt, 256u);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    for (uint32_t i = 0; i < 70000; ++i) {
        FrameSpec s = pair->spec(1000, 7000, i * 7 % 260);
        s.seed = i;
        s.finished = i & 1;
        Frame f = build_frame(s);
        const TxFrame frame[] = {f.plain(!s.finished)};
        int why = 0;
        ASSERT_EQ(pair->ring[0]->send(frame, &why), 1u) << i << " " << why;
        expect_one(f);
        ASSERT_FALSE(HasFailure()) << i;
    }
}

TEST_F(Mlx5RingTest, a_frame_is_inside_its_request_up_to_the_limit) {
    for (const uint32_t limit : {0u, 18u, 60u, 204u, 884u}) {
        SCOPED_TRACE(limit);
        VerbsRingConfig c;
        c.max_inline = limit;
        c.tx_requests = 512;
        open(c);
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
        const mlx5dv_qp q = queue(0);
        uint16_t at = 0;
        for (const uint32_t bytes : {42u, 60u, 61u, 204u, 205u, 884u, 885u}) {
            Frame f = build_frame(pair->spec(1000, 7000, bytes - 42));
            const TxFrame frame[] = {f.plain()};
            int why = 0;
            ASSERT_EQ(pair->ring[0]->send(frame, &why), 1u) << why;
            const auto* request = static_cast<const uint8_t*>(q.sq.buf) + at * 64u;
            const uint32_t segments = load_be32(request + 4) & 0x3f;
            const bool inlined = (load_be32(request + 48) & MLX5_INLINE_SEG) != 0;
            EXPECT_EQ(inlined, bytes <= limit) << bytes;
            EXPECT_EQ(segments, bytes <= limit ? 3 + (4 + bytes - 18 + 15) / 16 : 4) << bytes;
            at = uint16_t(at + (segments + 3) / 4);
            expect_one(f);
        }
    }
}

// What went with the doorbell is left in the page behind the eight bytes that the device takes.
TEST_F(Mlx5RingTest, small_frames_go_with_the_doorbell_if_asked) {
    for (const bool blueflame : {true, false}) {
        SCOPED_TRACE(blueflame);
        VerbsRingConfig c;
        c.blueflame = blueflame;
        open(c);
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
        const mlx5dv_qp q = queue(0);
        const auto* const page = static_cast<const uint8_t*>(q.bf.reg);
        const auto* const queue = static_cast<const uint8_t*>(q.sq.buf);
        const uint8_t zeros[192] = {};
        send(1, 64);  // 42 + 64 bytes: three blocks
        EXPECT_EQ(std::memcmp(page + 8, blueflame ? queue + 8 : zeros, 192 - 8), 0);
        send(1, 500);
        EXPECT_EQ(std::memcmp(page + q.bf.size + 8, zeros, 56), 0) << "not inside its request";
        EXPECT_EQ(received(), 2u);
    }
}

TEST_F(Mlx5RingTest, frames_that_are_sent_together_ring_once) {
    open();
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    Frame f[4];
    TxFrame frames[4];
    for (int i = 0; i < 4; ++i) {
        f[i] = build_frame(pair->spec(1000, 7000, 30 + uint32_t(i)));
        frames[i] = f[i].plain();
    }
    const uint64_t before = Kicked::count();
    int why = 0;
    ASSERT_EQ(pair->ring[0]->send(frames, &why), 4u);
    EXPECT_EQ(Kicked::count(), before + 1);
    for (const Frame& one : f) expect_one(one);
}

TEST_F(Mlx5RingTest, completions_are_asked_for_in_batches) {
    VerbsRingConfig c;
    c.tx_batching = 16;
    open(c);
    send(15);
    EXPECT_EQ(written(verbs_qp(0)->send_cq), 0u);
    send(33);
    EXPECT_EQ(written(verbs_qp(0)->send_cq), 3u);
}

TEST_F(Mlx5RingTest, receive_requests_are_posted_in_batches) {
    VerbsRingConfig c;
    c.rx_requests = 64;
    c.rx_batching = 8;
    open(c);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    const mlx5dv_qp q = queue(1);
    EXPECT_EQ(load_be32(q.dbrec + MLX5_RCV_DBR), 64u);
    send(17);
    for (unsigned taken = 1; taken <= 17; ++taken) {
        receive_one();
        // The buffer of the packet just taken is free at the next look only.
        EXPECT_EQ(load_be32(q.dbrec + MLX5_RCV_DBR), 64 + (taken - 1) / 8 * 8) << taken;
    }
}

TEST_F(Mlx5RingTest, frames_have_the_times_of_the_devices_counter) {
    VerbsRingConfig c;
    c.stamps = true;
    open(c);
    Ring& ring = *pair->ring[1];
    EXPECT_EQ(ring.caps().counter_hz, 1'000'000'000u);
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    uint64_t last, end;
    ASSERT_TRUE(ring.read_counter(&last));
    for (int i = 0; i < 3; ++i) {
        send(1);
        Packet p[1];
        ASSERT_EQ(ring.recv(p), 1u);
        ASSERT_TRUE(ring.read_counter(&end));
        const auto stamp = uint64_t(p[0]->meta.hw_time_ns);
        EXPECT_GE(stamp, last);
        EXPECT_LE(stamp, end);
        last = stamp;
    }
}

TEST_F(Mlx5RingTest, no_times_where_nobody_wants_them) {
    open();
    EXPECT_EQ(pair->ring[1]->caps().counter_hz, 0u);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    send(1);
    Packet p[1];
    ASSERT_EQ(pair->ring[1]->recv(p), 1u);
    EXPECT_EQ(p[0]->meta.hw_time_ns, 0);
}

TEST_F(Mlx5RingTest, an_error_costs_what_was_on_its_way) {
    open();
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    for (const char* status : {"1", "4", "5", "21"}) {
        inject("d", {"error", "recv", status});
        send(1);
        EXPECT_EQ(received(), 0u);
        send(3);
        EXPECT_LE(received(), 3u);  // the ring may have started again by then
        send(3);
        EXPECT_EQ(received(), 3u) << status;
        inject("c", {"error", "send", status});
        send(2);
        EXPECT_EQ(received(), 0u);
        Packet none[1];
        EXPECT_EQ(pair->ring[0]->recv(none), 0u);
        EXPECT_EQ(pair->ring[0]->recv(none), 0u);
        send(2);
        EXPECT_EQ(received(), 2u) << status;
    }
    EXPECT_EQ(rules(1), 1u);
    EXPECT_FALSE(pair->ring[0]->lost() || pair->ring[1]->lost());
}

TEST_F(Mlx5RingTest, buffers_that_are_lent_stay_as_they_are_while_the_queue_starts_again) {
    VerbsRingConfig c;
    c.rx_requests = 64;
    c.rx_batching = 8;
    open(c);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    send(1);
    Packet held[1];
    ASSERT_EQ(pair->ring[1]->recv(held), 1u);
    const std::vector<uint8_t> before(held[0]->data, held[0]->data + held[0]->len);
    for (const std::vector<std::string>& fault :
         {std::vector<std::string>{"error", "recv"}, {"overrun", "recv"}}) {
        inject("d", fault);
        send(1);
        pair->ring[1]->tend();
        for (int looks = 0; looks < 3; ++looks) EXPECT_EQ(received(), 0u);
        for (int round = 0; round < 100; ++round) {
            send(1, 100);
            ASSERT_EQ(received(), 1u) << fault[0] << " " << round;
        }
        EXPECT_EQ(std::vector<uint8_t>(held[0]->data, held[0]->data + held[0]->len), before);
    }
}

TEST_F(Mlx5RingTest, queues_that_have_overrun_are_replaced_when_the_device_tells) {
    open();
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    ASSERT_TRUE(ring.arm());
    inject("d", {"overrun", "recv"});
    ASSERT_TRUE(ring.has_news());
    ring.tend();
    EXPECT_FALSE(ring.has_news());
    EXPECT_FALSE(ring.lost());
    EXPECT_FALSE(is_woken());
    send(1);
    EXPECT_TRUE(is_woken()) << "who sleeps hears from the new queue";
    ring.disarm();
    EXPECT_EQ(received(), 1u);
    EXPECT_EQ(rules(1), 1u);
    inject("c", {"overrun", "send"});
    ASSERT_TRUE(pair->ring[0]->has_news());
    pair->ring[0]->tend();
    send(300);
    EXPECT_EQ(received(), 64u);
    EXPECT_FALSE(pair->ring[0]->lost());
}

TEST_F(Mlx5RingTest, a_lost_device_is_told_and_refuses) {
    open();
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    inject("d", {"fatal"});
    EXPECT_EQ(received(), 0u);
    EXPECT_EQ(received(), 0u);
    EXPECT_TRUE(ring.lost());
    Frame f = build_frame(pair->spec(1000, 7000));
    const TxFrame frames[] = {f.plain()};
    int why = 0;
    EXPECT_EQ(ring.send(frames, &why), 0u);
    EXPECT_EQ(why, ENETDOWN);
    ring.unsteer(pair->flow(7000));
    EXPECT_EQ(rules(1), 0u);
}

TEST_F(Mlx5RingTest, a_program_is_told_where_the_queues_are) {
    open();
    DeviceQueues& queues = *pair->ring[1]->queues();
    const DeviceFacts facts = queues.facts();
    ASSERT_TRUE(facts.has_queues && facts.has_receive);
    const mlx5dv_qp q = queue(1);
    const mlx5dv_cq sends = completions(verbs_qp(1)->send_cq);
    const mlx5dv_cq receives = completions(verbs_qp(1)->recv_cq);
    EXPECT_EQ(facts.send_number, verbs_qp(1)->qp_num);
    EXPECT_EQ(facts.send.buf, q.sq.buf);
    EXPECT_EQ(facts.send.entries, q.sq.wqe_cnt);
    EXPECT_EQ(facts.send.stride, q.sq.stride);
    EXPECT_EQ(facts.send.doorbell, q.dbrec + MLX5_SND_DBR);
    EXPECT_EQ(facts.receive.buf, q.rq.buf);
    EXPECT_EQ(facts.receive.entries, q.rq.wqe_cnt);
    EXPECT_EQ(facts.receive.stride, q.rq.stride);
    EXPECT_EQ(facts.receive.doorbell, q.dbrec + MLX5_RCV_DBR);
    EXPECT_EQ(facts.blueflame, q.bf.reg);
    EXPECT_EQ(facts.blueflame_bytes, q.bf.size);
    EXPECT_EQ(facts.send.completions.number, sends.cqn);
    EXPECT_EQ(facts.send.completions.buf, sends.buf);
    EXPECT_EQ(facts.receive.completions.number, receives.cqn);
    EXPECT_EQ(facts.receive.completions.buf, receives.buf);
    EXPECT_EQ(facts.receive.completions.entries, receives.cqe_cnt);
    EXPECT_EQ(facts.receive.completions.entry_bytes, 64u);
    EXPECT_EQ(facts.receive.completions.doorbell, receives.dbrec);
    EXPECT_EQ(facts.receive.completions.uar, receives.cq_uar);
    const auto own = queues.open_program_queues();
    ASSERT_TRUE(own);
    const DeviceFacts sending = (*own)->facts();
    ASSERT_TRUE(sending.has_queues);
    EXPECT_NE(sending.send_number, facts.send_number);
    EXPECT_FALSE(sending.has_receive);
    EXPECT_EQ(sending.receive.buf, nullptr);
}

}  // namespace
}  // namespace vma::test
