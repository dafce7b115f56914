// Stamps of datagrams that are sent (SO_TIMESTAMPING): what is asked for of one, and what waits for the program to read it.
#pragma once

#include <cstdint>

namespace vma {

// The moments of which there are stamps, as bits.
enum TxStampKind : uint8_t {
    kStampScheduled = 1,  // taken from the program; with SO_MAX_PACING_RATE it may wait then
    kStampSent = 2,       // given to the device
};

struct TxStampRequest {
    uint8_t kinds = 0;        // TxStampKind bits
    bool with_frame = false;  // the frame comes back with its stamp
    uint32_t id = 0;          // what the program knows the datagram by
    uint64_t order = 0;       // among all datagrams of the socket that are stamped
};

// PacketBuf::scratch of a stamp that waits; the packet is the frame, or nothing.
struct TxStamp {
    int64_t realtime_ns = 0;
    uint64_t order = 0;
    uint32_t id = 0;
    uint32_t charge = 0;
    TxStampKind kind = kStampSent;
};

}  // namespace vma
