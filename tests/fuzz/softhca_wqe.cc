// Entries of mlx5 queues as any program may leave them: read strictly and fast, and described. Input: where the reader is and how
// far was written, then the queue. What is read is inside of what there is.
#include <bit>
#include <vector>

#include "fuzz_check.h"
#include "softhca/mlx5/wqe.h"

using namespace softhca::mlx5;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr size_t kHead = 8;
    if (size < kHead + kBlock) return 0;
    const auto at = uint16_t(data[0] | data[1] << 8);
    const auto end = uint16_t(at + (data[2] & 0x1f));
    SendRules rules;
    rules.qp = 0x2010;
    rules.max_frame = 1518;
    rules.max_tso = data[3] & 1 ? 65536 : 0;
    rules.checksum = (data[3] & 2) != 0;
    const size_t bytes = std::bit_floor((size - kHead) / kBlock) * kBlock;
    const std::vector<uint8_t> queue(data + kHead, data + kHead + bytes);
    SendRequest strict, fast;
    const Complaint wrong = read_send(queue, at, end, rules, &strict);
    rules.check = Check::fast;
    const Complaint wrong_fast = read_send(queue, at, end, rules, &fast);
    FUZZ_CHECK(wrong || !wrong_fast);  // strict lets nothing pass that fast refuses
    for (const SendRequest* r : {&strict, &fast}) {
        FUZZ_CHECK(r->blocks >= 1 && r->blocks <= (kMostSegments * kSegment + kBlock - 1) / kBlock);
        FUZZ_CHECK(r->pieces_count <= kMostSegments);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < r->pieces_count; i++) {
            const SendRequest::Piece& p = r->pieces[i];
            FUZZ_CHECK(!p.inlined || p.at + p.length <= sizeof r->wqe);
            sum += p.length;
        }
        FUZZ_CHECK(sum == r->bytes);
    }
    if (!wrong_fast) {
        FUZZ_CHECK(fast.blocks <= uint16_t(end - at));
        if (fast.opcode == MLX5_OPCODE_SEND) FUZZ_CHECK(fast.bytes >= 14 && fast.bytes <= 1518);
        if (fast.opcode == MLX5_OPCODE_TSO)
            FUZZ_CHECK(fast.headers > 0 && fast.headers < fast.bytes && fast.bytes <= 65536);
    }
    FUZZ_CHECK(!describe_send(queue, at).empty() && !describe_receive(queue).empty());
    ReceiveRequest receive;
    for (const Check check : {Check::strict, Check::fast}) {
        (void)read_receive(queue, check, &receive);
        for (uint32_t i = 0; i < receive.pieces_count; i++)
            FUZZ_CHECK(receive.pieces[i].length != 0 && !receive.pieces[i].inlined);
    }
    return 0;
}
