// NetworkView: an immutable snapshot of one network namespace (links, addresses, rules, routes, nexthop objects) and
// the decision the kernel would take for a packet that this host sends. Pure: plain data in, answers out; no system
// call, no clock, no lock, so one snapshot may be read by any number of threads. Control plane: uses the std
// containers. Sources: ip-rule(8), ip-route(8), ip-nexthop(8), rtnetlink(7), and the kernel's answers to
// RTM_GETROUTE, against which tests/netstate compares every field.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_addr.h"
#include "base/result.h"
#include "wire/ethernet.h"

namespace vma {

// Scopes of addresses and routes (rtnetlink(7)); a larger number is a narrower scope.
inline constexpr uint8_t kScopeUniverse = 0, kScopeLink = 253, kScopeHost = 254;
// Well-known routing tables.
inline constexpr uint32_t kTableDefault = 253, kTableMain = 254, kTableLocal = 255;

struct InterfaceAddress {
    IpAddr addr;       // IPv6 link-local: scope = interface index
    IpAddr peer;       // point-to-point peer, else equal to addr
    IpAddr broadcast;  // any_v4() when the address has none
    uint8_t prefix = 32;
    uint8_t scope = kScopeUniverse;
    bool secondary = false;
    bool tentative = false;  // IPv6 duplicate detection still runs, or failed
    bool operator==(const InterfaceAddress&) const = default;
};

struct Interface {
    int index = 0;
    std::string name;
    std::string
        kind;  // "veth", "bridge", "bond", "vlan", "tun", "vrf" ...; empty for physical links and lo
    MacAddr mac{};  // zero when the link has no 6-byte address
    MacAddr mac_broadcast = MacAddr::broadcast();
    uint32_t mtu = 0;                     // bytes, without the link header
    uint32_t flags = 0;                   // IFF_* of netdevice(7)
    uint16_t type = 0;                    // ARPHRD_* (1 = Ethernet, 772 = loopback)
    uint32_t group = 0;                   // interface group, for rules with suppress_ifgroup
    int master = 0;                       // index of the bridge, bond or vrf it belongs to, 0 none
    int link = 0;                         // peer of a veth, parent of a vlan or macvlan, 0 none
    bool link_elsewhere = false;          // `link` is an index of another namespace
    bool up = false;                      // administratively up (IFF_UP)
    bool running = false;                 // has carrier (IFF_RUNNING)
    bool ignore_linkdown_routes = false;  // sysctl ignore_routes_with_linkdown
    bool route_localnet = false;          // sysctl route_localnet
    uint16_t vlan_id = 0;                 // kind "vlan" only
    bool tagged =
        false;  // kind "vlan": its programs see the frames with their tag (reorder_hdr off)
    // Traffic control that is not the default and not ours (program name prefix "vma_"): the first offender's name,
    // e.g. "tbf" or "clsact egress u32"; empty when traffic passes untouched.
    std::string traffic_control;
    std::vector<InterfaceAddress>
        addresses;  // in the kernel's order, which decides source selection
    bool loopback() const { return type == 772; }
    bool operator==(const Interface&) const = default;
};

enum class RouteType : uint8_t {  // RTN_* of rtnetlink(7), same numbers
    unspec,
    unicast,
    local,
    broadcast,
    anycast,
    multicast,
    blackhole,
    unreachable,
    prohibit,
    throw_,
};

struct NextHop {
    int oif = 0;
    IpAddr gateway;       // any_v4(): on link. An IPv6 gateway of an IPv4 route is stored as it is
    uint32_t weight = 1;  // 1..256 (65536 for nexthop groups)
    bool dead = false;    // RTNH_F_DEAD
    bool linkdown = false;  // RTNH_F_LINKDOWN
    bool onlink = false;    // RTNH_F_ONLINK
    bool operator==(const NextHop&) const = default;
};

// One IPv4 route as the kernel dumps it. Order inside NetworkData matters only between routes of the same table and
// prefix: it is the kernel's order (tos, metric, age).
struct RouteEntry {
    uint32_t table = kTableMain;
    uint32_t dst = 0;  // host order, host bits zero
    uint8_t prefix = 0;
    uint8_t tos = 0;
    uint8_t scope = kScopeUniverse;
    RouteType type = RouteType::unicast;
    uint32_t metric = 0;
    uint32_t mtu = 0;  // RTAX_MTU, 0 none
    bool mtu_locked = false;
    uint32_t prefsrc = 0;  // host order, 0 none
    uint32_t nexthop_id =
        0;  // nexthop object, 0 none; its legs replace `hops` when the object is known
    std::vector<NextHop> hops;
    bool operator==(const RouteEntry&) const = default;
};

struct NextHopObject {
    uint32_t id = 0;
    bool blackhole = false;
    NextHop hop;  // when `group` is empty
    struct Leg {
        uint32_t id;
        uint32_t weight;
        bool operator==(const Leg&) const = default;
    };
    std::vector<Leg> group;
    bool operator==(const NextHopObject&) const = default;
};

enum class RuleAction : uint8_t { table, go_to, nop, blackhole, unreachable, prohibit };

struct PolicyRule {
    uint32_t priority = 0;
    RuleAction action = RuleAction::table;
    uint32_t table = 0;
    uint32_t target = 0;        // priority to go to
    uint32_t src = 0, dst = 0;  // host order
    uint8_t src_prefix = 0, dst_prefix = 0;
    uint8_t tos = 0;  // legacy selector, compared under 0x1c
    uint8_t dscp = 0,
            dscp_mask = 0;  // full DSCP selector in tos position (dscp << 2); mask 0: none
    uint32_t mark = 0, mark_mask = 0;
    std::string iif, oif;  // names; empty: any
    int iif_index = 0,
        oif_index = 0;  // filled in by NetworkView; -1: named interface does not exist
    uint32_t uid_low = 0, uid_high = UINT32_MAX;
    uint8_t protocol = 0;
    uint16_t sport_low = 0, sport_high = 0, dport_low = 0, dport_high = 0;  // high 0: any
    uint16_t sport_mask = 0xffff, dport_mask = 0xffff;
    int suppress_prefix = -1;  // results of a prefix length <= this are ignored
    int suppress_group =
        -1;  // results whose interface is in this group are ignored (not evaluated: a listed limit)
    bool invert = false;
    bool needs_l3mdev = false;  // selects by VRF: never matches here
    bool needs_tunnel = false;  // selects by tunnel id: never matches a packet of ours
    bool operator==(const PolicyRule&) const = default;
};

struct NetworkData {
    std::vector<Interface> interfaces;
    std::vector<RouteEntry> routes;
    std::vector<PolicyRule> rules;  // in the kernel's order
    std::vector<NextHopObject> nexthops;
    bool operator==(const NetworkData&) const = default;
};

struct RouteQuery {
    IpAddr dst;
    IpAddr src = IpAddr::any_v4();  // any: let the route choose
    uint8_t tos = 0;                // as in the IP header; the two ECN bits are ignored
    uint32_t mark = 0;              // SO_MARK
    int oif = 0;                    // SO_BINDTODEVICE / IP_PKTINFO / multicast interface; 0 none
    uint32_t uid = 0;               // owner of the socket
    uint8_t protocol = 0;           // for rules with ipproto and ports
    uint16_t sport = 0, dport = 0;
    uint32_t hash = 0;  // 31 bits; spreads flows over multipath legs by weight, 0 = first leg
    bool on_link_only = false;  // SO_DONTROUTE, MSG_DONTROUTE
};

struct Route {
    RouteType type = RouteType::unicast;  // unicast, local, broadcast or multicast
    int oif = 0;      // interface the packet leaves by (lo for local destinations)
    int fib_oif = 0;  // for local destinations the interface that has the address, else = oif
    IpAddr next_hop;  // whose link-layer address is needed: the gateway, or dst when on link
    bool gatewayed = false;
    IpAddr source;  // query.src, or the address the kernel would choose (any_v4() if there is none)
    uint32_t mtu = 0;  // bytes: route MTU, else interface MTU; at most 65535
    bool mtu_locked = false;
    uint32_t table = 0;      // table the answer came from, 0 when none was needed
    bool multipath = false;  // the answer is one leg of several
    bool operator==(const Route&) const = default;
};

class NetworkView {
  public:
    NetworkView() = default;
    explicit NetworkView(NetworkData data);

    const std::vector<Interface>& interfaces() const { return data_.interfaces; }
    const Interface* interface(int index) const;              // null: no such interface
    const Interface* interface(std::string_view name) const;  // null: no such interface

    // True for every address that this host takes for itself: interface addresses, and all that table local says
    // (127.0.0.0/8 while lo is up, "ip route add local").
    bool is_local(const IpAddr&) const;
    // Interface that has exactly this address; null when no interface has it (127.0.0.2 has none).
    const Interface* interface_of_local(const IpAddr&) const;
    // True when a broadcast route covers the address, or 255.255.255.255.
    bool is_broadcast(const IpAddr&) const;

    // The kernel's output route lookup (as of Linux 6.18). Errors: ENETUNREACH no route, or a source address that is not
    // ours (EINVAL on older kernels); EHOSTUNREACH, EACCES, EINVAL unreachable, prohibit and blackhole routes or rules;
    // ENODEV no such oif; EOPNOTSUPP IPv6, or a VRF is involved.
    Result<Route> route(const RouteQuery&) const;

    // The kernel's choice of a source address on `index` towards `dst` (any_v4(): no destination) of at most `scope`.
    IpAddr select_source(int index, const IpAddr& dst, uint8_t scope) const;

    // Some rule looks at the firewall mark: routing then depends on marks set by netfilter.
    bool has_mark_rules() const { return mark_rules_; }
    const NetworkData& data() const { return data_; }
    bool operator==(const NetworkView& o) const { return data_ == o.data_; }

  private:
    struct
        Table {  // routes [begin[p], end[p]) of data_.routes have prefix length p and are sorted by dst, stable
        uint32_t id = 0;
        std::array<uint32_t, 33> begin{}, end{};
    };
    struct Match {
        const RouteEntry* entry = nullptr;
        const NextHop* hop = nullptr;
        size_t legs = 0;
    };
    struct Key;
    enum class Found : uint8_t { yes, no, leave, error };  // leave: see look_in_tables

    const Table* table(uint32_t id) const;
    const NextHopObject* nexthop(uint32_t id) const;
    const std::vector<NextHop>& hops(const RouteEntry&) const;
    bool alive(const NextHop&) const;
    bool rule_matches(const PolicyRule&, const Key&) const;
    Found look_in_tables(const uint32_t* ids, size_t n, const Key&, Match& out, int& error) const;
    Found try_entry(const RouteEntry&, const Key&, Match& out, int& error) const;
    Found lookup(const Key&, Match& out, int& error) const;
    void pick_leg(const RouteQuery&, Match&) const;
    Result<Route> finish(const Key&, const Interface& out, const Match&, RouteType) const;
    Result<Route> finish_local(const RouteQuery&, Key&, const Match&) const;
    int any_source_interface(uint32_t src) const;
    uint32_t source_on(const Interface*, uint32_t dst, uint8_t scope) const;
    uint32_t source_of(const Match&) const;

    NetworkData data_;
    std::vector<Table> tables_;
    std::vector<std::vector<NextHop>> object_hops_;  // per data_.nexthops entry, groups expanded
    std::vector<uint32_t> route_object_;  // per route: index into object_hops_ + 1, 0 inline
    int loopback_ = 1;
    // Until a rule is added the kernel keeps tables local and main as one, so that the longest prefix of both wins.
    bool merged_local_ = false;
    bool mark_rules_ = false;
};

enum class NeighborState : uint8_t {
    absent,      // the kernel has no entry
    incomplete,  // resolution runs
    usable,      // reachable, permanent, noarp, delay or probe: send
    stale,       // send, and ask for confirmation (NetworkMonitor::keep_fresh)
    failed,      // resolution failed
};

struct Neighbor {
    MacAddr mac{};
    NeighborState state = NeighborState::absent;
    bool sendable() const {
        return state == NeighborState::usable || state == NeighborState::stale;
    }
    bool operator==(const Neighbor&) const = default;
};

}  // namespace vma
