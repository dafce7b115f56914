#include "stack/udp_output.h"

#include <algorithm>

#include "wire/checksum.h"

namespace vma {

namespace {
constexpr uint16_t kMoreFragments = 0x2000;

// A computed checksum of 0 is sent as all ones, 0 means "none" (RFC 768).
uint16_t on_wire(uint16_t sum) { return sum == 0 ? uint16_t(0xffff) : sum; }
}  // namespace

UdpTemplate::UdpTemplate(const UdpTemplateParams& p) : no_checksum_(p.no_checksum) {
    EthernetHeader eth;
    eth.dst = p.dst_mac;
    eth.src = p.src_mac;
    eth.type = ethertype::ipv4;
    eth.has_vlan = p.has_vlan;
    eth.vlan_tci = p.vlan_tci;
    ip_offset_ = uint8_t(emit_ethernet(eth, bytes_));

    Ipv4Header ip;
    ip.src = p.src;
    ip.dst = p.dst;
    ip.dont_fragment = p.dont_fragment;
    ip.tos = p.tos;
    ip.ttl = p.ttl;
    ip.protocol = ip_protocol::udp;
    emit_ipv4(ip, ByteSpan(bytes_).subspan(ip_offset_));
    ip_checksum_ = load_be16(bytes_ + ip_offset_ + 10);
    emit_udp({p.src_port, p.dst_port, 0, 0}, ByteSpan(bytes_).subspan(udp_offset()));

    Checksum pseudo;
    pseudo.add_pseudo_v4(p.src, p.dst, ip_protocol::udp, 0);
    pseudo_sum_ = pseudo.sum();
}

// Ethernet and IPv4 with `total_len`, `id` and the flags/offset word; bytes written.
uint32_t write_ipv4(const UdpTemplate& t, uint32_t total_len, uint16_t id, uint16_t frag,
                    ByteSpan out) {
    const uint32_t size = t.ip_offset_ + kIpv4Size;
    std::memcpy(out.data(), t.bytes_, size);
    uint8_t* ip = out.data() + t.ip_offset_;
    const uint16_t old_frag = load_be16(ip + 6);
    store_be16(ip + 2, uint16_t(total_len));
    store_be16(ip + 4, id);
    store_be16(ip + 6, frag);
    uint16_t sum = checksum_update16(t.ip_checksum_, 0, uint16_t(total_len));
    sum = checksum_update16(sum, 0, id);
    if (frag != old_frag) sum = checksum_update16(sum, old_frag, frag);
    store_be16(ip + 10, sum);
    return size;
}

uint16_t udp_pseudo_sum(const UdpTemplate& t, uint32_t udp_len) {
    uint32_t s = t.pseudo_sum_ + udp_len;
    s = (s & 0xffff) + (s >> 16);
    return uint16_t((s & 0xffff) + (s >> 16));
}

namespace {

// UDP header at `udp` with a complete checksum over it and the payload.
void write_udp_complete(const UdpTemplate& t, std::span<const iovec> payload, uint32_t payload_len,
                        uint8_t* udp) {
    const uint16_t udp_len = uint16_t(payload_len + kUdpSize);
    std::memcpy(udp, t.bytes().data() + t.udp_offset(), kUdpSize);
    store_be16(udp + 4, udp_len);
    if (t.no_checksum()) return;
    Checksum sum;
    sum.add_be16(udp_pseudo_sum(t, udp_len));
    sum.add(ByteView(udp, kUdpSize));
    sum.add_iovecs(payload.data(), payload.size());
    store_be16(udp + kUdpChecksumOffset, on_wire(sum.finish()));
}

}  // namespace

Result<UdpHead> emit_udp_datagram(const UdpTemplate& t, UdpChecksum mode,
                                  std::span<const iovec> payload, uint32_t payload_len, uint16_t id,
                                  ByteSpan out) {
    if (payload_len > kUdpMaxPayload4) return Errno{EMSGSIZE};
    if (out.size() < t.size()) return Errno{ENOBUFS};
    const uint32_t udp_len = payload_len + kUdpSize;
    const uint16_t frag = load_be16(t.bytes().data() + t.ip_offset() + 6);
    uint8_t* udp = out.data() + write_ipv4(t, udp_len + kIpv4Size, id, frag, out);
    UdpHead head;
    head.size = t.size();
    if (mode == UdpChecksum::complete || t.no_checksum()) {
        write_udp_complete(t, payload, payload_len, udp);
        return head;
    }
    std::memcpy(udp, t.bytes().data() + t.udp_offset(), kUdpSize);
    store_be16(udp + 4, uint16_t(udp_len));
    store_be16(udp + kUdpChecksumOffset, udp_pseudo_sum(t, udp_len));
    head.csum_start = uint16_t(t.udp_offset());
    head.csum_offset = uint16_t(kUdpChecksumOffset);
    return head;
}

Result<uint32_t> PayloadCursor::take(uint32_t bytes, std::span<iovec> out) {
    size_t piece = piece_, at = offset_;
    uint32_t count = 0;
    for (uint32_t left = bytes; left > 0;) {
        if (piece == payload_.size()) return Errno{EINVAL};
        if (at == payload_[piece].iov_len) {
            piece++;
            at = 0;
            continue;
        }
        if (count == out.size()) return Errno{ENOBUFS};
        const size_t n = std::min<size_t>(left, payload_[piece].iov_len - at);
        out[count++] = {static_cast<uint8_t*>(payload_[piece].iov_base) + at, n};
        at += n;
        left -= uint32_t(n);
    }
    piece_ = piece;
    offset_ = at;
    return count;
}

UdpFragmenter::UdpFragmenter(const UdpTemplate& tmpl, std::span<const iovec> payload,
                             uint32_t payload_len, uint32_t mtu, uint16_t id)
    : tmpl_(tmpl), payload_(payload), payload_len_(payload_len), rest_(payload), id_(id) {
    const uint32_t room = std::clamp<uint32_t>(mtu, 68, kIpv4MaxPacket) - kIpv4Size;
    per_fragment_ = room & ~7u;
    const uint32_t total = payload_len + kUdpSize;
    // Only what has a follower must end on a multiple of 8; the last one may use the whole MTU.
    const uint32_t before_last =
        total <= room ? 0 : (total - room + per_fragment_ - 1) / per_fragment_;
    count_ = payload_len > kUdpMaxPayload4 ? 0 : before_last + 1;
}

Result<UdpFragment> UdpFragmenter::next(ByteSpan head, std::span<iovec> pieces) {
    if (count_ == 0) return Errno{EMSGSIZE};
    if (k_ == count_) return Errno{ENODATA};
    if (head.size() < kUdpMaxHead) return Errno{ENOBUFS};
    const uint32_t header = k_ == 0 ? kUdpSize : 0;
    const uint32_t offset = k_ * per_fragment_;
    const uint32_t room = per_fragment_ - header;
    const bool last = k_ + 1 == count_;
    UdpFragment f;
    f.payload_len = last ? payload_len_ - sent_ : room;

    const auto taken = rest_.take(f.payload_len, pieces);
    if (!taken) return Errno{taken.error()};
    f.piece_count = *taken;
    const uint16_t frag = uint16_t((last ? 0 : kMoreFragments) | offset / 8);
    f.head_size = write_ipv4(tmpl_, kIpv4Size + header + f.payload_len, id_, frag, head);
    if (k_ == 0) {
        write_udp_complete(tmpl_, payload_, payload_len_, head.data() + f.head_size);
        f.head_size += kUdpSize;
    }
    sent_ += f.payload_len;
    k_++;
    return f;
}

}  // namespace vma
