// One TCP connection under full-duplex load that is moved between library and kernel while it runs.
//
//   move_stream serve|connect IP PORT [cycles=N] [bytes=N] [half=none|self|peer] [stall=0|1] [fail=0|1] [seed=N]
//     [least=N] [overheard=0|1]
//
// Both ends send pseudo-random bytes, each until the one that moves its connection (cycles > 0, run with libvma_move.so)
// has done so: it closes its direction then, and the other one does when it has seen that. bytes: what a move waits for, in each
// direction that is open, before the next. half: whose direction is closed before the first move. stall: nobody reads
// before the last move (send() of the other end stops at a closed window), so the queues are full in every move; the end that
// does not move reads when a line comes on its standard input. fail:
// every step of a move is made to fail once before it is let through. least: bytes that the
// one that does not move sends at least. overheard: the kernel must get nothing of the connection until its socket is
// complete, half a second long. Prints "sent N SHA", "received N SHA" and, if it moves,
// "moved N back MEDIAN MAX adopt MEDIAN MAX" in microseconds. Every wait is bounded: by alarm().
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/sha256.h"

namespace {

struct Arguments {
    int cycles = 0;
    uint64_t bytes = 20000, seed = 1, least = 0;
    std::string half = "none";
    bool stall = false, fail = false, overheard = false;
};
Arguments arguments;
int connection;
std::atomic<uint64_t> sent{0}, received{0};
std::atomic<bool> stop_sending{false}, may_read{true}, peer_done{false};
std::atomic<bool> sender_done{false};

[[noreturn]] void die(const char* what) {
    fprintf(stderr, "move_stream: %s: %s (sent %llu, received %llu)\n", what, strerror(errno),
            static_cast<unsigned long long>(sent.load()),
            static_cast<unsigned long long>(received.load()));
    exit(1);
}

// Whoever waits for one of the above does it here; news() is said at each change.
std::mutex news_lock;
std::condition_variable news_come;
void news() {
    const std::lock_guard hold(news_lock);
    news_come.notify_all();
}
template <class Done>
void until(Done done) {
    std::unique_lock hold(news_lock);
    news_come.wait(hold, done);
}
void tell(std::atomic<bool>& what) {
    what = true;
    news();
}

// Until the socket may be ready, or there is other news. Mostly not in the kernel: an adoption waits until nobody is there with
// the socket.
void until_ready(short events, unsigned& waits) {
    if (++waits % 4 == 0) {
        pollfd p{connection, events, 0};
        poll(&p, 1, 2);
        return;
    }
    std::unique_lock hold(news_lock);
    news_come.wait_for(hold, std::chrono::microseconds(300));
}

double now_us() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
}

void sender(std::string* hash) {
    vma::test::Sha256 sha;
    uint64_t random = arguments.seed * 0x9e3779b97f4a7c15u + 1;
    std::vector<uint8_t> piece;
    unsigned waits = 0;
    while (!stop_sending) {
        piece.resize(1 + random % 30000);
        for (auto& b : piece) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            b = uint8_t(random >> 56);
        }
        size_t done = 0;
        while (done < piece.size()) {
            const ssize_t n =
                send(connection, piece.data() + done, piece.size() - done, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR) die("send");
            if (n > 0) {
                done += size_t(n);
                sent += uint64_t(n);
                news();
            } else {
                until_ready(POLLOUT, waits);
            }
        }
        sha.add(piece.data(), piece.size());
    }
    if (shutdown(connection, SHUT_WR) != 0) die("shutdown");
    *hash = sha.hex();
    tell(sender_done);
}

void receiver(std::string* hash) {
    vma::test::Sha256 sha;
    std::vector<uint8_t> piece(65536);
    unsigned waits = 0, reads = 0;
    for (;;) {
        until([] { return may_read.load(); });
        const ssize_t n = recv(connection, piece.data(), 1 + (++reads * 7919u) % piece.size(), 0);
        if (n == 0) break;
        if (n < 0 && errno != EAGAIN && errno != EINTR) die("recv");
        if (n > 0) {
            sha.add(piece.data(), size_t(n));
            received += uint64_t(n);
            news();
        } else {
            until_ready(POLLIN, waits);
        }
    }
    *hash = sha.hex();
    tell(peer_done);
}

using Move = int (*)(int fd, int to_kernel, int fail);

// Retries: another thread may be in the kernel with the socket, which an adoption waits out.
double move(Move function, int to_kernel) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
        const double begin = now_us();
        const int moved = function(connection, to_kernel, to_kernel && arguments.overheard ? 5 : 0);
        const double done = now_us();
        if (moved == 1) return done - begin;
        if (moved < 0 || (to_kernel && arguments.overheard)) break;
        std::unique_lock hold(news_lock);
        news_come.wait_for(hold, std::chrono::microseconds(100));
    }
    die(to_kernel ? "no hand-back" : "no adoption");
}

void must_fail(Move function, int to_kernel, int step) {
    if (function(connection, to_kernel, step) == 1) die("a step that failed was taken for done");
}

void wait_for_traffic() {
    const uint64_t out = sent, in = received;
    until([=] {
        return (sender_done || sent - out >= arguments.bytes) &&
               (peer_done || received - in >= arguments.bytes);
    });
}

// Until nothing has moved for a tenth of a second: what can be queued is. At most five seconds: once the other end reads again
// this one sends for ever.
void wait_for_standstill() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    std::unique_lock hold(news_lock);
    while (std::chrono::steady_clock::now() < end) {
        const uint64_t before = sent + received;
        if (!news_come.wait_for(hold, std::chrono::milliseconds(100),
                                [=] { return sent + received != before; }))
            return;
    }
}

void print_times(const char* name, std::vector<double> times) {
    std::sort(times.begin(), times.end());
    printf(" %s %.0f %.0f", name, times[times.size() / 2], times.back());
}

void mover() {
    const auto function = reinterpret_cast<Move>(dlsym(RTLD_DEFAULT, "vma_test_move"));
    if (function == nullptr) die("no vma_test_move: run with libvma_move.so");
    if (arguments.half == "self") {
        stop_sending = true;
        until([] { return sender_done.load(); });
    } else if (arguments.half == "peer") {
        until([] { return peer_done.load(); });
    }
    if (arguments.stall) wait_for_standstill();
    std::vector<double> back, adopt;
    for (int i = 0; i < arguments.cycles; i++) {
        if (!arguments.stall) wait_for_traffic();
        if (arguments.fail) must_fail(function, 1, 1);
        back.push_back(move(function, 1));
        if (!arguments.stall) wait_for_traffic();
        if (arguments.fail)
            for (int step = 2; step <= 4; step++) must_fail(function, 0, step);
        adopt.push_back(move(function, 0));
    }
    printf("moved %d", arguments.cycles);
    print_times("back", back);
    print_times("adopt", adopt);
    printf("\n");
    fflush(stdout);
    stop_sending = true;
    tell(may_read);
}

bool parse(const char* text) {
    const char* value = strchr(text, '=');
    if (value == nullptr) return false;
    const std::string name(text, size_t(value - text));
    value++;
    if (name == "cycles")
        arguments.cycles = atoi(value);
    else if (name == "bytes")
        arguments.bytes = strtoull(value, nullptr, 0);
    else if (name == "seed")
        arguments.seed = strtoull(value, nullptr, 0);
    else if (name == "least")
        arguments.least = strtoull(value, nullptr, 0);
    else if (name == "half")
        arguments.half = value;
    else if (name == "stall")
        arguments.stall = atoi(value);
    else if (name == "fail")
        arguments.fail = atoi(value);
    else if (name == "overheard")
        arguments.overheard = atoi(value);
    else
        return false;
    return true;
}

int open_connection(bool serve, const char* ip, int port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(uint16_t(port));
    inet_pton(AF_INET, ip, &name.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (serve) {
        const int on = 1;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 || listen(s, 1) != 0)
            die("listen");
        // From here on the library's, who would leave a connection that comes earlier to the kernel.
        pollfd p{s, POLLIN, 0};
        if (arguments.overheard) poll(&p, 1, 0);
        printf("ready\n");
        fflush(stdout);
        s = accept4(s, nullptr, nullptr, SOCK_CLOEXEC);
        if (s < 0) die("accept");
    } else if (connect(s, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
        die("connect");
    }
    if (fcntl(s, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    bool good = argc >= 4;
    for (int i = 4; i < argc; i++) good = good && parse(argv[i]);
    if (!good) {
        fprintf(stderr, "usage: move_stream serve|connect IP PORT [name=value ...]\n");
        return 2;
    }
    alarm(900);
    connection = open_connection(strcmp(argv[1], "serve") == 0, argv[2], atoi(argv[3]));
    const bool moves = arguments.cycles > 0;
    may_read = !arguments.stall;
    std::string out, in;
    std::thread reader(receiver, &in), writer(sender, &out);
    if (moves) {
        mover();
    } else {
        // half=self here: this end closes first.
        if (arguments.half == "self") {
            until([] { return sent >= 10 * arguments.bytes; });
            stop_sending = true;
        }
        if (arguments.stall) {
            char line;
            if (read(0, &line, 1) != 1) die("nobody said that the moves are over");
            tell(may_read);
        }
        until([] { return peer_done && sent >= arguments.least; });
        stop_sending = true;
    }
    writer.join();
    reader.join();
    printf("sent %llu %s\nreceived %llu %s\n", static_cast<unsigned long long>(sent.load()),
           out.c_str(), static_cast<unsigned long long>(received.load()), in.c_str());
    fflush(stdout);
    close(connection);
    // TIME_WAIT of a connection that ends in the library is over with the process, and a FIN that the wire lost would meet a
    // RST: the test tells by our standard input when the other end has gone.
    char end;
    while (moves && read(0, &end, 1) > 0) {
    }
    return 0;
}
