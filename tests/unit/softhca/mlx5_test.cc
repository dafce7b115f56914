// Devices of kind mlx5 (mlx5/engine.h), driven by what is written to their queues and registers. At the other end is a device that
// is used by verbs.h.
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>

#include "mlx5_driver.h"
#include "softhca/raw/offload.h"

namespace softhca::test {
namespace {

using vma::load_be16;
using vma::load_be32;
using vma::store_be32;

using Mlx5 = Mlx5Bench;

TEST_F(Mlx5, OnlyItsKindShowsQueues) {
    open();
    EXPECT_TRUE(softhca_is_mlx5(a.context->device));
    EXPECT_FALSE(softhca_is_mlx5(b.context->device));
    mlx5dv_qp qp;
    mlx5dv_cq cq;
    EXPECT_EQ(softhca_show_qp(qb, &qp), EOPNOTSUPP);
    EXPECT_EQ(softhca_show_cq(b.cq, &cq), EOPNOTSUPP);
    ASSERT_EQ(softhca_show_qp(qa, &qp), 0);
    EXPECT_EQ(qp.sq.buf, d.queue.sq.buf) << "the same again";
    EXPECT_EQ(softhca_kick(b.context), 0u);
}

TEST_F(Mlx5, EveryWayToSayAFrame) {
    open();
    const Bytes bytes = frame();
    const auto part = [&](size_t from, size_t to) {
        return Bytes(bytes.begin() + long(from), bytes.begin() + long(to));
    };
    const uint32_t n = uint32_t(bytes.size());
    const Wqe ways[] = {
        Wqe().ethernet().pointer(whole(bytes)),
        Wqe().ethernet(part(0, 18)).pointer(a.sge(18, n - 18)),
        Wqe().ethernet(part(0, 1)).pointer(a.sge(1, n - 1)),
        Wqe().ethernet(part(0, 2)).inlined(part(2, n)),
        Wqe().ethernet(bytes),
        Wqe().ethernet().inlined(part(0, 12)).inlined(part(12, 13)).inlined(part(13, n)),
        Wqe()
            .ethernet(part(0, 14))
            .pointer(a.sge(14, 1))
            .inlined(part(15, 40))
            .pointer(a.sge(40, n - 40)),
    };
    unsigned at = 0;
    for (const Wqe& way : ways) {
        d.post(way);
        EXPECT_EQ(d.next(), sent(at));
        EXPECT_TRUE(arrived(bytes)) << at;
        at += unsigned((way.bytes.size() + 63) / 64);
    }
    EXPECT_EQ(d.next(), kNone);
}

TEST_F(Mlx5, ACompletionSaysWhatItIsOf) {
    open();
    const Bytes bytes = frame();
    d.post(Wqe(MLX5_OPCODE_NOP));
    d.post(Wqe().ethernet().pointer(whole(bytes)));
    EXPECT_EQ(d.next(), sent(0));
    const mlx5_cqe64* const cqe = d.peek();
    ASSERT_NE(cqe, nullptr);
    EXPECT_EQ(load_be16(&cqe->wqe_counter), 1u);
    EXPECT_EQ(load_be32(&cqe->byte_cnt), bytes.size());
    EXPECT_EQ(load_be32(&cqe->sop_drop_qpn), uint32_t(MLX5_OPCODE_SEND) << 24 | qa->qp_num);
    EXPECT_NE(be64toh(cqe->timestamp), 0u);
    d.consume();
    EXPECT_TRUE(arrived(bytes));
    EXPECT_FALSE(arrived(bytes)) << "a NOP sends nothing";
    d.post(Wqe(MLX5_OPCODE_SEND, 0).ethernet().pointer(whole(bytes)));
    EXPECT_EQ(d.next(), kNone) << "it was not asked for";
    EXPECT_TRUE(arrived(bytes));
}

TEST_F(Mlx5, NothingIsSentBeforeTheDoorbell) {
    open();
    const Bytes bytes = frame();
    d.put(Wqe().ethernet().pointer(whole(bytes)));
    d.record();
    EXPECT_EQ(d.next(), kNone);
    d.put(Wqe().ethernet().pointer(whole(bytes)));
    d.record();
    d.ring(d.block(d.last));  // for both
    EXPECT_EQ(d.next(), sent(0));
    EXPECT_EQ(d.next(), sent(1));
    EXPECT_TRUE(arrived(bytes));
    EXPECT_TRUE(arrived(bytes));
}

TEST_F(Mlx5, EntriesGoOnAtTheQueuesStartAndTheOwnerBitTurns) {
    open();
    const Bytes bytes = frame(82);  // 124 bytes: two blocks and a half of entry
    const Wqe three = Wqe().ethernet(bytes), one = Wqe().ethernet().pointer(whole(bytes));
    ASSERT_EQ((three.bytes.size() + 63) / 64, 3u);
    const unsigned rounds = 3 * (d.completions.cqe_cnt + d.queue.sq.wqe_cnt);
    for (unsigned i = 0; i < rounds; i++) {
        const unsigned at = d.index;
        d.post(i % 3 ? three : one);
        ASSERT_EQ(d.next(), sent(at)) << i;
        ASSERT_TRUE(arrived(bytes)) << i;
    }
    EXPECT_EQ(d.next(), kNone);
}

TEST_F(Mlx5, ChecksumsAndSegments) {
    open();
    Bytes bytes = frame();
    const Bytes right = bytes;
    bytes[24] ^= 0x55;
    bytes[40] ^= 0x55;
    std::memcpy(a.memory, bytes.data(), bytes.size());
    d.post(Wqe().ethernet({}, MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM).pointer(whole(bytes)));
    EXPECT_TRUE(arrived(right));
    vma::test::FrameSpec s;
    s.to = {2, 0, 0, 0, 0, 0x0b};
    s.src = {vma::IpAddr::v4(10, 0, 0, 1), 1000};
    s.dst = {vma::IpAddr::v4(10, 0, 0, 2), 80};
    s.protocol = IPPROTO_TCP;
    s.payload = 0;
    const Bytes head = vma::test::build_frame(s).bytes;
    for (int i = 0; i < 2500; i++) a.memory[i] = uint8_t(i * 31);
    d.post(Wqe(MLX5_OPCODE_TSO)
               .ethernet(head, MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM, 1000)
               .pointer(a.sge(0, 700))
               .pointer(a.sge(700, 1800)));
    d.next();
    EXPECT_EQ(d.next().opcode, MLX5_CQE_REQ);
    uint32_t done = 0;
    for (const uint32_t payload : {1000u, 1000u, 500u}) {
        const ibv_wc wc = b.poll();
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        ASSERT_EQ(wc.byte_len, head.size() + payload);
        const uint8_t* const p = b.memory + wc.wr_id * 2048;
        EXPECT_EQ(load_be32(p + 38), load_be32(&head[38]) + done);
        EXPECT_EQ(std::memcmp(p + head.size(), a.memory + done, payload), 0);
        EXPECT_TRUE(checksums_good({p, wc.byte_len}));
        done += payload;
    }
}

TEST_F(Mlx5, FramesAreScatteredOverReceiveEntries) {
    open();
    steer_to_a();
    const Bytes bytes = frame_to_a();
    for (unsigned i = 0; i < 3 * d.queue.rq.wqe_cnt; i++) {
        d.receive({a.sge(1000, 20), a.sge(2000, 1000)});
        send_to_a(bytes);
        softhca_kick(a.context);
        const mlx5_cqe64* const cqe = d.peek();
        ASSERT_NE(cqe, nullptr) << i;
        EXPECT_EQ(cqe->op_own >> 4, MLX5_CQE_RESP_SEND);
        EXPECT_EQ(load_be16(&cqe->wqe_counter), i);
        EXPECT_EQ(load_be32(&cqe->byte_cnt), bytes.size());
        EXPECT_EQ(load_be32(&cqe->sop_drop_qpn), 0x1234u);
        EXPECT_EQ(cqe->hds_ip_ext, MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK);
        EXPECT_EQ(cqe->l4_hdr_type_etc >> 2 & 3, MLX5_CQE_L3_HDR_TYPE_IPV4);
        d.consume();
        ASSERT_EQ(std::memcmp(a.memory + 1000, bytes.data(), 20), 0);
        ASSERT_EQ(std::memcmp(a.memory + 2000, &bytes[20], bytes.size() - 20), 0);
        std::memset(a.memory + 1000, 0, 1200);
    }
    send_to_a(bytes);
    EXPECT_EQ(d.next(), kNone) << "there is no entry for it yet";
    d.receive({a.sge(0, 2048)});
    EXPECT_EQ(d.next().opcode, MLX5_CQE_RESP_SEND);
}

TEST_F(Mlx5, AReceiveInErrorFlushesTheOthers) {
    open();
    steer_to_a();
    d.receive({a.sge(0, 50)});
    d.receive({a.sge(0, 2048)});
    send_to_a(frame_to_a());
    testing::internal::CaptureStderr();
    EXPECT_EQ(d.next(), (Driver::Done{MLX5_CQE_RESP_ERR, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, 0}));
    EXPECT_EQ(d.next(), (Driver::Done{MLX5_CQE_RESP_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 1}));
    testing::internal::GetCapturedStderr();
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(ibv_query_qp(qa, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
}

TEST_F(Mlx5, AfterAnErrorWhatIsPostedIsFlushedUntilItStartsAgain) {
    open();
    const Bytes bytes = frame();
    ibv_sge beyond = whole(bytes);
    beyond.addr += sizeof(a.memory);
    testing::internal::CaptureStderr();
    d.put(Wqe().ethernet().pointer(beyond));
    d.put(Wqe().ethernet(bytes));
    d.put(Wqe(MLX5_OPCODE_NOP, 0));
    d.record();
    d.ring(d.block(d.last));
    EXPECT_EQ(d.next(), refused(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, 0));
    EXPECT_EQ(d.next(), refused(MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 1));
    EXPECT_EQ(d.next(), refused(MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 4));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("pointer   142 bytes at"),
              std::string::npos);
    d.post(Wqe().ethernet().pointer(whole(bytes)));
    EXPECT_EQ(d.next(), refused(MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 5));
    EXPECT_FALSE(arrived(bytes));
    restart();
    d.post(Wqe().ethernet().pointer(whole(bytes)));
    EXPECT_EQ(d.next(), sent(0));
    EXPECT_TRUE(arrived(bytes));
}

TEST_F(Mlx5, AFullCompletionQueueOverruns) {
    open();
    for (uint32_t i = 0; i < d.completions.cqe_cnt; i++) d.post(Wqe(MLX5_OPCODE_NOP));
    pollfd told{a.context->async_fd, POLLIN, 0};
    EXPECT_EQ(::poll(&told, 1, 0), 0);
    d.post(Wqe(MLX5_OPCODE_NOP));
    ASSERT_EQ(::poll(&told, 1, 0), 1);
    ibv_async_event event;
    ASSERT_EQ(ibv_get_async_event(a.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(event.element.cq, a.cq);
}

TEST_F(Mlx5, AnArmedQueueWakesItsChannel) {
    open();
    pollfd woken{a.channel->fd, POLLIN, 0};
    const auto arm = [&] {
        uint8_t words[8];
        store_be32(words, d.consumed & 0xffffff);
        store_be32(words + 4, d.completions.cqn);
        std::memcpy(static_cast<uint8_t*>(d.completions.cq_uar) + MLX5_CQ_DOORBELL, words, 8);
        softhca_kick(a.context);
    };
    const auto take = [&] {
        ibv_cq* cq;
        void* context;
        ASSERT_EQ(ibv_get_cq_event(a.channel, &cq, &context), 0);
        EXPECT_EQ(cq, a.cq);
        ibv_ack_cq_events(cq, 1);
    };
    d.post(Wqe(MLX5_OPCODE_NOP));
    EXPECT_EQ(::poll(&woken, 1, 0), 0) << "not armed";
    arm();
    EXPECT_EQ(::poll(&woken, 1, 0), 1) << "one is there that the program has not seen";
    take();
    EXPECT_EQ(d.next(), sent(0));
    arm();
    EXPECT_EQ(::poll(&woken, 1, 0), 0);
    d.post(Wqe(MLX5_OPCODE_NOP));
    EXPECT_EQ(::poll(&woken, 1, 0), 1);
    take();
    d.post(Wqe(MLX5_OPCODE_NOP));
    EXPECT_EQ(::poll(&woken, 1, 0), 0) << "once";
}

TEST_F(Mlx5, VerbsAndQueuesGoSideBySide) {
    open();
    const Bytes bytes = frame();
    ibv_sge sge = whole(bytes);
    ibv_send_wr wr{}, *bad;
    wr.wr_id = 77;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(ibv_post_send(qa, &wr, &bad), 0);
    d.post(Wqe().ethernet().pointer(sge));
    EXPECT_EQ(a.poll().wr_id, 77u);
    EXPECT_EQ(a.poll().status, kNothing);
    EXPECT_EQ(d.next(), sent(0));
    EXPECT_EQ(d.next(), kNone);
    EXPECT_TRUE(arrived(bytes));
    EXPECT_TRUE(arrived(bytes));
}

TEST_F(Mlx5, AThreadWorksForWhoDoesNotKick) {
    open("thread");
    const Bytes bytes = frame();
    d.put(Wqe().ethernet().pointer(whole(bytes)));
    d.record();
    uint64_t words;
    std::memcpy(&words, d.block(0), 8);
    __atomic_store_n(static_cast<uint64_t*>(d.queue.bf.reg), words, __ATOMIC_RELEASE);
    const auto end = time(nullptr) + 20;
    while (d.peek() == nullptr && time(nullptr) < end) sched_yield();
    ASSERT_NE(d.peek(), nullptr);
    EXPECT_TRUE(arrived(bytes));
}

}  // namespace
}  // namespace softhca::test
