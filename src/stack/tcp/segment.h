// What crosses the border of the TCP core: SegView (a parsed segment coming in), SegmentHead (a segment without payload
// going out) and SegmentPlan (a head plus borrowed payload, possibly to be cut by the ring into many segments).
// Values only; sequence numbers in host order.
#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "base/drop.h"
#include "base/seq.h"
#include "base/time.h"
#include "pkt/packet.h"
#include "wire/tcp_options.h"

namespace vma::tcp {

// Control bits (RFC 9293 section 3.1).
inline constexpr uint8_t kFin = tcp_flag::fin, kSyn = tcp_flag::syn, kRst = tcp_flag::rst,
                         kPsh = tcp_flag::psh, kAck = tcp_flag::ack, kUrg = tcp_flag::urg,
                         kEce = tcp_flag::ece, kCwr = tcp_flag::cwr;

// One segment as the wire parser saw it, or several consecutive ones that the ring merged (gso_size > 0).
struct SegView {
    Seq seq, ack;
    uint16_t wnd = 0;  // as on the wire, unscaled
    uint16_t urg = 0;  // urgent pointer, valid with kUrg
    uint8_t flags = 0;
    uint8_t ecn = 0;        // codepoint of the IP header (RFC 3168): 3 is "congestion experienced"
    uint16_t gso_size = 0;  // payload bytes per wire segment of a merged frame, 0: a single segment
    uint32_t payload_len = 0;     // bytes
    uint32_t payload_offset = 0;  // of the payload from packet->data
    TcpOptions opt;
    // The frame. The core moves it out when it keeps the text; otherwise it stays the caller's. May be empty if
    // payload_len is 0.
    Packet packet;

    bool has(uint8_t bits) const { return (flags & bits) == bits; }
    // SEG.LEN: text plus one each for SYN and FIN (RFC 9293 section 3.4).
    uint32_t len() const {
        return payload_len + ((flags & kSyn) ? 1 : 0) + ((flags & kFin) ? 1 : 0);
    }
    Seq text_end() const { return seq + (payload_len + ((flags & kSyn) ? 1 : 0)); }
    Seq end() const { return seq + len(); }
};

// Header of a segment to send. The caller adds addresses, ports and checksum, and emits `opt`.
struct SegmentHead {
    Seq seq, ack;
    uint16_t wnd = 0;  // as on the wire, already scaled
    uint16_t urg = 0;
    uint8_t flags = 0;
    bool ect = false;  // the IP header gets codepoint ECT(0), 2
    TcpOptions opt;
};

inline constexpr uint8_t kEcnCe = 3;  // congestion experienced

inline constexpr unsigned kMaxSlices = 8;
inline constexpr uint8_t kNoScale = 0xff;  // no window-scale option

// A segment, or a super-frame of up to max_gso_bytes, to build now. The slices point into the send buffer and stay valid
// until the bytes are acknowledged or the connection is released.
struct SegmentPlan {
    SegmentHead head;
    iovec slices[kMaxSlices];
    uint16_t slice_count = 0;
    uint16_t gso_size = 0;     // payload bytes per wire segment; 0 when one segment carries all
    uint32_t payload_len = 0;  // sum of the slices
    bool retransmission = false;
    bool probe = false;  // window probe or keep-alive
};

// Outcome of one check, and of the whole ladder.
struct Verdict {
    enum Kind : uint8_t { Continue, Drop, Reply };
    Kind kind = Continue;
    DropReason reason = DropReason::none;  // with Drop; with Reply why a reply and not acceptance
    static constexpr Verdict go_on() { return {Continue, DropReason::none}; }
    static constexpr Verdict drop(DropReason r) { return {Drop, r}; }
    static constexpr Verdict reply(DropReason r) { return {Reply, r}; }
    constexpr bool operator==(const Verdict&) const = default;
};

}  // namespace vma::tcp
