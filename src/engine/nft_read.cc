#include "engine/nft_rules.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nf_tables_compat.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/xt_conntrack.h>

namespace vma::nft {

namespace {

using netlink::Attributes;
using netlink::be32_or;
using netlink::for_each;
using netlink::Message;
using netlink::text;

constexpr uint16_t message_type(unsigned m) { return uint16_t(NFNL_SUBSYS_NFTABLES << 8 | m); }

netlink::Request request_of(unsigned type, uint8_t family) {
    netlink::Request r(message_type(type), NLM_F_REQUEST | NLM_F_DUMP);
    const nfgenmsg head{family, NFNETLINK_V0, 0};
    r.head(&head, sizeof(head));
    return r;
}

// nft counts registers in two ways: 1..4 of 16 bytes, and from 8 on of 4 bytes, over the same storage.
uint8_t register_offset(ByteView attr) {
    const uint32_t reg = be32_or(attr, 0);
    if (reg >= NFT_REG_1 && reg <= NFT_REG_4) return uint8_t((reg - NFT_REG_1) * NFT_REG_SIZE);
    if (reg >= NFT_REG32_00 && reg <= NFT_REG32_15)
        return uint8_t((reg - NFT_REG32_00) * NFT_REG32_SIZE);
    return 0;
}

std::vector<uint8_t> data_value(ByteView nested) {
    const Attributes<NFTA_DATA_MAX + 1> d(nested);
    return {d[NFTA_DATA_VALUE].begin(), d[NFTA_DATA_VALUE].end()};
}

bool data_verdict(ByteView nested, int32_t& code, std::string& chain) {
    const Attributes<NFTA_DATA_MAX + 1> d(nested);
    if (!d.has(NFTA_DATA_VERDICT)) return false;
    const Attributes<NFTA_VERDICT_MAX + 1> v(d[NFTA_DATA_VERDICT]);
    code = int32_t(be32_or(v[NFTA_VERDICT_CODE], 0));
    chain = text(v[NFTA_VERDICT_CHAIN]);
    return true;
}

Step touch(std::string how) {
    Step s;
    s.op = Op::touch;
    s.name = std::move(how);
    return s;
}

Step parse_meta(ByteView data) {
    const Attributes<NFTA_META_MAX + 1> a(data);
    const uint32_t key = be32_or(a[NFTA_META_KEY], 0);
    Step s;
    if (a.has(NFTA_META_SREG)) {
        if (key == NFT_META_MARK) {
            s.op = Op::mark;
            s.name = "meta mark set";
            return s;
        }
        if (key == NFT_META_NFTRACE) {
            s.op = Op::forget;
            return s;
        }
        return touch("meta set");
    }
    s.op = Op::load;
    s.dreg = register_offset(a[NFTA_META_DREG]);
    s.length = 4;
    switch (key) {
        case NFT_META_NFPROTO:
            s.source = Source::nfproto;
            s.length = 1;
            break;
        case NFT_META_L4PROTO:
            s.source = Source::l4proto;
            s.length = 1;
            break;
        case NFT_META_PROTOCOL:
            s.source = Source::ethertype;
            s.length = 2;
            break;
        case NFT_META_IIF:
            s.source = Source::iif;
            break;
        case NFT_META_OIF:
            s.source = Source::oif;
            break;
        case NFT_META_IIFNAME:
            s.source = Source::iifname;
            s.length = 16;
            break;
        case NFT_META_OIFNAME:
            s.source = Source::oifname;
            s.length = 16;
            break;
        default:
            s.length = 16;
            break;
    }
    return s;
}

Step parse_payload(ByteView data) {
    const Attributes<NFTA_PAYLOAD_MAX + 1> a(data);
    if (a.has(NFTA_PAYLOAD_SREG)) return touch("payload set");
    Step s;
    s.op = Op::load;
    s.dreg = register_offset(a[NFTA_PAYLOAD_DREG]);
    s.offset = uint16_t(be32_or(a[NFTA_PAYLOAD_OFFSET], 0));
    s.length = uint8_t(std::min<uint32_t>(be32_or(a[NFTA_PAYLOAD_LEN], 0), 64));
    const uint32_t base = be32_or(a[NFTA_PAYLOAD_BASE], 0);
    if (base == NFT_PAYLOAD_NETWORK_HEADER) s.source = Source::network;
    if (base == NFT_PAYLOAD_TRANSPORT_HEADER) s.source = Source::transport;
    return s;
}

Step parse_ct(ByteView data) {
    const Attributes<NFTA_CT_MAX + 1> a(data);
    const uint32_t key = be32_or(a[NFTA_CT_KEY], 0);
    Step s;
    if (a.has(NFTA_CT_SREG)) {
        // What is kept with the connection changes no packet; its mark may come back as the packet's.
        s.op = key == NFT_CT_MARK ? Op::mark : Op::forget;
        s.name = "ct mark set";
        return s;
    }
    s.op = Op::load;
    s.source = key == NFT_CT_STATE ? Source::ct_state : Source::unknown;
    s.dreg = register_offset(a[NFTA_CT_DREG]);
    s.length = key == NFT_CT_STATE ? 4 : 16;
    return s;
}

Step parse_cmp(ByteView data) {
    const Attributes<NFTA_CMP_MAX + 1> a(data);
    Step s;
    s.op = Op::cmp;
    s.sreg = register_offset(a[NFTA_CMP_SREG]);
    s.how = uint8_t(be32_or(a[NFTA_CMP_OP], 0));
    s.a = data_value(a[NFTA_CMP_DATA]);
    return s;
}

Step parse_range(ByteView data) {
    const Attributes<NFTA_RANGE_MAX + 1> a(data);
    Step s;
    s.op = Op::range;
    s.sreg = register_offset(a[NFTA_RANGE_SREG]);
    s.how = uint8_t(be32_or(a[NFTA_RANGE_OP], 0));
    s.a = data_value(a[NFTA_RANGE_FROM_DATA]);
    s.b = data_value(a[NFTA_RANGE_TO_DATA]);
    return s;
}

Step parse_bitwise(ByteView data) {
    const Attributes<NFTA_BITWISE_MAX + 1> a(data);
    Step s;
    s.op = be32_or(a[NFTA_BITWISE_OP], 0) == NFT_BITWISE_BOOL ? Op::bitwise : Op::forget;
    s.sreg = register_offset(a[NFTA_BITWISE_SREG]);
    s.dreg = register_offset(a[NFTA_BITWISE_DREG]);
    s.length = uint8_t(std::min<uint32_t>(be32_or(a[NFTA_BITWISE_LEN], 0), 64));
    s.a = data_value(a[NFTA_BITWISE_MASK]);
    s.b = data_value(a[NFTA_BITWISE_XOR]);
    return s;
}

Step parse_byteorder(ByteView data) {
    const Attributes<NFTA_BYTEORDER_MAX + 1> a(data);
    Step s;
    s.op = Op::byteorder;
    s.sreg = register_offset(a[NFTA_BYTEORDER_SREG]);
    s.dreg = register_offset(a[NFTA_BYTEORDER_DREG]);
    s.length = uint8_t(std::min<uint32_t>(be32_or(a[NFTA_BYTEORDER_LEN], 0), 64));
    s.how = uint8_t(be32_or(a[NFTA_BYTEORDER_SIZE], 0));
    return s;
}

Step parse_lookup(ByteView data) {
    const Attributes<NFTA_LOOKUP_MAX + 1> a(data);
    Step s;
    s.op = Op::lookup;
    s.sreg = register_offset(a[NFTA_LOOKUP_SREG]);
    s.name = text(a[NFTA_LOOKUP_SET]);
    s.invert = (be32_or(a[NFTA_LOOKUP_FLAGS], 0) & NFT_LOOKUP_F_INV) != 0;
    if (a.has(NFTA_LOOKUP_DREG)) {
        s.dreg = register_offset(a[NFTA_LOOKUP_DREG]);
        s.length = 16;
        if (be32_or(a[NFTA_LOOKUP_DREG], 1) == NFT_REG_VERDICT) s.op = Op::verdict_map;
    }
    return s;
}

Step parse_immediate(ByteView data) {
    const Attributes<NFTA_IMMEDIATE_MAX + 1> a(data);
    Step s;
    s.op = Op::verdict;
    if (data_verdict(a[NFTA_IMMEDIATE_DATA], s.verdict, s.name)) return s;
    s.op = Op::constant;
    s.dreg = register_offset(a[NFTA_IMMEDIATE_DREG]);
    s.a = data_value(a[NFTA_IMMEDIATE_DATA]);
    return s;
}

Step parse_exthdr(ByteView data) {
    const Attributes<NFTA_EXTHDR_MAX + 1> a(data);
    if (!a.has(NFTA_EXTHDR_DREG)) return touch("option rewrite");
    Step s;
    s.op = Op::load;
    s.dreg = register_offset(a[NFTA_EXTHDR_DREG]);
    s.length = 64;
    return s;
}

Step parse_target(ByteView data) {  // an iptables-nft extension
    const Attributes<NFTA_TARGET_MAX + 1> a(data);
    const std::string name = text(a[NFTA_TARGET_NAME]);
    Step s;
    for (const char* harmless : {"LOG", "NFLOG", "CT", "NOTRACK", "CHECKSUM", "TRACE", "AUDIT"})
        if (name == harmless) {
            s.op = Op::forget;
            return s;
        }
    if (name == "MARK" || name == "CONNMARK") {
        s.op = Op::mark;
        s.name = name;
        return s;
    }
    return touch(name);
}

Step parse_match(ByteView data) {  // likewise
    const Attributes<NFTA_MATCH_MAX + 1> a(data);
    const std::string name = text(a[NFTA_MATCH_NAME]);
    Step s;
    if (name == "comment") s.op = Op::forget;
    if (name == "conntrack" && be32_or(a[NFTA_MATCH_REV], 0) == 3) {
        const auto info = netlink::value_or<xt_conntrack_mtinfo3>(a[NFTA_MATCH_INFO], {});
        if (info.match_flags == XT_CONNTRACK_STATE) {
            s.op = Op::ct_states;
            s.offset = info.state_mask;
            s.invert = (info.invert_flags & XT_CONNTRACK_STATE) != 0;
        }
    }
    return s;
}

Step parse_objref(ByteView data) {
    const Attributes<NFTA_OBJREF_MAX + 1> a(data);
    Step s;
    switch (be32_or(a[NFTA_OBJREF_IMM_TYPE], 0)) {
        case NFT_OBJECT_COUNTER:
        case NFT_OBJECT_CT_HELPER:
        case NFT_OBJECT_CT_TIMEOUT:
        case NFT_OBJECT_CT_EXPECT:
            s.op = Op::forget;
            return s;
        case NFT_OBJECT_QUOTA:
        case NFT_OBJECT_LIMIT:
        case NFT_OBJECT_CONNLIMIT:
            s.op = Op::maybe;
            return s;
        default:
            return touch("object reference");
    }
}

Step parse_expression(const std::string& name, ByteView data) {
    struct Parser {
        const char* name;
        Step (*parse)(ByteView);
    };
    static constexpr Parser parsers[] = {
        {"meta", parse_meta},     {"payload", parse_payload},     {"ct", parse_ct},
        {"cmp", parse_cmp},       {"range", parse_range},         {"bitwise", parse_bitwise},
        {"lookup", parse_lookup}, {"immediate", parse_immediate}, {"byteorder", parse_byteorder},
        {"match", parse_match},   {"exthdr", parse_exthdr},       {"target", parse_target},
        {"objref", parse_objref}};
    for (const Parser& p : parsers)
        if (name == p.name) return p.parse(data);
    Step s;
    for (const char* harmless : {"counter", "log", "notrack", "last"})
        if (name == harmless) {
            s.op = Op::forget;
            return s;
        }
    // Results of these go to registers that are unknown at the start of every rule; a register is not reused by nft
    // before it is loaded again, but forget all of them to be sure.
    for (const char* reads : {"fib", "hash", "numgen", "rt", "socket", "osf", "tunnel", "xfrm"})
        if (name == reads) {
            s.op = Op::maybe;
            s.length = 64;
            return s;
        }
    // Matches without a register.
    for (const char* matches : {"limit", "quota", "connlimit", "dynset"})
        if (name == matches) return s;
    return touch(name);
}

void parse_chain(const Message& m, std::vector<Table>& tables) {
    const uint8_t family = m.head<nfgenmsg>().nfgen_family;
    const Attributes<NFTA_CHAIN_MAX + 1> a(m.attributes(sizeof(nfgenmsg)));
    Chain c;
    c.name = text(a[NFTA_CHAIN_NAME]);
    c.type = text(a[NFTA_CHAIN_TYPE]);
    c.base = a.has(NFTA_CHAIN_HOOK);
    c.policy_drop =
        a.has(NFTA_CHAIN_POLICY) && be32_or(a[NFTA_CHAIN_POLICY], NF_ACCEPT) != NF_ACCEPT;
    const Attributes<NFTA_HOOK_MAX + 1> hook(a[NFTA_CHAIN_HOOK]);
    c.hook = be32_or(hook[NFTA_HOOK_HOOKNUM], 0);
    if (hook.has(NFTA_HOOK_DEV)) c.devices.push_back(text(hook[NFTA_HOOK_DEV]));
    for_each(hook[NFTA_HOOK_DEVS], [&](uint16_t type, ByteView name) {
        if (type == NFTA_DEVICE_NAME) c.devices.push_back(text(name));
    });
    for (Table& t : tables)
        if (t.family == family && t.name == text(a[NFTA_CHAIN_TABLE])) t.chains[c.name] = c;
}

void parse_rule_message(const Message& m, std::vector<Table>& tables) {
    const uint8_t family = m.head<nfgenmsg>().nfgen_family;
    const Attributes<NFTA_RULE_MAX + 1> a(m.attributes(sizeof(nfgenmsg)));
    Rule r = parse_rule(a[NFTA_RULE_EXPRESSIONS]);
    r.handle = __builtin_bswap64(netlink::value_or<uint64_t>(a[NFTA_RULE_HANDLE], 0));
    for (Table& t : tables)
        if (t.family == family && t.name == text(a[NFTA_RULE_TABLE])) {
            t.chains[text(a[NFTA_RULE_CHAIN])].rules.push_back(std::move(r));
            return;
        }
}

void parse_set(const Message& m, std::vector<Table>& tables) {
    const uint8_t family = m.head<nfgenmsg>().nfgen_family;
    const Attributes<NFTA_SET_MAX + 1> a(m.attributes(sizeof(nfgenmsg)));
    Set s;
    s.name = text(a[NFTA_SET_NAME]);
    s.flags = be32_or(a[NFTA_SET_FLAGS], 0);
    s.interval = (s.flags & NFT_SET_INTERVAL) != 0;
    // Elements that packets add, or that time takes away, change without a word; ranges over concatenated fields are
    // not compared here.
    const bool moving = (s.flags & (NFT_SET_EVAL | NFT_SET_TIMEOUT)) != 0;
    s.exact = !moving && !(s.interval && (s.flags & NFT_SET_CONCAT) != 0);
    for (Table& t : tables)
        if (t.family == family && t.name == text(a[NFTA_SET_TABLE])) t.sets[s.name] = s;
}

void parse_elements(const Message& m, Set& set) {
    const Attributes<NFTA_SET_ELEM_LIST_MAX + 1> list(m.attributes(sizeof(nfgenmsg)));
    for_each(list[NFTA_SET_ELEM_LIST_ELEMENTS], [&](uint16_t, ByteView element) {
        const Attributes<NFTA_SET_ELEM_MAX + 1> a(element);
        Element e;
        e.key = data_value(a[NFTA_SET_ELEM_KEY]);
        const uint32_t flags = be32_or(a[NFTA_SET_ELEM_FLAGS], 0);
        e.end = (flags & NFT_SET_ELEM_INTERVAL_END) != 0;
        e.catchall = (flags & NFT_SET_ELEM_CATCHALL) != 0;
        if (a.has(NFTA_SET_ELEM_KEY_END)) set.exact = false;
        data_verdict(a[NFTA_SET_ELEM_DATA], e.verdict, e.chain);
        set.elements.push_back(std::move(e));
    });
}

}  // namespace

Rule parse_rule(ByteView expressions) {
    Rule r;
    for_each(expressions, [&](uint16_t, ByteView element) {
        const Attributes<NFTA_EXPR_MAX + 1> a(element);
        r.steps.push_back(parse_expression(text(a[NFTA_EXPR_NAME]), a[NFTA_EXPR_DATA]));
    });
    return r;
}

Result<Ruleset> read_ruleset(netlink::Socket& socket, uint64_t* events) {
    Ruleset rules;
    const auto event = [events](const Message&) { ++*events; };
    const auto dump = [&](netlink::Request& request, auto&& each) {
        return socket.dump(request, each, event);
    };
    netlink::Request tables = request_of(NFT_MSG_GETTABLE, NFPROTO_UNSPEC);
    Status done = dump(tables, [&](const Message& m) {
        const Attributes<NFTA_TABLE_MAX + 1> a(m.attributes(sizeof(nfgenmsg)));
        Table& t = rules.tables.emplace_back();
        t.family = m.head<nfgenmsg>().nfgen_family;
        t.name = text(a[NFTA_TABLE_NAME]);
        t.dormant = (be32_or(a[NFTA_TABLE_FLAGS], 0) & NFT_TABLE_F_DORMANT) != 0;
    });
    if (!done) return Errno{done.error()};
    if (rules.empty()) return rules;
    netlink::Request chains = request_of(NFT_MSG_GETCHAIN, NFPROTO_UNSPEC);
    done = dump(chains, [&](const Message& m) { parse_chain(m, rules.tables); });
    if (!done) return Errno{done.error()};
    netlink::Request all_rules = request_of(NFT_MSG_GETRULE, NFPROTO_UNSPEC);
    done = dump(all_rules, [&](const Message& m) { parse_rule_message(m, rules.tables); });
    if (!done) return Errno{done.error()};
    netlink::Request sets = request_of(NFT_MSG_GETSET, NFPROTO_UNSPEC);
    done = dump(sets, [&](const Message& m) { parse_set(m, rules.tables); });
    if (!done) return Errno{done.error()};
    for (Table& t : rules.tables)
        for (auto& [name, set] : t.sets) {
            netlink::Request elements = request_of(NFT_MSG_GETSETELEM, t.family);
            elements.put_text(NFTA_SET_ELEM_LIST_TABLE, t.name);
            elements.put_text(NFTA_SET_ELEM_LIST_SET, name);
            done = dump(elements, [&s = set](const Message& m) { parse_elements(m, s); });
            if (!done) return Errno{done.error()};
        }
    return rules;
}

}  // namespace vma::nft
