// Headers of the datagrams we send: Ethernet, IPv4, UDP in front of payload that stays where it is (iovecs).
// Pure: no allocation, no table, no clock; the caller chose route, neighbour and IPv4 id (ip_id.h).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma {

// Largest header block: Ethernet with a tag, IPv4, UDP.
constexpr uint32_t kUdpMaxHead = kEthernetSize + kVlanTagSize + kIpv4Size + kUdpSize;

// What is the same for every datagram of one (socket, destination).
struct UdpTemplateParams {
    MacAddr dst_mac, src_mac;
    bool has_vlan = false;
    uint16_t vlan_tci = 0;
    uint32_t src = 0, dst = 0;  // host order
    uint16_t src_port = 0, dst_port = 0;
    uint8_t ttl = 64, tos = 0;
    bool dont_fragment = true;  // DF of datagrams that fit the MTU
    bool no_checksum = false;   // SO_NO_CHECK: the UDP checksum field is 0
};

// The header block with length and id left at 0, and the sums that do not change. Copyable, no pointers.
class UdpTemplate {
  public:
    UdpTemplate() = default;
    explicit UdpTemplate(const UdpTemplateParams& params);

    uint32_t size() const { return ip_offset_ + kIpv4Size + kUdpSize; }  // 42, or 46 with a tag
    ByteView bytes() const { return {bytes_, size()}; }
    uint32_t ip_offset() const { return ip_offset_; }
    uint32_t udp_offset() const { return ip_offset_ + kIpv4Size; }
    bool no_checksum() const { return no_checksum_; }
    uint32_t src() const { return load_be32(bytes_ + ip_offset_ + 12); }
    uint32_t dst() const { return load_be32(bytes_ + ip_offset_ + 16); }
    // A neighbour that moved.
    void set_dst_mac(const MacAddr& mac) { std::memcpy(bytes_, mac.bytes.data(), 6); }

  private:
    friend uint32_t write_ipv4(const UdpTemplate&, uint32_t, uint16_t, uint16_t, ByteSpan);
    friend uint16_t udp_pseudo_sum(const UdpTemplate&, uint32_t);
    uint8_t bytes_[kUdpMaxHead] = {};
    uint8_t ip_offset_ = kEthernetSize;
    bool no_checksum_ = false;
    uint16_t ip_checksum_ = 0;  // of the header as in bytes_
    uint16_t pseudo_sum_ = 0;   // addresses and protocol, without length
};

struct UdpHead {
    uint32_t size = 0;  // bytes written in front of the payload
    uint16_t csum_start =
        0;  // offset of the UDP header from the frame start; 0: checksum is complete (or off)
    uint16_t csum_offset = 0;  // of the checksum field from csum_start (6)
};

enum class UdpChecksum : uint8_t {
    complete,  // computed here over header and payload
    offload,  // the field gets the folded pseudo-header sum; the device finishes it (RingCaps::tx_checksum)
};

// Writes the header block of one datagram whose payload is the `payload_len` bytes in the iovecs (read only for
// UdpChecksum::complete). For UDP segmentation offload (Gso::udp_l4) give the whole payload: the lengths then are those
// of the super-frame, as the kernel writes them, and the checksum must be `offload`.
// EMSGSIZE: payload_len above 65507. ENOBUFS: `out` smaller than UdpTemplate::size().
Result<UdpHead> emit_udp_datagram(const UdpTemplate& tmpl, UdpChecksum mode,
                                  std::span<const iovec> payload, uint32_t payload_len, uint16_t id,
                                  ByteSpan out);

// Walks over a payload, piece by piece.
class PayloadCursor {
  public:
    explicit PayloadCursor(std::span<const iovec> payload) : payload_(payload) {}
    // The next `bytes` as slices in `out`; how many. EINVAL: the payload holds less. ENOBUFS: `out` is too small. The position
    // then stays.
    Result<uint32_t> take(uint32_t bytes, std::span<iovec> out);

  private:
    std::span<const iovec> payload_;
    size_t piece_ = 0, offset_ = 0;
};

// Cuts a datagram larger than the MTU into IPv4 fragments (RFC 791 section 3.2). DF is cleared, the UDP checksum is
// always complete (devices cannot sum what is not in one frame), every fragment but the last is as long as the MTU allows.
struct UdpFragment {
    uint32_t head_size =
        0;  // bytes written to `head`: the first with UDP header, the others without
    uint32_t piece_count = 0;  // iovecs written to `pieces`
    uint32_t payload_len = 0;  // their sum
};
class UdpFragmenter {
  public:
    // `payload` is borrowed until the last next(). `mtu`: largest IP packet, at least 68 (RFC 791); smaller counts as 68.
    UdpFragmenter(const UdpTemplate& tmpl, std::span<const iovec> payload, uint32_t payload_len,
                  uint32_t mtu, uint16_t id);

    static bool needed(uint32_t payload_len, uint32_t mtu) {
        return payload_len + kUdpSize + kIpv4Size > mtu;
    }
    // Fragments in all; 0 when the payload exceeds 65507.
    uint32_t count() const { return count_; }
    uint32_t produced() const { return k_; }
    // The next fragment. `head` holds kUdpMaxHead bytes or more; `pieces` gets slices of the payload, at most as many as
    // `payload` has. EMSGSIZE: payload too large. ENOBUFS: `head` or `pieces` too small (nothing has happened).
    // ENODATA: there are no more. EINVAL: the iovecs hold less than payload_len.
    Result<UdpFragment> next(ByteSpan head, std::span<iovec> pieces);

  private:
    const UdpTemplate& tmpl_;
    std::span<const iovec> payload_;
    uint32_t payload_len_;
    uint32_t per_fragment_;  // IP payload bytes of every fragment but the last, a multiple of 8
    uint32_t count_;
    uint32_t k_ = 0;
    uint32_t sent_ = 0;  // payload bytes in the fragments so far
    PayloadCursor rest_;
    uint16_t id_;
};

}  // namespace vma
