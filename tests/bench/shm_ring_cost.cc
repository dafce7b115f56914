// shm_ring_cost [BATCHES]: what the shm ring itself costs, one thread at both ends, UDP frames of 64 payload bytes: sending
// and receiving one, looking at an empty ring, going to sleep, with 1, 16 and 240 neighbours of which one talks.
//
// shm_ring_cost count N: N times one send() and one recv(), for exact figures:
//   valgrind --tool=callgrind --toggle-collect='vma::shm::ShmRing::send(*' shm_ring_cost count 10000     (or recv)
//
// shm_ring_cost between CPU CPU: two threads; one-way time of a ping-pong, and frames per second one way.
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "dev/shm/shm_ring.h"
#include "support/frames.h"
#include "support/shm_pair.h"

using namespace vma;
using namespace vma::test;
using namespace vma::shm;

namespace {

constexpr unsigned kBatch = 16;
constexpr uint16_t kPort = 7000;

struct End {
    explicit End(uint8_t number) : addr(IpAddr::v4(10, 9, 0, number)) {
        const auto opened = ShmRing::open({&pool, 1, 11, 12});
        if (!opened) exit(1);
        ring.reset(*opened);
        FlowKey k;
        k.local = {addr, kPort};
        k.protocol = IPPROTO_UDP;
        if (!ring->steer(k)) exit(1);
    }
    void speaks_to(const End& peer, PairId pair) {
        FlowKey k;
        k.remote = {peer.addr, kPort};
        k.protocol = IPPROTO_UDP;
        if (!ring->route(k, pair)) exit(1);
    }
    Frame frame_to(const End& peer) const {
        FrameSpec s;
        s.src = {addr, kPort};
        s.dst = {peer.addr, kPort};
        s.payload = 64;
        return build_frame(s);
    }
    Arena* arena = *Arena::create(size_t(64) << 20);
    PacketPool& pool = *arena->make<PacketPool>(*arena);
    IpAddr addr;
    std::unique_ptr<ShmRing> ring;
};

void join(End& a, End& b) {
    ShmParts parts(kDefaultRingBytes);
    const auto first = a.ring->add_pair(parts.end[0], nullptr);
    const auto second = b.ring->add_pair(parts.end[1], nullptr);
    if (!first || !second) exit(1);
    a.speaks_to(b, *first);
    b.speaks_to(a, *second);
}

template <class Fn>
double ns_of(Fn&& fn) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    return double(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
}

double median(std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
    return v[v.size() / 2];
}

void costs(unsigned pairs, unsigned batches) {
    End here(1), talker(2);
    join(here, talker);
    std::vector<std::unique_ptr<BadNeighbor>> silent;
    for (unsigned i = 1; i < pairs; ++i) {
        ShmParts parts;
        if (!here.ring->add_pair(parts.end[0], nullptr)) exit(1);
        silent.push_back(std::make_unique<BadNeighbor>(parts.end[1]));
    }
    Frame f = talker.frame_to(here);
    const TxFrame t = f.plain(true);
    Packet got[kBatch];
    std::vector<double> send, receive, empty, sleep;
    uint64_t sends = 0, receives = 0;
    for (unsigned i = 0; i < batches; ++i) {
        send.push_back(ns_of([&] {
                           for (unsigned k = 0; k < kBatch; ++k)
                               sends += talker.ring->send({&t, 1}, nullptr);
                       }) /
                       kBatch);
        unsigned n = 0;
        receive.push_back(ns_of([&] {
                              for (unsigned calls = 0; n < kBatch && calls < 100;
                                   ++receives, ++calls)
                                  n += here.ring->recv({got + n, kBatch - n});
                              for (Packet& p : got) p.reset();
                          }) /
                          kBatch);
        if (n != kBatch) exit(2);
        empty.push_back(ns_of([&] {
                            for (unsigned k = 0; k < kBatch; ++k, ++receives)
                                (void)here.ring->recv(got);
                        }) /
                        kBatch);
        if (i % 16 == 0)
            sleep.push_back(ns_of([&] {
                if (!here.ring->arm()) exit(3);
                here.ring->disarm();
            }));
    }
    printf(
        "pairs=%-4u send %.0f ns  recv %.0f ns  empty recv %.0f ns  arm+disarm %.0f ns  (%llu "
        "send, %llu recv calls)\n",
        pairs, median(send), median(receive), median(empty), median(sleep),
        static_cast<unsigned long long>(sends), static_cast<unsigned long long>(receives));
}

void count(unsigned n) {
    End a(1), b(2);
    join(a, b);
    Frame f = a.frame_to(b);
    const TxFrame t = f.plain(true);
    Packet p;
    for (unsigned i = 0; i < n; ++i) {
        if (a.ring->send({&t, 1}, nullptr) != 1 || b.ring->recv({&p, 1}) != 1) exit(2);
        p.reset();
    }
}

void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

void between(int cpu_a, int cpu_b) {
    constexpr unsigned kTrips = 2000, kRounds = 101, kBurst = 20000;
    End a(1), b(2);
    join(a, b);
    std::thread peer([&] {
        pin(cpu_b);
        Frame f = b.frame_to(a);
        const TxFrame t = f.plain(true);
        Packet p[kBatch];
        for (unsigned i = 0; i < kTrips * kRounds; ++i) {
            while (b.ring->recv({p, 1}) == 0) {
            }
            p[0].reset();
            b.ring->send({&t, 1}, nullptr);
        }
        for (unsigned taken = 0; taken < kBurst * kRounds;) {
            const unsigned n = b.ring->recv(p);
            for (unsigned k = 0; k < n; ++k) p[k].reset();
            taken += n;
            if (n && taken % kBurst < n) b.ring->send({&t, 1}, nullptr);
        }
    });
    pin(cpu_a);
    Frame f = a.frame_to(b);
    const TxFrame t = f.plain(true);
    std::vector<double> one_way, rate;
    Packet p;
    for (unsigned r = 0; r < kRounds; ++r)
        one_way.push_back(ns_of([&] {
                              for (unsigned i = 0; i < kTrips; ++i) {
                                  a.ring->send({&t, 1}, nullptr);
                                  while (a.ring->recv({&p, 1}) == 0) {
                                  }
                                  p.reset();
                              }
                          }) /
                          (2.0 * kTrips));
    for (unsigned r = 0; r < kRounds; ++r)
        rate.push_back(ns_of([&] {
                           for (unsigned i = 0; i < kBurst;) i += a.ring->send({&t, 1}, nullptr);
                           while (a.ring->recv({&p, 1}) == 0) {
                           }
                           p.reset();
                       }) /
                       kBurst);
    peer.join();
    const double least = *std::min_element(one_way.begin(), one_way.end());
    const double best = *std::min_element(rate.begin(), rate.end());
    printf("one way median %.0f ns least %.0f ns  stream median %.1f best %.1f million frames/s\n",
           median(one_way), least, 1000 / median(rate), 1000 / best);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 4 && strcmp(argv[1], "between") == 0) {
        between(atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "count") == 0) {
        count(unsigned(atoi(argv[2])));
        return 0;
    }
    const unsigned batches = argc > 1 ? unsigned(atoi(argv[1])) : 2000;
    for (unsigned pairs : {1u, 16u, 240u}) costs(pairs, batches);
    return 0;
}
