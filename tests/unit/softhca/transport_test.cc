// RC, UC and UD: what a work request does on both sides, and what is refused.
#include <poll.h>

#include "bench.h"

namespace softhca::test {
namespace {

ibv_send_wr request(ibv_wr_opcode opcode, ibv_sge* sge, uint64_t id = 7) {
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.opcode = opcode;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    return wr;
}

class Rc : public Bench {
  protected:
    void SetUp() override {
        Bench::SetUp();
        connect(IBV_QPT_RC);
        for (int i = 0; i < 4096; i++) a.memory[i] = uint8_t(i * 7);
    }
    ibv_send_wr remote(ibv_wr_opcode opcode, ibv_sge* sge, uint32_t at) {
        ibv_send_wr wr = request(opcode, sge);
        wr.wr.rdma = {uint64_t(b.memory + at), b.mr->rkey};
        return wr;
    }
};

TEST_F(Rc, SendWithImmediateCompletesOnBothSides) {
    ASSERT_EQ(b.receive(qb, 100, 200, 42), 0);
    ibv_sge sge = a.sge(0, 150);
    ibv_send_wr wr = request(IBV_WR_SEND_WITH_IMM, &sge);
    wr.imm_data = htobe32(99);
    ASSERT_EQ(send(qa, wr), 0);
    const ibv_wc sent = a.poll(), got = b.poll();
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.wr_id, 7u);
    EXPECT_EQ(sent.opcode, IBV_WC_SEND);
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.wr_id, 42u);
    EXPECT_EQ(got.opcode, IBV_WC_RECV);
    EXPECT_EQ(got.byte_len, 150u);
    EXPECT_EQ(got.qp_num, qb->qp_num);
    EXPECT_EQ(got.src_qp, qa->qp_num);
    EXPECT_TRUE(got.wc_flags & IBV_WC_WITH_IMM);
    EXPECT_EQ(be32toh(got.imm_data), 99u);
    EXPECT_EQ(std::memcmp(a.memory, b.memory + 100, 150), 0);
}

TEST_F(Rc, InlineDataIsFreeWhenThePostReturns) {
    ASSERT_EQ(b.receive(qb, 0, 64), 0);
    char text[] = "inline";
    ibv_sge sge = {uint64_t(text), sizeof(text), 0};
    ibv_send_wr wr = request(IBV_WR_SEND, &sge);
    wr.send_flags |= IBV_SEND_INLINE;
    ASSERT_EQ(send(qa, wr), 0);
    std::memset(text, 'x', sizeof(text));
    EXPECT_EQ(b.poll().byte_len, 7u);
    EXPECT_STREQ(reinterpret_cast<char*>(b.memory), "inline");
    sge.length = 65;  // the QP has room for 64
    EXPECT_EQ(send(qa, wr), EINVAL);
}

TEST_F(Rc, WriteAndReadMoveBytesWithoutTheOtherSide) {
    ibv_sge sge = a.sge(0, 1000);
    ASSERT_EQ(send(qa, remote(IBV_WR_RDMA_WRITE, &sge, 5000)), 0);
    EXPECT_EQ(a.poll().opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(std::memcmp(a.memory, b.memory + 5000, 1000), 0);
    std::memset(b.memory + 5000, 0x5a, 10);
    sge = a.sge(2000, 1000);
    ASSERT_EQ(send(qa, remote(IBV_WR_RDMA_READ, &sge, 5000)), 0);
    EXPECT_EQ(a.poll().opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(std::memcmp(a.memory + 2000, b.memory + 5000, 1000), 0);
    EXPECT_EQ(b.poll().status, kNothing);
}

TEST_F(Rc, WriteWithImmediateTakesAReceiveRequest) {
    ASSERT_EQ(b.receive(qb, 0, 0, 5), 0);
    ibv_sge sge = a.sge(0, 10);
    ASSERT_EQ(send(qa, remote(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, 3000)), 0);
    const ibv_wc got = b.poll();
    EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(got.byte_len, 10u);
    EXPECT_EQ(std::memcmp(a.memory, b.memory + 3000, 10), 0);
}

TEST_F(Rc, AtomicsReturnWhatWasThere) {
    uint64_t* word = reinterpret_cast<uint64_t*>(b.memory + 8);
    *word = 40;
    ibv_sge sge = a.sge(0, 8);
    ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
    wr.wr.atomic = {uint64_t(word), 2, 0, b.mr->rkey};
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(*word, 42u);
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(a.memory), 40u);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic = {uint64_t(word), 41, 1, b.mr->rkey};  // it is 42: not swapped
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(*word, 42u);
    wr.wr.atomic.remote_addr += 4;  // not aligned
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_REM_INV_REQ_ERR);
}

struct Violation {
    const char* name;
    uint32_t at, bytes;
    bool wrong_key, local;
    ibv_wc_status status;
};
class RcViolation : public Rc, public testing::WithParamInterface<Violation> {};

TEST_P(RcViolation, CompletesInErrorAndFlushes) {
    const Violation& v = GetParam();
    ibv_sge sge =
        v.local ? ibv_sge{uint64_t(a.memory + v.at), v.bytes, a.mr->lkey} : a.sge(0, v.bytes);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &sge, v.local ? 0 : v.at);
    if (v.wrong_key) wr.wr.rdma.rkey ^= 0x100;
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, v.status);
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(ibv_query_qp(qa, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_WR_FLUSH_ERR);
    for (uint32_t i = 0; i < sizeof(b.memory); i++) ASSERT_EQ(b.memory[i], 0) << i;
}
INSTANTIATE_TEST_SUITE_P(
    All, RcViolation,
    testing::Values(Violation{"RemoteBeyondEnd", 65530, 10, false, false, IBV_WC_REM_ACCESS_ERR},
                    Violation{"RemoteWrongKey", 0, 10, true, false, IBV_WC_REM_ACCESS_ERR},
                    Violation{"LocalBeyondEnd", 65530, 10, false, true, IBV_WC_LOC_PROT_ERR}),
    [](const auto& test) { return test.param.name; });

TEST_F(Rc, AccessThatTheRegionDoesNotGive) {
    ibv_mr* read_only = ibv_reg_mr(b.pd, b.memory, 100, IBV_ACCESS_REMOTE_READ);
    ASSERT_NE(read_only, nullptr);
    ibv_sge sge = a.sge(0, 10);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &sge, 0);
    wr.wr.rdma.rkey = read_only->rkey;
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(b.memory[1], 0);
    ibv_async_event event;
    ASSERT_EQ(ibv_get_async_event(b.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.element.qp, qb);
    ibv_ack_async_event(&event);
    EXPECT_EQ(ibv_dereg_mr(read_only), 0);
}

TEST_F(Rc, AMessageTooLongForTheReceiverFailsBoth) {
    ASSERT_EQ(b.receive(qb, 0, 10, 1), 0);
    ASSERT_EQ(b.receive(qb, 100, 10, 2), 0);
    ibv_sge sge = a.sge(0, 11);
    ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(b.poll().status, IBV_WC_LOC_LEN_ERR);
    const ibv_wc flushed = b.poll();
    EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(flushed.wr_id, 2u);
}

TEST_F(Rc, ASendWaitsForItsReceiveRequestAndGoesWhenItComes) {
    ibv_sge sge = a.sge(0, 10);
    ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    EXPECT_EQ(a.poll().status, kNothing);
    ASSERT_EQ(b.receive(qb, 0, 10), 0);  // carries it out: the sender need not poll
    EXPECT_EQ(b.poll().byte_len, 10u);
    EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
}

TEST_F(Rc, TheSendQueueIsFullUntilCompletionsArePolled) {
    ibv_sge sge = a.sge(0, 1);
    for (int i = 0; i < 16; i++) ASSERT_EQ(send(qa, remote(IBV_WR_RDMA_WRITE, &sge, 0)), 0) << i;
    EXPECT_EQ(send(qa, remote(IBV_WR_RDMA_WRITE, &sge, 0)), ENOMEM);
    a.poll();
    EXPECT_EQ(send(qa, remote(IBV_WR_RDMA_WRITE, &sge, 0)), 0);
    while (a.poll().status != kNothing) {
    }
}

TEST_F(Rc, AnArmedQueueWakesItsChannelOnce) {
    pollfd fd = {b.channel->fd, POLLIN, 0};
    ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
    ibv_sge sge = a.sge(0, 1);
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(b.receive(qb, 0, 10), 0);
        ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    }
    ibv_cq* cq;
    void* cookie;
    ASSERT_EQ(::poll(&fd, 1, 0), 1);
    ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &cookie), 0);
    EXPECT_EQ(cq, b.cq);
    EXPECT_EQ(cookie, &b);
    ibv_ack_cq_events(cq, 1);
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);  // only solicited
    ASSERT_EQ(b.receive(qb, 0, 10), 0);
    ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
    ASSERT_EQ(b.receive(qb, 0, 10), 0);
    ibv_send_wr wr = request(IBV_WR_SEND, &sge);
    wr.send_flags |= IBV_SEND_SOLICITED;
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(::poll(&fd, 1, 0), 1);
}

TEST_F(Bench, RnrRetriesEnd) {
    qa = a.qp(IBV_QPT_RC);
    qb = b.qp(IBV_QPT_RC);
    to_rts(a, qa, qb->qp_num, b.gid, 0);
    to_rts(b, qb, qa->qp_num, a.gid);
    ibv_sge sge = a.sge(0, 1);
    ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    ibv_wc wc;
    do wc = a.poll();  // bounded by the RNR timer of 10 us
    while (wc.status == kNothing);
    EXPECT_EQ(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(Bench, StateMachineRefusesWhatTheManPageDoes) {
    qa = a.qp(IBV_QPT_RC);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qa, &attr, IBV_QP_STATE), EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    EXPECT_EQ(ibv_modify_qp(qa, &attr, IBV_QP_STATE | IBV_QP_PORT),
              EINVAL);  // attributes are missing
    attr.port_num = 2;
    const int all = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    EXPECT_EQ(ibv_modify_qp(qa, &attr, all), EINVAL);
    attr.port_num = 1;
    EXPECT_EQ(ibv_modify_qp(qa, &attr, all | IBV_QP_QKEY), EINVAL);  // one too many
    EXPECT_EQ(ibv_modify_qp(qa, &attr, all), 0);
    ibv_sge sge = a.sge(0, 1);
    EXPECT_EQ(send(qa, request(IBV_WR_SEND, &sge)), EINVAL);  // not before RTS
}

TEST_F(Bench, DatagramsCarryAGlobalRouteHeader) {
    connect(IBV_QPT_UD);
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = 1;
    to.grh.dgid = b.gid;
    ibv_ah* ah = ibv_create_ah(a.pd, &to);
    ASSERT_NE(ah, nullptr);
    ASSERT_EQ(b.receive(qb, 0, 200), 0);
    std::memcpy(a.memory, "datagram", 8);
    ibv_sge sge = a.sge(0, 8);
    ibv_send_wr wr = request(IBV_WR_SEND, &sge);
    wr.wr.ud = {ah, qb->qp_num, 0x1234};
    ASSERT_EQ(send(qa, wr), 0);
    ibv_wc got = b.poll();
    EXPECT_EQ(got.byte_len, 48u);
    EXPECT_TRUE(got.wc_flags & IBV_WC_GRH);
    EXPECT_EQ(got.src_qp, qa->qp_num);
    EXPECT_EQ(std::memcmp(b.memory + 8, &a.gid, 16), 0);
    EXPECT_EQ(std::memcmp(b.memory + 40, "datagram", 8), 0);
    ibv_ah* back = ibv_create_ah_from_wc(b.pd, &got, reinterpret_cast<ibv_grh*>(b.memory), 1);
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(ibv_destroy_ah(back), 0);
    wr.wr.ud.remote_qkey = 1;  // lost without a word
    ASSERT_EQ(b.receive(qb, 0, 200), 0);
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.poll().status, kNothing);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(Bench, MulticastReachesWhoIsAttached) {
    connect(IBV_QPT_UD);
    ibv_gid group{};
    group.raw[0] = 0xff;
    group.raw[15] = 9;
    ASSERT_EQ(ibv_attach_mcast(qb, &group, 0), 0);
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = 1;
    to.grh.dgid = group;
    ibv_ah* ah = ibv_create_ah(a.pd, &to);
    ibv_sge sge = a.sge(0, 8);
    ibv_send_wr wr = request(IBV_WR_SEND, &sge);
    wr.wr.ud = {ah, 0xffffff, 0x1234};
    ASSERT_EQ(b.receive(qb, 0, 200), 0);
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(b.poll().byte_len, 48u);
    ASSERT_EQ(ibv_detach_mcast(qb, &group, 0), 0);
    ASSERT_EQ(b.receive(qb, 0, 200), 0);
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(b.poll().status, kNothing);
    EXPECT_EQ(ibv_detach_mcast(qb, &group, 0), EINVAL);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(Bench, ASharedReceiveQueueTellsWhenItRunsLow) {
    ibv_srq_init_attr init{};
    init.attr = {8, 1, 0};
    ibv_srq* srq = ibv_create_srq(b.pd, &init);
    ASSERT_NE(srq, nullptr);
    qa = a.qp(IBV_QPT_RC);
    qb = b.qp(IBV_QPT_RC, 16, srq);
    to_rts(a, qa, qb->qp_num, b.gid);
    to_rts(b, qb, qa->qp_num, a.gid);
    ibv_sge to = b.sge(0, 100);
    ibv_recv_wr wr{}, *bad;
    wr.sg_list = &to;
    wr.num_sge = 1;
    for (int i = 0; i < 2; i++) ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    ibv_srq_attr limit = {0, 0, 2};
    ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    ibv_sge sge = a.sge(0, 1);
    ASSERT_EQ(send(qa, request(IBV_WR_SEND, &sge)), 0);
    EXPECT_EQ(b.poll().status, IBV_WC_SUCCESS);
    ibv_async_event event;
    ASSERT_EQ(ibv_get_async_event(b.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, srq);
    EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
    ASSERT_EQ(ibv_destroy_qp(qb), 0);
    qb = nullptr;
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Bench, RegionsAreChecked) {
    EXPECT_EQ(ibv_reg_mr(a.pd, reinterpret_cast<void*>(4096), 4096, IBV_ACCESS_LOCAL_WRITE),
              nullptr);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(ibv_reg_mr(a.pd, a.memory, 100, IBV_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_dealloc_pd(a.pd), EBUSY);
    ibv_alloc_dm_attr want = {4096, 0, 0};
    ibv_dm* dm = ibv_alloc_dm(a.context, &want);
    ASSERT_NE(dm, nullptr);
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 100, "device", 7), 0);
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 4090, "device", 7), EINVAL);
    char back[7];
    EXPECT_EQ(ibv_memcpy_from_dm(back, dm, 100, 7), 0);
    EXPECT_STREQ(back, "device");
    EXPECT_EQ(ibv_free_dm(dm), 0);
}

}  // namespace
}  // namespace softhca::test
