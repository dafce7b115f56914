// The memory that two processes share: one memfd per pair, made and sealed by the one who opens the pair (the opener).
//
//   0            ControlPage
//   4096         records from the opener to the joiner, ring_bytes
//   4096 + n     records from the joiner to the opener, ring_bytes
//
// A record is one frame, or text of a stream behind its TextHead (dev/text_lane.h): a word that says what it is, then the
// bytes; records begin at multiples of kRecordAlign. The
// word is stored last, at once, with release order: a record is there or it is not. Before it stores a word the producer
// clears the place of the next one, so that whoever waits reads zero there until the next record is complete, and never old
// bytes of a frame. So there is no producer's position to share: who waits for a frame waits on the line that brings it.
//
// Positions are 64 bits and never wrap; a place is a position modulo ring_bytes. Each side keeps its own in private memory and
// believes of the other side's words only what it has checked (direction.h). All fields in host byte order: one machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dev/text_lane.h"

namespace vma::shm {

inline constexpr uint64_t kMagic = 0x52494e47'4d53484cull;
inline constexpr uint32_t kVersion = 2;

inline constexpr uint32_t kLeastRingBytes =
    256 * 1024;  // a frame fits beside what is read and not given back yet
inline constexpr uint32_t kMostRingBytes = 64 << 20;
inline constexpr uint32_t kDefaultRingBytes = 1 << 20;

inline constexpr uint32_t kMostPacketBytes = 65535;  // IPv4
inline constexpr uint32_t kLeastFrameBytes = 14;     // Ethernet header
inline constexpr uint32_t kMostFrameBytes = kLeastFrameBytes + kMostPacketBytes;
inline constexpr uint32_t kRecordAlign = 64;  // a record shares no cache line with the next
inline constexpr uint32_t kWordBytes = 8;

enum class Side : uint8_t { opener, joiner };

struct Header {
    uint64_t magic;
    uint32_t version;
    uint32_t ring_bytes;  // of one direction; a power of two
    uint64_t total_bytes;
};

// What the consumer of one direction says. Two lines apart, as processors fetch lines in pairs.
struct ConsumerWords {
    alignas(128) uint64_t consumed;  // position before which everything may be overwritten
    // 0: awake. Else asleep, another value each time; then the producer rings the bell, once per value.
    alignas(128) uint32_t sleeping;
};

struct ControlPage {
    Header header;              // written before the memory is given away, then never again
    ConsumerWords from_opener;  // written by the joiner
    ConsumerWords from_joiner;  // written by the opener
};

// A page. Where pages are larger than 4 KiB the mapping fails, and the pair is refused with that reason.
inline constexpr uint32_t kControlBytes = 4096;
static_assert(sizeof(Header) == 24 && sizeof(ConsumerWords) == 256);
static_assert(offsetof(ControlPage, from_opener) == 128 &&
              offsetof(ControlPage, from_joiner) == 384);
static_assert(sizeof(ControlPage) <= kControlBytes);

constexpr bool usable_ring_bytes(uint64_t n) {
    return n >= kLeastRingBytes && n <= kMostRingBytes && (n & (n - 1)) == 0;
}
constexpr uint64_t total_bytes(uint32_t ring_bytes) {
    return kControlBytes + 2 * uint64_t(ring_bytes);
}

// ---- the word of a record

// The L4 checksum field holds the pseudo-header sum only: nothing can have happened to the bytes on the way.
inline constexpr uint8_t kChecksumVouched = 1;
// No frame: a TextHead and text.
inline constexpr uint8_t kText = 2;
inline constexpr uint8_t kKnownFlags = kChecksumVouched | kText;

struct Record {
    uint32_t length = 0;    // of the frame
    uint16_t gso_size = 0;  // payload bytes per segment of a super-frame, 0: a plain frame
    uint8_t flags = 0;
};

// Bits 0-23 length, 24-31 flags, 32-47 gso_size, 48-63 kWordMark. Never zero.
inline constexpr uint64_t kWordMark = 0x564d;

constexpr uint64_t word_of(const Record& r) {
    return kWordMark << 48 | uint64_t(r.gso_size) << 32 | uint64_t(r.flags) << 24 | r.length;
}
// False: no producer of this version stores such a word.
constexpr bool parse_word(uint64_t word, Record& out) {
    out.length = uint32_t(word & 0xffffff);
    out.flags = uint8_t(word >> 24);
    out.gso_size = uint16_t(word >> 32);
    if (word >> 48 != kWordMark || (out.flags & ~kKnownFlags) != 0) return false;
    if (!(out.flags & kText))
        return out.length >= kLeastFrameBytes && out.length <= kMostFrameBytes;
    return out.flags == kText && out.gso_size == 0 && out.length > sizeof(TextHead) &&
           out.length <= sizeof(TextHead) + TextLane::kMostBytes;
}
// Bytes that the record of a frame takes.
constexpr uint32_t record_span(uint32_t frame_bytes) {
    return (kWordBytes + frame_bytes + kRecordAlign - 1) & ~(kRecordAlign - 1);
}

}  // namespace vma::shm
