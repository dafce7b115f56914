// Frames of UDP sockets with SO_MAX_PACING_RATE that wait for their time, in one shard. What may leave at once does; the rest is
// copied and leaves when it is due: by the thread that sends or polls, else by the internal one. Used under the shard lease.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/list.h"
#include "dev/ring.h"
#include "pkt/pool.h"
#include "stack/pacer.h"
#include "stack/udp_endpoint.h"

namespace vma {

class Shard;

// What one endpoint sends. Charged as what it receives is (udp_charge), against SO_SNDBUF.
class PacedFlow {
  public:
    // As Linux: one datagram more while the charge is below the limit; readiness is told when half of it is free. These may
    // be asked without the lease.
    bool has_room() const { return charged() < limit_.load(std::memory_order_relaxed); }
    bool is_writable() const { return charged() <= limit_.load(std::memory_order_relaxed) / 2; }
    uint32_t charged() const { return charged_.load(std::memory_order_relaxed); }
    // How many frames of so many bytes may be one super-frame: half a burst, so that what comes late is not lost for the rate.
    uint32_t train(uint32_t frame_bytes) const {
        return uint32_t(std::max<uint64_t>(pacer_.burst() / 2 / frame_bytes, 1));
    }
    // When the next of its frames may leave; never: none waits.
    Instant due() const;

  private:
    friend class UdpPacing;

    Pacer pacer_;
    PacketQueue queue_;
    std::atomic<uint32_t> charged_{0}, limit_{0};
    UdpEndpoint* endpoint_ =
        nullptr;     // who hears that it is writable; null: closed, and goes with its last frame
    ListHook hook_;  // in waiting_ while something is queued
    Instant refused_until_;  // the device was full
};

class UdpPacing {
  public:
    UdpPacing(Shard& shard, Arena& arena, PacketPool& pool)
        : shard_(shard), arena_(arena), pool_(pool) {}

    PacedFlow* open(UdpEndpoint& endpoint);  // null: no memory
    // `rate` in bytes per second, 0: as fast as may be; `limit`: SO_SNDBUF as the kernel tells it.
    void set(PacedFlow& flow, uint64_t rate, uint32_t limit, Instant now);
    // What it has queued still leaves in its time.
    void close(PacedFlow& flow);

    // Sends the frame or keeps a copy until its time. 0 or an errno.
    int send(PacedFlow& flow, const TxFrame& frame, Instant now, const TxStampRequest& stamps = {});
    // Everything leaves now: the kernel goes on with the socket, or the process ends.
    void flush(PacedFlow& flow, Instant now);
    void flush_all(Instant now);

    Instant next() const { return next_; }
    void run(Instant now);

  private:
    using Waiting = List<PacedFlow, &PacedFlow::hook_>;
    static constexpr Duration kRetry = Duration::micros(100);

    int put(const PacedFlow& flow, PacketBuf& waiting);
    bool release_first(PacedFlow& flow, Instant now);
    void release_due(PacedFlow& flow, Instant now);
    void forget(PacedFlow& flow);
    void update_next();

    Shard& shard_;
    Arena& arena_;
    PacketPool& pool_;
    Waiting waiting_;
    Instant next_ = Instant::never();
};

}  // namespace vma
