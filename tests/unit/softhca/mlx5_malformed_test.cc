// What a device of kind mlx5 refuses, and what it says of it.
#include <functional>

#include "mlx5_driver.h"

namespace softhca::test {
namespace {

using vma::load_be32;
using vma::store_be16;
using vma::store_be32;

// An entry that is good but for one thing, and what is said of it.
struct Malformed {
    const char* name;
    const char* said;
    std::function<void(Bytes& wqe)> spoil;
    int syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    bool strict_only = false;
};

class Mlx5Malformed : public Mlx5Bench {
  protected:
    // The first completion of that entry and of a good one behind it, which rings for both.
    Driver::Done spoiled(const Malformed& m, const Bytes& bytes) {
        Bytes wqe = Wqe().ethernet().pointer(whole(bytes)).at(0, qa->qp_num);
        m.spoil(wqe);
        d.put(wqe);
        d.post(Wqe(MLX5_OPCODE_NOP));
        return d.next();
    }
};

void add32(Bytes& wqe, size_t at, uint32_t n) { store_be32(&wqe[at], load_be32(&wqe[at]) + n); }
const Malformed kMalformed[] = {
    {"index", "the index is not that of its place", [](Bytes& w) { add32(w, 0, 1 << 8); },
     MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
    {"opcode", "the opcode is none", [](Bytes& w) { w[3] = MLX5_OPCODE_RDMA_WRITE; }},
    {"modifier", "a modifier", [](Bytes& w) { w[0] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
    {"queue", "another one's", [](Bytes& w) { w[6] ^= 1; }},
    {"no_segments", "ds is 0", [](Bytes& w) { w[7] = 0; }},
    {"segments", "beyond the doorbell record", [](Bytes& w) { w[7] = 9; }},
    {"reserved_ds", "reserved bits beside ds", [](Bytes& w) { w[7] |= 0x40; },
     MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
    {"signature", "a signature", [](Bytes& w) { w[8] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
     true},
    {"stream", "a stream channel", [](Bytes& w) { w[10] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
     true},
    {"flags", "fm_ce_se", [](Bytes& w) { w[11] |= 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
    {"completion", "fm_ce_se", [](Bytes& w) { w[11] = 1 << 2; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
     true},
    {"immediate", "immediate data", [](Bytes& w) { w[15] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
     true},
    {"no_ethernet", "no Ethernet segment", [](Bytes& w) { w[7] = 1; }},
    {"headers", "headers reach beyond ds", [](Bytes& w) { store_be16(&w[28], 40); }},
    {"segment_size", "a segment size, but", [](Bytes& w) { w[23] = 1; }},
    {"no_segment_size", "no segment size", [](Bytes& w) { w[3] = MLX5_OPCODE_TSO; }},
    {"no_headers", "without inlined headers",
     [](Bytes& w) { w[3] = MLX5_OPCODE_TSO, store_be16(&w[22], 1000); }},
    {"sums", "cs_flags", [](Bytes& w) { w[20] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
    {"reserved", "reserved fields", [](Bytes& w) { w[24] = 1; }, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
     true},
    {"empty", "of length 0", [](Bytes& w) { store_be32(&w[32], 0); },
     MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR},
    {"inlined", "inlined bytes reach beyond",
     [](Bytes& w) { store_be32(&w[32], MLX5_INLINE_SEG | 13); }},
    {"short", "shorter than a frame", [](Bytes& w) { store_be32(&w[32], 13); },
     MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR},
    {"long", "longer than a frame", [](Bytes& w) { store_be32(&w[32], 1519); },
     MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR},
    {"key", "a key does not give", [](Bytes& w) { w[36] ^= 1; }, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR},
};

TEST_F(Mlx5Malformed, WhatIsMalformedIsRefusedAndShown) {
    open();
    const Bytes bytes = frame();
    for (const Malformed& m : kMalformed) {
        SCOPED_TRACE(m.name);
        testing::internal::CaptureStderr();
        EXPECT_EQ(spoiled(m, bytes), refused(m.syndrome, 0));
        for (Driver::Done done = d.next(); done != kNone; done = d.next())
            EXPECT_EQ(done, refused(MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 1));
        const std::string said = testing::internal::GetCapturedStderr();
        EXPECT_NE(said.find(m.said), std::string::npos) << said;
        EXPECT_NE(said.find("  control   opcode"), std::string::npos) << said;
        EXPECT_FALSE(arrived(bytes));
        restart();
    }
    d.post(Wqe().ethernet().pointer(whole(bytes)));
    EXPECT_EQ(d.next(), sent(0));
}

TEST_F(Mlx5Malformed, FastLooksOnlyForWhatItCannotCarryOut) {
    open("fast");
    const Bytes bytes = frame();
    for (const Malformed& m : kMalformed) {
        SCOPED_TRACE(m.name);
        testing::internal::CaptureStderr();
        const Driver::Done done = spoiled(m, bytes);
        while (d.next() != kNone) {
        }
        EXPECT_EQ(testing::internal::GetCapturedStderr().empty(), m.strict_only);
        // One that asks for no completion that there is gets none; the next is that of the NOP.
        const bool silent = std::string_view(m.name) == "completion";
        EXPECT_EQ(done, !m.strict_only ? refused(m.syndrome, 0) : sent(silent));
        EXPECT_EQ(arrived(bytes), m.strict_only);
        restart();
    }
}

TEST_F(Mlx5Malformed, DoorbellsThatAreWrongAreShown) {
    open();
    const Bytes bytes = frame();
    const Wqe wqe = Wqe().ethernet().pointer(whole(bytes));
    const auto said_of = [&](const std::function<void()>& act) {
        testing::internal::CaptureStderr();
        act();
        EXPECT_EQ(d.next().opcode == MLX5_CQE_REQ, false);
        while (d.next() != kNone) {
        }
        const std::string said = testing::internal::GetCapturedStderr();
        restart();
        return said;
    };
    EXPECT_NE(said_of([&] {
                  d.put(wqe);
                  d.ring(d.block(0));  // without the record
              }).find("does not cover"),
              std::string::npos);
    EXPECT_NE(said_of([&] {
                  d.put(wqe);
                  d.record();
                  Bytes other(d.block(0), d.block(0) + 8);
                  other[7] ^= 1;
                  d.ring(other.data());
              }).find("is not what is in the queue"),
              std::string::npos);
    EXPECT_NE(said_of([&] {
                  d.index = uint16_t(d.queue.sq.wqe_cnt);
                  d.post(wqe);
              }).find("beyond the queue"),
              std::string::npos)
        << "more than it has";
    d.post(wqe);
    EXPECT_EQ(d.next(), sent(0));
    EXPECT_NE(said_of([&] { d.ring(d.block(0)); }).find("has nothing new"), std::string::npos);
    EXPECT_TRUE(arrived(bytes));
    EXPECT_FALSE(arrived(bytes));
}

TEST_F(Mlx5Malformed, ReceiveEntriesThatAreWrongAreRefused) {
    open();
    steer_to_a();
    const Bytes to_a = frame_to_a();
    const auto refuses = [&](std::vector<ibv_sge> pieces, int syndrome) {
        testing::internal::CaptureStderr();
        d.receive(std::move(pieces));
        send_to_a(to_a);
        const Driver::Done done = d.next();
        const std::string said = testing::internal::GetCapturedStderr();
        EXPECT_EQ(done, (Driver::Done{MLX5_CQE_RESP_ERR, syndrome, 0}));
        EXPECT_NE(said.find("  pointer   "), std::string::npos) << said;
        restart();
    };
    const ibv_sge good = a.sge(0, 2048);
    ibv_sge other = good;
    other.lkey ^= 1;
    refuses({other}, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    refuses({a.sge(sizeof(a.memory) - 100, 200)}, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    refuses({{good.addr, 0, good.lkey}}, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    refuses({{0, 5, MLX5_INVALID_LKEY}}, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    testing::internal::CaptureStderr();
    store_be32(d.queue.dbrec + MLX5_RCV_DBR, d.queue.rq.wqe_cnt + 1);
    EXPECT_EQ(d.next().opcode, MLX5_CQE_RESP_ERR);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("beyond the receive queue"),
              std::string::npos);
}

}  // namespace
}  // namespace softhca::test
