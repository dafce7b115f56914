#include "dev/verbs/flows.h"

#include <netinet/in.h>

#include <cstring>

namespace vma {
namespace {

// The attribute with its specifications right behind it, as the verb reads them.
struct Specification {
    ibv_flow_attr attr;
    ibv_flow_spec_eth eth;
    ibv_flow_spec_ipv4 ip;
    ibv_flow_spec_tcp_udp l4;
};
static_assert(offsetof(Specification, eth) == sizeof(ibv_flow_attr));
static_assert(offsetof(Specification, ip) ==
              offsetof(Specification, eth) + sizeof(ibv_flow_spec_eth));
static_assert(offsetof(Specification, l4) ==
              offsetof(Specification, ip) + sizeof(ibv_flow_spec_ipv4));

bool is_steerable(const FlowKey& key) {
    if (key.protocol != IPPROTO_TCP && key.protocol != IPPROTO_UDP) return false;
    if (!key.local.addr.is_v4() || (key.connected() && !key.remote.addr.is_v4())) return false;
    const uint32_t local = key.local.addr.v4_host();
    return local != 0 && local >> 28 < 0xe;  // neither any nor a group
}

Specification make_rule(const FlowKey& key, uint8_t port, const std::array<uint8_t, 6>& mac) {
    Specification r{};
    r.attr.type = IBV_FLOW_ATTR_NORMAL;
    r.attr.size = sizeof r;
    r.attr.priority = key.connected() ? 0 : 1;
    r.attr.num_of_specs = 3;
    r.attr.port = port;
    r.eth.type = IBV_FLOW_SPEC_ETH;
    r.eth.size = sizeof r.eth;
    std::memcpy(r.eth.val.dst_mac, mac.data(), 6);
    std::memset(r.eth.mask.dst_mac, 0xff, 6);
    r.eth.val.ether_type = htons(0x0800);
    r.eth.mask.ether_type = 0xffff;
    r.ip.type = IBV_FLOW_SPEC_IPV4;
    r.ip.size = sizeof r.ip;
    r.ip.val.dst_ip = htonl(key.local.addr.v4_host());
    r.ip.mask.dst_ip = 0xffffffff;
    r.l4.type = key.protocol == IPPROTO_TCP ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP;
    r.l4.size = sizeof r.l4;
    r.l4.val.dst_port = htons(key.local.port);
    r.l4.mask.dst_port = 0xffff;
    if (key.connected()) {
        r.ip.val.src_ip = htonl(key.remote.addr.v4_host());
        r.ip.mask.src_ip = 0xffffffff;
        r.l4.val.src_port = htons(key.remote.port);
        r.l4.mask.src_port = 0xffff;
    }
    return r;
}

}  // namespace

void VerbsFlows::open(ibv_qp* qp, uint8_t port, const std::array<uint8_t, 6>& mac,
                      bool tcp_by_local, bool udp_by_local) {
    qp_ = qp;
    port_ = port;
    mac_ = mac;
    tcp_by_local_ = tcp_by_local;
    udp_by_local_ = udp_by_local;
}

void VerbsFlows::clear() {
    for (auto& [key, rule] : rules_) ibv_destroy_flow(rule.flow);
    rules_.clear();
    flows_.clear();
}

Status VerbsFlows::make(const FlowKey& key, ibv_qp* qp, ibv_flow** flow) const {
    Specification wanted = make_rule(key, port_, mac_);
    errno = 0;
    *flow = ibv_create_flow(qp, &wanted.attr);
    if (*flow == nullptr) return Errno{errno == ENOMEM ? ENOSPC : errno ? errno : EIO};
    return {};
}

Status VerbsFlows::move(ibv_qp* qp) {
    for (auto& [key, rule] : rules_) {
        ibv_flow* flow = nullptr;
        if (const Status made = make(key, qp, &flow); !made) return made;
        ibv_destroy_flow(rule.flow);
        rule.flow = flow;
    }
    qp_ = qp;
    return {};
}

FlowKey VerbsFlows::rule_of(const FlowKey& key) const {
    FlowKey rule = key;
    if (key.protocol == IPPROTO_TCP ? tcp_by_local_ : udp_by_local_) rule.remote = {};
    return rule;
}

Status VerbsFlows::add(const FlowKey& key) {
    if (!is_steerable(key)) return Errno{EINVAL};
    if (flows_.count(key)) return Errno{EEXIST};
    Rule& rule = rules_[rule_of(key)];
    if (rule.users == 0) {
        if (const Status made = make(rule_of(key), qp_, &rule.flow); !made) {
            rules_.erase(rule_of(key));
            return made;
        }
    }
    rule.users++;
    flows_.insert(key);
    return {};
}

void VerbsFlows::remove(const FlowKey& key) {
    if (flows_.erase(key) == 0) return;
    const auto at = rules_.find(rule_of(key));
    if (--at->second.users != 0) return;
    ibv_destroy_flow(at->second.flow);
    rules_.erase(at);
}

}  // namespace vma
