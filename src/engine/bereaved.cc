#include "engine/bereaved.h"

#include <linux/filter.h>
#include <netinet/in.h>

#include <cstddef>

#include "base/sys.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {
namespace {

constexpr uint32_t kFlagsAt = 13;  // in the TCP header

// Of what comes to this kernel over TCP, only what says that there is no such connection: RST, or SYN and ACK.
int hearing_socket() {
    constexpr uint32_t kLengthOfIp = BPF_LDX | BPF_B | BPF_MSH;
    constexpr uint32_t kBoth = tcp_flag::syn | tcp_flag::ack;
    sock_filter code[] = {
        {kLengthOfIp, 0, 0, 0},
        {BPF_LD | BPF_B | BPF_IND, 0, 0, kFlagsAt},
        {BPF_JMP | BPF_JSET | BPF_K, 2, 0, tcp_flag::rst},
        {BPF_ALU | BPF_AND | BPF_K, 0, 0, kBoth},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, kBoth},
        {BPF_RET | BPF_K, 0, 0, kIpv4MaxHeader + kTcpMaxHeader},
        {BPF_RET | BPF_K, 0, 0, 0},
    };
    const sock_fprog filter{sizeof code / sizeof code[0], code};
    const int one = 1;
    const int fd = sys::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) return fd;
    // Without the filter it would hear everything; without the header of our own it could not say anything.
    if (sys::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0 ||
        sys::setsockopt(fd, IPPROTO_IP, IP_HDRINCL, &one, sizeof one) != 0) {
        sys::close(fd);
        return -1;
    }
    return fd;
}

}  // namespace

void Bereaved::tell(const FlowKey& key) {
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
    sys::sendto(raw_.fd(), packet, sizeof packet, MSG_DONTWAIT,
                reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

void Bereaved::hear() {
    uint8_t packet[kIpv4MaxHeader + kTcpMaxHeader];  // as much as the filter leaves
    // Two for each that waits, so that strangers cannot keep us here.
    for (size_t left = 2 * waiting_.size(); left > 0; left--) {
        const ssize_t n = sys::recvfrom(raw_.fd(), packet, sizeof packet, MSG_DONTWAIT);
        if (n < 0) return;
        const auto ip = parse_ipv4_quoted(ByteView(packet, size_t(n)));
        if (!ip.ok()) continue;
        const auto tcp = parse_tcp(ip->payload);
        if (!tcp.ok()) continue;
        FlowKey key;
        key.local = {IpAddr::v4(ip->header.dst), tcp->header.dst_port};
        key.remote = {IpAddr::v4(ip->header.src), tcp->header.src_port};
        key.protocol = IPPROTO_TCP;
        waiting_.erase(key);
    }
}

void Bereaved::add(std::span<const FlowKey> connections, Instant now) {
    if (connections.empty()) return;
    if (!raw_.valid()) {
        const int fd = hearing_socket();
        if (fd < 0 || !raw_.adopt(fd)) return;
    }
    for (const FlowKey& key : connections) {
        if (!key.local.addr.is_v4() || !key.remote.addr.is_v4()) continue;
        tell(key);
        if (waiting_.size() < kMost) waiting_[key] = {now + kFirstWait, 1};
    }
    turn(now);
}

void Bereaved::turn(Instant now) {
    if (!raw_.valid()) return;
    hear();
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        Wait& wait = it->second;
        if (wait.next > now) {
            ++it;
        } else if (wait.told == kTries) {
            it = waiting_.erase(it);
        } else {
            tell(it->first);
            wait.told++;
            wait.next = now + kFirstWait * (wait.told == kTries ? 1 : 1 << (wait.told - 1));
            ++it;
        }
    }
    if (waiting_.empty()) raw_.reset();
}

}  // namespace vma
