// Connections as fast as one client asks for them, one after the other.
//
//   connection_rate serve IP PORT           echoes what comes and closes; says "ready"; until it is killed
//   connection_rate ask IP PORT SECONDS     prints "connections=N rate=N"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kText = 64;

int die(const char* what) {
    perror(what);
    return 1;
}

double now_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

void watch(int set, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

int serve(const sockaddr_in& here) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
        listen(listener, 1024) != 0)
        return die("listen");
    const int set = epoll_create1(0);
    watch(set, listener);
    puts("ready");
    fflush(stdout);
    for (;;) {
        epoll_event events[64];
        const int n = epoll_wait(set, events, 64, -1);
        for (int i = 0; i < n; i++) {
            const int fd = events[i].data.fd;
            if (fd == listener) {
                for (int c; (c = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;)
                    watch(set, c);
                continue;
            }
            char text[256];
            const ssize_t got = recv(fd, text, sizeof text, 0);
            if (got > 0) send(fd, text, size_t(got), MSG_NOSIGNAL);
            close(fd);
        }
    }
}

int ask(const sockaddr_in& there, double seconds) {
    const double begin = now_seconds();
    unsigned long done = 0;
    for (; now_seconds() - begin < seconds; done++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0)
            return die("connect");
        char text[kText] = "hello";
        if (send(fd, text, sizeof text, MSG_NOSIGNAL) != ssize_t(sizeof text)) return die("send");
        ssize_t n;
        size_t got = 0;
        while ((n = recv(fd, text, sizeof text, 0)) > 0) got += size_t(n);
        if (n < 0) return die("recv");
        if (got != kText) return die("the answer is short");
        close(fd);
    }
    printf("connections=%lu rate=%.0f\n", done, double(done) / (now_seconds() - begin));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    if (argc < 4 || inet_pton(AF_INET, argv[2], &name.sin_addr) != 1) return 2;
    name.sin_port = htons(uint16_t(atoi(argv[3])));
    if (strcmp(argv[1], "serve") == 0) return serve(name);
    return argc == 5 && strcmp(argv[1], "ask") == 0 ? ask(name, atof(argv[4])) : 2;
}
