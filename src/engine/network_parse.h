// NETLINK_ROUTE messages as plain data (rtnetlink(7)). Pure: bytes in, structs out; every length checked. The kernel is the
// only sender, but a message may be of a newer kernel: unknown attributes are ignored, short ones count as absent.
#pragma once

#include <optional>
#include <string>

#include "engine/netlink.h"
#include "stack/route.h"

namespace vma::netlink {

std::optional<Interface> parse_link(const Message&);  // without addresses and traffic_control
struct AddressEntry {
    int ifindex = 0;
    InterfaceAddress address;
};
std::optional<AddressEntry> parse_address(const Message&);
std::optional<RouteEntry> parse_route(const Message&);  // IPv4 only
std::optional<PolicyRule> parse_rule(const Message&);   // IPv4 only
std::optional<NextHopObject> parse_nexthop(const Message&);
struct NeighborEntry {
    int ifindex = 0;
    IpAddr addr;
    Neighbor neighbor;
};
std::optional<NeighborEntry> parse_neighbor(const Message&);
struct QdiscEntry {
    int ifindex = 0;
    std::string kind;
    // Neither shapes nor filters: what every interface has by default, or a hook that is only a place for filters.
    bool harmless = false;
    bool has_ingress = false, has_egress = false;  // may carry filters there
};
std::optional<QdiscEntry> parse_qdisc(const Message&);
// Kind of a tc filter that is not ours; empty for ours (a bpf filter named "vma_...") and for chain heads.
std::string parse_foreign_filter(const Message&);

}  // namespace vma::netlink
