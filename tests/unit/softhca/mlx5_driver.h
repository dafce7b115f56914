// What drives a device of kind mlx5 as a driver does: by what it writes to its queues and registers.
#pragma once

#include <infiniband/mlx5dv.h>

#include <string>

#include "base/bytes.h"
#include "bench.h"
#include "rule.h"
#include "softhca/abi/model.h"
#include "support/frames.h"

namespace softhca::test {

using Bytes = std::vector<uint8_t>;

// Entries of a send queue, segment by segment.
class Wqe {
  public:
    explicit Wqe(uint8_t opcode = MLX5_OPCODE_SEND, uint8_t flags = MLX5_WQE_CTRL_CQ_UPDATE)
        : bytes(16), opcode_(opcode) {
        bytes[11] = flags;
    }
    // `inlined`: the headers in the Ethernet segment.
    Wqe& ethernet(const Bytes& inlined = {}, uint8_t sums = 0, uint16_t mss = 0) {
        Bytes e(14);
        e[4] = sums;
        vma::store_be16(&e[6], mss);
        vma::store_be16(&e[12], uint16_t(inlined.size()));
        e.insert(e.end(), inlined.begin(), inlined.end());
        return add(e);
    }
    Wqe& pointer(const ibv_sge& sge) {
        Bytes d(16);
        vma::store_be32(&d[0], sge.length);
        vma::store_be32(&d[4], sge.lkey);
        vma::store_be32(&d[8], uint32_t(sge.addr >> 32));
        vma::store_be32(&d[12], uint32_t(sge.addr));
        return add(d);
    }
    Wqe& inlined(const Bytes& data) {
        Bytes d(4);
        vma::store_be32(&d[0], MLX5_INLINE_SEG | uint32_t(data.size()));
        d.insert(d.end(), data.begin(), data.end());
        return add(d);
    }
    // As it is at its place in the queue of `qp`.
    Bytes at(uint16_t index, uint32_t qp) const {
        Bytes wqe = bytes;
        vma::store_be32(&wqe[0], uint32_t(index) << 8 | opcode_);
        vma::store_be32(&wqe[4], qp << 8 | uint32_t(wqe.size() / 16));
        return wqe;
    }

    Bytes bytes;

  private:
    Wqe& add(const Bytes& segment) {
        bytes.insert(bytes.end(), segment.begin(), segment.end());
        bytes.resize((bytes.size() + 15) / 16 * 16);
        return *this;
    }
    uint8_t opcode_;
};

// The queues of an End's QP and CQ, as a driver has them.
struct Driver {
    void open(End& end, ibv_qp* qp) {
        end_ = &end;
        qp_ = qp;
        ASSERT_EQ(softhca_show_qp(qp, &queue), 0);
        ASSERT_EQ(softhca_show_cq(end.cq, &completions), 0);
        ASSERT_EQ(queue.sq.stride, 64u);
        ASSERT_EQ(completions.cqe_size, 64u);
    }
    uint8_t* block(uint16_t number) const {
        return static_cast<uint8_t*>(queue.sq.buf) + (number & (queue.sq.wqe_cnt - 1)) * 64u;
    }
    // Puts an entry into the queue without telling.
    void put(const Bytes& wqe) {
        last = index;
        for (size_t at = 0; at < wqe.size(); at += 16)
            std::memcpy(block(uint16_t(index + at / 64)) + at % 64, &wqe[at], 16);
        index = uint16_t(index + (wqe.size() + 63) / 64);
    }
    void put(const Wqe& wqe) { put(wqe.at(index, qp_->qp_num)); }
    void record() const { vma::store_be32(queue.dbrec + MLX5_SND_DBR, index); }
    void ring(const uint8_t* words) {
        uint8_t* const to = static_cast<uint8_t*>(queue.bf.reg) + (second_ ? queue.bf.size : 0);
        second_ = !second_;
        uint64_t value;
        std::memcpy(&value, words, 8);
        __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELEASE);
        softhca_kick(qp_->context);
    }
    void post(const Wqe& wqe) {
        put(wqe);
        record();
        ring(block(last));
    }
    void restart() {
        index = received = 0;
        second_ = false;
    }
    // Receive entry `received`, of pieces, ended where the queue has room for more.
    void receive(std::vector<ibv_sge> pieces) {
        uint8_t* to = static_cast<uint8_t*>(queue.rq.buf) +
                      (received++ & (queue.rq.wqe_cnt - 1)) * queue.rq.stride;
        const size_t room = queue.rq.stride / 16;
        if (pieces.size() < room) pieces.push_back({0, 0, MLX5_INVALID_LKEY});
        for (const ibv_sge& p : pieces) {
            const Bytes segment = Wqe().pointer(p).bytes;
            std::memcpy(to, &segment[16], 16);
            to += 16;
        }
        vma::store_be32(queue.dbrec + MLX5_RCV_DBR, received);
    }
    // The next completion, null: none. It is given back by consume().
    const mlx5_cqe64* peek() const {
        const auto* cqe =
            static_cast<mlx5_cqe64*>(completions.buf) + (consumed & (completions.cqe_cnt - 1));
        const uint8_t own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
        const bool turn = (consumed & completions.cqe_cnt) != 0;
        if ((own & MLX5_CQE_OWNER_MASK) != turn || own >> 4 == MLX5_CQE_INVALID) return nullptr;
        return cqe;
    }
    void consume() { vma::store_be32(completions.dbrec, ++consumed & 0xffffff); }
    // {opcode, syndrome or 0, counter}; opcode INVALID: none.
    struct Done {
        int opcode;
        int syndrome;
        unsigned counter;
        bool operator==(const Done&) const = default;
    };
    Done next() {
        softhca_kick(qp_->context);
        const mlx5_cqe64* const cqe = peek();
        if (cqe == nullptr) return {MLX5_CQE_INVALID, 0, 0};
        const int opcode = cqe->op_own >> 4;
        const bool error = opcode == MLX5_CQE_REQ_ERR || opcode == MLX5_CQE_RESP_ERR;
        const Done done = {opcode, error ? reinterpret_cast<const mlx5_err_cqe*>(cqe)->syndrome : 0,
                           vma::load_be16(&cqe->wqe_counter)};
        consume();
        return done;
    }

    mlx5dv_qp queue{};
    mlx5dv_cq completions{};
    uint16_t index = 0, last = 0;
    uint32_t received = 0, consumed = 0;

  private:
    End* end_ = nullptr;
    ibv_qp* qp_ = nullptr;
    bool second_ = false;
};

inline constexpr Driver::Done kNone = {MLX5_CQE_INVALID, 0, 0};
inline Driver::Done sent(unsigned counter) { return {MLX5_CQE_REQ, 0, counter}; }
inline Driver::Done refused(int syndrome, unsigned counter) {
    return {MLX5_CQE_REQ_ERR, syndrome, counter};
}

// A device of kind mlx5 and one that is used by verbs.h, and takes what is for its address.
class Mlx5Bench : public testing::Test {
  protected:
    void SetUp() override {
        b.open("right");
        qb = b.qp(IBV_QPT_RAW_PACKET, 32);
        start(b, qb);
        flows_.push_back(Rule().to_mac(kMacB).on(qb));
        for (uint32_t i = 0; i < 32; i++) ASSERT_EQ(b.receive(qb, i * 2048, 2048, i), 0);
    }
    void TearDown() override {
        for (ibv_flow* f : flows_) EXPECT_EQ(ibv_destroy_flow(f), 0);
        for (ibv_qp* qp : {qa, qb}) {
            if (qp) {
                EXPECT_EQ(ibv_destroy_qp(qp), 0);
            }
        }
        a.close();
        b.close();
    }
    void open(const char* device = "queues") {
        a.open(device);
        qa = a.qp(IBV_QPT_RAW_PACKET);
        start(a, qa);
        d.open(a, qa);
    }
    static void start(End&, ibv_qp* qp) {
        ibv_qp_attr attr{};
        attr.port_num = 1;
        for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
            attr.qp_state = state;
            ASSERT_EQ(
                ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)),
                0);
        }
    }
    void restart() {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RESET;
        ASSERT_EQ(ibv_modify_qp(qa, &attr, IBV_QP_STATE), 0);
        start(a, qa);
        d.restart();
    }
    // A frame to b, as bytes and in a's memory from `at` on.
    Bytes frame(uint32_t payload = 100, uint32_t at = 0) {
        vma::test::FrameSpec s;
        s.from = {2, 0, 0, 0, 0, 0x0d};
        s.to = {2, 0, 0, 0, 0, 0x0b};
        s.src = {vma::IpAddr::v4(10, 0, 0, 1), 1000};
        s.dst = {vma::IpAddr::v4(10, 0, 0, 2), 80};
        s.payload = payload;
        const Bytes bytes = vma::test::build_frame(s).bytes;
        std::memcpy(a.memory + at, bytes.data(), bytes.size());
        return bytes;
    }
    ibv_sge whole(const Bytes& bytes) const { return a.sge(0, uint32_t(bytes.size())); }
    // Has b got just these bytes next?
    bool arrived(const Bytes& bytes) {
        const ibv_wc wc = b.poll();
        if (wc.status != IBV_WC_SUCCESS || wc.byte_len != bytes.size()) return false;
        const uint32_t at = uint32_t(wc.wr_id) * 2048;
        const bool same = std::memcmp(b.memory + at, bytes.data(), bytes.size()) == 0;
        EXPECT_EQ(b.receive(qb, at, 2048, wc.wr_id), 0);
        return same;
    }
    // Sends to a's device.
    void send_to_a(const Bytes& bytes) {
        std::memcpy(b.memory + 60000, bytes.data(), bytes.size());
        ibv_sge sge = b.sge(60000, uint32_t(bytes.size()));
        ibv_send_wr wr{}, *bad;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        ASSERT_EQ(ibv_post_send(qb, &wr, &bad), 0);
        ASSERT_EQ(b.poll().status, IBV_WC_SUCCESS);
    }
    Bytes frame_to_a() {
        Bytes bytes = frame();
        bytes[5] = 0x0d;
        return bytes;
    }
    void steer_to_a() {
        const uint8_t mac[6] = {2, 0, 0, 0, 0, 0x0d};
        flows_.push_back(Rule().to_mac(mac).tag(0x1234).on(qa));
        ASSERT_NE(flows_.back(), nullptr);
    }

    End a, b;
    ibv_qp *qa = nullptr, *qb = nullptr;
    Driver d;
    std::vector<ibv_flow*> flows_;
};

}  // namespace softhca::test
