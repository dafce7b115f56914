// PathCache: what is known about the way to an address beyond the route: its MTU (RFC 1191, for ten minutes as Linux's
// mtu_expires) and TCP Fast Open's cookie and manners (RFC 7413 section 4.1.3). A table of fixed size, four places per hash
// value, the one not used for longest goes. Plain data for the shard arena, used under the shard lease.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ip_addr.h"
#include "base/time.h"
#include "stack/tcp/fast_open.h"

namespace vma {

class PathCache {
  public:
    struct Entry {
        IpAddr remote;
        Instant used;  // zero: the place is free
        Instant mtu_until, loss_at;
        uint32_t mtu = 0;    // bytes, 0: not known
        uint16_t mss = 0;    // the peer's, for text in a SYN; 0: not known
        uint8_t losses = 0;  // SYNs with Fast Open in a row that had to be repeated
        tcp::Cookie cookie;  // len 0: none
        // RFC 7413 section 4.1.3.1: after a loss it is not tried for a while, which doubles.
        bool fast_open_held(Instant now) const {
            return losses > 0 && now < loss_at + Duration::seconds(60 << std::min<int>(losses, 6));
        }
    };
    static constexpr Duration kMtuLife = Duration::seconds(600);

    // Null: nothing is known.
    Entry* find(const IpAddr& remote, Instant now) {
        for (Entry& e : set_of(remote)) {
            if (e.used.ns == 0 || !(e.remote == remote)) continue;
            e.used = now;
            return &e;
        }
        return nullptr;
    }
    Entry& make(const IpAddr& remote, Instant now) {
        if (Entry* known = find(remote, now)) return *known;
        auto& set = set_of(remote);
        Entry& e =
            *std::min_element(std::begin(set), std::end(set),
                              [](const Entry& a, const Entry& b) { return a.used < b.used; });
        e = {};
        e.remote = remote;
        e.used = now;
        return e;
    }
    // The smaller of `mtu` and what an ICMP error said lately.
    uint32_t mtu_to(const IpAddr& remote, uint32_t mtu, Instant now) {
        const Entry* e = find(remote, now);
        return e == nullptr || e->mtu == 0 || now >= e->mtu_until ? mtu : std::min(mtu, e->mtu);
    }
    void learn_mtu(const IpAddr& remote, uint32_t mtu, Instant now) {
        Entry& e = make(remote, now);
        e.mtu = mtu;
        e.mtu_until = now + kMtuLife;
    }

  private:
    static constexpr unsigned kSets = 64, kPlaces = 4;
    using Set = Entry[kPlaces];
    Set& set_of(const IpAddr& remote) {
        uint32_t h = 0;
        for (const uint8_t b : remote.bytes) h = (h ^ b) * 0x01000193u;
        return sets_[(h ^ h >> 16) % kSets];
    }
    Set sets_[kSets];
};

}  // namespace vma
