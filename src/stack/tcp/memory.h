// TcpMemory: the blocks that connections are made of: send-buffer chunks and scoreboard ranges, from the shard arena.
// One per shard, used under the shard lease; counts what is out so that tests can show that all came back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/arena.h"

namespace vma::tcp {

// Piece of a send buffer. `data` holds bytes [begin, end).
struct SendChunk {
    SendChunk* next;
    uint32_t begin, end, room;
    bool large;
    uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }
    const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};

inline constexpr uint32_t kSmallChunk = 2048;   // bytes of the block, header included
inline constexpr uint32_t kLargeChunk = 32768;  // two hold a 64 KiB send with its ends unaligned

struct TxRange;

class TcpMemory {
  public:
    explicit TcpMemory(Arena& arena) : arena_(&arena) {}
    TcpMemory(const TcpMemory&) = delete;
    TcpMemory& operator=(const TcpMemory&) = delete;

    // A chunk that suits `want` more bytes, or null.
    SendChunk* take_chunk(size_t want);
    void give_chunk(SendChunk* chunk);
    TxRange* take_range();
    void give_range(TxRange* range);

    // Blocks handed out and not given back.
    uint64_t chunks_out() const { return chunks_out_; }
    uint64_t ranges_out() const { return ranges_out_; }

  private:
    Arena* arena_;
    uint64_t chunks_out_ = 0, ranges_out_ = 0;
};

}  // namespace vma::tcp
