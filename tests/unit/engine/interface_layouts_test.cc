// Interfaces of real servers for which this kernel has no driver: what RTM_GETLINK and its sisters answer there, written with
// the kernel's own headers, through the parser into a view; and what the library makes of each: a ring, or the kernel.
#include <gtest/gtest.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/if_vlan.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <string>

#include "engine/network_parse.h"
#include "engine/runtime.h"

namespace vma {
namespace {

using netlink::Message;
using netlink::Request;

// Attributes as they are nested in others: a message's, without its head.
class Nested {
  public:
    template <class T>
    Nested& put(uint16_t attr, const T& value) {
        request_.put(attr, value);
        return *this;
    }
    Nested& put_text(uint16_t attr, std::string_view value) {
        request_.put_text(attr, value);
        return *this;
    }
    Nested& put(uint16_t attr, Nested& inner) {
        const ByteView bytes = inner.bytes();
        request_.put(attr, bytes.data(), bytes.size());
        return *this;
    }
    ByteView bytes() { return request_.finish(0).subspan(NLMSG_HDRLEN); }

  private:
    Request request_{0, 0};
};

struct Link {
    const char* kind = "";       // IFLA_INFO_KIND; physical links have none
    const char* port_kind = "";  // IFLA_INFO_SLAVE_KIND
    int master = 0, parent = 0;  // interface indices
    uint16_t vlan_id = 0;
    uint16_t type = ARPHRD_ETHER;
    uint32_t vlan_flags = VLAN_FLAG_REORDER_HDR;
};

// What the kernel tells of a namespace, and what the library has of it.
class Host {
  public:
    Host& link(int index, const char* name, const Link& l = {}) {
        Request r(RTM_NEWLINK, 0);
        ifinfomsg head{};
        head.ifi_index = index;
        head.ifi_type = l.type;
        head.ifi_flags = IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST;
        r.head(&head, sizeof head);
        r.put_text(IFLA_IFNAME, name);
        r.put(IFLA_MTU, uint32_t(1500));
        const uint8_t mac[6] = {2, 0, 0, 0, 0, uint8_t(index)};
        r.put(IFLA_ADDRESS, mac, sizeof mac);
        if (l.master) r.put(IFLA_MASTER, l.master);
        if (l.parent) r.put(IFLA_LINK, l.parent);
        Nested info, data;
        if (*l.kind) info.put_text(IFLA_INFO_KIND, l.kind);
        if (l.vlan_id) {
            const ifla_vlan_flags flags{l.vlan_flags, ~0u};
            data.put(IFLA_VLAN_ID, l.vlan_id);
            if (l.vlan_flags)
                data.put(IFLA_VLAN_FLAGS, flags);  // as the kernel: none, no attribute
            info.put(IFLA_INFO_DATA, data);
        }
        if (*l.port_kind) info.put_text(IFLA_INFO_SLAVE_KIND, l.port_kind);
        if (const ByteView bytes = info.bytes(); !bytes.empty())
            r.put(IFLA_LINKINFO, bytes.data(), bytes.size());
        const auto link = netlink::parse_link(message(r, RTM_NEWLINK));
        EXPECT_TRUE(link);
        data_.interfaces.push_back(*link);
        return *this;
    }

    // With the routes that the kernel makes for it: 10.SUBNET.0.HOST/24.
    Host& address(int index, uint8_t subnet, uint32_t table = RT_TABLE_MAIN) {
        const uint8_t own[4] = {10, subnet, 0, 2}, net[4] = {10, subnet, 0, 0};
        Request a(RTM_NEWADDR, 0);
        ifaddrmsg head{};
        head.ifa_family = AF_INET;
        head.ifa_prefixlen = 24;
        head.ifa_index = uint32_t(index);
        a.head(&head, sizeof head);
        a.put(IFA_ADDRESS, own, 4);
        a.put(IFA_LOCAL, own, 4);
        const auto address = netlink::parse_address(message(a, RTM_NEWADDR));
        EXPECT_TRUE(address);
        for (Interface& i : data_.interfaces)
            if (i.index == index) i.addresses.push_back(address->address);
        route(net, 24, index, table, RTN_UNICAST, RT_SCOPE_LINK);
        return *this;
    }

    Host& rule(uint32_t priority, uint32_t table, bool l3mdev = false) {
        Request r(RTM_NEWRULE, 0);
        fib_rule_hdr head{};
        head.family = AF_INET;
        head.action = FR_ACT_TO_TBL;
        head.table = uint8_t(table);
        r.head(&head, sizeof head);
        r.put(FRA_PRIORITY, priority);
        r.put(FRA_TABLE, table);
        if (l3mdev) r.put(FRA_L3MDEV, uint8_t(1));
        const auto rule = netlink::parse_rule(message(r, RTM_NEWRULE));
        EXPECT_TRUE(rule);
        data_.rules.push_back(*rule);
        return *this;
    }

    // Where a socket that is bound to nothing sends to 10.SUBNET.0.9, and whether a ring does it: "eth0 ring", "bond0 kernel".
    std::string way_to(uint8_t subnet, int bound_to = 0) {
        const NetworkView view(data_);
        RouteQuery query;
        query.dst = IpAddr::v4(10u << 24 | uint32_t(subnet) << 16 | 9);
        query.oif = bound_to;
        const auto route = view.route(query);
        if (!route) return route.error() == EOPNOTSUPP ? "kernel" : "nowhere";
        const Interface* const out = view.interface(route->oif);
        return out->name + (NetSpace::can_carry_ring(*out) ? " ring" : " kernel");
    }
    bool carries(int index) {
        for (const Interface& i : data_.interfaces)
            if (i.index == index) return NetSpace::can_carry_ring(i);
        ADD_FAILURE() << index;
        return false;
    }
    const Interface& last() const { return data_.interfaces.back(); }

  private:
    static Message message(Request& r, uint16_t type) {
        return {type, 0, r.finish(1).subspan(NLMSG_HDRLEN)};
    }
    void route(const uint8_t* to, uint8_t prefix, int index, uint32_t table, uint8_t type,
               uint8_t scope) {
        Request r(RTM_NEWROUTE, 0);
        rtmsg head{};
        head.rtm_family = AF_INET;
        head.rtm_dst_len = prefix;
        head.rtm_table = uint8_t(table);
        head.rtm_protocol = RTPROT_KERNEL;
        head.rtm_scope = scope;
        head.rtm_type = type;
        r.head(&head, sizeof head);
        r.put(RTA_TABLE, table);
        r.put(RTA_DST, to, 4);
        r.put(RTA_OIF, index);
        const auto entry = netlink::parse_route(message(r, RTM_NEWROUTE));
        EXPECT_TRUE(entry);
        data_.routes.push_back(*entry);
    }
    NetworkData data_;
};

Host server() {
    Host host;
    host.rule(0, RT_TABLE_LOCAL).rule(32766, RT_TABLE_MAIN).rule(32767, RT_TABLE_DEFAULT);
    return host;
}

TEST(InterfaceLayouts, VlansHaveRingsOfTheirOwn) {
    Host host = server();
    host.link(2, "eth0").address(2, 1);
    host.link(3, "eth0.100", {.kind = "vlan", .parent = 2, .vlan_id = 100}).address(3, 2);
    EXPECT_EQ(host.last().kind, "vlan");
    EXPECT_EQ(host.last().vlan_id, 100);
    EXPECT_EQ(host.last().link, 2);
    host.link(4, "eth0.100.7", {.kind = "vlan", .parent = 3, .vlan_id = 7}).address(4, 3);
    EXPECT_EQ(host.way_to(1), "eth0 ring");
    EXPECT_EQ(host.way_to(2), "eth0.100 ring");
    EXPECT_EQ(host.way_to(3), "eth0.100.7 ring");
}

TEST(InterfaceLayouts, AVlanWhoseFramesKeepTheirTagIsTheKernels) {
    Host host = server();
    host.link(2, "eth0").address(2, 1);
    for (const uint32_t flags : {0u, uint32_t(VLAN_FLAG_GVRP)}) {
        Host with = host;
        with.link(3, "eth0.100", {.kind = "vlan", .parent = 2, .vlan_id = 100, .vlan_flags = flags})
            .address(3, 2);
        EXPECT_EQ(with.way_to(1), "eth0 ring");
        EXPECT_EQ(with.way_to(2), "eth0.100 kernel") << flags;
    }
}

TEST(InterfaceLayouts, BondsAndTeamsAreTheKernels) {
    for (const char* kind : {"bond", "team"}) {
        Host host = server();
        host.link(2, "eth0", {.port_kind = kind, .master = 4});
        host.link(3, "eth1", {.port_kind = kind, .master = 4});
        host.link(4, "both", {.kind = kind}).address(4, 1);
        // What is on top of it is an interface like others.
        host.link(5, "both.9", {.kind = "vlan", .parent = 4, .vlan_id = 9}).address(5, 2);
        EXPECT_FALSE(host.carries(2)) << kind;
        EXPECT_FALSE(host.carries(3)) << kind;
        EXPECT_EQ(host.way_to(1), "both kernel") << kind;
        EXPECT_EQ(host.way_to(2), "both.9 ring") << kind;
    }
}

TEST(InterfaceLayouts, AVrfAndItsInterfacesAreTheKernels) {
    Host host;
    host.rule(0, RT_TABLE_LOCAL).rule(1000, RT_TABLE_UNSPEC, true);
    host.rule(32766, RT_TABLE_MAIN).rule(32767, RT_TABLE_DEFAULT);
    host.link(2, "eth0").address(2, 1);
    host.link(3, "eth1", {.port_kind = "vrf", .master = 9});
    host.link(9, "red", {.kind = "vrf"});
    host.address(3, 2, 100);  // into the VRF's table
    EXPECT_FALSE(host.carries(3));
    EXPECT_FALSE(host.carries(9));
    EXPECT_EQ(host.way_to(1), "eth0 ring");
    EXPECT_EQ(host.way_to(2), "nowhere");  // of a socket that is not in it
    EXPECT_EQ(host.way_to(2, 9), "kernel");
}

TEST(InterfaceLayouts, BridgesCarryAndTheirMembersDoNot) {
    Host host = server();
    host.link(2, "eth0", {.port_kind = "bridge", .master = 3});
    host.link(3, "br0", {.kind = "bridge"}).address(3, 1);
    EXPECT_FALSE(host.carries(2));
    EXPECT_EQ(host.way_to(1), "br0 ring");
}

TEST(InterfaceLayouts, WhatSharesACardByAddressIsTheKernels) {
    for (const char* kind : {"macvlan", "macvtap", "ipvlan", "ipvtap"}) {
        Host host = server();
        host.link(2, "eth0").address(2, 1);
        host.link(3, "mine", {.kind = kind, .parent = 2}).address(3, 2);
        EXPECT_EQ(host.way_to(2), "mine kernel");
        EXPECT_EQ(host.way_to(1), "eth0 ring");
    }
}

TEST(InterfaceLayouts, WithoutEthernetHeadersThereIsNoRing) {
    Host host = server();
    host.link(2, "tun0", {.kind = "tun", .type = ARPHRD_NONE}).address(2, 1);
    host.link(3, "wg0", {.kind = "wireguard", .type = ARPHRD_NONE}).address(3, 2);
    host.link(4, "ib0", {.type = ARPHRD_INFINIBAND}).address(4, 3);
    host.link(5, "tap0", {.kind = "tun"}).address(5, 4);
    EXPECT_EQ(host.way_to(1), "tun0 kernel");
    EXPECT_EQ(host.way_to(2), "wg0 kernel");
    EXPECT_EQ(host.way_to(3), "ib0 kernel");
    EXPECT_EQ(host.way_to(4), "tap0 ring");
}

}  // namespace
}  // namespace vma
