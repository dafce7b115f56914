// Rules of packet filters as the kernel tells them, evaluated for a packet in and one out. Input: a byte that says which; then the
// expressions of one nft rule, or a table of the old iptables: twice five offsets of two bytes, then the entries.
#include <netinet/in.h>
// behind the line above, which it needs
#include <linux/netfilter.h>

#include "base/bytes.h"
#include "engine/iptables_legacy.h"
#include "engine/nft_rules.h"
#include "fuzz/fuzz_check.h"

using namespace vma;

namespace {

void check(const FilterEffect& effect) {
    // What touches a packet is named.
    FUZZ_CHECK((effect.touched || effect.marks) == !effect.why.empty());
}

PacketFacts packet(bool outgoing) {
    PacketFacts p;
    p.protocol = 6;
    p.src = {IpAddr::v4(10, 0, 0, 1), 40000};
    p.dst = {IpAddr::v4(10, 0, 0, 2), 80};
    p.outgoing = outgoing;
    p.ifindex = 2;
    p.interface = "eth0";
    return p;
}

void nft_rule(ByteView expressions, unsigned hook) {
    nft::Table table;
    table.family = NFPROTO_INET;
    table.name = "t";
    nft::Set set;
    set.name = "s";
    set.interval = true;
    set.elements = {{{0, 80}, false, false, NF_DROP, {}}, {{0, 81}, true, false, 0, {}}};
    table.sets["s"] = set;
    nft::Chain chain;
    chain.name = "c";
    chain.base = true;
    chain.hook = hook;
    chain.rules.push_back(nft::parse_rule(expressions));
    table.chains["c"] = chain;
    chain.name = "other";  // to jump to
    chain.base = false;
    table.chains["other"] = chain;
    for (const bool outgoing : {false, true}) check(nft::evaluate({{table}}, packet(outgoing)));
}

void iptables_table(ByteView bytes) {
    constexpr size_t kHooks = 5, kHead = 4 * kHooks;
    if (bytes.size() < kHead) return;
    iptables::Table table;
    table.name = "filter";
    table.valid_hooks = (1u << kHooks) - 1;
    for (size_t i = 0; i < kHooks; i++) {
        table.hook_entry[i] = load_be16(bytes.data() + 4 * i);
        table.underflow[i] = load_be16(bytes.data() + 4 * i + 2);
    }
    table.entries.assign(bytes.begin() + kHead, bytes.end());
    for (const bool outgoing : {false, true}) check(iptables::evaluate({table}, packet(outgoing)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const ByteView rest(data + 1, size - 1);
    if (data[0] & 1)
        iptables_table(rest);
    else
        nft_rule(rest, data[0] >> 1 & 7);
    return 0;
}
