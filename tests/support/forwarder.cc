// A bad wire: copies Ethernet frames between two interfaces of its namespace and harms some of them on the way, both ways
// alike.
//
//   forwarder IFACE IFACE [loss=P] [duplicate=P] [reorder=P] [corrupt=P] [delay_us=N] [late_us=N] [seed=N]
//             [rate_kbit=N] [queue=BYTES]
//
// P are probabilities in percent. What happens to a frame depends on the seed, its direction and its number in that
// direction, and on nothing else: two runs with one seed lose the same frames. A reordered frame leaves late_us (default
// 2000) after its time, so frames behind it overtake it. rate_kbit is the speed of each direction, queue what may wait for
// it there (default 128 KiB; drop-tail). A corrupted one has one bit behind the Ethernet header changed; it must be told by checksums. ARP is not
// harmed: the kernel's own repetition of it takes seconds, which would be what a test measures. Prints "ready", and on
// SIGTERM or SIGINT one line of counts. Interfaces must not have segmentation or checksum offload: frames of up to 64 KiB
// would be one loss, and a checksum that is still missing would protect nothing.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <queue>
#include <string>
#include <vector>

namespace {

struct Harm {
    double loss = 0, duplicate = 0, reorder = 0, corrupt = 0;  // percent
    int64_t delay_us = 0, late_us = 2000, rate_kbit = 0, queue = 128 << 10;
    uint64_t seed = 1;
};

// The fate of one frame: a generator of its own, so that no other frame's fate moves it.
class Dice {
  public:
    Dice(uint64_t seed, int side, uint64_t index)
        : state_(mix(seed + 0x9e3779b97f4a7c15u * (2 * index + uint64_t(side) + 1))) {}
    uint64_t roll() { return mix(state_ += 0x9e3779b97f4a7c15u); }
    bool chance(double percent) { return double(roll() >> 11) * 0x1p-53 * 100 < percent; }

  private:
    static uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }
    uint64_t state_;
};

struct Counts {
    uint64_t seen = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0, refused = 0,
             overflowed = 0, resets = 0, late_resets = 0;
};

struct Frame {
    int64_t due_us;
    uint64_t order;  // of equal times the first stays first
    int out;
    std::vector<uint8_t> bytes;
    bool operator<(const Frame& other) const {
        return due_us != other.due_us ? due_us > other.due_us
                                      : order > other.order;  // the queue's top is the earliest
    }
};

int64_t now_us() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000 + t.tv_nsec / 1000;
}

int open_side(const char* name) {
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = int(if_nametoindex(name));
    const int on = 1, buffer = 64 << 20;
    if (fd < 0 || address.sll_ifindex == 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) != 0 ||
        bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        fprintf(stderr, "forwarder: %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return fd;
}

class Wire {
  public:
    Wire(const Harm& harm, int left, int right) : harm_(harm), sides_{left, right} {}

    void take(int side) {
        static uint8_t buffer[65536 + 64];
        for (int i = 0; i < 256; i++) {
            const ssize_t n = recv(sides_[side], buffer, sizeof buffer, 0);
            if (n <= 0) return;
            counts_.seen++;
            note(side, buffer, size_t(n));
            const bool arp = n > 13 && buffer[12] == 0x08 && buffer[13] == 0x06;
            if (arp) {
                queue(side, buffer, size_t(n), harm_.delay_us);
                continue;
            }
            Dice dice(harm_.seed, side, index_[side]++);
            if (dice.chance(harm_.loss)) {
                counts_.lost++;
                continue;
            }
            int64_t delay = harm_.delay_us;
            if (!pass_bottleneck(side, n, delay)) continue;
            if (dice.chance(harm_.reorder)) {
                counts_.reordered++;
                delay += harm_.late_us;
            }
            if (dice.chance(harm_.duplicate)) {
                counts_.duplicated++;
                queue(side, buffer, size_t(n), delay);
            }
            if (n > 14 && dice.chance(harm_.corrupt)) {
                counts_.corrupted++;
                buffer[14 + dice.roll() % size_t(n - 14)] ^= uint8_t(1u << dice.roll() % 8);
            }
            queue(side, buffer, size_t(n), delay);
        }
    }

    void deliver() {
        const int64_t now = now_us();
        while (!queue_.empty() && queue_.top().due_us <= now) {
            const Frame& frame = queue_.top();
            if (send(frame.out, frame.bytes.data(), frame.bytes.size(), 0) < 0) counts_.refused++;
            queue_.pop();
        }
    }

    // Microseconds until the next delivery; -1: nothing is on its way.
    int64_t idle_us() const {
        return queue_.empty() ? -1 : std::max<int64_t>(0, queue_.top().due_us - now_us());
    }
    const Counts& counts() const { return counts_; }
    void tell_last() const {
        for (unsigned i = 0; i < kLast; i++) puts(last_[(next_last_ + i) % kLast].c_str());
    }

  private:
    // Counts RSTs (TCP over IPv4, no VLAN tag) and tells what went before. Those after both directions had a FIN count apart: an
    // ACK that is repeated then meets a Linux socket that went with the first one, which answers with RST on any lossy wire.
    void note(int side, const uint8_t* frame, size_t n) {
        if (n < 14 + 20 + 20 || frame[12] != 0x08 || frame[13] != 0x00 || frame[23] != 6) return;
        const size_t tcp = 14 + size_t(frame[14] & 15) * 4;
        if (tcp + 20 > n) return;
        const auto number = [&](size_t at) {
            return uint32_t(frame[at]) << 24 | uint32_t(frame[at + 1]) << 16 |
                   uint32_t(frame[at + 2]) << 8 | frame[at + 3];
        };
        const size_t total = size_t(frame[16]) << 8 | frame[17];
        const uint8_t flags = frame[tcp + 13];
        char text[160];
        snprintf(text, sizeof text, "  %s %u>%u seq %u ack %u len %zu window %u flags %02x id %u",
                 side ? "right" : "left", number(tcp) >> 16, number(tcp) & 0xffff, number(tcp + 4),
                 number(tcp + 8), total + 14 - tcp - size_t(frame[tcp + 12] >> 4) * 4,
                 unsigned(frame[tcp + 14]) << 8 | frame[tcp + 15], unsigned(flags),
                 unsigned(frame[18]) << 8 | frame[19]);
        last_[next_last_++ % kLast] = text;
        fin_[side] = fin_[side] || (flags & 1);
        if (!(flags & 4)) return;
        if (fin_[0] && fin_[1]) {
            counts_.late_resets++;
            return;
        }
        counts_.resets++;
        printf("reset from %s after %llu frames, of which the last were\n", side ? "right" : "left",
               static_cast<unsigned long long>(counts_.seen));
        tell_last();
    }
    // Adds the time in the queue and on the line; false: the queue is full.
    bool pass_bottleneck(int side, ssize_t bytes, int64_t& delay) {
        if (harm_.rate_kbit == 0) return true;
        const int64_t now = now_us() * 1000;
        const int64_t start = std::max(now, line_free_ns_[side]);
        if ((start - now) * harm_.rate_kbit / 8000000 + bytes > harm_.queue) {
            counts_.overflowed++;
            return false;
        }
        line_free_ns_[side] = start + bytes * 8000000 / harm_.rate_kbit;
        delay += (line_free_ns_[side] - now) / 1000;
        return true;
    }
    void queue(int side, const uint8_t* data, size_t n, int64_t delay) {
        queue_.push({now_us() + delay, order_++, sides_[1 - side], {data, data + n}});
    }

    const Harm harm_;
    const int sides_[2];
    uint64_t index_[2] = {};
    int64_t line_free_ns_[2] = {};  // when the direction has sent all that waits
    std::priority_queue<Frame> queue_;
    uint64_t order_ = 0;
    Counts counts_;
    static constexpr unsigned kLast = 24;
    std::string last_[kLast];
    unsigned next_last_ = 0;
    bool fin_[2] = {};
};

bool parse(const char* text, Harm& harm) {
    const char* equals = strchr(text, '=');
    if (equals == nullptr) return false;
    const std::string name(text, equals);
    const double value = atof(equals + 1);
    if (name == "loss")
        harm.loss = value;
    else if (name == "duplicate")
        harm.duplicate = value;
    else if (name == "reorder")
        harm.reorder = value;
    else if (name == "corrupt")
        harm.corrupt = value;
    else if (name == "delay_us")
        harm.delay_us = int64_t(value);
    else if (name == "late_us")
        harm.late_us = int64_t(value);
    else if (name == "rate_kbit")
        harm.rate_kbit = int64_t(value);
    else if (name == "queue")
        harm.queue = int64_t(value);
    else if (name == "seed")
        harm.seed = strtoull(equals + 1, nullptr, 0);
    else
        return false;
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    Harm harm;
    bool good = argc >= 3;
    for (int i = 3; i < argc; i++) good = good && parse(argv[i], harm);
    if (!good) {
        fprintf(stderr,
                "usage: forwarder IFACE IFACE [loss=P] [duplicate=P] [reorder=P] [corrupt=P] "
                "[delay_us=N] [rate_kbit=N] ...\n");
        return 2;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, nullptr);
    const int signals = signalfd(-1, &ends, SFD_CLOEXEC);
    prctl(PR_SET_TIMERSLACK, 1);  // ns; the default of 50 us would be part of every delay
    const int left = open_side(argv[1]), right = open_side(argv[2]);
    Wire wire(harm, left, right);
    printf("ready seed=%llu\n", static_cast<unsigned long long>(harm.seed));
    fflush(stdout);
    pollfd fds[3] = {{left, POLLIN, 0}, {right, POLLIN, 0}, {signals, POLLIN, 0}};
    while (!(fds[2].revents & POLLIN)) {
        const int64_t us = wire.idle_us();
        const timespec wait{us / 1000000, us % 1000000 * 1000};
        ppoll(fds, 3, us < 0 ? nullptr : &wait, nullptr);
        wire.take(0);
        wire.take(1);
        wire.deliver();
    }
    const Counts& c = wire.counts();
    puts("the last frames were");
    wire.tell_last();
    printf(
        "seen=%llu lost=%llu duplicated=%llu reordered=%llu corrupted=%llu refused=%llu "
        "overflowed=%llu resets=%llu late_resets=%llu\n",
        static_cast<unsigned long long>(c.seen), static_cast<unsigned long long>(c.lost),
        static_cast<unsigned long long>(c.duplicated), static_cast<unsigned long long>(c.reordered),
        static_cast<unsigned long long>(c.corrupted), static_cast<unsigned long long>(c.refused),
        static_cast<unsigned long long>(c.overflowed), static_cast<unsigned long long>(c.resets),
        static_cast<unsigned long long>(c.late_resets));
    return 0;
}
