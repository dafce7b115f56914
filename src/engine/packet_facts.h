// PacketFacts: what is known of a kind of packet of a flow when asking whether a filter rule can match it, and the answers
// rules can give. Pure data, shared by the nft and the iptables evaluation.
#pragma once

#include <string>
#include <string_view>

#include "base/ip_addr.h"

namespace vma {

struct PacketFacts {
    uint8_t protocol = 0;
    Endpoint src, dst;  // any address / port 0: unknown
    bool outgoing = false;
    bool fresh = false;     // first packet of the connection ("new"), else "established"
    int ifindex = 0;        // of the interface it leaves or enters by; 0 unknown
    std::string interface;  // its name; empty unknown
    bool bridged = false;   // the interface is a bridge or a port of one
};

enum class Match : uint8_t { no, maybe, yes };
inline Match opposite(Match m) {
    return m == Match::maybe ? m : m == Match::yes ? Match::no : Match::yes;
}

// What a set of rules can do to the packet.
struct FilterEffect {
    bool touched =
        false;  // drop, reject, translate, queue, rewrite ...: something our path does not do
    bool marks = false;  // sets the packet's mark, which routing rules may look at
    std::string why;     // the first rule that touches (or marks), one line
};

}  // namespace vma
