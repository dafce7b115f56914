// Frame bytes through Ethernet, ARP, IPv4, IPv6 and UDP parsers: views stay inside the input, and what was understood is
// written back to the same bytes.
#include <cstring>

#include "fuzz/fuzz_check.h"
#include "wire/arp.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/ipv6.h"
#include "wire/udp.h"

using namespace vma;

namespace {

bool inside(ByteView part, ByteView whole) {
    return part.empty() || (part.data() >= whole.data() &&
                            part.data() + part.size() <= whole.data() + whole.size());
}

void check_udp(ByteView payload) {
    const Parsed<UdpView> udp = parse_udp(payload);
    if (!udp) return;
    FUZZ_CHECK(inside(udp->datagram, payload) && inside(udp->payload, payload));
    FUZZ_CHECK(udp->datagram.size() == udp->header.length);
    uint8_t again[kUdpSize];
    FUZZ_CHECK(emit_udp(udp->header, again) == kUdpSize);
    FUZZ_CHECK(std::memcmp(again, payload.data(), kUdpSize) == 0);
}

void check_ip(ByteView packet) {
    if (const Parsed<Ipv4View> ip = parse_ipv4(packet)) {
        FUZZ_CHECK(inside(ip->options, packet) && inside(ip->payload, packet));
        FUZZ_CHECK(ip->payload.size() + ip->header.header_len == ip->header.total_len);
        uint8_t again[kIpv4MaxHeader];
        FUZZ_CHECK(emit_ipv4(ip->header, again, ip->options) == ip->header.header_len);
        const Parsed<Ipv4View> back = parse_ipv4_quoted(ByteView(again, ip->header.header_len));
        FUZZ_CHECK(back && back->header == ip->header);
        check_udp(ip->payload);
    }
    if (const Parsed<Ipv6View> ip = parse_ipv6(packet)) {
        FUZZ_CHECK(inside(ip->payload, packet));
        uint8_t again[kIpv6Size];
        FUZZ_CHECK(emit_ipv6(ip->header, again) == kIpv6Size);
        FUZZ_CHECK(std::memcmp(again, packet.data(), kIpv6Size) == 0);
        check_udp(ip->payload);
    }
    (void)parse_arp(packet);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const ByteView frame(data, size);
    if (const Parsed<EthernetView> eth = parse_ethernet(frame)) {
        FUZZ_CHECK(inside(eth->payload, frame));
        uint8_t again[kEthernetSize + kVlanTagSize];
        FUZZ_CHECK(emit_ethernet(eth->header, again) == eth->header.size());
        FUZZ_CHECK(std::memcmp(again, data, eth->header.size()) == 0);
        check_ip(eth->payload);
    }
    check_ip(frame);  // without the link header, so that the fuzzer reaches IP with fewer bytes
    check_udp(frame);
    return 0;
}
