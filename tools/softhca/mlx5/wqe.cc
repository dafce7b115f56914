#include "softhca/mlx5/wqe.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace softhca::mlx5 {
namespace {

using vma::ByteView;
using vma::load_be16;
using vma::load_be32;

constexpr uint32_t kControl = sizeof(mlx5_wqe_ctrl_seg);
// Of the Ethernet segment: where its inlined headers begin.
constexpr uint32_t kInlineAt = offsetof(mlx5_wqe_eth_seg, inline_hdr_start);
constexpr uint32_t kChecksums = MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM;
// Of fm_ce_se: what a program may set. Completion only in error, or always; an event; fences.
constexpr uint8_t kKnownFlags = MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED |
                                MLX5_WQE_CTRL_FENCE | MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE | 2 << 5;
constexpr uint8_t kCompletion = 3 << 2;

constexpr uint8_t kBadRequest = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
constexpr uint8_t kBadLength = MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;

uint64_t load_be64(const uint8_t* p) { return uint64_t(load_be32(p)) << 32 | load_be32(p + 4); }

uint32_t rounded(uint32_t bytes) { return (bytes + kSegment - 1) / kSegment * kSegment; }

// Copies `bytes` from block `at`, around the queue's end.
void copy_out(ByteView queue, uint16_t at, uint32_t bytes, uint8_t* to) {
    const size_t begin = size_t(at) * kBlock % queue.size();
    const size_t first = std::min<size_t>(bytes, queue.size() - begin);
    std::memcpy(to, queue.data() + begin, first);
    std::memcpy(to + first, queue.data(), bytes - first);
}

class Reader {
  public:
    Reader(const SendRules& rules, SendRequest& out) : rules_(rules), out_(out) {}

    Complaint read(ByteView queue, uint16_t at, uint16_t end) {
        const uint16_t there = uint16_t(end - at);
        if (there == 0 || there > queue.size() / kBlock)
            return {"the doorbell record is beyond the queue", kBadRequest};
        copy_out(queue, at, kBlock, out_.wqe);
        const uint32_t operation = load_be32(out_.wqe), number = load_be32(out_.wqe + 4);
        const uint32_t segments = number & 0x3f;
        if (segments == 0) return {"ds is 0", kBadRequest};
        out_.blocks = uint16_t((segments * kSegment + kBlock - 1) / kBlock);
        if (out_.blocks > there) {
            out_.blocks = there;
            return {"ds reaches beyond the doorbell record", kBadRequest};
        }
        bytes_ = segments * kSegment;
        copy_out(queue, at, bytes_, out_.wqe);
        out_.opcode = uint8_t(operation);
        out_.signalled = (out_.wqe[11] & kCompletion) == MLX5_WQE_CTRL_CQ_UPDATE;
        if (const Complaint wrong = check_control(operation, number, at)) return wrong;
        if (out_.opcode == MLX5_OPCODE_NOP) return {};
        if (const Complaint wrong = read_ethernet()) return wrong;
        while (at_ < bytes_)
            if (const Complaint wrong = read_data()) return wrong;
        return check_lengths();
    }

  private:
    bool strict() const { return rules_.check == Check::strict; }

    Complaint check_control(uint32_t operation, uint32_t number, uint16_t at) const {
        if (out_.opcode != MLX5_OPCODE_NOP && out_.opcode != MLX5_OPCODE_SEND &&
            out_.opcode != MLX5_OPCODE_TSO)
            return {"the opcode is none of a raw Ethernet queue", kBadRequest};
        if (out_.opcode == MLX5_OPCODE_TSO && rules_.max_tso == 0)
            return {"the device does not segment", kBadRequest};
        if (number >> 8 != rules_.qp) return {"the queue number is another one's", kBadRequest};
        if (!strict()) return {};
        if (uint16_t(operation >> 8) != at)
            return {"the index is not that of its place", kBadRequest};
        if (operation >> 24 != 0) return {"the opcode has a modifier", kBadRequest};
        if (number & 0xc0) return {"reserved bits beside ds are set", kBadRequest};
        if (out_.wqe[8] != 0) return {"it has a signature", kBadRequest};
        if (load_be16(out_.wqe + 9) != 0) return {"it names a stream channel", kBadRequest};
        const uint8_t completion = out_.wqe[11] & kCompletion;
        if ((out_.wqe[11] & ~kKnownFlags) ||
            (completion != 0 && completion != MLX5_WQE_CTRL_CQ_UPDATE))
            return {"fm_ce_se has bits that mean nothing", kBadRequest};
        if (load_be32(out_.wqe + 12) != 0) return {"it has immediate data", kBadRequest};
        return {};
    }

    Complaint read_ethernet() {
        if (bytes_ < kControl + kSegment) return {"it has no Ethernet segment", kBadRequest};
        const uint8_t* const e = out_.wqe + kControl;
        const uint32_t headers = load_be16(e + offsetof(mlx5_wqe_eth_seg, inline_hdr_sz));
        const uint8_t sums = e[offsetof(mlx5_wqe_eth_seg, cs_flags)];
        const bool tso = out_.opcode == MLX5_OPCODE_TSO;
        out_.mss = load_be16(e + offsetof(mlx5_wqe_eth_seg, mss));
        out_.checksum = (sums & kChecksums) != 0;
        if (out_.checksum && !rules_.checksum)
            return {"the device makes no checksums", kBadRequest};
        if (tso != (out_.mss != 0))
            return {tso ? "no segment size" : "a segment size, but no segmentation", kBadRequest};
        if (tso && headers == 0) return {"segmentation without inlined headers", kBadRequest};
        if (kInlineAt + headers > bytes_ - kControl)
            return {"the inlined headers reach beyond ds", kBadRequest};
        if (strict() && (sums & ~kChecksums))
            return {"cs_flags has bits that mean nothing", kBadRequest};
        if (strict() && (load_be32(e) != 0 || e[5] != 0 || load_be32(e + 8) != 0))
            return {"reserved fields of the Ethernet segment are set", kBadRequest};
        if (headers != 0) add({kControl + kInlineAt, headers, 0, true});
        out_.headers = tso ? headers : 0;
        at_ = kControl + std::max(kSegment, rounded(kInlineAt + headers));
        return {};
    }

    Complaint read_data() {
        const uint8_t* const d = out_.wqe + at_;
        const uint32_t count = load_be32(d), length = count & ~uint32_t(MLX5_INLINE_SEG);
        if (length == 0) return {"a data segment of length 0, which stands for 2 GiB", kBadLength};
        if ((count & MLX5_INLINE_SEG) == 0) {
            add({load_be64(d + 8), length, load_be32(d + 4), false});
            at_ += kSegment;
            return {};
        }
        if (length > bytes_ - at_ - 4) return {"inlined bytes reach beyond ds", kBadRequest};
        add({at_ + 4, length, 0, true});
        at_ += rounded(4 + length);
        return {};
    }

    Complaint check_lengths() const {
        if (out_.opcode == MLX5_OPCODE_SEND)
            return out_.bytes < 14                 ? Complaint{"shorter than a frame", kBadLength}
                   : out_.bytes > rules_.max_frame ? Complaint{"longer than a frame", kBadLength}
                                                   : Complaint{};
        if (out_.bytes > rules_.max_tso) return {"more than the device segments", kBadLength};
        if (out_.bytes == out_.headers) return {"segmentation of nothing", kBadLength};
        if (out_.headers + out_.mss > rules_.max_frame)
            return {"segments longer than a frame", kBadLength};
        return {};
    }

    void add(const SendRequest::Piece& piece) {
        out_.pieces[out_.pieces_count++] = piece;  // each takes a segment at least
        out_.bytes += piece.length;
    }

    const SendRules& rules_;
    SendRequest& out_;
    uint32_t bytes_ = 0, at_ = 0;  // of the entry
};

void print(std::string& out, const char* format, auto... values) {
    char line[160];
    std::snprintf(line, sizeof line, format, values...);
    out += line;
}

void print_pointer(std::string& out, const uint8_t* segment) {
    print(out, "  pointer   %u bytes at 0x%llx, key 0x%x\n", load_be32(segment),
          static_cast<unsigned long long>(load_be64(segment + 8)), load_be32(segment + 4));
}

void print_bytes(std::string& out, ByteView bytes) {
    for (size_t at = 0; at < bytes.size(); at += kSegment) {
        print(out, "  %04x ", unsigned(at));
        for (uint32_t b = 0; b < kSegment; b++) print(out, " %02x", bytes[at + b]);
        out += '\n';
    }
}

}  // namespace

Complaint read_send(ByteView queue, uint16_t at, uint16_t end, const SendRules& rules,
                    SendRequest* out) {
    out->pieces_count = out->headers = 0;
    out->bytes = 0;
    out->mss = 0;
    out->blocks = 1;
    out->opcode = MLX5_OPCODE_NOP;
    out->signalled = out->checksum = false;
    return Reader(rules, *out).read(queue, at, end);
}

Complaint read_receive(ByteView entry, Check check, ReceiveRequest* out) {
    out->pieces_count = 0;
    for (size_t at = 0; at + kSegment <= entry.size(); at += kSegment) {
        const uint8_t* const d = entry.data() + at;
        const uint32_t length = load_be32(d), key = load_be32(d + 4);
        if (key == MLX5_INVALID_LKEY)  // what is behind it is of earlier entries
            return check == Check::strict && length != 0
                       ? Complaint{"the last data segment has a length", kBadRequest}
                       : Complaint{};
        if (out->pieces_count == std::size(out->pieces)) break;
        if (length == 0 || (length & MLX5_INLINE_SEG))
            return {"a data segment of no length that memory has", kBadLength};
        out->pieces[out->pieces_count++] = {load_be64(d + 8), length, key, false};
    }
    return {};
}

std::string describe_send(ByteView queue, uint16_t at) {
    uint8_t wqe[kMostSegments * kSegment];
    copy_out(queue, at, kBlock, wqe);
    const uint32_t operation = load_be32(wqe), number = load_be32(wqe + 4);
    const uint32_t segments = std::min<uint32_t>(std::clamp(number & 0x3f, 1u, kMostSegments),
                                                 uint32_t(queue.size() / kSegment));
    copy_out(queue, at, segments * kSegment, wqe);
    std::string out;
    print(out, "  control   opcode 0x%02x modifier %u index %u (at %u) queue 0x%x ds %u ",
          operation & 0xff, operation >> 24, operation >> 8 & 0xffff, unsigned(at), number >> 8,
          number & 0xff);
    print(out, "signature 0x%02x fm_ce_se 0x%02x imm 0x%x\n", wqe[8], wqe[11], load_be32(wqe + 12));
    if (segments < 2) return out;
    const uint8_t* const e = wqe + kControl;
    const uint32_t headers = load_be16(e + 12);
    print(out, "  ethernet  checksums 0x%02x mss %u inlined headers %u\n", e[4], load_be16(e + 6),
          headers);
    uint32_t place = kControl + std::max(kSegment, rounded(kInlineAt + headers));
    while (place < segments * kSegment) {
        const uint8_t* const d = wqe + place;
        const uint32_t count = load_be32(d), length = count & ~uint32_t(MLX5_INLINE_SEG);
        if (count & MLX5_INLINE_SEG)
            print(out, "  inlined   %u bytes\n", length);
        else
            print_pointer(out, d);
        if ((count & MLX5_INLINE_SEG) && length > sizeof wqe) break;
        place += count & MLX5_INLINE_SEG ? rounded(4 + length) : kSegment;
    }
    print_bytes(out, {wqe, segments * kSegment});
    return out;
}

std::string describe_receive(ByteView entry) {
    std::string out;
    for (size_t at = 0; at + kSegment <= entry.size(); at += kSegment) {
        print_pointer(out, entry.data() + at);
        if (load_be32(entry.data() + at + 4) == MLX5_INVALID_LKEY) break;
    }
    print_bytes(out, entry);
    return out;
}

}  // namespace softhca::mlx5
