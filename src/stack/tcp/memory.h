// TcpMemory: the blocks that connections are made of: send-buffer chunks and scoreboard ranges, from the shard arena.
// One per shard, used under the shard lease; counts what is out so that tests can show that all came back.
#pragma once

#include <atomic>
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

struct MessageMarks;
struct TxRange;

// What the connections of all shards of a process may hold together, in bytes of send chunks and of received frames: the
// meaning of Linux's tcp_mem. The limits are set before the first shard; the rest from any thread.
class TcpBudget {
  public:
    // Pressure begins above `pressure` and ends at `low`; above `limit` memory is refused.
    void set_limits(uint64_t low, uint64_t pressure, uint64_t limit) {
        low_ = low, pressure_at_ = pressure, limit_ = limit;
    }
    void charge(int64_t bytes) {
        const uint64_t now =
            used_.fetch_add(uint64_t(bytes), std::memory_order_relaxed) + uint64_t(bytes);
        if (now > pressure_at_ && !pressed_.load(std::memory_order_relaxed)) {
            if (!pressed_.exchange(true, std::memory_order_relaxed))
                pressures_.fetch_add(1, std::memory_order_relaxed);
        } else if (now <= low_ && pressed_.load(std::memory_order_relaxed)) {
            pressed_.store(false, std::memory_order_relaxed);
        }
    }
    bool pressure() const { return pressed_.load(std::memory_order_relaxed); }
    // Would `more` bytes pass the limit?
    bool refuses(uint64_t more) const { return used() + more > limit_; }
    uint64_t used() const { return used_.load(std::memory_order_relaxed); }
    uint64_t pressures() const { return pressures_.load(std::memory_order_relaxed); }

  private:
    uint64_t low_ = UINT64_MAX, pressure_at_ = UINT64_MAX, limit_ = UINT64_MAX;
    std::atomic<uint64_t> used_{0}, pressures_{0};
    std::atomic<bool> pressed_{false};
};

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
    MessageMarks* take_marks();
    void give_marks(MessageMarks* marks);
    // The frames that a connection holds cost so many bytes more (or less).
    void charge_frames(int64_t bytes) {
        frames_ = uint64_t(int64_t(frames_) + bytes);
        charge(bytes);
    }

    // Bytes of chunks and frames at most, of this shard alone; what is out beyond a lowered limit stays.
    void set_limit(uint64_t bytes) { limit_ = bytes; }
    // The process's, which outlives this object; null: none.
    void set_budget(TcpBudget* budget) { budget_ = budget; }
    uint64_t bytes_out() const { return chunk_bytes_ + frames_; }
    // The caller's word that memory is short elsewhere, the budget's, or three quarters of the limit are out: buffers and
    // windows stop growing, windows shrink as far as promises allow. No connection is lost for it.
    void set_pressure(bool on) { told_ = on; }
    bool pressure() const {
        return told_ || bytes_out() > limit_ / 4 * 3 || (budget_ != nullptr && budget_->pressure());
    }
    // The limit is reached: frames are refused too, except the first of an empty queue.
    bool exhausted() const {
        return bytes_out() >= limit_ || (budget_ != nullptr && budget_->refuses(0));
    }
    void note_refused() { ++refused_; }
    uint64_t refused() const { return refused_; }  // chunks and texts, for want of memory

    // Blocks handed out and not given back.
    uint64_t chunks_out() const { return chunks_out_; }
    uint64_t ranges_out() const { return ranges_out_; }
    uint64_t frame_bytes() const { return frames_; }

  private:
    static constexpr int64_t kReportAt = 65536;  // the budget is told in steps of this
    void charge(int64_t bytes) {
        unreported_ += bytes;
        if (budget_ == nullptr || (unreported_ < kReportAt && unreported_ > -kReportAt)) return;
        budget_->charge(unreported_);
        unreported_ = 0;
    }
    bool refuses(uint64_t more) const {
        return bytes_out() + more > limit_ || (budget_ != nullptr && budget_->refuses(more));
    }

    Arena* arena_;
    TcpBudget* budget_ = nullptr;
    uint64_t chunks_out_ = 0, ranges_out_ = 0, refused_ = 0;
    uint64_t limit_ = UINT64_MAX, chunk_bytes_ = 0, frames_ = 0;
    int64_t unreported_ = 0;
    bool told_ = false;
};

}  // namespace vma::tcp
