#include "bench.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace softhca::test {
namespace {

// The devices are read once per process, so they are the same for all tests.
class Wire final : public testing::Environment {
  public:
    void SetUp() override {
        path_ = "/dev/shm/softhca-unit-" + std::to_string(getpid());
        setenv("SOFTHCA_WIRE", path_.c_str(), 1);
        setenv("SOFTHCA",
               "name=left mac=02:00:00:00:00:0a; name=right mac=02:00:00:00:00:0b; "
               "name=queues mac=02:00:00:00:00:0d kind=mlx5 engine=kick; "
               "name=fast mac=02:00:00:00:00:0e kind=mlx5 engine=kick strict=0; "
               "name=thread mac=02:00:00:00:00:0f kind=mlx5; "
               "name=poor mac=02:00:00:00:00:0c max_tso=0 flow_tag=0 timestamps=0 rx_checksum=0",
               1);
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

  private:
    std::string path_;
};
testing::Environment* const wire = testing::AddGlobalTestEnvironment(new Wire);

}  // namespace

void End::open(const char* name) {
    ibv_device** list = ibv_get_device_list(nullptr);
    for (ibv_device** d = list; *d; d++)
        if (!std::strcmp(ibv_get_device_name(*d), name)) context = ibv_open_device(*d);
    ibv_free_device_list(list);
    ASSERT_NE(context, nullptr) << strerror(errno);
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    ASSERT_NE(channel, nullptr);
    cq = ibv_create_cq(context, 64, this, channel, 0);
    mr = ibv_reg_mr(pd, memory, sizeof(memory),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC);
    ASSERT_NE(mr, nullptr);
    ASSERT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
}

void End::close() {
    if (!context) return;
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
}

ibv_qp* End::qp(ibv_qp_type type, uint32_t depth, ibv_srq* srq) {
    ibv_qp_init_attr_ex attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.srq = srq;
    attr.cap = {depth, depth, 4, 4, 64};
    attr.qp_type = type;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    if (type == IBV_QPT_RAW_PACKET) {
        attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
        attr.max_tso_header = 128;
    }
    return ibv_create_qp_ex(context, &attr);
}

int End::receive(ibv_qp* qp, uint32_t at, uint32_t bytes, uint64_t id) {
    ibv_sge list = sge(at, bytes);
    ibv_recv_wr wr{}, *bad;
    wr.wr_id = id;
    wr.sg_list = &list;
    wr.num_sge = 1;
    return ibv_post_recv(qp, &wr, &bad);
}

ibv_wc End::poll() {
    ibv_wc wc{};
    if (ibv_poll_cq(cq, 1, &wc) != 1) wc.status = kNothing;
    return wc;
}

void Bench::SetUp() {
    a.open("left");
    b.open("right");
}

void Bench::TearDown() {
    for (ibv_qp* qp : {qa, qb}) {
        if (qp) {
            EXPECT_EQ(ibv_destroy_qp(qp), 0);
        }
    }
    a.close();
    b.close();
}

void Bench::to_rts(End&, ibv_qp* qp, uint32_t peer, const ibv_gid& gid, uint8_t rnr_retry) {
    const bool rc = qp->qp_type == IBV_QPT_RC, connected = rc || qp->qp_type == IBV_QPT_UC;
    const bool ud = qp->qp_type == IBV_QPT_UD;
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qkey = 0x1234;
    attr.qp_access_flags =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_state = IBV_QPS_INIT;
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_PORT | (connected || ud ? IBV_QP_PKEY_INDEX : 0) |
                                (connected ? IBV_QP_ACCESS_FLAGS : 0) | (ud ? IBV_QP_QKEY : 0)),
              0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = gid;
    const int address = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | (connected ? address : 0) |
                                (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
              0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 1;
    attr.rnr_retry = rnr_retry;
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | (connected || ud ? IBV_QP_SQ_PSN : 0) |
                                (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                          IBV_QP_MAX_QP_RD_ATOMIC
                                    : 0)),
              0);
}

void Bench::connect(ibv_qp_type type, uint32_t depth) {
    qa = a.qp(type, depth);
    qb = b.qp(type, depth);
    ASSERT_TRUE(qa && qb) << strerror(errno);
    to_rts(a, qa, qb->qp_num, b.gid);
    to_rts(b, qb, qa->qp_num, a.gid);
}

int Bench::send(ibv_qp* qp, ibv_send_wr wr) {
    ibv_send_wr* bad;
    return ibv_post_send(qp, &wr, &bad);
}

}  // namespace softhca::test
