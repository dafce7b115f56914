// A multicast feed and its receivers, for test_udp_multicast.py.
//
//   mc_feed send FIRST SECOND GROUPS RATE COUNT   COUNT numbered datagrams a second RATE, one group after the other, each group's
//                                                 from addresses FIRST and SECOND in turn; prints what should have come
//   mc_feed recv ADDRESS GROUPS SOCKETS WHAT SOURCE   SOCKETS sockets in each group on the interface of ADDRESS, four threads;
//                                                 WHAT: any | group (bound to) | source (SOURCE's only); says "ready", ends
//                                                 with the feed, prints what came
// A line per group and source, or socket: number of datagrams and the sum of a hash of their numbers, which together tell
// equal sets from others, duplicates included.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr uint16_t kPort = 6200;
constexpr uint64_t kEnd = ~uint64_t(0);
constexpr int kThreads = 4;
constexpr double kLimit = 120;  // seconds: nothing here lasts longer

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

uint64_t hash(uint64_t x) {  // splitmix64's last steps
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

struct Seen {
    uint64_t count = 0, sum = 0;
    void add(uint64_t number) {
        count++;
        sum += hash(number + 1);
    }
};

sockaddr_in address(in_addr_t ip, uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = ip;
    return a;
}
sockaddr_in group(int i) { return address(htonl(0xef4d0300u + unsigned(i)), kPort); }

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}
void must(int result, const char* what) {
    if (result < 0) fail(what);
}

int send_all(char** a) {
    const int groups = std::atoi(a[2]);
    const double rate = std::atof(a[3]);
    const uint64_t count = std::strtoull(a[4], nullptr, 10);
    int out[2];
    for (int i = 0; i < 2; i++) {
        const sockaddr_in from = address(inet_addr(a[i]), 0);
        const int off = 0;
        must(out[i] = socket(AF_INET, SOCK_DGRAM, 0), "socket");
        must(setsockopt(out[i], IPPROTO_IP, IP_MULTICAST_IF, &from.sin_addr, 4), "multicast if");
        must(setsockopt(out[i], IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off), "loop");
        must(bind(out[i], reinterpret_cast<const sockaddr*>(&from), sizeof from), "bind");
    }
    std::vector<Seen> sent(size_t(groups) * 2);
    const auto put = [&](int source, int g, uint64_t number) {
        const sockaddr_in to = group(g);
        must(int(sendto(out[source], &number, sizeof number, 0,
                        reinterpret_cast<const sockaddr*>(&to), sizeof to)),
             "sendto");
    };
    const double begin = now();
    for (uint64_t n = 0; n < count; n++) {
        while (now() < begin + double(n) / rate) {
        }
        const int g = int(n % uint64_t(groups)), source = int(n / uint64_t(groups) % 2);
        put(source, g, n);
        sent[size_t(g) * 2 + size_t(source)].add(n);
    }
    const double took = now() - begin;
    // Whose queue is full loses the first of these, perhaps, and takes the others.
    for (int again = 0; again < 50; again++) {
        for (int g = 0; g < groups; g++)
            for (int source = 0; source < 2; source++) put(source, g, kEnd);
        usleep(20000);
    }
    for (int g = 0; g < groups; g++)
        for (int s = 0; s < 2; s++)
            std::printf("sent %d %s %llu %llx\n", g, a[s],
                        static_cast<unsigned long long>(sent[size_t(g) * 2 + size_t(s)].count),
                        static_cast<unsigned long long>(sent[size_t(g) * 2 + size_t(s)].sum));
    std::printf("took %.3f s\n", took);
    return 0;
}

struct Receiver {
    int fd = -1, group = 0;
    bool ended = false;
    Seen seen;
};

// What all receivers of a process have in common.
struct Feed {
    in_addr interface, source;
    std::string what;
};

void open_in(Receiver& r, const Feed& feed) {
    const int on = 1, off = 0, room = 8 << 20;
    const sockaddr_in g = group(r.group);
    const sockaddr_in bound = feed.what == "any" ? address(INADDR_ANY, kPort) : g;
    must(r.fd = socket(AF_INET, SOCK_DGRAM, 0), "socket");
    must(setsockopt(r.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "reuse");
    must(setsockopt(r.fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room), "buffer");
    // Bound to any address it would get every group that somebody of the host has joined.
    must(setsockopt(r.fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off), "all");
    must(bind(r.fd, reinterpret_cast<const sockaddr*>(&bound), sizeof bound), "bind");
    if (feed.what == "source") {
        const ip_mreq_source request{g.sin_addr, feed.interface, feed.source};
        must(setsockopt(r.fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &request, sizeof request),
             "join");
    } else {
        const ip_mreq request{g.sin_addr, feed.interface};
        must(setsockopt(r.fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), "join");
    }
}

// One thread: opens its sockets, so that they are on its ring if each thread has one, and reads them.
void receive(std::vector<Receiver*> mine, const Feed& feed, std::latch& opened) {
    for (Receiver* r : mine) open_in(*r, feed);
    opened.count_down();
    const int set = epoll_create1(EPOLL_CLOEXEC);
    for (Receiver* r : mine) {
        epoll_event e{};
        e.events = EPOLLIN;
        e.data.ptr = r;
        must(epoll_ctl(set, EPOLL_CTL_ADD, r->fd, &e), "epoll_ctl");
    }
    size_t left = mine.size();
    for (const double end = now() + kLimit; left > 0 && now() < end;) {
        epoll_event events[64];
        const int n = epoll_wait(set, events, 64, 1000);
        for (int i = 0; i < n; i++) {
            auto* r = static_cast<Receiver*>(events[i].data.ptr);
            uint64_t number;
            while (recv(r->fd, &number, sizeof number, MSG_DONTWAIT) == sizeof number) {
                if (number != kEnd)
                    r->seen.add(number);
                else if (!std::exchange(r->ended, true))
                    left--;
            }
        }
    }
    close(set);
}

int receive_all(char** a) {
    const int groups = std::atoi(a[1]), sockets = std::atoi(a[2]);
    const Feed feed{{inet_addr(a[0])}, {inet_addr(a[4])}, a[3]};
    std::vector<Receiver> all(size_t(groups) * size_t(sockets));
    for (size_t i = 0; i < all.size(); i++) all[i].group = int(i) % groups;
    std::vector<std::thread> threads;
    std::latch opened(kThreads);
    for (int t = 0; t < kThreads; t++) {
        std::vector<Receiver*> mine;
        for (Receiver& r : all)
            if (r.group % kThreads == t) mine.push_back(&r);
        threads.emplace_back(receive, std::move(mine), std::cref(feed), std::ref(opened));
    }
    opened.wait();
    std::puts("ready");
    std::fflush(stdout);
    for (std::thread& t : threads) t.join();
    for (const Receiver& r : all)
        std::printf("got %d %llu %llx%s\n", r.group, static_cast<unsigned long long>(r.seen.count),
                    static_cast<unsigned long long>(r.seen.sum), r.ended ? "" : " unended");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 7 && !std::strcmp(argv[1], "send")) return send_all(argv + 2);
    if (argc == 7 && !std::strcmp(argv[1], "recv")) return receive_all(argv + 2);
    std::fputs(
        "mc_feed send FIRST SECOND GROUPS RATE COUNT | recv ADDRESS GROUPS SOCKETS "
        "any|group|source SOURCE\n",
        stderr);
    return 2;
}
