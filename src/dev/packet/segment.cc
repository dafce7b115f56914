#include "dev/packet/segment.h"

#include <netinet/in.h>

#include <cstring>

namespace vma {
namespace {

constexpr uint8_t kFin = 1, kPsh = 8, kCwr = 0x80;

uint32_t sum_words(const uint8_t* p, uint32_t bytes) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) sum += load_be16(p + i);
    return sum;
}

uint16_t fold(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return uint16_t(sum);
}

}  // namespace

Segmenter::Segmenter(const TxFrame& frame) : frame_(frame) {
    const uint8_t* h = frame.head.data();
    const size_t n = frame.head.size();
    if (frame.gso == Gso::none || frame.gso_size == 0 || n > kMostHeadBytes || n < 14 + 20 + 8)
        return;
    l3_ = 14;
    v6_ = h[l3_] >> 4 == 6;
    const uint32_t ip_bytes = v6_ ? 40 : (h[l3_] & 15) * 4u;
    l4_ = l3_ + ip_bytes;
    if (ip_bytes < 20 || frame.csum_start != l4_) return;
    const bool tcp = frame.gso != Gso::udp_l4;
    if (tcp && v6_ != (frame.gso == Gso::tcp_v6)) return;
    if (l4_ + (tcp ? 20 : 8) > n) return;
    const uint32_t l4_bytes = tcp ? (h[l4_ + 12] >> 4) * 4u : 8;
    ok_ = l4_ + l4_bytes == n;
}

uint32_t Segmenter::next(uint8_t* head, uint32_t* payload_at, uint32_t* payload_len) {
    const uint32_t n = uint32_t(frame_.head.size());
    const uint32_t left = frame_.payload_len - at_;
    const uint32_t take = left < frame_.gso_size ? left : frame_.gso_size;
    const bool last = take == left;
    std::memcpy(head, frame_.head.data(), n);
    const uint32_t l4_bytes = n - l4_ + take;
    if (v6_) {
        store_be16(head + l3_ + 4, uint16_t(l4_bytes + (l4_ - l3_ - 40)));
    } else {
        store_be16(head + l3_ + 2, uint16_t(n - l3_ + take));
        store_be16(head + l3_ + 4, uint16_t(load_be16(head + l3_ + 4) + index_));
        store_be16(head + l3_ + 10, 0);
        store_be16(head + l3_ + 10, uint16_t(~fold(sum_words(head + l3_, l4_ - l3_))));
    }
    const bool tcp = frame_.gso != Gso::udp_l4;
    if (tcp) {
        const uint32_t seq = load_be32(head + l4_ + 4) + at_;
        const uint32_t wire = __builtin_bswap32(seq);
        std::memcpy(head + l4_ + 4, &wire, 4);
        if (!last) head[l4_ + 13] &= uint8_t(~(kFin | kPsh));
        if (index_ != 0) head[l4_ + 13] &= uint8_t(~kCwr);
    } else {
        store_be16(head + l4_ + 4, uint16_t(l4_bytes));
    }
    const uint32_t addresses = v6_ ? sum_words(head + l3_ + 8, 32) : sum_words(head + l3_ + 12, 8);
    store_be16(head + l4_ + frame_.csum_offset,
               fold(addresses + (tcp ? uint32_t(IPPROTO_TCP) : uint32_t(IPPROTO_UDP)) + l4_bytes));
    *payload_at = at_;
    *payload_len = take;
    at_ += take;
    ++index_;
    return n;
}

}  // namespace vma
