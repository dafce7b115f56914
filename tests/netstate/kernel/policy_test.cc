// KernelPolicy against real rulesets: (what is installed, flow, expected reason).
#include <sys/socket.h>

#include "engine/kernel_policy.h"
#include "namespace.h"

namespace vma::test {
namespace {

FlowQuery flow(uint8_t protocol, FlowRole role, uint16_t local_port, uint16_t remote_port) {
    FlowQuery q;
    q.protocol = protocol;
    q.role = role;
    q.local = {IpAddr::v4(10, 0, 0, 1), local_port};
    q.remote = {role == FlowRole::passive ? IpAddr::any_v4() : IpAddr::v4(10, 0, 0, 2),
                remote_port};
    return q;
}
FlowQuery tcp_client() { return flow(IPPROTO_TCP, FlowRole::active, 40000, 80); }
FlowQuery tcp_server() { return flow(IPPROTO_TCP, FlowRole::passive, 80, 0); }
FlowQuery udp_both() { return flow(IPPROTO_UDP, FlowRole::both, 5000, 0); }

constexpr const char* kInput = "table inet f { chain c { type filter hook input priority 0; ";
constexpr const char* kOutput = "table ip f { chain c { type filter hook output priority 0; ";

struct Case {
    const char* name;
    std::string ruleset;
    Reason client, server, udp;
};
constexpr Reason kNone = Reason::none, kFilter = Reason::netfilter;

std::vector<Case> cases() {
    const std::string in = kInput, out = kOutput, end = "; }; }\n";
    const std::string stateful = "policy drop; ct state established,related accept; ";
    return {
        {"nothing", "", kNone, kNone, kNone},
        {"accept all", in + "accept" + end, kNone, kNone, kNone},
        {"policy drop", in + "policy drop;" + end, kFilter, kFilter, kFilter},
        {"forward only",
         "table ip f { chain c { type filter hook forward priority 0; policy drop; }; }", kNone,
         kNone, kNone},
        {"stateful", in + stateful + end, kNone, kFilter, kFilter},
        {"stateful with port", in + stateful + "tcp dport 80 accept" + end, kNone, kNone, kFilter},
        {"stateful vmap",
         in +
             "policy drop; ct state vmap { established : accept, related : accept, "
             "invalid : drop }; tcp dport 80 accept" +
             end,
         kNone, kNone, kFilter},
        {"invalid dropped", in + "ct state invalid drop" + end, kNone, kNone, kNone},
        {"counter and log", in + "counter log prefix \"x\"" + end, kNone, kNone, kNone},
        {"other port", in + "tcp dport 22 drop" + end, kNone, kNone, kNone},
        {"our port in a set", in + "tcp dport { 22, 80, 443 } drop" + end, kNone, kFilter, kNone},
        {"not in a set", in + "tcp dport { 22, 443 } reject" + end, kNone, kNone, kNone},
        {"inverted set", in + "tcp dport != { 22, 443 } drop" + end, kFilter, kFilter, kNone},
        {"port range", out + "udp sport 4000-6000 drop" + end, kNone, kNone, kFilter},
        {"interval set", in + "ip saddr { 10.0.0.0/30, 11.0.0.0/8 } drop" + end, kFilter, kFilter,
         kFilter},
        {"interval elsewhere", in + "ip daddr { 12.0.0.0/8, 11.0.0.0/8 } drop" + end, kNone, kNone,
         kNone},
        {"source prefix", in + "ip saddr 10.0.0.0/24 drop" + end, kFilter, kFilter, kFilter},
        {"other destination", out + "ip daddr 10.0.1.0/24 drop" + end, kNone, kFilter, kNone},
        {"other interface", in + "iifname \"eth7\" drop" + end, kNone, kNone, kNone},
        {"our interface", in + "iifname \"v*\" drop" + end, kFilter, kFilter, kFilter},
        {"our interface, out", out + "oif v0 drop" + end, kFilter, kFilter, kFilter},
        {"ip6 table",
         "table ip6 f { chain c { type filter hook input priority 0; policy drop; }; }", kNone,
         kNone, kNone},
        {"nfproto", in + "meta nfproto ipv6 drop" + end, kNone, kNone, kNone},
        {"jump to drop",
         "table ip f { chain d { tcp dport 80 drop; }; chain c { type filter hook "
         "input priority 0; jump d; }; }",
         kNone, kFilter, kNone},
        {"jump returns",
         "table ip f { chain d { return; drop; }; chain c { type filter hook input "
         "priority 0; jump d; }; }",
         kNone, kNone, kNone},
        {"unused chain", "table ip f { chain d { drop; }; }", kNone, kNone, kNone},
        {"masquerade",
         "table ip n { chain p { type nat hook postrouting priority 100; oifname v0 "
         "masquerade; }; }",
         kFilter, kNone, kFilter},
        {"masquerade others",
         "table ip n { chain p { type nat hook postrouting priority 100; ip saddr "
         "172.17.0.0/16 masquerade; }; }",
         kNone, kNone, kNone},
        {"redirect",
         "table ip n { chain p { type nat hook prerouting priority -100; tcp dport 80 "
         "redirect to :8080; }; }",
         kNone, kFilter, kNone},
        {"dscp", out + "ip dscp set cs1" + end, kFilter, kFilter, kFilter},
        {"mark without rules", out + "meta mark set 7" + end, kNone, kNone, kNone},
        {"limit", in + "limit rate over 10/second drop" + end, kFilter, kFilter, kFilter},
        {"netdev ingress",
         "table netdev f { chain c { type filter hook ingress device v0 priority 0; "
         "udp dport 5000 drop; }; }",
         kNone, kNone, kFilter},
        {"netdev of another",
         "table netdev f { chain c { type filter hook ingress device lo priority "
         "0; drop; }; }",
         kNone, kNone, kNone},
        {"dormant",
         "table ip f { flags dormant; chain c { type filter hook input priority 0; policy "
         "drop; }; }",
         kNone, kNone, kNone},
    };
}

constexpr const char* kWire =
    "ip link set lo up; ip link add v0 type veth peer name v1; ip addr add 10.0.0.1/24 dev v0; "
    "ip link set v0 up; ip link set v1 up";

TEST(Policy, NftRulesets) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell(kWire));
        auto m = open_monitor();
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(m && policy.ok());
        const auto view = m->view();
        const int v0 = view->interface(std::string_view("v0"))->index;
        for (const Case& c : cases()) {
            const uint64_t before = (*policy)->generation();
            ASSERT_TRUE(shell("nft -f -", "flush ruleset\n" + c.ruleset)) << c.name;
            const auto expect = [&](FlowQuery q, const char* who, Reason want) {
                q.ifindex = v0;
                std::string why;
                EXPECT_EQ(reason_name((*policy)->check(q, *view, &why)),
                          std::string(reason_name(want)))
                    << c.name << ", " << who << ": " << why;
                EXPECT_EQ(why.empty(), want == kNone) << c.name << ", " << who << ": " << why;
            };
            expect(tcp_client(), "client", c.client);
            expect(tcp_server(), "server", c.server);
            expect(udp_both(), "udp", c.udp);
            if (!c.ruleset.empty()) {
                EXPECT_GT((*policy)->generation(), before) << c.name;
            }
        }
        EXPECT_EQ((*policy)->notes().find("nft"), std::string::npos) << (*policy)->notes();
    });
}

TEST(Policy, MarksMatterOnceARuleLooksAtThem) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell(kWire));
        ASSERT_TRUE(shell("ip rule add fwmark 7 table 100"));
        ASSERT_TRUE(shell("nft -f -", std::string(kOutput) + "meta mark set 7; }; }\n"));
        auto m = open_monitor();
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(m && policy.ok());
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::mark_routing);
    });
}

TEST(Policy, ReadableDescriptorTellsOfChange) {
    IN_NAMESPACE([] {
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(policy.ok());
        pollfd p{(*policy)->netfilter_fd(), POLLIN, 0};
        EXPECT_EQ(poll(&p, 1, 0), 0);
        const uint64_t before = (*policy)->generation();
        ASSERT_TRUE(shell("nft -f -", std::string(kInput) + "policy drop; }; }\n"));
        EXPECT_EQ(poll(&p, 1, 5000), 1);
        (*policy)->process();
        EXPECT_GT((*policy)->generation(), before);
        EXPECT_EQ(poll(&p, 1, 0), 0);
    });
}

TEST(Policy, Xfrm) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell(kWire));
        auto m = open_monitor();
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(m && policy.ok());
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::none);
        if (!shell("ip xfrm policy add src 10.9.0.0/16 dst 10.0.0.2/32 dir out "
                   "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode transport 2>&1")) {
            printf("NOT APPLICABLE: this kernel takes no xfrm policy\n");
            return;
        }
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::none);  // other source
        ASSERT_TRUE(
            shell("ip xfrm policy add src 10.0.0.0/24 dst 10.0.0.2/32 proto tcp dir out "
                  "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode transport"));
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::xfrm);
        FlowQuery other = udp_both();
        EXPECT_EQ((*policy)->check(other, *m->view()), Reason::none);  // the policy is for TCP
        ASSERT_TRUE(shell("ip xfrm policy flush"));
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::none);
    });
}

TEST(Policy, TrafficControl) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell(kWire));
        auto m = open_monitor();
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(m && policy.ok());
        const auto reason = [&] {
            FlowQuery q = tcp_client();
            q.ifindex = m->view()->interface(std::string_view("v0"))->index;
            return (*policy)->check(q, *m->view());
        };
        EXPECT_EQ(reason(), Reason::none);
        ASSERT_TRUE(shell("tc qdisc add dev v1 root tbf rate 1mbit burst 10k latency 50ms"));
        ASSERT_TRUE(settle(*m, [&] {
            return !m->view()->interface(std::string_view("v1"))->traffic_control.empty();
        }));
        EXPECT_EQ(reason(), Reason::none);  // another interface
        ASSERT_TRUE(shell("tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 50ms"));
        EXPECT_TRUE(settle(*m, [&] { return reason() == Reason::traffic_control; }));
        ASSERT_TRUE(shell("tc qdisc del dev v0 root; tc qdisc add dev v0 clsact"));
        EXPECT_TRUE(settle(*m, [&] { return reason() == Reason::none; }));  // no filter in it
        ASSERT_TRUE(
            shell("tc filter add dev v0 egress protocol ip u32 match ip dport 80 0xffff "
                  "flowid 1:1"));
        EXPECT_TRUE(settle(*m, [&] { return reason() == Reason::traffic_control; }));
    });
}

TEST(Policy, WithoutCapabilitiesEverythingIsTakenAsNoneAndSaidSo) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell(kWire));
        ASSERT_TRUE(shell("nft -f -", std::string(kInput) + "policy drop; }; }\n"));
        ASSERT_EQ(setuid(65534), 0);
        auto m = open_monitor();
        auto policy = KernelPolicy::open();
        ASSERT_TRUE(m && policy.ok());
        EXPECT_NE(m->view()->interface(std::string_view("v0")), nullptr);
        EXPECT_EQ((*policy)->check(tcp_client(), *m->view()), Reason::none);
        EXPECT_NE((*policy)->notes().find("nft rules"), std::string::npos) << (*policy)->notes();
    });
}

}  // namespace
}  // namespace vma::test
