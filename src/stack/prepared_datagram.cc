#include "stack/prepared_datagram.h"

#include <algorithm>

#include "wire/checksum.h"

namespace vma {

void PreparedDatagram::set_text(ByteSpan text) {
    text_ = text;
    layout_ = {};
    summed_ = false;
}

bool PreparedDatagram::prepare(const UdpTemplate& head, UdpChecksum mode) {
    const iovec text{text_.data(), text_.size()};
    const auto built = emit_udp_datagram(head, mode, {&text, 1}, uint32_t(text_.size()), 0, head_);
    if (!built) return false;
    layout_ = *built;
    summed_ = mode == UdpChecksum::complete && !head.no_checksum();
    ip_offset_ = uint16_t(head.ip_offset());
    ip_checksum_ = load_be16(head_ + ip_offset_ + 10);
    return true;
}

bool PreparedDatagram::patch(size_t at, ByteView bytes) {
    if (at > text_.size() || bytes.size() > text_.size() - at) return false;
    if (bytes.empty()) return true;
    if (!summed_) {
        std::memcpy(text_.data() + at, bytes.data(), bytes.size());
        return true;
    }
    // In whole words of the sum, which begin at even places.
    const size_t from = at & ~size_t(1);
    const size_t to = std::min(text_.size(), (at + bytes.size() + 1) & ~size_t(1));
    const ByteView words(text_.data() + from, to - from);
    const auto old = uint16_t(~checksum(words));
    std::memcpy(text_.data() + at, bytes.data(), bytes.size());
    const auto fresh = uint16_t(~checksum(words));
    uint8_t* const field = head_ + layout_.size - kUdpSize + kUdpChecksumOffset;
    const uint16_t sum = checksum_update16(load_be16(field), old, fresh);
    store_be16(field,
               sum == 0 ? uint16_t(0xffff) : sum);  // RFC 768: 0 would say that there is none
    return true;
}

ByteView PreparedDatagram::head(uint16_t id) {
    store_be16(head_ + ip_offset_ + 4, id);
    store_be16(head_ + ip_offset_ + 10, checksum_update16(ip_checksum_, 0, id));
    return {head_, layout_.size};
}

}  // namespace vma
