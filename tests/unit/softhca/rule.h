// A flow rule as programs make one.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>

namespace softhca::test {

constexpr uint8_t kMacB[6] = {2, 0, 0, 0, 0, 0x0b};  // bench.h: right

// A flow rule with its specifications behind it, as ibv_create_flow() takes them.
struct Rule {
    ibv_flow_attr attr{};
    uint8_t specs[256] = {};

    Rule() {
        attr.size = sizeof(attr);
        attr.port = 1;
    }
    template <class T>
    Rule& add(T spec, ibv_flow_spec_type type) {
        spec.type = type;
        spec.size = sizeof(spec);
        std::memcpy(specs + attr.size - sizeof(attr), &spec, sizeof(spec));
        attr.size = uint16_t(attr.size + sizeof(spec));
        attr.num_of_specs++;
        return *this;
    }
    Rule& to_mac(const uint8_t* mac) {
        ibv_flow_spec_eth s{};
        std::memcpy(s.val.dst_mac, mac, 6);
        std::memset(s.mask.dst_mac, 0xff, 6);
        return add(s, IBV_FLOW_SPEC_ETH);
    }
    Rule& udp_port(uint16_t port) {
        ibv_flow_spec_tcp_udp s{};
        s.val.dst_port = htons(port);
        s.mask.dst_port = 0xffff;
        return add(s, IBV_FLOW_SPEC_UDP);
    }
    Rule& tag(uint32_t id) {
        return add(ibv_flow_spec_action_tag{{}, 0, id}, IBV_FLOW_SPEC_ACTION_TAG);
    }
    Rule& drop() { return add(ibv_flow_spec_action_drop{}, IBV_FLOW_SPEC_ACTION_DROP); }
    Rule& priority(uint16_t p) {
        attr.priority = p;
        return *this;
    }
    ibv_flow* on(ibv_qp* qp) { return ibv_create_flow(qp, &attr); }
};

}  // namespace softhca::test
