// epoll_many ADDRESS SOCKETS WAITS: that many UDP sockets in one epoll set, a datagram for the last one of them, which stays
// unread; then waits_for_one() calls epoll_wait() WAITS times. Run under callgrind, which counts what is in there.
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

extern "C" __attribute__((noinline)) int waits_for_one(int set, int waits) {
    int told = 0;
    epoll_event events[64];
    for (int i = 0; i < waits; i++) told += epoll_wait(set, events, 64, 1000);
    return told;
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    const int sockets = atoi(argv[2]), waits = atoi(argv[3]);
    const int set = epoll_create1(EPOLL_CLOEXEC);
    sockaddr_in name{};
    for (int i = 0; i < sockets; i++) {
        const int s = socket(AF_INET, SOCK_DGRAM, 0);
        name = {};
        name.sin_family = AF_INET;
        inet_pton(AF_INET, argv[1], &name.sin_addr);
        socklen_t len = sizeof name;
        if (s < 0 || bind(s, reinterpret_cast<sockaddr*>(&name), len) < 0 ||
            getsockname(s, reinterpret_cast<sockaddr*>(&name), &len) < 0)
            return perror("socket"), 1;
        epoll_event event{EPOLLIN, {.fd = s}};
        if (epoll_ctl(set, EPOLL_CTL_ADD, s, &event) < 0) return perror("epoll_ctl"), 1;
    }
    printf("port %d\n", ntohs(name.sin_port));
    fflush(stdout);
    epoll_event event;
    if (epoll_wait(set, &event, 1, 60'000) != 1) return 1;
    printf("told %d\n", waits_for_one(set, waits));
}
