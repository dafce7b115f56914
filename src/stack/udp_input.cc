#include "stack/udp_input.h"

#include <cstring>
#include <utility>

#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma {
namespace {

// Addresses that no host may use as source (RFC 1122 section 3.2.1.3): group, limited broadcast, "this network", loopback.
bool impossible_source(uint32_t src) {
    const uint32_t top = src >> 24;
    return (top & 0xf0) == 0xe0 || src == 0xffffffff || top == 0 || top == 127;
}

// The IPv4 packet behind the link header, or why the frame is not for us.
Parsed<ByteView> ip_packet(const UdpStack& stack, const PacketBuf& frame) {
    if (frame.meta.has_vlan && (frame.meta.vlan_tci & 0x0fff) != 0) return DropReason::vlan_other;
    const Parsed<EthernetView> eth = parse_ethernet(frame.view());
    if (!eth) return eth.why();
    if (eth->header.has_vlan && eth->header.vlan_id() != 0) return DropReason::vlan_other;
    if (eth->header.type != ethertype::ipv4) return DropReason::not_ip;
    if (!stack.mac.is_zero() && eth->header.src == stack.mac) return DropReason::own_source;
    return eth->payload;
}

bool udp_checksum_ok(const Ipv4Header& ip, const UdpView& udp) {
    if (udp.header.checksum == 0) return true;
    Checksum sum;
    sum.add_pseudo_v4(ip.src, ip.dst, ip_protocol::udp, udp.header.length);
    sum.add(udp.datagram);
    return sum.finish() == 0;
}

DropReason queue(UdpStack& stack, UdpEndpoint& endpoint, Packet frame, const UdpRxInfo& info) {
    const DropReason why = endpoint.deliver(std::move(frame), info);
    if (why == DropReason::none && !endpoint.fresh_hook.linked()) stack.fresh.push_back(endpoint);
    return why;
}

Packet copy_of(UdpStack& stack, const Packet& frame) {
    Packet copy = stack.pool ? stack.pool->take(frame->len) : Packet();
    if (!copy) return copy;
    std::memcpy(copy->data, frame->data, frame->len);
    copy->len = frame->len;
    copy->meta = frame->meta;
    return copy;
}

// Every member gets the datagram. What one of them has no room for is counted; the answer tells of the last one.
DropReason deliver_to_group(UdpStack& stack, Packet frame, const UdpRxInfo& info) {
    UdpEndpoint* last = nullptr;
    stack.groups.for_each(info.destination, info.source, [&](UdpEndpoint& member) {
        UdpEndpoint* before = std::exchange(last, &member);
        if (before == nullptr) return;
        Packet copy = copy_of(stack, frame);
        const DropReason why =
            copy ? queue(stack, *before, std::move(copy), info) : DropReason::no_buffer;
        if (why != DropReason::none) stack.drops.add(why);
    });
    if (last == nullptr) return DropReason::multicast_filter;
    return queue(stack, *last, std::move(frame), info);
}

DropReason deliver(UdpStack& stack, Packet frame, const Ipv4View& ip, Instant now,
                   int64_t realtime_ns) {
    const Parsed<UdpView> udp = parse_udp(ip.payload);
    if (!udp) return udp.why();
    if (!frame->meta.checksum_good && !udp_checksum_ok(ip.header, *udp))
        return DropReason::udp_checksum;

    UdpRxInfo info;
    info.source = {IpAddr::v4(ip.header.src), udp->header.src_port};
    info.destination = {IpAddr::v4(ip.header.dst), udp->header.dst_port};
    info.next = uint32_t(udp->payload.data() - frame->data);
    info.end = info.next + uint32_t(udp->payload.size());
    const uint16_t gso = frame->meta.gso_size;
    const bool train = gso > 0 && udp->payload.size() > gso;
    info.segment_size = train ? gso : 0;
    info.charge = udp_charge(train ? info.next + gso : info.end);
    info.ttl = ip.header.ttl;
    info.tos = ip.header.tos;
    info.arrival = now;
    info.realtime_ns = realtime_ns;

    if (info.destination.addr.is_multicast())
        return deliver_to_group(stack, std::move(frame), info);
    bool mismatch = false;
    UdpEndpoint* endpoint = stack.demux.lookup(info.destination, info.source, [&](UdpEndpoint& e) {
        const bool admitted = e.admits(info.source);
        if (!admitted) {
            mismatch = true;
            e.counters.dropped_peer++;
        }
        return admitted;
    });
    if (endpoint == nullptr) return mismatch ? DropReason::peer_mismatch : DropReason::no_endpoint;
    return queue(stack, *endpoint, std::move(frame), info);
}

DropReason input(UdpStack& stack, Packet frame, Instant now, int64_t realtime_ns) {
    const Parsed<ByteView> packet = ip_packet(stack, *frame);
    if (!packet) return packet.why();
    Parsed<Ipv4View> ip = parse_ipv4(*packet);
    if (!ip) return ip.why();
    if (ip->header.protocol != ip_protocol::udp) return DropReason::ip_protocol;
    if (impossible_source(ip->header.src)) return DropReason::ip_source;
    if (ip->header.is_fragment()) {
        if (stack.reassembly == nullptr) return DropReason::ip_fragment;
        DropReason why = DropReason::none;
        frame = reassemble(*stack.reassembly, std::move(frame), *ip, now, stack.drops, why);
        if (!frame) return why;  // none: it waits for the others
        ip = parse_ipv4(frame->view().subspan(kEthernetSize));
        if (!ip) return ip.why();
    }
    return deliver(stack, std::move(frame), *ip, now, realtime_ns);
}

}  // namespace

DropReason udp_input(UdpStack& stack, Packet frame, Instant now, int64_t realtime_ns) {
    const DropReason why = input(stack, std::move(frame), now, realtime_ns);
    if (why != DropReason::none) stack.drops.add(why);
    return why;
}

}  // namespace vma
