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

    // A chunk that suits `want` more bytes, or null. `first`: of an empty send buffer; it gets a small one beyond the
    // limit too, or its writer might wait for room that only others can make.
    SendChunk* take_chunk(size_t want, bool first);
    void give_chunk(SendChunk* chunk);
    TxRange* take_range();
    void give_range(TxRange* range);

    // Bytes of chunks at most; what is out beyond a lowered limit stays.
    void set_limit(uint64_t bytes) { limit_ = bytes; }
    uint64_t bytes_out() const { return bytes_out_; }
    // The caller's word that memory is short elsewhere (frames), or three quarters of the limit are out: buffers and windows
    // stop growing, windows shrink as far as promises allow. No connection is lost for it.
    void set_pressure(bool on) { told_ = on; }
    bool pressure() const { return told_ || bytes_out_ > limit_ / 4 * 3; }

    // Blocks handed out and not given back.
    uint64_t chunks_out() const { return chunks_out_; }
    uint64_t ranges_out() const { return ranges_out_; }

  private:
    Arena* arena_;
    uint64_t chunks_out_ = 0, ranges_out_ = 0;
    uint64_t limit_ = UINT64_MAX, bytes_out_ = 0;
    bool told_ = false;
};

}  // namespace vma::tcp
