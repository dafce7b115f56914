#include "softhca/raw/fields.h"

#include <netinet/in.h>

#include <cstring>

namespace softhca {
namespace {

constexpr uint16_t kVxlanPort = 4789;

void read_ports(vma::ByteView head, uint32_t at, FlowFields* f) {
    if (head.size() < at + 4) return;
    std::memcpy(&f->src_port, &head[at], 2);
    std::memcpy(&f->dst_port, &head[at + 2], 2);
    const bool vxlan = f->protocol == IPPROTO_UDP && ntohs(f->dst_port) == kVxlanPort;
    if (vxlan && head.size() >= at + 16) std::memcpy(&f->vni, &head[at + 12], 4);
    f->vni &= htonl(0xffffff00);
}

uint32_t read_ipv4(vma::ByteView head, uint32_t at, FlowFields* f) {
    if (head.size() < at + 20 || head[at] >> 4 != 4) return 0;
    f->ip_version = 4;
    f->tos = head[at + 1];
    f->ttl = head[at + 8];
    f->protocol = head[at + 9];
    std::memcpy(f->src_ip, &head[at + 12], 4);
    std::memcpy(f->dst_ip, &head[at + 16], 4);
    const bool fragment = vma::load_be16(&head[at + 6]) & 0x3fff;
    return fragment ? 0 : at + (head[at] & 15) * 4u;
}

uint32_t read_ipv6(vma::ByteView head, uint32_t at, FlowFields* f) {
    if (head.size() < at + 40 || head[at] >> 4 != 6) return 0;
    f->ip_version = 6;
    f->tos = uint8_t(head[at] << 4 | head[at + 1] >> 4);
    f->ttl = head[at + 7];
    f->protocol = head[at + 6];
    std::memcpy(f->src_ip, &head[at + 8], 16);
    std::memcpy(f->dst_ip, &head[at + 24], 16);
    return at + 40;
}

// One specification, laid out by verbs.h: type, size, value, mask.
struct RuleReader {
    FlowRule& rule;
    bool flow_tag;

    template <class T>
    static void both(const T& value, const T& mask, T* v, T* m) {
        *v = T(value & mask);
        *m = mask;
    }
    static void bytes(const uint8_t* value, const uint8_t* mask, uint8_t* v, uint8_t* m,
                      uint32_t n) {
        for (uint32_t i = 0; i < n; i++) both(value[i], mask[i], v + i, m + i);
    }
    void ip_version(uint8_t version) {
        rule.value.ip_version = version;
        rule.mask.ip_version = 0xff;
    }
    void protocol(uint8_t p) {
        rule.value.protocol = p;
        rule.mask.protocol = 0xff;
    }

    int eth(const ibv_flow_spec_eth& s) {
        bytes(s.val.dst_mac, s.mask.dst_mac, rule.value.dst_mac, rule.mask.dst_mac, 6);
        bytes(s.val.src_mac, s.mask.src_mac, rule.value.src_mac, rule.mask.src_mac, 6);
        both(s.val.ether_type, s.mask.ether_type, &rule.value.ether_type, &rule.mask.ether_type);
        both(s.val.vlan_tag, s.mask.vlan_tag, &rule.value.vlan, &rule.mask.vlan);
        if (s.mask.vlan_tag) rule.value.has_vlan = rule.mask.has_vlan = 1;
        return 0;
    }
    int ipv4(const ibv_flow_spec_ipv4& s) {
        ip_version(4);
        bytes(reinterpret_cast<const uint8_t*>(&s.val.src_ip),
              reinterpret_cast<const uint8_t*>(&s.mask.src_ip), rule.value.src_ip, rule.mask.src_ip,
              4);
        bytes(reinterpret_cast<const uint8_t*>(&s.val.dst_ip),
              reinterpret_cast<const uint8_t*>(&s.mask.dst_ip), rule.value.dst_ip, rule.mask.dst_ip,
              4);
        return 0;
    }
    int ipv4_ext(const ibv_flow_spec_ipv4_ext& s) {
        if (s.mask.flags) return EOPNOTSUPP;
        ibv_flow_spec_ipv4 plain{};
        plain.val = {s.val.src_ip, s.val.dst_ip};
        plain.mask = {s.mask.src_ip, s.mask.dst_ip};
        ipv4(plain);
        both(s.val.proto, s.mask.proto, &rule.value.protocol, &rule.mask.protocol);
        both(s.val.tos, s.mask.tos, &rule.value.tos, &rule.mask.tos);
        both(s.val.ttl, s.mask.ttl, &rule.value.ttl, &rule.mask.ttl);
        return 0;
    }
    int ipv6(const ibv_flow_spec_ipv6& s) {
        if (s.mask.flow_label) return EOPNOTSUPP;
        ip_version(6);
        bytes(s.val.src_ip, s.mask.src_ip, rule.value.src_ip, rule.mask.src_ip, 16);
        bytes(s.val.dst_ip, s.mask.dst_ip, rule.value.dst_ip, rule.mask.dst_ip, 16);
        both(s.val.next_hdr, s.mask.next_hdr, &rule.value.protocol, &rule.mask.protocol);
        both(s.val.traffic_class, s.mask.traffic_class, &rule.value.tos, &rule.mask.tos);
        both(s.val.hop_limit, s.mask.hop_limit, &rule.value.ttl, &rule.mask.ttl);
        return 0;
    }
    int ports(const ibv_flow_spec_tcp_udp& s, uint8_t number) {
        protocol(number);
        both(s.val.dst_port, s.mask.dst_port, &rule.value.dst_port, &rule.mask.dst_port);
        both(s.val.src_port, s.mask.src_port, &rule.value.src_port, &rule.mask.src_port);
        return 0;
    }
    int tunnel(const ibv_flow_spec_tunnel& s) {
        both(s.val.tunnel_id, s.mask.tunnel_id, &rule.value.vni, &rule.mask.vni);
        return 0;
    }

    int one(const ibv_flow_spec& s) {
        static const struct {
            uint32_t type;
            size_t size;
        } kSizes[] = {{IBV_FLOW_SPEC_ETH, sizeof(s.eth)},
                      {IBV_FLOW_SPEC_IPV4, sizeof(s.ipv4)},
                      {IBV_FLOW_SPEC_IPV4_EXT, sizeof(s.ipv4_ext)},
                      {IBV_FLOW_SPEC_IPV6, sizeof(s.ipv6)},
                      {IBV_FLOW_SPEC_TCP, sizeof(s.tcp_udp)},
                      {IBV_FLOW_SPEC_UDP, sizeof(s.tcp_udp)},
                      {IBV_FLOW_SPEC_VXLAN_TUNNEL, sizeof(s.tunnel)},
                      {IBV_FLOW_SPEC_ACTION_TAG, sizeof(s.flow_tag)},
                      {IBV_FLOW_SPEC_ACTION_DROP, sizeof(s.drop)}};
        for (const auto& known : kSizes)
            if (known.type == s.hdr.type && known.size != s.hdr.size) return EINVAL;
        switch (s.hdr.type) {
            case IBV_FLOW_SPEC_ETH:
                return eth(s.eth);
            case IBV_FLOW_SPEC_IPV4:
                return ipv4(s.ipv4);
            case IBV_FLOW_SPEC_IPV4_EXT:
                return ipv4_ext(s.ipv4_ext);
            case IBV_FLOW_SPEC_IPV6:
                return ipv6(s.ipv6);
            case IBV_FLOW_SPEC_TCP:
                return ports(s.tcp_udp, IPPROTO_TCP);
            case IBV_FLOW_SPEC_UDP:
                return ports(s.tcp_udp, IPPROTO_UDP);
            case IBV_FLOW_SPEC_VXLAN_TUNNEL:
                return tunnel(s.tunnel);
            case IBV_FLOW_SPEC_ACTION_TAG:
                rule.tag = s.flow_tag.tag_id;
                return !flow_tag ? EOPNOTSUPP : rule.tag >> 24 ? EINVAL : 0;  // tags have 24 bits
            case IBV_FLOW_SPEC_ACTION_DROP:
                rule.drop = true;
                return 0;
            default:
                return EOPNOTSUPP;
        }
    }
};

}  // namespace

void read_fields(vma::ByteView head, FlowFields* f, uint32_t* l4) {
    *f = {};
    *l4 = 0;
    if (head.size() < 14) return;
    std::memcpy(f->dst_mac, &head[0], 6);
    std::memcpy(f->src_mac, &head[6], 6);
    uint32_t at = 12;
    uint16_t type = vma::load_be16(&head[at]);
    if (type == 0x8100 && head.size() >= 18) {
        f->has_vlan = 1;
        std::memcpy(&f->vlan, &head[14], 2);
        type = vma::load_be16(&head[at = 16]);
    }
    f->ether_type = htons(type);
    if (type == 0x0800)
        at = read_ipv4(head, at + 2, f);
    else if (type == 0x86dd)
        at = read_ipv6(head, at + 2, f);
    else
        return;
    if (!at || (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP)) return;
    *l4 = at;
    read_ports(head, at, f);
}

bool matches(const FlowRule& rule, const FlowFields& frame) {
    static_assert(sizeof(FlowFields) % 4 == 0);
    uint32_t differ = 0;
    for (size_t i = 0; i < sizeof(FlowFields); i += 4) {
        uint32_t v, m, f;
        std::memcpy(&v, reinterpret_cast<const char*>(&rule.value) + i, 4);
        std::memcpy(&m, reinterpret_cast<const char*>(&rule.mask) + i, 4);
        std::memcpy(&f, reinterpret_cast<const char*>(&frame) + i, 4);
        differ |= (f & m) ^ v;
    }
    return differ == 0;
}

int read_rule(const ibv_flow_attr& attr, bool flow_tag, FlowRule* out) {
    if (attr.comp_mask || attr.port != 1 || attr.type > IBV_FLOW_ATTR_SNIFFER) return EINVAL;
    if (attr.flags & ~uint32_t(IBV_FLOW_ATTR_FLAGS_DONT_TRAP)) return EOPNOTSUPP;
    if (attr.size < sizeof(attr)) return EINVAL;
    out->type = attr.type;
    out->priority = attr.priority;
    out->dont_trap = attr.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    RuleReader reader{*out, flow_tag};
    const char* at = reinterpret_cast<const char*>(&attr + 1);
    uint32_t left = attr.size - uint32_t(sizeof(attr));
    for (uint32_t i = 0; i < attr.num_of_specs; i++) {
        ibv_flow_spec spec{};
        if (left < sizeof(spec.hdr)) return EINVAL;
        std::memcpy(&spec.hdr, at, sizeof(spec.hdr));
        const uint32_t size = spec.hdr.size;
        if (size < sizeof(spec.hdr) || size > left || size > sizeof(spec)) return EINVAL;
        std::memcpy(&spec, at, size);
        if (const int error = reader.one(spec)) return error;
        at += size;
        left -= size;
    }
    return 0;
}

}  // namespace softhca
