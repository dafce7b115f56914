// IPv4 identification of what we send (RFC 6864), chosen as Linux 6.x does; each case was seen on kernel 6.18:
//   connected socket         a counter of its own from a random start, one per packet, with DF or without
//   unconnected, PMTUDISC_DO or PROBE (DF, local fragmentation forbidden)   0
//   unconnected otherwise (default PMTUDISC_WANT with DF included)   a counter shared by all sockets with the same hash
//                            of (source, destination, protocol), which also advances at random while it is not used
// All fragments of a datagram carry the id of the datagram. Used under the shard lease.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "base/time.h"

namespace vma {

class IpIdCounters {
  public:
    // `secret`: random per process; it hides from one peer what is sent to another.
    explicit IpIdCounters(uint64_t secret) : secret_(secret), rng_(secret ^ 0x51ed270b9f3ac6d5ull) {
        for (Bucket& b : buckets_) b.id = uint32_t(rng_.next() >> 32);
    }
    // Reserves `count` ids and returns the first. Addresses in host order.
    uint16_t take(uint32_t src, uint32_t dst, uint8_t protocol, Instant now, uint32_t count = 1) {
        uint64_t h = (uint64_t(src) << 32 | dst) ^ secret_;
        h = (h ^ h >> 31) * 0x7fb5d329728ea185ull + protocol;
        h = (h ^ h >> 27) * 0x81dadef4bc2dd44dull;
        Bucket& b = buckets_[(h >> 33) % kBuckets];
        // Linux adds a random part of the clock ticks since the last use, so that an observer cannot count packets.
        const int64_t idle_ms = std::clamp<int64_t>((now - b.last_use).to_millis(), 0, 1 << 16);
        b.last_use = now;
        const uint32_t first = b.id + rng_.below(uint32_t(idle_ms));
        b.id = first + count;
        return uint16_t(first);
    }

  private:
    static constexpr uint32_t kBuckets = 1024;
    struct Bucket {
        uint32_t id = 0;
        Instant last_use;
    };
    uint64_t secret_;
    Rng rng_;
    Bucket buckets_[kBuckets];
};

// The id of the next datagram. `connected_id`: the connected endpoint's counter, or null when unconnected. `df_strict`:
// IP_PMTUDISC_DO or IP_PMTUDISC_PROBE.
inline uint16_t choose_ip_id(uint16_t* connected_id, bool df_strict, IpIdCounters& shared,
                             uint32_t src, uint32_t dst, uint8_t protocol, Instant now) {
    if (connected_id != nullptr) return ++*connected_id;
    return df_strict ? uint16_t(0) : shared.take(src, dst, protocol, now);
}

}  // namespace vma
