// Two soft HCA devices on a wire of this test's own, used through verbs.h as any program would.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace softhca::test {

// One device, opened, with what a QP needs around it.
struct End {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_gid gid{};
    uint8_t memory[65536] = {};

    void open(const char* name);
    void close();
    ibv_qp* qp(ibv_qp_type type, uint32_t depth = 16, ibv_srq* srq = nullptr);
    ibv_sge sge(uint32_t at, uint32_t bytes) const {
        return {uint64_t(memory + at), bytes, mr->lkey};
    }
    int receive(ibv_qp* qp, uint32_t at, uint32_t bytes, uint64_t id = 0);
    // One completion; kNothing when there is none.
    ibv_wc poll();
};

// What poll() says of an empty CQ: a status that the device never gives.
constexpr ibv_wc_status kNothing = IBV_WC_TM_RNDV_INCOMPLETE;

class Bench : public testing::Test {
  protected:
    void SetUp() override;
    void TearDown() override;
    // Two connected RC (or UC) QPs; UD and raw QPs ready to send.
    void connect(ibv_qp_type type, uint32_t depth = 16);
    static void to_rts(End& e, ibv_qp* qp, uint32_t peer, const ibv_gid& gid,
                       uint8_t rnr_retry = 7);
    static int send(ibv_qp* qp, ibv_send_wr wr);

    End a, b;
    ibv_qp *qa = nullptr, *qb = nullptr;
};

}  // namespace softhca::test
