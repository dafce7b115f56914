// A paced stream of datagrams and who measures it, for docs/evidence/8-udp-pacing.txt (pacing.py).
//
//   paced_stream send IP PORT RATE SECONDS HOW   datagrams that fill a frame of 1514 bytes, as many as SO_MAX_PACING_RATE of RATE
//                                                bytes/s (0: none) lets pass; HOW: plain | mmsg (32 a call) | segment (44 a call)
//   paced_stream recv IP PORT RATE SECONDS       says "ready"; from the first datagram on, for SECONDS: datagrams, seconds, and the
//                                                largest bursts in bytes: the buckets that a limiter of RATE would need, and one
//                                                of twice the rate
// Times are the kernel's receive stamps: over veth the moment at which a frame was sent.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

constexpr size_t kPayload = 1472, kFrame = 1514, kBatch = 32, kSegments = 44;

void must(long result, const char* what) {
    if (result >= 0) return;
    std::perror(what);
    std::exit(1);
}
double seconds_of(const timespec& t) { return double(t.tv_sec) + double(t.tv_nsec) * 1e-9; }
double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return seconds_of(t);
}
sockaddr_in address(const char* ip, const char* port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(uint16_t(std::atoi(port)));
    a.sin_addr.s_addr = inet_addr(ip);
    return a;
}

int send_all(char** a) {
    const sockaddr_in to = address(a[0], a[1]);
    const uint64_t rate = std::strtoull(a[2], nullptr, 10);
    const std::string how = a[4];
    const int s = socket(AF_INET, SOCK_DGRAM, 0), segment = int(kPayload);
    if (rate) must(setsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate), "rate");
    must(connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), "connect");
    if (how == "segment")
        must(setsockopt(s, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), "segment");
    std::vector<char> text(kPayload * kSegments);
    iovec part{text.data(), kPayload};
    mmsghdr batch[kBatch]{};
    for (mmsghdr& m : batch) {
        m.msg_hdr.msg_iov = &part;
        m.msg_hdr.msg_iovlen = 1;
    }
    uint64_t sent = 0;
    const double begin = now(), end = begin + std::atof(a[3]);
    while (now() < end) {
        long n;
        if (how == "mmsg")
            n = sendmmsg(s, batch, kBatch, 0);
        else if (how == "segment")
            n = send(s, text.data(), text.size(), 0) < 0 ? -1 : long(kSegments);
        else
            n = send(s, text.data(), kPayload, 0) < 0 ? -1 : 1;
        if (n < 0 && errno == ECONNREFUSED) break;  // the receiver has seen enough
        must(n, "send");
        sent += uint64_t(n);
    }
    std::printf("sent %llu in %.6f s\n", static_cast<unsigned long long>(sent), now() - begin);
    return 0;
}

int receive(char** a) {
    const sockaddr_in at = address(a[0], a[1]);
    const double rate = std::atof(a[2]), length = std::atof(a[3]);
    const int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1, room = 256 << 20;
    must(setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room), "buffer");
    must(setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on), "stamps");
    must(setsockopt(s, SOL_UDP, UDP_GRO, &on, sizeof on), "gro");
    must(bind(s, reinterpret_cast<const sockaddr*>(&at), sizeof at), "bind");
    const timeval limit{10, 0};
    must(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "time");
    std::puts("ready");
    std::fflush(stdout);
    std::vector<char> text(65536);
    double first = 0, last = 0, level[2] = {}, burst[2] = {};
    uint64_t count = 0;
    for (;;) {
        alignas(cmsghdr) char control[256];
        iovec part{text.data(), text.size()};
        msghdr m{};
        m.msg_iov = &part;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        const ssize_t n = recvmsg(s, &m, 0);
        if (n < 0) break;
        timespec stamp{};
        for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
            if (c->cmsg_type == SO_TIMESTAMPNS) std::memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
        const double time = seconds_of(stamp);
        if (first == 0) first = last = time;
        if (time - first > length) break;
        const uint64_t datagrams = (uint64_t(n) + kPayload - 1) / kPayload;
        for (int i = 0; i < 2; i++) {
            level[i] = std::max(0.0, level[i] - rate * (i + 1) * (time - last)) +
                       double(datagrams * kFrame);
            burst[i] = std::max(burst[i], level[i]);
        }
        last = time;
        count += datagrams;
    }
    std::printf("got %llu in %.6f s, bursts %.0f %.0f\n", static_cast<unsigned long long>(count),
                last - first, burst[0], burst[1]);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 7 && !std::strcmp(argv[1], "send")) return send_all(argv + 2);
    if (argc == 6 && !std::strcmp(argv[1], "recv")) return receive(argv + 2);
    std::fputs(
        "paced_stream send IP PORT RATE SECONDS plain|mmsg|segment | recv IP PORT RATE SECONDS\n",
        stderr);
    return 2;
}
