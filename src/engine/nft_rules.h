// The nft ruleset of a namespace as data, read over NETLINK_NETFILTER, and its conservative evaluation for one kind of
// packet: a rule counts unless it provably cannot match. Sources: nft(8), linux/netfilter/nf_tables.h.
// Known to the evaluation: protocol, addresses, ports, interface, connection state; sets and maps of constant elements.
// Anything else an expression reads is unknown, and an expression this code does not know counts as touching the packet.
// Not thread safe; the ruleset is plain data once read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/netlink.h"
#include "engine/packet_facts.h"

namespace vma::nft {

enum class Source : uint8_t {
    unknown,
    nfproto,
    l4proto,
    ethertype,
    iif,
    oif,
    iifname,
    oifname,
    ct_state,
    network,    // payload of the network header
    transport,  // payload of the transport header
};

enum class Op : uint8_t {
    load,         // source -> dreg
    constant,     // a -> dreg
    cmp,          // sreg against a, how = NFT_CMP_*
    range,        // sreg within [a, b], how = NFT_RANGE_*
    bitwise,      // dreg = (sreg & a) ^ b
    byteorder,    // dreg = sreg, elements of `how` bytes swapped
    forget,       // dreg becomes unknown
    lookup,       // sreg in set `name`; dreg (if any) becomes unknown
    verdict_map,  // verdict of set `name` at sreg
    verdict,      // `verdict`, `name` = chain
    ct_states,    // connection state among the bits of `offset`
    maybe,        // matches or not, we cannot tell
    mark,         // sets a mark
    touch,        // changes, drops or redirects the packet; `name` says how
};

struct Step {
    Op op = Op::maybe;
    Source source = Source::unknown;
    bool invert = false;
    uint8_t how = 0;
    uint16_t offset = 0;         // of a payload load
    uint8_t sreg = 0, dreg = 0;  // byte offsets into the 64 register bytes
    uint8_t length = 0;
    int32_t verdict = 0;
    std::string name;
    std::vector<uint8_t> a, b;
};

struct Rule {
    uint64_t handle = 0;
    std::vector<Step> steps;
};

struct Chain {
    std::string name, type;
    bool base = false;
    bool policy_drop = false;
    uint32_t hook = 0;
    std::vector<std::string> devices;
    std::vector<Rule> rules;
};

struct Element {
    std::vector<uint8_t> key;
    bool end = false;       // interval sets: first value that is out again
    bool catchall = false;  // matches what nothing else does
    int32_t verdict = 0;
    std::string chain;
};

struct Set {
    std::string name;
    uint32_t flags = 0;
    uint32_t id = 0;
    bool exact = true;  // membership can be told from the elements
    bool interval = false;
    std::vector<Element> elements;
};

struct Table {
    uint8_t family = 0;
    std::string name;
    bool dormant = false;
    std::map<std::string, Chain> chains;
    std::map<std::string, Set> sets;
};

struct Ruleset {
    std::vector<Table> tables;
    bool empty() const { return tables.empty(); }
};

// Reads everything. EPERM without CAP_NET_ADMIN; EBUSY when the ruleset changed while it was read: read again.
// Notifications that arrive meanwhile are counted into *events.
Result<Ruleset> read_ruleset(netlink::Socket&, uint64_t* events);

Rule parse_rule(ByteView expressions);  // exposed for tests with captured messages

FilterEffect evaluate(const Ruleset&, const PacketFacts&);

}  // namespace vma::nft
