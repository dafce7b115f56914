// Raw Ethernet: flow rules decide who gets a frame; offloads of both sides.
#include <netinet/in.h>

#include "bench.h"
#include "rule.h"
#include "softhca/hca/device.h"
#include "softhca/raw/offload.h"
#include "support/frames.h"

namespace softhca::test {
namespace {

using vma::test::FrameSpec;

class Raw : public Bench {
  protected:
    void SetUp() override {
        Bench::SetUp();
        connect(IBV_QPT_RAW_PACKET);
        ibv_cq_init_attr_ex attr{};
        attr.cqe = 64;
        attr.wc_flags =
            IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
        tagged_ = ibv_create_cq_ex(b.context, &attr);
        ASSERT_NE(tagged_, nullptr);
        for (uint32_t i = 0; i < 8; i++) ASSERT_EQ(b.receive(qb, i * 2048, 2048, i), 0);
    }
    void TearDown() override {
        for (ibv_flow* f : flows_) EXPECT_EQ(ibv_destroy_flow(f), 0);
        EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(tagged_)), 0);
        Bench::TearDown();
    }
    void steer(Rule rule, ibv_qp* qp = nullptr) {
        flows_.push_back(rule.on(qp ? qp : qb));
        ASSERT_NE(flows_.back(), nullptr) << strerror(errno);
    }
    std::vector<uint8_t> frame(uint16_t port, uint32_t payload = 100) {
        FrameSpec s;
        s.from = {2, 0, 0, 0, 0, 0x0a};
        s.to = {2, 0, 0, 0, 0, 0x0b};
        s.src = {vma::IpAddr::v4(10, 0, 0, 1), 1000};
        s.dst = {vma::IpAddr::v4(10, 0, 0, 2), port};
        s.payload = payload;
        return vma::test::build_frame(s).bytes;
    }
    void send_frame(const std::vector<uint8_t>& bytes, unsigned flags = 0) {
        std::memcpy(a.memory, bytes.data(), bytes.size());
        // In two pieces, cut inside the headers.
        ibv_sge sge[2] = {a.sge(0, 20), a.sge(20, uint32_t(bytes.size()) - 20)};
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_SEND;
        wr.sg_list = sge;
        wr.num_sge = 2;
        wr.send_flags = flags | IBV_SEND_SIGNALED;
        ASSERT_EQ(send(qa, wr), 0);
        ASSERT_EQ(a.poll().status, IBV_WC_SUCCESS);
    }
    bool arrives(uint16_t port) {
        send_frame(frame(port));
        const ibv_wc wc = b.poll();
        if (wc.status != IBV_WC_SUCCESS) return false;
        EXPECT_EQ(std::memcmp(a.memory, b.memory + wc.wr_id * 2048, wc.byte_len), 0);
        EXPECT_EQ(b.receive(qb, uint32_t(wc.wr_id) * 2048, 2048, wc.wr_id), 0);
        return true;
    }

    std::vector<ibv_flow*> flows_;
    ibv_cq_ex* tagged_ = nullptr;
};

TEST_F(Raw, NothingArrivesWithoutARule) {
    EXPECT_FALSE(arrives(80));
    steer(Rule().to_mac(kMacB).udp_port(80));
    EXPECT_TRUE(arrives(80));
    EXPECT_FALSE(arrives(81));
    ASSERT_EQ(ibv_destroy_flow(flows_.back()), 0);
    flows_.pop_back();
    EXPECT_FALSE(arrives(80));
}

TEST_F(Raw, TheSmallestPriorityNumberWins) {
    steer(Rule().to_mac(kMacB).priority(2));
    EXPECT_TRUE(arrives(80));
    steer(Rule().to_mac(kMacB).udp_port(80).drop().priority(1));
    EXPECT_FALSE(arrives(80));
    EXPECT_TRUE(arrives(81));
}

TEST_F(Raw, DefaultAndSnifferRules) {
    Rule all;
    all.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
    steer(all);
    EXPECT_TRUE(arrives(80));
    ibv_qp* other = a.qp(IBV_QPT_RAW_PACKET);  // a third end takes it by a normal rule
    to_rts(a, other, 0, {});
    steer(Rule().to_mac(kMacB).udp_port(80), other);
    EXPECT_FALSE(arrives(80));
    Rule sniffer;
    sniffer.attr.type = IBV_FLOW_ATTR_SNIFFER;
    steer(sniffer);
    EXPECT_TRUE(arrives(80));
    for (ibv_flow* f : flows_) EXPECT_EQ(ibv_destroy_flow(f), 0);
    flows_.clear();
    EXPECT_EQ(ibv_destroy_qp(other), 0);
}

TEST_F(Raw, ExtendedCompletionsCarryTagAndTime) {
    ASSERT_EQ(ibv_destroy_qp(qb), 0);
    ibv_qp_init_attr init{};
    init.send_cq = b.cq;
    init.recv_cq = ibv_cq_ex_to_cq(tagged_);
    init.cap = {4, 4, 1, 1, 0};
    init.qp_type = IBV_QPT_RAW_PACKET;
    qb = ibv_create_qp(b.pd, &init);
    ASSERT_NE(qb, nullptr);
    to_rts(b, qb, 0, {});
    ASSERT_EQ(b.receive(qb, 0, 2048, 77), 0);
    steer(Rule().to_mac(kMacB).udp_port(80).tag(0xabcdef));
    send_frame(frame(80));
    ibv_values_ex before{}, after{};
    before.comp_mask = after.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    ibv_poll_cq_attr none{};
    ASSERT_EQ(ibv_query_rt_values_ex(b.context, &before), 0);
    ASSERT_EQ(ibv_start_poll(tagged_, &none), 0);
    ASSERT_EQ(ibv_query_rt_values_ex(b.context, &after), 0);
    EXPECT_EQ(tagged_->wr_id, 77u);
    EXPECT_EQ(ibv_wc_read_flow_tag(tagged_), 0xabcdefu);
    EXPECT_EQ(ibv_wc_read_byte_len(tagged_), 142u);
    const auto ns = [](const ibv_values_ex& v) {
        return v.raw_clock.tv_sec * 1000000000ull + v.raw_clock.tv_nsec;
    };
    EXPECT_GE(ibv_wc_read_completion_ts(tagged_), ns(before));
    EXPECT_LE(ibv_wc_read_completion_ts(tagged_), ns(after));
    EXPECT_EQ(ibv_next_poll(tagged_), ENOENT);
    ibv_end_poll(tagged_);
    ibv_flow* f = flows_.back();
    flows_.clear();
    EXPECT_EQ(ibv_destroy_qp(qb), EBUSY);
    EXPECT_EQ(ibv_destroy_flow(f), 0);
    ASSERT_EQ(ibv_destroy_qp(qb), 0);
    qb = nullptr;
}

TEST_F(Raw, ChecksumsAreMadeAndJudged) {
    steer(Rule().to_mac(kMacB));
    std::vector<uint8_t> bytes = frame(80);
    const std::vector<uint8_t> right = bytes;
    bytes[24] ^= 0x55;  // IPv4 header checksum
    bytes[40] ^= 0x55;  // UDP checksum
    send_frame(bytes);
    ibv_wc wc = b.poll();
    EXPECT_FALSE(wc.wc_flags & IBV_WC_IP_CSUM_OK);
    send_frame(bytes, IBV_SEND_IP_CSUM);
    wc = b.poll();
    EXPECT_TRUE(wc.wc_flags & IBV_WC_IP_CSUM_OK);
    EXPECT_EQ(std::memcmp(b.memory + wc.wr_id * 2048, right.data(), right.size()), 0);
    send_frame(right);
    EXPECT_TRUE(b.poll().wc_flags & IBV_WC_IP_CSUM_OK);
}

TEST_F(Raw, LargeSendsAreCutIntoRightSegments) {
    steer(Rule().to_mac(kMacB));
    FrameSpec s;
    s.from = {2, 0, 0, 0, 0, 0x0a};
    s.to = {2, 0, 0, 0, 0, 0x0b};
    s.src = {vma::IpAddr::v4(10, 0, 0, 1), 1000};
    s.dst = {vma::IpAddr::v4(10, 0, 0, 2), 80};
    s.protocol = IPPROTO_TCP;
    s.payload = 0;
    std::vector<uint8_t> head = vma::test::build_frame(s).bytes;
    const uint32_t hdr = uint32_t(head.size());
    ASSERT_EQ(hdr, 54u);
    head[47] = 0x19;  // ACK PSH FIN
    for (int i = 0; i < 2500; i++) a.memory[i] = uint8_t(i * 31);
    ibv_sge sge[2] = {a.sge(0, 700), a.sge(700, 1800)};
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_TSO;
    wr.sg_list = sge;
    wr.num_sge = 2;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
    wr.tso = {head.data(), uint16_t(hdr), 1000};
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().opcode, IBV_WC_TSO);
    const uint32_t first = vma::load_be32(&head[38]);
    const uint32_t sizes[] = {1000, 1000, 500};
    for (uint32_t i = 0, at = 0; i < 3; at += sizes[i++]) {
        const ibv_wc wc = b.poll();
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << i;
        const uint8_t* p = b.memory + wc.wr_id * 2048;
        EXPECT_EQ(wc.byte_len, hdr + sizes[i]);
        EXPECT_EQ(vma::load_be32(p + 38), first + at);
        EXPECT_EQ(p[47], i == 2 ? 0x19 : 0x10);
        EXPECT_EQ(std::memcmp(p + hdr, a.memory + at, sizes[i]), 0);
        EXPECT_TRUE(checksums_good({p, wc.byte_len})) << i;  // not only by the sender's word
    }
}

TEST_F(Raw, WhatIsNoFrameIsAnError) {
    ibv_sge sge = a.sge(0, 13);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    ASSERT_EQ(send(qa, wr), 0);  // not signalled: errors complete all the same
    EXPECT_EQ(a.poll().status, IBV_WC_LOC_LEN_ERR);
    sge = a.sge(0, 100);
    ASSERT_EQ(send(qa, wr), 0);
    EXPECT_EQ(a.poll().status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Raw, MalformedRulesAreRefused) {
    Rule cut;
    cut.to_mac(kMacB).attr.size--;
    EXPECT_EQ(cut.on(qb), nullptr);
    Rule many;
    many.to_mac(kMacB).attr.num_of_specs = 2;
    EXPECT_EQ(many.on(qb), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(Rule().tag(1 << 24).on(qb), nullptr);
    Rule port;
    port.attr.port = 2;
    EXPECT_EQ(port.on(qb), nullptr);
    ibv_flow_spec_esp esp{};
    EXPECT_EQ(Rule().add(esp, IBV_FLOW_SPEC_ESP).on(qb), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST(Description, DevicesAndTheirCapabilities) {
    std::vector<DeviceConfig> list;
    std::string error;
    ASSERT_TRUE(parse_devices("name=a mac=02:00:00:00:00:01 mtu=9000 # fast\n\nname=b max_tso=0;",
                              &list, &error))
        << error;
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0].mtu, 9000u);
    EXPECT_EQ(list[1].max_tso, 0u);
    for (const char* bad : {"name", "name=", "colour=red", "mtu=x", "mtu=99999", "mac=1:2",
                            "frame_ring=1000", "name=a;name=a", "rx_checksum=2", "mtu=-1"}) {
        list.clear();
        EXPECT_FALSE(parse_devices(bad, &list, &error)) << bad;
        EXPECT_FALSE(error.empty());
    }
}

TEST_F(Bench, ADeviceHasOnlyWhatItsDescriptionSays) {
    End poor;
    poor.open("poor");
    ibv_device_attr_ex attr;
    ASSERT_EQ(ibv_query_device_ex(poor.context, nullptr, &attr), 0);
    EXPECT_EQ(attr.tso_caps.max_tso, 0u);
    EXPECT_EQ(attr.completion_timestamp_mask, 0u);
    EXPECT_EQ(poor.qp(IBV_QPT_RAW_PACKET), nullptr);  // asks for segmentation
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_cq_init_attr_ex cq{};
    cq.cqe = 4;
    for (uint64_t flag : {IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP}) {
        cq.wc_flags = flag;
        EXPECT_EQ(ibv_create_cq_ex(poor.context, &cq), nullptr);
    }
    poor.close();
}

}  // namespace
}  // namespace softhca::test
