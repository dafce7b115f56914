#include "engine/bereaved.h"

#include <netinet/in.h>

#include "base/sys.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {

void tell_of_death(std::span<const FlowKey> connections) {
    if (connections.empty()) return;
    const int raw = sys::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    if (raw < 0) return;
    for (const FlowKey& key : connections) {
        if (!key.local.addr.is_v4() || !key.remote.addr.is_v4()) continue;
        uint8_t packet[kIpv4Size + kTcpSize];
        uint8_t* const tcp = packet + kIpv4Size;
        Ipv4Header ip;
        ip.src = key.local.addr.v4_host();
        ip.dst = key.remote.addr.v4_host();
        ip.total_len = sizeof packet;
        ip.ttl = 64;
        ip.protocol = IPPROTO_TCP;
        ip.dont_fragment = true;
        emit_ipv4(ip, ByteSpan(packet, kIpv4Size));
        TcpHeader h;
        h.src_port = key.local.port;
        h.dst_port = key.remote.port;
        h.flags = tcp_flag::syn;
        emit_tcp(h, ByteSpan(tcp, kTcpSize));
        Checksum sum;
        sum.add_pseudo_v4(ip.src, ip.dst, IPPROTO_TCP, kTcpSize);
        sum.add(ByteView(tcp, kTcpSize));
        store_be16(tcp + kTcpChecksumOffset, sum.finish());
        const sockaddr_in to = Endpoint{key.remote.addr, 0}.to_sockaddr_in();
        sys::sendto(raw, packet, sizeof packet, MSG_DONTWAIT,
                    reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
    sys::close(raw);
}

}  // namespace vma
