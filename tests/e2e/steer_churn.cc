// steer_churn IP PORT CYCLES FILE: opens, binds, listens briefly and closes a UDP socket, over and over. For each cycle
// it writes to FILE the span in which the socket was surely bound, two int64 of CLOCK_MONOTONIC ns: after bind returned
// and before close was called. A port-unreachable answer to a datagram that was sent and answered inside a span is wrong.
// Prints "ready" and at the end "cycles=N heard=M".
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kListenNs = 300'000;  // a cycle ends with the first datagram or after this

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

bool heard_one(int fd, int64_t until_ns) {
    char datagram[2048];
    do {
        if (recv(fd, datagram, sizeof datagram, MSG_DONTWAIT) > 0) return true;
    } while (now_ns() < until_ns);
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(static_cast<uint16_t>(atoi(argv[2])));
    if (inet_pton(AF_INET, argv[1], &local.sin_addr) != 1) return 2;
    const int cycles = atoi(argv[3]);
    std::vector<int64_t> spans;
    spans.reserve(2 * static_cast<size_t>(cycles));
    long heard = 0;
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < cycles; ++i) {
        const int fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) {
            perror("bind");
            return 1;
        }
        spans.push_back(now_ns());
        heard += heard_one(fd, spans.back() + kListenNs) ? 1 : 0;
        spans.push_back(now_ns());
        close(fd);
    }
    FILE* file = fopen(argv[4], "wb");
    if (file == nullptr ||
        fwrite(spans.data(), sizeof(int64_t), spans.size(), file) != spans.size())
        return 1;
    fclose(file);
    printf("cycles=%d heard=%ld\n", cycles, heard);
    return 0;
}
