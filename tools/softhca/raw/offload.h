// What the device does to frames: checksums both ways, segmentation (RFC 791, 768, 9293).
#pragma once

#include <sys/uio.h>

#include "base/bytes.h"
#include "softhca/fabric/layout.h"

namespace softhca {

using vma::ByteView;

// Writes the IPv4 header checksum and that of TCP or UDP into the head; `rest` is what follows it. Nothing for what has no
// such checksum. True when every checksum of the frame is now right. `l4` as read_fields() found it.
bool write_checksums(uint8_t* head, size_t head_len, const FlowFields& fields, uint32_t l4,
                     const iovec* rest, uint32_t rest_count);

// Are the IPv4 header's and the transport's checksum right? False for anything else than TCP and UDP.
bool checksums_good(ByteView frame);

// Turns the headers of a large send into those of the segment at payload offset `done` with `bytes` of payload: lengths,
// IPv4 identification, sequence number; FIN and PSH only in the last, CWR only in the first. Checksums are not touched.
void make_segment(uint8_t* head, uint32_t head_len, const FlowFields& fields, uint32_t l4,
                  uint32_t done, uint32_t bytes, uint32_t mss, bool last);

}  // namespace softhca
