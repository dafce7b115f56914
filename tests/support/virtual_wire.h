// VirtualWire: two rings joined by a wire in this process, in virtual time: latency, loss, duplication, reordering and
// corruption by a seed. No descriptor but the wake-up ones, no clock, no thread of its own.
//
//   VirtualWire wire({.latency = Duration::micros(10), .lose = {1, 100}, .seed = 7}, pool_a, pool_b);
//   wire.end(0).send(...);  wire.advance(wire.next_event());  wire.end(1).recv(...);
//
// Thread rules: as ring.h for each end; both ends and advance() may be used by different threads (the wire has a lock).
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/rng.h"
#include "base/time.h"
#include "dev/ring.h"
#include "pkt/pool.h"

namespace vma::test {

struct Chance {
    uint32_t of = 0, in = 1;  // `of` out of `in` frames
};

struct WireConfig {
    Duration latency{};  // 0: a frame arrives while it is sent
    Duration jitter{};   // up to this much more
    Chance lose{}, duplicate{}, reorder{}, corrupt{};
    Duration reorder_delay = Duration::millis(1);  // of a frame that is overtaken
    uint32_t mtu = 1500;
    uint32_t max_gso_bytes = 65521;
    bool vouch = true;             // meta.checksum_good of undamaged frames
    uint32_t queue_frames = 4096;  // received and not yet taken; more are dropped and counted
    uint64_t seed = 1;
};

struct WireCounters {
    uint64_t sent = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0, delivered = 0;
    uint64_t to_kernel = 0;  // arrived and not steered to the ring
};

class VirtualWire {
  public:
    VirtualWire(const WireConfig& config, PacketPool& pool0, PacketPool& pool1);
    ~VirtualWire();
    VirtualWire(const VirtualWire&) = delete;
    VirtualWire& operator=(const VirtualWire&) = delete;

    Ring& end(int i);
    Instant now() const;
    // When the next frame arrives; never() when nothing is under way.
    Instant next_event() const;
    // Moves time forward (never back) and delivers what is due by then.
    void advance(Instant to);
    WireCounters counters() const;
    // Changed between frames, e.g. to end a lossy phase.
    void set(const WireConfig& config);

  private:
    class End;
    struct Flight {
        int to;
        std::vector<uint8_t> bytes;
        uint16_t gso_size;
        bool good;
    };

    void transmit(int from, const TxFrame& frame);  // locked
    void schedule(Flight flight, Duration delay);
    void deliver(Flight& flight);

    mutable std::mutex mutex_;
    WireConfig config_;
    Rng rng_;
    Instant now_{};
    uint64_t order_ = 0;
    std::map<std::pair<Instant, uint64_t>, Flight> flights_;
    WireCounters counters_;
    End* ends_[2];
};

}  // namespace vma::test
