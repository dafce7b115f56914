// A message of NETLINK_ROUTE through each of its parsers, whatever type it says it is. Input: flags (two bytes), then family header
// and attributes.
#include "base/bytes.h"
#include "engine/network_parse.h"
#include "fuzz/fuzz_check.h"

using namespace vma;
using namespace vma::netlink;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    Message m;
    m.flags = uint16_t(data[0] | data[1] << 8);
    m.body = ByteView(data + 2, size - 2);
    // Names are the message's text, so none is longer than it.
    if (const auto link = parse_link(m)) FUZZ_CHECK(link->name.size() <= size);
    if (const auto address = parse_address(m))
        FUZZ_CHECK(address->address.prefix <= (address->address.addr.is_v4() ? 32 : 128));
    if (const auto route = parse_route(m)) FUZZ_CHECK(route->prefix <= 32);
    if (const auto rule = parse_rule(m))
        FUZZ_CHECK(rule->src_prefix <= 32 && rule->dst_prefix <= 32);
    (void)parse_nexthop(m);
    (void)parse_neighbor(m);
    if (const auto qdisc = parse_qdisc(m)) FUZZ_CHECK(qdisc->kind.size() <= size);
    FUZZ_CHECK(parse_foreign_filter(m).size() <= size);
    return 0;
}
