// Between header bytes and the values of segment.h. Addresses, checksums and the IP header are the caller's.
#pragma once

#include "stack/tcp/segment.h"
#include "wire/tcp.h"
#include "wire/tcp_options.h"

namespace vma::tcp {

// Fills `out` from a parsed segment; `offset` is where its payload starts in the frame. The frame itself is put into
// out.packet by the caller. Options that are malformed are left out, as Linux does.
inline void read_segment(const TcpView& view, uint32_t offset, uint16_t gso_size, SegView& out) {
    const TcpHeader& h = view.header;
    out.seq = h.seq;
    out.ack = h.ack;
    out.wnd = h.window;
    out.urg = h.urgent;
    out.flags = h.flags;
    out.gso_size = gso_size;
    out.payload_len = uint32_t(view.payload.size());
    out.payload_offset = offset;
    (void)parse_tcp_options(view.options, out.opt);
}

// Writes header and options with checksum zero; returns the bytes written, 0 when `to` is too small (60 always suffice).
inline uint32_t write_head(const SegmentHead& head, uint16_t src_port, uint16_t dst_port,
                           ByteSpan to) {
    if (to.size() < kTcpSize) return 0;
    const Result<uint32_t> options = emit_tcp_options(head.opt, to.subspan(kTcpSize));
    if (!options.ok()) return 0;
    TcpHeader h;
    h.src_port = src_port;
    h.dst_port = dst_port;
    h.seq = head.seq;
    h.ack = head.ack;
    h.flags = head.flags;
    h.header_len = uint8_t(kTcpSize + options.value());
    h.window = head.wnd;
    h.urgent = head.urg;
    return emit_tcp(h, to) ? h.header_len : 0;
}

}  // namespace vma::tcp
