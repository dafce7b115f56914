#include "engine/network_parse.h"

#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/if_vlan.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>
#include <linux/pkt_cls.h>
#include <linux/rtnetlink.h>
#include <net/if.h>

#include <cstddef>

namespace vma::netlink {

namespace {

// Attributes younger than the headers of Debian 12.
constexpr size_t kFraDscp = 25, kFraSportMask = 28, kFraDportMask = 29, kFraDscpMask = 30;
// Positions in IFLA_INET_CONF: IPV4_DEVCONF_* of linux/ip.h, counted from zero here.
constexpr size_t kConfRouteLocalnet = 25, kConfIgnoreLinkdown = 28;

IpAddr address_of(uint8_t family, ByteView p, int ifindex) {
    if (family == AF_INET && p.size() >= 4) return IpAddr::v4_bytes(p.data());
    if (family == AF_INET6 && p.size() >= 16) {
        const bool link_local = p[0] == 0xfe && (p[1] & 0xc0) == 0x80;
        return IpAddr::v6_bytes(p.data(), link_local ? uint32_t(ifindex) : 0);
    }
    return IpAddr::any_v4();
}

uint32_t mask_of(unsigned prefix) { return prefix == 0 ? 0 : ~uint32_t(0) << (32 - prefix); }

uint32_t inet_conf(ByteView af_spec, size_t position) {
    uint32_t value = 0;
    for_each(af_spec, [&](uint16_t family, ByteView inner) {
        if (family != AF_INET) return;
        const Attributes<2> inet(inner);
        if (inet[IFLA_INET_CONF].size() >= (position + 1) * 4)
            value = load_u32(inet[IFLA_INET_CONF].data() + position * 4);
    });
    return value;
}

void parse_metrics(ByteView metrics, RouteEntry& r) {
    const Attributes<RTAX_MAX + 1> m(metrics);
    r.mtu = value_or<uint32_t>(m[RTAX_MTU], 0);
    r.mtu_locked = (value_or<uint32_t>(m[RTAX_LOCK], 0) >> RTAX_MTU & 1) != 0;
}

IpAddr gateway_of(ByteView gateway, ByteView via, int oif) {
    if (gateway.size() >= 4) return IpAddr::v4_bytes(gateway.data());
    if (via.size() < sizeof(rtvia)) return IpAddr::any_v4();
    rtvia head{};
    std::memcpy(&head, via.data(), sizeof(head));
    return address_of(uint8_t(head.rtvia_family), via.subspan(sizeof(head)), oif);
}

void set_flags(NextHop& hop, unsigned flags) {
    hop.dead = (flags & RTNH_F_DEAD) != 0;
    hop.linkdown = (flags & RTNH_F_LINKDOWN) != 0;
    hop.onlink = (flags & RTNH_F_ONLINK) != 0;
}

void parse_multipath(ByteView rest, std::vector<NextHop>& hops) {
    while (rest.size() >= sizeof(rtnexthop)) {
        rtnexthop n;
        std::memcpy(&n, rest.data(), sizeof(n));
        if (n.rtnh_len < sizeof(n) || n.rtnh_len > rest.size()) return;
        const Attributes<RTA_MAX + 1> a(rest.subspan(sizeof(n), n.rtnh_len - sizeof(n)));
        NextHop hop;
        hop.oif = n.rtnh_ifindex;
        hop.weight = uint32_t(n.rtnh_hops) + 1;
        hop.gateway = gateway_of(a[RTA_GATEWAY], a[RTA_VIA], hop.oif);
        set_flags(hop, n.rtnh_flags);
        hops.push_back(hop);
        rest = rest.subspan(std::min<size_t>(RTNH_ALIGN(n.rtnh_len), rest.size()));
    }
}

RuleAction action_of(uint8_t action) {
    switch (action) {
        case FR_ACT_TO_TBL:
            return RuleAction::table;
        case FR_ACT_GOTO:
            return RuleAction::go_to;
        case FR_ACT_NOP:
            return RuleAction::nop;
        case FR_ACT_UNREACHABLE:
            return RuleAction::unreachable;
        case FR_ACT_PROHIBIT:
            return RuleAction::prohibit;
        default:
            return RuleAction::blackhole;
    }
}

}  // namespace

std::optional<Interface> parse_link(const Message& m) {
    if (m.body.size() < sizeof(ifinfomsg)) return std::nullopt;
    const auto head = m.head<ifinfomsg>();
    if (head.ifi_family == AF_BRIDGE) return std::nullopt;  // port details of a bridge, not a link
    const Attributes<IFLA_MAX + 1> a(m.attributes(sizeof(ifinfomsg)));
    Interface i;
    i.index = head.ifi_index;
    i.flags = head.ifi_flags;
    i.type = head.ifi_type;
    i.up = (head.ifi_flags & IFF_UP) != 0;
    i.running = (head.ifi_flags & IFF_RUNNING) != 0;
    i.name = text(a[IFLA_IFNAME]);
    i.mtu = value_or<uint32_t>(a[IFLA_MTU], 0);
    i.group = value_or<uint32_t>(a[IFLA_GROUP], 0);
    i.master = value_or<int>(a[IFLA_MASTER], 0);
    i.link = value_or<int>(a[IFLA_LINK], 0);
    if (i.link == i.index) i.link = 0;
    i.link_elsewhere = a.has(IFLA_LINK_NETNSID);
    if (a[IFLA_ADDRESS].size() == 6) i.mac = MacAddr::from(a[IFLA_ADDRESS].data());
    if (a[IFLA_BROADCAST].size() == 6) i.mac_broadcast = MacAddr::from(a[IFLA_BROADCAST].data());
    const Attributes<IFLA_INFO_MAX + 1> info(a[IFLA_LINKINFO]);
    i.kind = text(info[IFLA_INFO_KIND]);
    if (i.kind == "vlan") {
        const Attributes<IFLA_VLAN_MAX + 1> vlan(info[IFLA_INFO_DATA]);
        i.vlan_id = value_or<uint16_t>(vlan[IFLA_VLAN_ID], 0);
        const auto flags =
            value_or<ifla_vlan_flags>(vlan[IFLA_VLAN_FLAGS], {});  // not told when there is none
        i.tagged = !(flags.flags & VLAN_FLAG_REORDER_HDR);
    }
    i.ignore_linkdown_routes = inet_conf(a[IFLA_AF_SPEC], kConfIgnoreLinkdown) != 0;
    i.route_localnet = inet_conf(a[IFLA_AF_SPEC], kConfRouteLocalnet) != 0;
    return i;
}

std::optional<AddressEntry> parse_address(const Message& m) {
    if (m.body.size() < sizeof(ifaddrmsg)) return std::nullopt;
    const auto head = m.head<ifaddrmsg>();
    if (head.ifa_family != AF_INET && head.ifa_family != AF_INET6) return std::nullopt;
    if (head.ifa_prefixlen > (head.ifa_family == AF_INET ? 32 : 128)) return std::nullopt;
    const Attributes<IFA_MAX + 1> a(m.attributes(sizeof(ifaddrmsg)));
    AddressEntry e;
    e.ifindex = int(head.ifa_index);
    // IFA_LOCAL is the own address, IFA_ADDRESS the peer's; IPv6 has IFA_LOCAL only with a peer.
    const ByteView own = a.has(IFA_LOCAL) ? a[IFA_LOCAL] : a[IFA_ADDRESS];
    const ByteView peer = a.has(IFA_ADDRESS) ? a[IFA_ADDRESS] : own;
    if (own.size() < (head.ifa_family == AF_INET ? 4u : 16u)) return std::nullopt;
    e.address.addr = address_of(head.ifa_family, own, e.ifindex);
    // ::ffff:10.0.0.1 can be given to a link; it is no IPv4 address there, and would be taken for one here.
    if (e.address.addr.is_v4() != (head.ifa_family == AF_INET)) return std::nullopt;
    e.address.peer = address_of(head.ifa_family, peer, e.ifindex);
    e.address.broadcast = address_of(AF_INET, a[IFA_BROADCAST], 0);
    e.address.prefix = head.ifa_prefixlen;
    e.address.scope = head.ifa_scope;
    const uint32_t flags = value_or<uint32_t>(a[IFA_FLAGS], head.ifa_flags);
    // The same bit is "temporary address" in IPv6, which says nothing about order.
    e.address.secondary = head.ifa_family == AF_INET && (flags & IFA_F_SECONDARY) != 0;
    e.address.tentative = (flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0;
    return e;
}

std::optional<RouteEntry> parse_route(const Message& m) {
    if (m.body.size() < sizeof(rtmsg)) return std::nullopt;
    const auto head = m.head<rtmsg>();
    if (head.rtm_family != AF_INET || head.rtm_dst_len > 32) return std::nullopt;
    if (head.rtm_flags & RTM_F_CLONED) return std::nullopt;
    const Attributes<RTA_MAX + 1> a(m.attributes(sizeof(rtmsg)));
    RouteEntry r;
    r.table = value_or<uint32_t>(a[RTA_TABLE], head.rtm_table);
    r.prefix = head.rtm_dst_len;
    r.dst = be32_or(a[RTA_DST], 0) & mask_of(r.prefix);
    r.tos = head.rtm_tos;
    r.scope = head.rtm_scope;
    r.type = head.rtm_type <= RTN_THROW ? RouteType(head.rtm_type) : RouteType::blackhole;
    r.metric = value_or<uint32_t>(a[RTA_PRIORITY], 0);
    r.prefsrc = be32_or(a[RTA_PREFSRC], 0);
    r.nexthop_id = value_or<uint32_t>(a[RTA_NH_ID], 0);
    parse_metrics(a[RTA_METRICS], r);
    if (a.has(RTA_MULTIPATH)) {
        parse_multipath(a[RTA_MULTIPATH], r.hops);
    } else {
        NextHop hop;
        hop.oif = value_or<int>(a[RTA_OIF], 0);
        hop.gateway = gateway_of(a[RTA_GATEWAY], a[RTA_VIA], hop.oif);
        set_flags(hop, head.rtm_flags);
        r.hops.push_back(hop);
    }
    return r;
}

std::optional<PolicyRule> parse_rule(const Message& m) {
    if (m.body.size() < sizeof(fib_rule_hdr)) return std::nullopt;
    const auto head = m.head<fib_rule_hdr>();
    if (head.family != AF_INET || head.src_len > 32 || head.dst_len > 32) return std::nullopt;
    const Attributes<kFraDscpMask + 1> a(m.attributes(sizeof(fib_rule_hdr)));
    PolicyRule r;
    r.priority = value_or<uint32_t>(a[FRA_PRIORITY], 0);
    r.action = action_of(head.action);
    r.table = r.action == RuleAction::table ? value_or<uint32_t>(a[FRA_TABLE], head.table) : 0;
    r.target = value_or<uint32_t>(a[FRA_GOTO], 0);
    r.src_prefix = head.src_len;
    r.dst_prefix = head.dst_len;
    r.src = be32_or(a[FRA_SRC], 0) & mask_of(r.src_prefix);
    r.dst = be32_or(a[FRA_DST], 0) & mask_of(r.dst_prefix);
    r.tos = head.tos;
    if (a.has(kFraDscp)) {
        r.dscp = uint8_t(value_or<uint8_t>(a[kFraDscp], 0) << 2);
        r.dscp_mask = uint8_t(value_or<uint8_t>(a[kFraDscpMask], 0x3f) << 2);
    }
    r.mark = value_or<uint32_t>(a[FRA_FWMARK], 0);
    r.mark_mask = value_or<uint32_t>(a[FRA_FWMASK], r.mark != 0 ? UINT32_MAX : 0);
    r.iif = text(a[FRA_IIFNAME]);
    r.oif = text(a[FRA_OIFNAME]);
    if (a[FRA_UID_RANGE].size() >= sizeof(fib_rule_uid_range)) {
        const auto range = value_or<fib_rule_uid_range>(a[FRA_UID_RANGE], {});
        r.uid_low = range.start;
        r.uid_high = range.end;
    }
    r.protocol = value_or<uint8_t>(a[FRA_IP_PROTO], 0);
    const auto sport = value_or<fib_rule_port_range>(a[FRA_SPORT_RANGE], {});
    const auto dport = value_or<fib_rule_port_range>(a[FRA_DPORT_RANGE], {});
    r.sport_low = sport.start;
    r.sport_high = sport.end;
    r.dport_low = dport.start;
    r.dport_high = dport.end;
    r.sport_mask = value_or<uint16_t>(a[kFraSportMask], 0xffff);
    r.dport_mask = value_or<uint16_t>(a[kFraDportMask], 0xffff);
    r.suppress_prefix = value_or<int>(a[FRA_SUPPRESS_PREFIXLEN], -1);
    const uint32_t group = value_or<uint32_t>(a[FRA_SUPPRESS_IFGROUP], UINT32_MAX);
    r.suppress_group = group == UINT32_MAX ? -1 : int64_t(group);
    r.invert = (head.flags & FIB_RULE_INVERT) != 0;
    r.needs_l3mdev = value_or<uint8_t>(a[FRA_L3MDEV], 0) != 0;
    r.needs_tunnel = a.has(FRA_TUN_ID) && value_or<uint64_t>(a[FRA_TUN_ID], 0) != 0;
    return r;
}

std::optional<NextHopObject> parse_nexthop(const Message& m) {
    if (m.body.size() < sizeof(nhmsg)) return std::nullopt;
    const auto head = m.head<nhmsg>();
    const Attributes<NHA_MAX + 1> a(m.attributes(sizeof(nhmsg)));
    NextHopObject n;
    n.id = value_or<uint32_t>(a[NHA_ID], 0);
    if (n.id == 0 || a.has(NHA_FDB)) return std::nullopt;
    n.blackhole = a.has(NHA_BLACKHOLE);
    n.hop.oif = value_or<int>(a[NHA_OIF], 0);
    n.hop.gateway = address_of(head.nh_family, a[NHA_GATEWAY], n.hop.oif);
    set_flags(n.hop, head.nh_flags);
    ByteView legs = a[NHA_GROUP];
    for (; legs.size() >= sizeof(nexthop_grp); legs = legs.subspan(sizeof(nexthop_grp))) {
        nexthop_grp leg;
        std::memcpy(&leg, legs.data(), sizeof(leg));
        // The byte behind `weight` is the high part of the weight on newer kernels, zero on older ones.
        const uint32_t high = legs[offsetof(nexthop_grp, weight) + 1];
        n.group.push_back({leg.id, (high << 8 | leg.weight) + 1});
    }
    return n;
}

std::optional<NeighborEntry> parse_neighbor(const Message& m) {
    if (m.body.size() < sizeof(ndmsg)) return std::nullopt;
    const auto head = m.head<ndmsg>();
    if (head.ndm_family != AF_INET && head.ndm_family != AF_INET6) return std::nullopt;
    if (head.ndm_flags & NTF_PROXY) return std::nullopt;
    const Attributes<NDA_MAX + 1> a(m.attributes(sizeof(ndmsg)));
    NeighborEntry e;
    e.ifindex = head.ndm_ifindex;
    e.addr = address_of(head.ndm_family, a[NDA_DST], e.ifindex);
    if (a[NDA_LLADDR].size() == 6) e.neighbor.mac = MacAddr::from(a[NDA_LLADDR].data());
    NeighborState& state = e.neighbor.state;
    if (m.type == RTM_DELNEIGH)
        state = NeighborState::absent;
    else if (head.ndm_state & (NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP | NUD_DELAY | NUD_PROBE))
        state = NeighborState::usable;
    else if (head.ndm_state & NUD_STALE)
        state = NeighborState::stale;
    else if (head.ndm_state & NUD_INCOMPLETE)
        state = NeighborState::incomplete;
    else if (head.ndm_state & NUD_FAILED)
        state = NeighborState::failed;
    if (!e.neighbor.sendable()) e.neighbor.mac = {};
    return e;
}

std::optional<QdiscEntry> parse_qdisc(const Message& m) {
    if (m.body.size() < sizeof(tcmsg)) return std::nullopt;
    const auto head = m.head<tcmsg>();
    const Attributes<TCA_MAX + 1> a(m.attributes(sizeof(tcmsg)));
    QdiscEntry q;
    q.ifindex = head.tcm_ifindex;
    q.kind = text(a[TCA_KIND]);
    for (const char* known : {"noqueue", "noop", "pfifo_fast", "fq_codel", "fq", "mq"})
        if (q.kind == known) q.harmless = true;
    if (q.kind == "clsact") q.harmless = q.has_ingress = q.has_egress = true;
    if (q.kind == "ingress") q.harmless = q.has_ingress = true;
    return q;
}

std::string parse_foreign_filter(const Message& m) {
    if (m.body.size() < sizeof(tcmsg)) return {};
    const auto head = m.head<tcmsg>();
    const Attributes<TCA_MAX + 1> a(m.attributes(sizeof(tcmsg)));
    if (head.tcm_handle == 0) return {};  // head of a priority, the filters follow
    std::string kind = text(a[TCA_KIND]);
    if (kind != "bpf") return kind;
    const Attributes<TCA_BPF_MAX + 1> bpf(a[TCA_OPTIONS]);
    return text(bpf[TCA_BPF_NAME]).starts_with("vma_") ? std::string{} : kind;
}

}  // namespace vma::netlink
