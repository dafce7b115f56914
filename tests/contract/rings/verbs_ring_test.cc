// What only the verbs ring has: its settings, as they reach the device. The software HCA's station shows them.
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>

#include "dev/device_queues.h"
#include "device_ring.h"
#include "wait.h"

namespace vma::test {
namespace {

using VerbsRingTest = DeviceRingTest;

TEST_F(VerbsRingTest, queues_have_the_size_that_was_asked_for) {
    VerbsRingConfig c;
    c.rx_requests = 300;
    c.tx_requests = 200;
    c.max_inline = 128;
    open(c);
    EXPECT_EQ(qp(1).recv.capacity, 300u);
    EXPECT_EQ(qp(1).send_capacity, 200u);
    EXPECT_EQ(qp(1).send_inline, 128u);
}

TEST_F(VerbsRingTest, queues_have_room_for_two_batches) {
    VerbsRingConfig c;
    c.rx_requests = c.tx_requests = 1;
    c.rx_batching = 100;
    c.tx_batching = 32;
    open(c);
    EXPECT_EQ(qp(1).recv.capacity, 200u);
    EXPECT_EQ(qp(1).send_capacity, 64u);
}

TEST_F(VerbsRingTest, receive_requests_are_posted_in_batches) {
    VerbsRingConfig c;
    c.rx_requests = 64;
    c.rx_batching = 8;
    open(c);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    EXPECT_EQ(qp(1).recv.tail.load(), 64u);
    send(17);
    for (unsigned taken = 1; taken <= 17; ++taken) {
        receive_one();
        // The buffer of the packet just taken is free at the next look only.
        EXPECT_EQ(qp(1).recv.tail.load(), 64 + (taken - 1) / 8 * 8) << taken;
    }
}

TEST_F(VerbsRingTest, a_look_takes_so_many_completions) {
    for (const bool stamps : {false, true}) {
        SCOPED_TRACE(stamps ? "stamped" : "plain");
        VerbsRingConfig c;
        c.poll_batch = 4;
        c.stamps = stamps;
        open(c);
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
        send(9);
        for (const uint32_t taken : {4u, 4u, 4u, 4u, 8u}) {
            receive_one();
            EXPECT_EQ(qp(1).recv.head.load(), taken);
        }
    }
}

TEST_F(VerbsRingTest, what_the_pool_has_no_packet_for_is_dropped_if_asked) {
    for (const bool drop : {false, true}) {
        VerbsRingConfig c;
        c.drop_without_packet = drop;
        open(c);
        Ring& ring = *pair->ring[1];
        pair->pools[1].pool.set_limits({4, UINT64_MAX});
        ASSERT_TRUE(ring.steer(pair->flow(7000)));
        send(10);
        {
            Packet first[16];
            EXPECT_EQ(ring.recv(first), 4u);
            EXPECT_EQ(ring.recv({first + 4, 12}), 0u);
            EXPECT_EQ(ring.counters().drops.n[unsigned(DropReason::no_buffer)], drop ? 6u : 0u);
        }
        Packet rest[16];
        EXPECT_EQ(ring.recv({rest, 4}), drop ? 0u : 4u);
        send(1);
        EXPECT_EQ(ring.recv({rest + 4, 12}), drop ? 1u : 0u);
        for (Packet& p : rest) p.reset();
        EXPECT_EQ(ring.recv(rest), drop ? 0u : 3u);
        for (Packet& p : rest) p.reset();
    }
}

TEST_F(VerbsRingTest, frames_have_the_times_of_the_devices_counter) {
    VerbsRingConfig c;
    c.stamps = true;
    open(c);
    Ring& ring = *pair->ring[1];
    EXPECT_EQ(ring.caps().counter_hz, 1'000'000'000u);
    EXPECT_EQ(ring.caps().counter_mask, UINT64_MAX);
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
        EXPECT_TRUE(p[0]->meta.checksum_good);
        last = stamp;
    }
}

TEST_F(VerbsRingTest, no_times_where_nobody_wants_them) {
    open({});
    EXPECT_EQ(pair->ring[1]->caps().counter_hz, 0u);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    send(1);
    Packet p[1];
    ASSERT_EQ(pair->ring[1]->recv(p), 1u);
    EXPECT_EQ(p[0]->meta.hw_time_ns, 0);
}

TEST_F(VerbsRingTest, sends_complete_in_batches) {
    VerbsRingConfig c;
    c.tx_batching = 16;
    open(c);
    const softhca::CqShared& cq = station[0]->cqs[qp(0).send_cq];
    send(15);
    EXPECT_EQ(cq.tail.load(), 0u);
    send(33);
    EXPECT_EQ(cq.tail.load(), 3u);
}

TEST_F(VerbsRingTest, wake_ups_are_moderated_only_when_asked) {
    open({});
    EXPECT_EQ(station[1]->cqs[qp(1).recv_cq].moderation_count, 0u);
    VerbsRingConfig c;
    c.moderation = {7, 33};
    open(c);
    EXPECT_EQ(station[1]->cqs[qp(1).recv_cq].moderation_count, 7u);
    EXPECT_EQ(station[1]->cqs[qp(1).recv_cq].moderation_period, 33u);
    EXPECT_EQ(station[1]->cqs[qp(1).send_cq].moderation_count, 0u);
}

TEST_F(VerbsRingTest, a_program_moderates_wake_ups) {
    VerbsRingConfig c;
    c.adaptive = {Duration::millis(10), 100, 250, 1000};
    open(c);
    const auto& cq = station[1]->cqs[qp(1).recv_cq];
    ASSERT_TRUE(pair->ring[1]->queues()->moderate(9, 44));
    EXPECT_EQ(cq.moderation_count, 9u);
    EXPECT_EQ(cq.moderation_period, 44u);
    pair->ring[1]->adapt(Duration::millis(10));
    EXPECT_EQ(cq.moderation_count, 9u) << "what it falls back to when nothing comes";
}

// As long as the program's memory is registered the device may reach it, and as often as it was registered.
TEST_F(VerbsRingTest, memory_of_the_program_is_counted) {
    open({});
    DeviceQueues& queues = *pair->ring[1]->queues();
    const auto regions = [&] {
        unsigned n = 0;
        for (const auto& mr : station[1]->mrs) n += mr.key.load() != 0;
        return n;
    };
    const unsigned before = regions();
    alignas(64) static uint8_t memory[8192];
    uint32_t key = 0, again = 0, other = 0;
    ASSERT_TRUE(queues.register_memory(memory, 4096, &key));
    ASSERT_TRUE(queues.register_memory(memory, 4096, &again));
    ASSERT_TRUE(queues.register_memory(memory + 4096, 4096, &other));
    EXPECT_NE(key, 0u);
    EXPECT_EQ(again, key);
    EXPECT_NE(other, key);
    EXPECT_EQ(regions(), before + 2);
    EXPECT_TRUE(queues.deregister_memory(memory, 4096));
    EXPECT_EQ(regions(), before + 2);
    EXPECT_TRUE(queues.deregister_memory(memory, 4096));
    EXPECT_EQ(regions(), before + 1);
    EXPECT_EQ(queues.deregister_memory(memory, 4096).error(), ENOENT);
    EXPECT_EQ(queues.deregister_memory(memory, 8192).error(), ENOENT) << "other bounds";
}

// What the program posts to queues of its own is sent from its own memory; nobody else posts to them or polls them.
TEST_F(VerbsRingTest, a_program_sends_by_queues_of_its_own) {
    VerbsRingConfig c;
    c.tx_requests = 200;
    open(c);
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    DeviceQueues& rings = *pair->ring[0]->queues();
    EXPECT_EQ(rings.program_queues(), nullptr);
    const softhca::QpShared& of_ring = qp(0);
    const auto opened = rings.open_program_queues();
    ASSERT_TRUE(opened) << opened.error();
    DeviceQueues& queues = **opened;
    EXPECT_EQ(*rings.open_program_queues(), &queues) << "there is one pair of them";
    EXPECT_EQ(rings.program_queues(), &queues);
    EXPECT_EQ(queues.open_program_queues().error(), EOPNOTSUPP);
    EXPECT_NE(queues.wake_fd(), rings.wake_fd());
    int said = -1;
    EXPECT_EQ(rings.arm(&said).error(), EOPNOTSUPP) << "the library does that";

    softhca::QpShared* own = nullptr;
    for (softhca::QpShared& q : station[0]->qps)
        if (q.use == softhca::QpUse::raw && &q != &of_ring) own = &q;
    ASSERT_NE(own, nullptr);
    EXPECT_EQ(own->send_capacity, 200u);
    EXPECT_EQ(own->send_inline, 0u);
    EXPECT_EQ(own->recv.capacity, 0u);
    EXPECT_EQ(own->state.load(), IBV_QPS_RTS);

    Frame frame = build_frame(pair->spec(1000, 7000));
    uint32_t key = 0;
    ASSERT_TRUE(queues.register_memory(frame.bytes.data(), frame.bytes.size(), &key));
    auto* const pair_of_queues = reinterpret_cast<ibv_qp*>(own->cookie);
    const auto post = [&] {
        ibv_sge piece{uint64_t(frame.bytes.data()), uint32_t(frame.bytes.size()), key};
        ibv_send_wr request{}, *bad = nullptr;
        request.sg_list = &piece;
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED;
        return ibv_post_send(pair_of_queues, &request, &bad);
    };
    const auto rings_within = [&](int ms) {
        pollfd bell{queues.wake_fd(), POLLIN, 0};
        return poll(&bell, 1, ms) == 1;
    };
    const uint32_t posted = of_ring.posted.load();
    ASSERT_EQ(post(), 0);
    EXPECT_FALSE(rings_within(0)) << "nobody asked for it";
    EXPECT_EQ(receive(*pair->ring[1], 1).size(), 1u);
    ASSERT_TRUE(queues.arm(&said));
    EXPECT_EQ(said, 0);
    ASSERT_EQ(post(), 0);
    EXPECT_TRUE(rings_within(10000));
    ASSERT_TRUE(queues.arm(&said));
    EXPECT_FALSE(rings_within(0)) << "what it has told is taken back";
    Packet none[1];
    EXPECT_EQ(pair->ring[0]->recv(none), 0u);
    ibv_wc done[3];
    EXPECT_EQ(ibv_poll_cq(pair_of_queues->send_cq, 3, done), 2) << "they are the program's";
    EXPECT_EQ(done[1].status, IBV_WC_SUCCESS);
    EXPECT_EQ(of_ring.posted.load(), posted);

    ASSERT_TRUE(queues.moderate(5, 50));
    EXPECT_EQ(station[0]->cqs[own->send_cq].moderation_count, 5u);
    EXPECT_EQ(station[0]->cqs[of_ring.recv_cq].moderation_count, 0u);
    const DeviceFacts facts = queues.facts();
    EXPECT_EQ(facts.part_id, 0x5348u);
    EXPECT_FALSE(facts.has_queues);
}

TEST_F(VerbsRingTest, where_queues_are_is_not_known_of_other_devices) {
    open({});
    const DeviceFacts facts = pair->ring[1]->queues()->facts();
    EXPECT_EQ(facts.part_id, 0x5348u);
    EXPECT_FALSE(facts.has_queues);
}

TEST_F(VerbsRingTest, moderation_follows_the_traffic) {
    VerbsRingConfig c;
    c.moderation = {7, 33};
    c.adaptive = {Duration::millis(10), 100, 250, 1000};
    open(c);
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    const auto& cq = station[1]->cqs[qp(1).recv_cq];
    const auto after = [&](unsigned frames, uint32_t payload) {
        for (unsigned i = 0; i < frames; ++i) {
            Frame f = build_frame(pair->spec(1000, 7000, payload));
            const TxFrame frame[] = {f.plain()};
            int why = 0;
            EXPECT_EQ(pair->ring[0]->send(frame, &why), 1u) << why;
        }
        for (unsigned i = 0; i < frames; ++i) receive_one();
        ring.adapt(Duration::millis(10));
        return std::pair<unsigned, unsigned>(cq.moderation_count, cq.moderation_period);
    };
    using Both = std::pair<unsigned, unsigned>;
    EXPECT_EQ(after(100, 1400), Both(10, 250)) << "10 000 a second; 900 us are too long";
    EXPECT_EQ(after(100, 18), Both(0, 0)) << "small and not many";
    EXPECT_EQ(after(0, 0), Both(7, 33)) << "as it was set";
}

TEST_F(VerbsRingTest, connected_flows_share_the_rule_of_their_local_end) {
    VerbsRingConfig c;
    c.udp_by_local = true;
    open(c);
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000, 1000)));
    ASSERT_TRUE(ring.steer(pair->flow(7000, 1001)));
    EXPECT_EQ(ring.steer(pair->flow(7000, 1001)).error(), EEXIST);
    EXPECT_EQ(rules(1), 1u);
    ASSERT_TRUE(ring.steer(pair->flow(7000, 1000, IPPROTO_TCP)));
    ASSERT_TRUE(ring.steer(pair->flow(7000, 1001, IPPROTO_TCP)));
    EXPECT_EQ(rules(1), 3u) << "TCP was not asked for";
    ring.unsteer(pair->flow(7000, 1000));
    send(1);  // from port 1000, whose own flow has left
    receive_one();
    ring.unsteer(pair->flow(7000, 1001));
    EXPECT_EQ(rules(1), 2u);
}

TEST_F(VerbsRingTest, a_receive_in_error_costs_what_was_on_its_way) {
    for (const bool stamps : {false, true}) {
        SCOPED_TRACE(stamps ? "stamped" : "plain");
        VerbsRingConfig c;
        c.stamps = stamps;
        open(c);
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
        for (const char* status : {"1", "4", "5", "21"}) {
            inject("b", {"error", "recv", status});
            send(1);
            EXPECT_EQ(received(), 0u);
            send(3);  // lost: the queue pair is in error
            EXPECT_EQ(received(), 0u);
            send(3);
            EXPECT_EQ(received(), 3u) << status;
        }
        EXPECT_EQ(rules(1), 1u);
    }
}

TEST_F(VerbsRingTest, a_send_in_error_is_noticed_by_who_receives) {
    open({});
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    inject("a", {"error", "send"});
    send(2);
    EXPECT_EQ(received(), 0u);
    Packet none[1];
    EXPECT_EQ(pair->ring[0]->recv(none), 0u);  // the receive requests have been flushed
    EXPECT_EQ(pair->ring[0]->recv(none), 0u);
    send(2);
    EXPECT_EQ(received(), 2u);
}

TEST_F(VerbsRingTest, buffers_that_are_lent_stay_as_they_are_while_the_queue_starts_again) {
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
        inject("b", fault);
        send(1);
        for (int looks = 0; looks < 3; ++looks) EXPECT_EQ(received(), 0u);
        for (int round = 0; round < 100; ++round) {
            Frame f = build_frame(pair->spec(1000, 7000, 100));
            const TxFrame frames[] = {f.plain()};
            int why = 0;
            ASSERT_EQ(pair->ring[0]->send(frames, &why), 1u);
            ASSERT_EQ(received(), 1u) << fault[0] << " " << round;
        }
        EXPECT_EQ(std::vector<uint8_t>(held[0]->data, held[0]->data + held[0]->len), before);
    }
}

TEST_F(VerbsRingTest, queues_that_have_overrun_are_replaced) {
    for (const bool stamps : {false, true}) {
        SCOPED_TRACE(stamps ? "stamped" : "plain");
        VerbsRingConfig c;
        c.stamps = stamps;
        c.moderation = {7, 33};
        open(c);
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
        ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7001, 9)));
        inject("b", {"overrun", "recv"});
        EXPECT_EQ(received(), 0u);
        EXPECT_EQ(received(), 0u);
        EXPECT_FALSE(pair->ring[1]->lost());
        send(3);
        EXPECT_EQ(received(), 3u);
        EXPECT_EQ(rules(1), 2u);
        const softhca::CqShared& cq = station[1]->cqs[qp(1).recv_cq];
        EXPECT_EQ(cq.moderation_count, 7u);
        inject("a", {"overrun", "send"});
        send(300);  // its completions are looked for now and then only
        EXPECT_FALSE(pair->ring[0]->lost());
        unsigned n = 0;
        while (received() != 0) ++n;
        send(3);
        EXPECT_EQ(received(), 3u) << n;
    }
}

TEST_F(VerbsRingTest, who_sleeps_is_woken_after_an_overrun_too) {
    open({});
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    ASSERT_TRUE(ring.arm());
    EXPECT_FALSE(ring.has_news());
    inject("b", {"overrun", "recv"});
    ASSERT_TRUE(ring.has_news());
    ring.tend();
    EXPECT_FALSE(ring.has_news());
    EXPECT_FALSE(is_woken());
    send(1);
    EXPECT_TRUE(is_woken());
    ring.disarm();
    EXPECT_EQ(received(), 1u);
}

TEST_F(VerbsRingTest, a_port_that_goes_down_and_comes_up_needs_nothing) {
    open({});
    ASSERT_TRUE(pair->ring[1]->steer(pair->flow(7000)));
    inject("b", {"down"});
    ASSERT_TRUE(pair->ring[1]->has_news());
    pair->ring[1]->tend();
    send(2);
    EXPECT_EQ(received(), 0u);
    inject("b", {"up"});
    send(2);
    EXPECT_EQ(received(), 2u);
    EXPECT_FALSE(pair->ring[1]->lost());
}

TEST_F(VerbsRingTest, a_lost_device_is_told_and_refuses) {
    open({});
    Ring& ring = *pair->ring[1];
    ASSERT_TRUE(ring.steer(pair->flow(7000)));
    ASSERT_TRUE(ring.arm());
    inject("b", {"fatal"});
    EXPECT_TRUE(is_woken());
    ring.disarm();
    EXPECT_EQ(received(), 0u);
    EXPECT_EQ(received(), 0u);
    EXPECT_TRUE(ring.lost());
    EXPECT_TRUE(ring.arm()) << "nothing to look for";
    ring.disarm();
    Frame f = build_frame(pair->spec(1000, 7000));
    const TxFrame frames[] = {f.plain()};
    int why = 0;
    EXPECT_EQ(ring.send(frames, &why), 0u);
    EXPECT_EQ(why, ENETDOWN);
    EXPECT_FALSE(ring.steer(pair->flow(7001)));
    ring.unsteer(pair->flow(7000));
    EXPECT_EQ(rules(1), 0u);
}

}  // namespace
}  // namespace vma::test
