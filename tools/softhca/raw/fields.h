// The fields of a frame that flow rules look at.
#pragma once

#include "base/bytes.h"
#include "softhca/fabric/layout.h"

namespace softhca {

// Reads what is there of Ethernet, one VLAN tag, IPv4 or IPv6 without extension headers, TCP or UDP, VXLAN; what a frame does
// not have stays zero. `head`: its first bytes, at least 128 of them when it has as many. *l4: offset of the transport
// header, 0: none (a fragment, or another protocol).
void read_fields(vma::ByteView head, FlowFields* out, uint32_t* l4);

// Are all fields under the mask as in the rule?
bool matches(const FlowRule& rule, const FlowFields& frame);

// Translates the specifications behind `attr` into a rule. Zero, EINVAL for what no device takes, EOPNOTSUPP for what this
// one does not have.
int read_rule(const ibv_flow_attr& attr, bool flow_tag, FlowRule* out);

}  // namespace softhca
