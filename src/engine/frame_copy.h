// A frame that was to be sent, in memory that stays: for one that has to wait, and for what comes back with a stamp.
#pragma once

#include <cstring>

#include "dev/ring.h"
#include "pkt/pool.h"

namespace vma {

// Empty: no memory.
inline Packet copy_frame(PacketPool& pool, const TxFrame& frame) {
    Packet copy = pool.take(frame.bytes());
    if (!copy) return copy;
    uint8_t* at = copy->data;
    std::memcpy(at, frame.head.data(), frame.head.size());
    at += frame.head.size();
    for (unsigned i = 0; i < frame.payload_count; i++) {
        const iovec& piece = frame.payload[i];
        if (piece.iov_len) std::memcpy(at, piece.iov_base, piece.iov_len);
        at += piece.iov_len;
    }
    copy->len = frame.bytes();
    return copy;
}

}  // namespace vma
