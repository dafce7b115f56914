// Faults on command (hca/faults.h), as a program on verbs.h meets them.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <optional>

#include "bench.h"
#include "rule.h"
#include "softhca/hca/context.h"
#include "softhca/hca/faults.h"
#include "support/frames.h"

namespace softhca::test {
namespace {

class Faults : public Bench {
  protected:
    void SetUp() override {
        Bench::SetUp();
        connect(IBV_QPT_RAW_PACKET);
        for (uint32_t i = 0; i < 4; i++) ASSERT_EQ(b.receive(qb, i * 2048, 2048, i), 0);
        flow_ = Rule().to_mac(kMacB).on(qb);
        ASSERT_NE(flow_, nullptr);
    }
    void TearDown() override {
        if (flow_) {
            EXPECT_EQ(ibv_destroy_flow(flow_), 0);
        }
        Bench::TearDown();
    }

    static unsigned inject(const char* who, std::vector<std::string> what) {
        std::string error;
        return inject_fault(*process_wire(), who, what, &error);
    }
    int post() {
        vma::test::FrameSpec s;
        s.to = {2, 0, 0, 0, 0, 0x0b};
        const std::vector<uint8_t> bytes = vma::test::build_frame(s).bytes;
        std::memcpy(a.memory, bytes.data(), bytes.size());
        ibv_sge sge = a.sge(0, uint32_t(bytes.size()));
        ibv_send_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        return send(qa, wr);
    }
    // A frame that arrives, or does not.
    bool arrives() {
        EXPECT_EQ(post(), 0);
        EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
        return b.poll().status == IBV_WC_SUCCESS;
    }
    static void restart(End& e, ibv_qp* qp) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RESET;
        ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
        to_rts(e, qp, 0, {});
    }
    // The next event that waits on the device; none: there is none.
    static std::optional<ibv_async_event> event(End& e) {
        pollfd waiting{e.context->async_fd, POLLIN, 0};
        ibv_async_event event{};
        if (::poll(&waiting, 1, 0) != 1 || ibv_get_async_event(e.context, &event) != 0) return {};
        ibv_ack_async_event(&event);
        return event;
    }

    ibv_flow* flow_ = nullptr;
};

TEST_F(Faults, APortThatIsDownCarriesNothingEitherWay) {
    ASSERT_TRUE(arrives());
    for (const char* end : {"left", "right"}) {
        End& e = end[0] == 'l' ? a : b;
        ASSERT_EQ(inject(end, {"down"}), 1u);
        auto told = event(e);
        ASSERT_TRUE(told);
        EXPECT_EQ(told->event_type, IBV_EVENT_PORT_ERR);
        EXPECT_EQ(told->element.port_num, 1);
        ibv_port_attr port{};
        ASSERT_EQ(ibv_query_port(e.context, 1, &port), 0);
        EXPECT_EQ(port.state, IBV_PORT_DOWN);
        EXPECT_FALSE(arrives()) << end;
        ASSERT_EQ(inject(end, {"down"}), 1u);
        EXPECT_FALSE(event(e)) << "told again";
        ASSERT_EQ(inject(end, {"up"}), 1u);
        told = event(e);
        ASSERT_TRUE(told);
        EXPECT_EQ(told->event_type, IBV_EVENT_PORT_ACTIVE);
        EXPECT_TRUE(arrives()) << end;
    }
}

TEST_F(Faults, APortIsThatOfAllWhoHaveItsAddress) {
    End other;
    other.open("right");
    EXPECT_EQ(inject("02:00:00:00:00:0b", {"down"}), 2u);
    EXPECT_TRUE(event(b));
    EXPECT_TRUE(event(other));
    EXPECT_EQ(inject(std::to_string(getpid()).c_str(), {"up"}), 3u);
    EXPECT_TRUE(event(b));
    EXPECT_FALSE(event(a));
    other.close();
}

// Stations of one port change one after the other: in between no frame may find its way to who would get it without the first's rules.
TEST_F(Faults, RulesOfAPortThatIsDownKeepWhatTheyTake) {
    End other;
    other.open("right");
    ibv_qp* const queue = other.qp(IBV_QPT_RAW_PACKET);
    to_rts(other, queue, 0, {});
    ASSERT_EQ(other.receive(queue, 0, 2048, 0), 0);
    ibv_flow* const behind = Rule().to_mac(kMacB).priority(7).on(queue);
    ASSERT_NE(behind, nullptr);
    Context& first = context_of(b.context);
    first.station().port_up = false;
    first.wire->directory().flow_generation++;
    EXPECT_FALSE(arrives());
    EXPECT_EQ(other.poll().status, kNothing);
    first.station().port_up = true;
    EXPECT_TRUE(arrives());
    EXPECT_EQ(ibv_destroy_flow(behind), 0);
    EXPECT_EQ(ibv_destroy_qp(queue), 0);
    other.close();
}

TEST_F(Faults, ASendInErrorFlushesBothQueues) {
    ASSERT_EQ(a.receive(qa, 30000, 2048, 50), 0);
    ASSERT_EQ(a.receive(qa, 32048, 2048, 51), 0);
    ASSERT_EQ(inject("left", {"error", "send", "10"}), 1u);
    EXPECT_EQ(a.poll().status, kNothing);
    ASSERT_EQ(post(), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_REM_ACCESS_ERR);
    for (const uint64_t id : {50u, 51u}) {
        const ibv_wc wc = a.poll();
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, id);
    }
    EXPECT_EQ(b.poll().status, kNothing) << "it was sent all the same";
    ASSERT_EQ(post(), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_WR_FLUSH_ERR);
    restart(a, qa);
    EXPECT_TRUE(arrives()) << "the fault was for one request";
}

TEST_F(Faults, AReceiveInErrorFlushesTheOthers) {
    ASSERT_EQ(inject("right", {"error", "recv"}), 1u);
    ASSERT_EQ(post(), 0);
    ibv_wc wc = b.poll();
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(wc.wr_id, 0u);
    for (uint64_t id = 1; id < 4; id++) {
        wc = b.poll();
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, id);
    }
    EXPECT_EQ(b.poll().status, kNothing);
    restart(b, qb);
    ASSERT_EQ(b.receive(qb, 0, 2048), 0);
    a.poll();
    EXPECT_TRUE(arrives());
}

TEST_F(Faults, AnOverrunQueueIsOfNoUse) {
    ASSERT_EQ(inject("right", {"overrun", "recv"}), 1u);
    const auto told = event(b);
    ASSERT_TRUE(told);
    EXPECT_EQ(told->event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(told->element.cq, b.cq);
    ibv_wc wc;
    EXPECT_LT(ibv_poll_cq(b.cq, 1, &wc), 0);
}

TEST_F(Faults, ALostDeviceFlushesAndRefuses) {
    ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
    ASSERT_EQ(inject("right", {"fatal"}), 1u);
    const auto told = event(b);
    ASSERT_TRUE(told);
    EXPECT_EQ(told->event_type, IBV_EVENT_DEVICE_FATAL);
    pollfd woken{b.channel->fd, POLLIN, 0};
    EXPECT_EQ(::poll(&woken, 1, 0), 1) << "who sleeps on its completions is woken";
    for (uint64_t id = 0; id < 4; id++) EXPECT_EQ(b.poll().status, IBV_WC_WR_FLUSH_ERR) << id;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(ibv_modify_qp(qb, &attr, IBV_QP_STATE), EIO);
    EXPECT_EQ(b.qp(IBV_QPT_RAW_PACKET), nullptr);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(ibv_create_cq(b.context, 1, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(Rule().on(qb), nullptr);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(ibv_reg_mr(b.pd, b.memory, 64, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(errno, EIO);
    ASSERT_EQ(post(), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.poll().status, kNothing);
    // A second opening of the device is another one.
    End again;
    again.open("right");
    ibv_qp* qp = again.qp(IBV_QPT_RAW_PACKET);
    EXPECT_NE(qp, nullptr);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    again.close();
}

TEST_F(Faults, WhatIsNotUnderstoodIsRefused) {
    const std::vector<std::string> wrong[] = {{},
                                              {"north"},
                                              {"down", "1"},
                                              {"overrun"},
                                              {"error"},
                                              {"error", "both"},
                                              {"error", "send", "0"},
                                              {"error", "send", "99"},
                                              {"fatal", "now"},
                                              {"error", "send", "4", "5"},
                                              {"error", "recv", "x"}};
    for (const auto& what : wrong) EXPECT_EQ(inject("left", what), 0u);
    EXPECT_EQ(inject("nobody", {"down"}), 0u);
    EXPECT_FALSE(event(a));
    EXPECT_TRUE(arrives());
}

}  // namespace
}  // namespace softhca::test
