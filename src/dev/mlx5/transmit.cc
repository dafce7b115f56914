#include "dev/mlx5/transmit.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace vma {
namespace {

constexpr uint32_t kControlBytes = sizeof(mlx5_wqe_ctrl_seg);
// Of a request: where the inlined bytes of its Ethernet segment begin.
constexpr uint32_t kHeadersAt = kControlBytes + offsetof(mlx5_wqe_eth_seg, inline_hdr_start);
// Devices want the link header there: with a VLAN tag, and these fill the segment.
constexpr uint32_t kLinkHeader = 18;
constexpr uint32_t kMostBlocks = 16;

constexpr uint32_t rounded(uint32_t bytes) { return (bytes + 15) & ~15u; }

}  // namespace

Status Mlx5Transmitter::use(const VerbsQueues& queues) {
    mlx5dv_qp shown;
    if (!library_.show(queues.qp, &shown)) return Errno{EOPNOTSUPP};
    const uint32_t blocks = shown.sq.wqe_cnt;
    if (shown.sq.stride != kBlock || blocks < 2 * kMostBlocks || blocks > 0x8000 ||
        (blocks & (blocks - 1)) != 0)
        return Errno{EOPNOTSUPP};
    if (const Status used = completions_.use(library_, queues.send); !used) return used;
    kick_.of(queues.qp->context);
    queue_ = static_cast<uint8_t*>(shown.sq.buf);
    record_ = shown.dbrec + MLX5_SND_DBR;
    registers_ = static_cast<uint8_t*>(shown.bf.reg);
    register_bytes_ = shown.bf.size;
    register_at_ = 0;
    if (blocks != blocks_) requests_ = std::make_unique<Request[]>(blocks);
    blocks_ = blocks;
    number_ = queues.qp->qp_num;
    begin_ = end_ = last_ = asked_block_ = 0;
    unrung_ = 0;
    return {};
}

void Mlx5Transmitter::put(uint32_t offset, const void* from, size_t bytes) {
    const size_t size = size_t(blocks_) * kBlock;
    const size_t to = (size_t(end_) * kBlock + offset) & (size - 1);
    const size_t first = std::min(bytes, size - to);
    std::memcpy(queue_ + to, from, first);
    if (first != bytes) [[unlikely]]
        std::memcpy(queue_, static_cast<const uint8_t*>(from) + first, bytes - first);
}

void Mlx5Transmitter::put_pointer(uint32_t offset, uint32_t bytes, const uint8_t* at) {
    uint8_t segment[kSegment];
    store_be32(segment, bytes);
    store_be32(segment + 4, key_);
    store_be32(segment + 8, uint32_t(uint64_t(at) >> 32));
    store_be32(segment + 12, uint32_t(uint64_t(at)));
    put(offset, segment, sizeof segment);
}

// The frame from its byte `from` on, which is in its head.
void Mlx5Transmitter::put_inline(uint32_t offset, const TxFrame& f, uint32_t from) {
    uint8_t count[4];
    store_be32(count, MLX5_INLINE_SEG | (f.bytes() - from));
    put(offset, count, sizeof count);
    offset += sizeof count;
    put(offset, f.head.data() + from, f.head.size() - from);
    offset += uint32_t(f.head.size()) - from;
    for (uint16_t i = 0; i < f.payload_count; ++i) {
        put(offset, f.payload[i].iov_base, f.payload[i].iov_len);
        offset += uint32_t(f.payload[i].iov_len);
    }
}

int Mlx5Transmitter::send_one(const TxFrame& f) {
    const uint32_t head = uint32_t(f.head.size()), bytes = f.bytes();
    const bool cut = f.gso != Gso::none && f.payload_len > f.gso_size;
    const uint32_t headers = cut ? head : std::min(kLinkHeader, head), rest = bytes - headers;
    const bool whole = !cut && bytes <= limits_.max_inline;
    const uint32_t data_at = rounded(kHeadersAt + headers);
    const uint32_t data = rest == 0 ? 0 : whole ? rounded(4 + rest) : kSegment;
    const uint32_t segments = (data_at + data) / kSegment;
    const uint32_t blocks = (data_at + data + kBlock - 1) / kBlock;
    if (blocks > kMostBlocks) return EMSGSIZE;
    if (is_full() || !has_room(blocks)) reclaim();
    if (failed_) return ENETDOWN;
    if (is_full() || !has_room(blocks)) return EAGAIN;
    if (whole) {
        if (rest != 0) put_inline(data_at, f, headers);
    } else {
        uint8_t* const p = room_or_reclaim(rest);
        if (p == nullptr) return EAGAIN;
        std::memcpy(p, f.head.data() + headers, head - headers);
        copy_payload(f, p + (head - headers));
        put_pointer(data_at, rest, p);
    }
    const bool ask = wants_completion() || uint16_t(end_ + blocks - asked_block_) >= blocks_ / 8;
    uint8_t* const request = at(end_);
    store_be32(request, uint32_t(end_) << 8 | (cut ? MLX5_OPCODE_TSO : MLX5_OPCODE_SEND));
    store_be32(request + 4, number_ << 8 | segments);
    store_be32(request + 8, ask ? MLX5_WQE_CTRL_CQ_UPDATE : 0);
    store_be32(request + 12, 0);
    uint8_t* const ethernet = request + kControlBytes;
    const bool sums = cut || f.csum_start != 0;
    store_be32(ethernet, 0);
    store_be16(ethernet + 4, sums ? (MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM) << 8 : 0);
    store_be16(ethernet + 6, cut ? f.gso_size : 0);
    store_be32(ethernet + 8, 0);
    store_be16(ethernet + 12, uint16_t(headers));
    put(kHeadersAt, f.head.data(), headers);
    requests_[end_ & (blocks_ - 1)] = {sent(bytes, ask), uint16_t(end_ + blocks)};
    last_ = end_;
    end_ = uint16_t(end_ + blocks);
    if (ask) asked_block_ = end_;
    last_is_whole_ = whole;
    unrung_++;
    return 0;
}

// A frame alone that is inside its request goes with the doorbell (BlueFlame): the device need not read the queue.
void Mlx5Transmitter::ring() {
    mlx5::before_record();
    mlx5::write_record(record_, end_);
    mlx5::before_register();
    uint8_t* const to = registers_ + register_at_;
    const uint32_t blocks = uint16_t(end_ - last_);
    const bool whole = wants_blueflame_ && unrung_ == 1 && last_is_whole_;
    if (whole && blocks * kBlock <= register_bytes_)
        for (uint32_t i = 0; i < blocks; ++i)
            mlx5::write_block(to + i * kBlock, at(uint16_t(last_ + i)));
    else
        mlx5::write_register(to, at(last_));
    mlx5::after_register();
    register_at_ ^= register_bytes_;
    unrung_ = 0;
    kick_();
}

void Mlx5Transmitter::reclaim() {
    kick_();
    bool any = false;
    while (const mlx5_cqe64* const entry = completions_.next()) {
        const uint16_t block = be16toh(entry->wqe_counter);
        failed_ = failed_ || entry->op_own >> 4 != MLX5_CQE_REQ;
        if (uint16_t(block - begin_) < uint16_t(end_ - begin_)) {
            const Request& request = requests_[block & (blocks_ - 1)];
            begin_ = request.end;
            done(request.number);
        } else {
            failed_ = true;  // of nothing that is with the device
        }
        completions_.consume();
        any = true;
    }
    if (any) completions_.release();
}

// As in Mlx5Receiver::forget_requests().
void Mlx5Transmitter::forget_requests() {
    while (completions_.next() != nullptr) completions_.consume();
    completions_.release();
    begin_ = end_ = last_ = asked_block_ = 0;
    unrung_ = 0;
    QueueTransmitter::forget_requests();
}

}  // namespace vma
