// The switch: which raw QPs of the wire a frame goes to, by the flow rules of all stations, and putting it there.
//
// Rules: of the NORMAL rules that match, those of the smallest priority number win (a rule with DONT_TRAP lets the next
// priority see the frame too); if none matches the ALL_DEFAULT ones, for multicast also the MC_DEFAULT ones; SNIFFER rules get
// everything. A rule that names no destination address takes what is for its own port, and multicast.
#pragma once

#include <sys/uio.h>

#include "softhca/hca/context.h"

namespace softhca {

struct Target {
    uint32_t station, qp, tag;
};

struct Route {
    static constexpr uint32_t kMost = 64;  // receivers of one frame
    uint32_t count = 0;
    bool dropped = false;  // a rule said so
    Target targets[kMost];
};

// For a frame that QP `from` of station `sender` sends; a multicast does not come back to it.
void find_route(Context& c, const FlowFields& frame, uint32_t sender, uint32_t from, Route* out);

// Remembers routes of recent headers until some rule on the wire changes. One per sending QP.
class RouteCache {
  public:
    const Route& lookup(Context& c, const FlowFields& frame, uint32_t from);

  private:
    static constexpr uint32_t kEntries = 64;
    struct Entry {
        uint32_t generation = 0;
        FlowFields frame{};
        Route route;
    };
    std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(kEntries);
};

// Copies the frame to every target whose ring has room; who has none loses it and counts it.
void deliver_frame(Context& c, const Route& route, const iovec* parts, uint32_t count,
                   uint32_t length, bool checksum_good);

}  // namespace softhca
