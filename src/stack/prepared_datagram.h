// PreparedDatagram: a datagram whose header block and sums are made before it is sent. Bytes of its text are replaced in place,
// the checksum follows by their difference (RFC 1624), and each sending fills in an identification alone.
// Pure: no allocation, no clock; the text is the caller's and stays where it is.
#pragma once

#include "stack/udp_output.h"

namespace vma {

class PreparedDatagram {
  public:
    // Another text; there is no header block for it yet.
    void set_text(ByteSpan text);
    // The header block, anew. False: there is more text than a datagram holds.
    bool prepare(const UdpTemplate& head, UdpChecksum mode);
    // Replaces bytes of the text. False: some would be beyond its end, and nothing has happened.
    bool patch(size_t at, ByteView bytes);
    // The header block of the next sending, valid until the one after it.
    ByteView head(uint16_t id);
    const UdpHead& layout() const { return layout_; }
    ByteView text() const { return text_; }

  private:
    ByteSpan text_;
    UdpHead layout_;       // size 0: no header block
    bool summed_ = false;  // the header block has the checksum of the text
    uint16_t ip_offset_ = 0;
    uint16_t ip_checksum_ = 0;  // with identification 0
    uint8_t head_[kUdpMaxHead] = {};
};

}  // namespace vma
