// What only the shm ring has: many pairs, neighbours that die, neighbours that lie.
#include <gtest/gtest.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <random>

#include "dev/shm/shm_ring.h"
#include "ring_pair.h"
#include "support/shm_pair.h"
#include "wait.h"

namespace vma::test {
namespace {

using namespace shm;

// A ring with its pool; the process of number n speaks for 10.99.1.n.
struct Node {
    explicit Node(uint8_t number) : addr(IpAddr::v4(10, 99, 1, number)) {
        const auto opened = ShmRing::open({&pool.pool, 1, 0x1122334455667788u + number, 42});
        if (opened) ring.reset(*opened);
    }
    ~Node() {
        ring.reset();
        EXPECT_EQ(pool.pool.counters().in_use, 0u);
    }
    FlowKey steered(uint16_t port) const {
        FlowKey k;
        k.local = {addr, port};
        k.protocol = IPPROTO_UDP;
        return k;
    }
    FlowKey to(const IpAddr& remote, uint16_t port) const {
        FlowKey k;
        k.remote = {remote, port};
        k.protocol = IPPROTO_UDP;
        return k;
    }
    Pool pool;
    IpAddr addr;
    std::unique_ptr<ShmRing> ring;
};

constexpr uint16_t kPort = 7000;  // of everybody

Frame udp(const IpAddr& from, const IpAddr& to, uint32_t number, uint32_t payload = 40,
          uint16_t source = kPort, uint16_t destination = kPort) {
    FrameSpec s;
    s.src = {from, source};
    s.dst = {to, destination};
    s.payload = payload;
    s.seed = number;
    return build_frame(s);
}

bool is_number(const Packet& p, uint32_t number, uint32_t payload = 40) {
    if (p->len != 42 + payload) return false;
    for (uint32_t i = 0; i < payload; ++i)
        if (p->data[42 + i] != payload_byte(number, i)) return false;
    return true;
}

struct Joined {
    PairId a = 0, b = 0;
};

// A pair between two nodes, both of which speak for their own port kPort.
Joined join(Node& a, Node& b) {
    ShmParts parts;
    std::string why;
    const auto first = a.ring->add_pair(parts.end[0], &why);
    EXPECT_TRUE(first) << why;
    const auto second = b.ring->add_pair(parts.end[1], &why);
    EXPECT_TRUE(second) << why;
    EXPECT_TRUE(a.ring->route(a.to(b.addr, kPort), *first));
    EXPECT_TRUE(b.ring->route(b.to(a.addr, kPort), *second));
    return {*first, *second};
}

int send_now(ShmRing& ring, Frame& f) {
    int why = 0;
    const TxFrame t = f.plain();
    return ring.send({&t, 1}, &why) == 1 ? 0 : why;
}

// Text of a stream: by tag, from the pair that the flow's route names, and from no other.
TEST(ShmRing, TextIsForWhoOpenedItsTag) {
    Node victim(1), a(2), b(3);
    const Joined with_a = join(victim, a), with_b = join(victim, b);
    FlowKey flow;
    flow.local = {victim.addr, kPort};
    flow.remote = {a.addr, kPort};
    flow.protocol = IPPROTO_TCP;
    int owner = 0, other = 0;
    EXPECT_EQ(victim.ring->open_text(flow, &owner), 0u) << "no route";
    ASSERT_TRUE(victim.ring->route(flow, with_a.a));
    const uint32_t tag = victim.ring->open_text(flow, &owner);
    const uint32_t second = victim.ring->open_text(flow, &other);
    ASSERT_NE(tag, 0u);
    ASSERT_NE(second, tag);
    EXPECT_EQ(victim.ring->text_way(flow), with_a.a);
    const auto send = [&](ShmRing& ring, PairId way, uint32_t to, const char* text) {
        const iovec bytes{const_cast<char*>(text), std::strlen(text)};
        return ring.send_text(way, {to, Seq{5}}, &bytes, 1, uint32_t(bytes.iov_len));
    };
    EXPECT_EQ(send(*a.ring, with_a.b, tag, "good"), 0);
    EXPECT_EQ(send(*b.ring, with_b.b, tag, "in another's name"), 0);
    EXPECT_EQ(send(*a.ring, with_a.b, 99, "for nobody"), 0);
    EXPECT_EQ(send(*a.ring, with_a.b, TextHead::kPushed, "tag 0"), 0);
    Packet got[8];
    ASSERT_EQ(victim.ring->recv(got), 1u);
    EXPECT_EQ(victim.ring->text_owner(got[0]->meta.flow_tag), &owner);
    EXPECT_EQ(got[0]->len, sizeof(TextHead) + 4);
    EXPECT_EQ(victim.ring->shm_counters().not_steered, 3u);

    // Held: neither it nor what is behind it is read; others are.
    victim.ring->hold_text(tag, true);
    EXPECT_FALSE(victim.ring->has_text(tag));
    EXPECT_EQ(send(*a.ring, with_a.b, tag, "waits"), 0);
    EXPECT_EQ(send(*a.ring, with_a.b, second, "behind"), 0);
    EXPECT_EQ(send(*b.ring, with_b.b, 98, "dropped"), 0);
    EXPECT_EQ(victim.ring->recv(got), 0u);
    EXPECT_TRUE(victim.ring->has_text(tag));
    EXPECT_EQ(victim.ring->shm_counters().not_steered, 4u);
    std::vector<uint8_t> back;
    EXPECT_TRUE(a.ring->unread_text(with_a.b, tag, Seq{5}, Seq{9}, back));
    victim.ring->hold_text(tag, false);
    ASSERT_EQ(victim.ring->recv(got), 2u);
    EXPECT_EQ(victim.ring->text_owner(got[1]->meta.flow_tag), &other);

    // Closed while held: what waited is dropped, and its neighbours go on. The tag is used again.
    victim.ring->hold_text(tag, true);
    EXPECT_EQ(send(*a.ring, with_a.b, tag, "too late"), 0);
    victim.ring->close_text(tag);
    EXPECT_EQ(send(*a.ring, with_a.b, second, "behind"), 0);
    ASSERT_EQ(victim.ring->recv(got), 1u);
    EXPECT_EQ(victim.ring->text_owner(tag), nullptr);
    EXPECT_EQ(victim.ring->shm_counters().not_steered, 5u);
    EXPECT_EQ(victim.ring->open_text(flow, &owner), tag);
    victim.ring->close_text(tag);
    victim.ring->close_text(tag);
    EXPECT_EQ(send(*a.ring, with_a.a + 77, second, "no such pair"), ENETDOWN);
    for (Packet& p : got) p.reset();
}

TEST(ShmRing, RoutesSayWhoSpeaksForWhat) {
    Node victim(1), a(2), b(3);
    const Joined with_a = join(victim, a), with_b = join(victim, b);
    ASSERT_TRUE(victim.ring->steer(victim.steered(kPort)));
    ASSERT_TRUE(a.ring->steer(a.steered(kPort)));

    // Each from its own endpoint, to ours.
    Frame good = udp(a.addr, victim.addr, 1);
    EXPECT_EQ(send_now(*a.ring, good), 0);
    EXPECT_EQ(receive(*victim.ring, 1).size(), 1u);
    // In b's name, or from a port that nobody proved, by a.
    Frame forged = udp(b.addr, victim.addr, 2), other_port = udp(a.addr, victim.addr, 3, 40, 7001);
    EXPECT_EQ(send_now(*a.ring, forged), 0);
    EXPECT_EQ(send_now(*a.ring, other_port), 0);
    EXPECT_EQ(drain(*victim.ring, 5), 0u);
    EXPECT_EQ(victim.ring->shm_counters().foreign_source, 2u);
    // To a port that is not steered: a thinks that it is the victim's.
    ASSERT_TRUE(a.ring->route(a.to(victim.addr, 7009), with_a.b));
    Frame elsewhere = udp(a.addr, victim.addr, 4, 40, kPort, 7009);
    EXPECT_EQ(send_now(*a.ring, elsewhere), 0);
    EXPECT_EQ(drain(*victim.ring, 5), 0u);
    EXPECT_EQ(victim.ring->shm_counters().not_steered, 1u);
    const DropCounters drops = victim.ring->counters().drops;
    EXPECT_EQ(drops[DropReason::shm_source], 2u);
    EXPECT_EQ(drops[DropReason::shm_not_steered], 1u);
    EXPECT_EQ(drops.sum(), 3u);
    EXPECT_EQ(victim.ring->pair_state(with_a.a), PairState::open) << "dropped frames end nothing";

    // Nobody there; no ports to ask for; a route with both ends counts before one without.
    Frame nobody = udp(victim.addr, IpAddr::v4(10, 99, 1, 77), 5);
    EXPECT_EQ(send_now(*victim.ring, nobody), EHOSTUNREACH);
    FrameSpec fragment;
    fragment.src = {victim.addr, kPort}, fragment.dst = {a.addr, kPort};
    fragment.fragment = 0x2000;
    Frame piece = build_frame(fragment);
    EXPECT_EQ(send_now(*victim.ring, piece), EINVAL);
    FlowKey exact = victim.to(a.addr, kPort);
    exact.local = {victim.addr, kPort};
    ASSERT_TRUE(victim.ring->route(exact, with_b.a));
    EXPECT_EQ(send_now(*a.ring, good), 0);
    EXPECT_EQ(drain(*victim.ring, 5), 0u) << "now b speaks for that connection";
    victim.ring->unroute(exact);
    victim.ring->unroute(exact);
    EXPECT_EQ(send_now(*a.ring, good), 0);
    EXPECT_EQ(receive(*victim.ring, 1).size(), 1u);

    EXPECT_EQ(victim.ring->route(victim.to(a.addr, kPort), with_b.a).error(), EEXIST);
    EXPECT_EQ(victim.ring->route(victim.to(a.addr, 0), with_a.a).error(), EINVAL);
    EXPECT_EQ(victim.ring->route(victim.to(IpAddr::any_v4(), 1), with_a.a).error(), EINVAL);
    EXPECT_EQ(victim.ring->route(victim.to(IpAddr::v4(224, 0, 0, 1), 1), with_a.a).error(), EINVAL);
    EXPECT_EQ(
        victim.ring->route(victim.to(IpAddr::v6_bytes("0123456789abcdef"), 1), with_a.a).error(),
        EINVAL);

    // A pair that goes takes its routes along, and its name is never another's.
    victim.ring->remove_pair(with_a.a);
    victim.ring->remove_pair(with_a.a);
    EXPECT_EQ(victim.ring->pair_state(with_a.a), PairState::broken);
    Frame back = udp(victim.addr, a.addr, 6);
    EXPECT_EQ(send_now(*victim.ring, back), EHOSTUNREACH);
    EXPECT_EQ(victim.ring->route(victim.to(a.addr, kPort), with_a.a).error(), ENOENT);
    a.ring->remove_pair(with_a.b);
    const Joined again = join(victim, a);
    EXPECT_NE(again.a, with_a.a);
    EXPECT_EQ(victim.ring->route(victim.to(a.addr, 1), with_a.a).error(), ENOENT);
    EXPECT_EQ(send_now(*victim.ring, back), 0);
    EXPECT_EQ(receive(*a.ring, 1).size(), 1u);
}

TEST(ShmRing, ManyPairsEachFoundAfterALongSilence) {
    constexpr unsigned kPairs = 100;
    Node hub(1);
    ASSERT_TRUE(hub.ring->steer(hub.steered(kPort)));
    std::vector<std::unique_ptr<Node>> around;
    for (unsigned i = 0; i < kPairs; ++i) {
        around.push_back(std::make_unique<Node>(uint8_t(2 + i)));
        join(hub, *around.back());
    }
    Packet batch[16];
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(hub.ring->recv(batch), 0u);  // all cold
    for (unsigned i = 0; i < kPairs; i += 7) {
        Frame f = udp(around[i]->addr, hub.addr, i);
        ASSERT_EQ(send_now(*around[i]->ring, f), 0);
        unsigned looks = 1;
        while (hub.ring->recv(batch) == 0 && looks < 1000) ++looks;
        EXPECT_LE(looks, 2 * kPairs / 8);
        EXPECT_TRUE(is_number(batch[0], i));
        batch[0].reset();
    }
    // Who sends most does not keep the others waiting: everybody's frame is there in a batch or two.
    for (unsigned k = 0; k < 500; ++k) {
        Frame f = udp(around[0]->addr, hub.addr, k);
        ASSERT_EQ(send_now(*around[0]->ring, f), 0);
    }
    for (unsigned i = 1; i < 10; ++i) {
        Frame f = udp(around[i]->addr, hub.addr, 1000 + i);
        ASSERT_EQ(send_now(*around[i]->ring, f), 0);
    }
    unsigned others = 0, calls = 0;
    while (others < 9 && ++calls < 100) {
        const unsigned n = hub.ring->recv(batch);
        for (unsigned i = 0; i < n; ++i)
            others += load_be32(batch[i]->data + 26) != around[0]->addr.v4_host();
        for (Packet& p : batch) p.reset();
    }
    EXPECT_EQ(others, 9u);
    EXPECT_LE(calls, 2 * kPairs / 8 + 9);
    while (hub.ring->recv(batch)) {
        for (Packet& p : batch) p.reset();
    }
    EXPECT_EQ(hub.ring->counters().drops.sum(), 0u);
}

TEST(ShmRing, ThePlacesForPairsAreBounded) {
    Node node(1);
    std::vector<PairId> ids;
    std::string why;
    int error = 0;
    while (error == 0 && ids.size() < 2 * ShmRing::kMostPairs) {
        ShmParts parts;
        parts.end[1].close_all();
        const auto added = node.ring->add_pair(parts.end[0], &why);
        error = added.error();
        if (added) ids.push_back(*added);
    }
    EXPECT_EQ(error, ENOSPC) << why;
    EXPECT_NE(why.find("all the pairs"), std::string::npos) << why;
    EXPECT_EQ(ids.size(), ShmRing::kMostPairs);
    for (PairId id : ids) node.ring->remove_pair(id);
    ShmParts parts;
    parts.end[1].close_all();
    EXPECT_TRUE(node.ring->add_pair(parts.end[0], &why)) << why;
}

// ---- processes

// The far end of a pair as a process of its own: it answers each frame, or sends numbered ones as fast as it can.
pid_t start_neighbor(ShmParts& parts, bool flood) {
    const pid_t child = fork();
    if (child != 0) {
        parts.end[1].close_all();
        return child;
    }
    alarm(60);
    parts.end[0].close_all();
    Node node(2);
    const IpAddr peer = IpAddr::v4(10, 99, 1, 1);
    const auto pair = node.ring->add_pair(parts.end[1], nullptr);
    if (!pair || !node.ring->route(node.to(peer, kPort), *pair) ||
        !node.ring->steer(node.steered(kPort)))
        _exit(3);
    if (flood) {
        for (uint32_t number = 0;;) {
            Frame f = udp(node.addr, peer, number, 40 + number % 1000);
            number += send_now(*node.ring, f) == 0;
        }
    }
    for (;;) {
        Packet batch[8];
        const unsigned n = node.ring->recv(batch);
        for (unsigned i = 0; i < n; ++i) {
            Frame f = udp(node.addr, peer, batch[i]->data[42]);
            if (send_one(*node.ring, f.plain()) != 0) _exit(4);
        }
        if (n > 0 || !node.ring->arm()) continue;
        pollfd p{node.ring->wake_fd(), POLLIN, 0};
        poll(&p, 1, 10000);
        node.ring->disarm();
    }
}

// Takes one frame, asleep until it is there. False: not within ten seconds.
bool take_asleep(ShmRing& ring, Packet& out) {
    const int64_t end = clock_ns() + 10'000'000'000;
    while (clock_ns() < end) {
        if (ring.recv({&out, 1}) == 1) return true;
        if (!ring.arm()) continue;
        pollfd p{ring.wake_fd(), POLLIN, 0};
        poll(&p, 1, 5000);
        ring.disarm();
    }
    return false;
}

TEST(ShmRingProcess, ANeighborThatDiesStopsNothing) {
    Node here(1), other(9);
    ShmParts parts;
    const pid_t child = start_neighbor(parts, false);
    const auto pair = here.ring->add_pair(parts.end[0], nullptr);
    ASSERT_TRUE(pair);
    const IpAddr dead = IpAddr::v4(10, 99, 1, 2);
    ASSERT_TRUE(here.ring->route(here.to(dead, kPort), *pair));
    ASSERT_TRUE(here.ring->steer(here.steered(kPort)));
    join(here, other);
    ASSERT_TRUE(other.ring->steer(other.steered(kPort)));
    for (uint32_t i = 0; i < 500; ++i) {
        Frame f = udp(here.addr, dead, i);
        ASSERT_EQ(send_one(*here.ring, f.plain()), 0);
        Packet p;
        ASSERT_TRUE(take_asleep(*here.ring, p)) << i;
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));

    int error = 0;
    unsigned sent = 0;
    for (; error == 0 && sent < 100000; ++sent) {
        Frame f = udp(here.addr, dead, sent, 1000);
        error = send_now(*here.ring, f);
    }
    EXPECT_EQ(error, EAGAIN) << "a full ring, not an endless one";
    for (uint32_t i = 0; i < 200; ++i) {  // the other neighbour has noticed nothing
        Frame f = udp(here.addr, other.addr, i);
        ASSERT_EQ(send_now(*here.ring, f), 0);
        Packet p;
        ASSERT_TRUE(take_asleep(*other.ring, p));
        EXPECT_TRUE(is_number(p, i));
        Frame answer = udp(other.addr, here.addr, i + 1);
        ASSERT_EQ(send_now(*other.ring, answer), 0);
        ASSERT_TRUE(take_asleep(*here.ring, p));
        EXPECT_TRUE(is_number(p, i + 1));
    }
    here.ring->neighbor_gone(*pair);
    EXPECT_EQ(here.ring->pair_state(*pair), PairState::ending);
    Frame f = udp(here.addr, dead, 1);
    EXPECT_EQ(send_now(*here.ring, f), ENETDOWN);
    ASSERT_TRUE(here.ring->arm());
    pollfd p{here.ring->wake_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 20), 0);
    here.ring->disarm();
    here.ring->remove_pair(*pair);
    EXPECT_EQ(send_now(*here.ring, f), EHOSTUNREACH);
}

// Killed while it writes: what is there is whole and in order, and what it sent before its death is not lost.
TEST(ShmRingProcess, KilledInTheMiddleOfAFrame) {
    for (int round = 0; round < 5; ++round) {
        Node here(1);
        ShmParts parts;
        const pid_t child = start_neighbor(parts, true);
        const auto pair = here.ring->add_pair(parts.end[0], nullptr);
        ASSERT_TRUE(pair);
        ASSERT_TRUE(here.ring->route(here.to(IpAddr::v4(10, 99, 1, 2), kPort), *pair));
        ASSERT_TRUE(here.ring->steer(here.steered(kPort)));
        uint32_t number = 0;
        bool whole = true, killed = false;
        for (;;) {
            auto got = receive(*here.ring, 1, killed ? 20 : 10000);
            if (got.empty()) break;
            whole = whole && is_number(got[0], number, 40 + number % 1000);
            ++number;
            if (number == 2000 + 333u * unsigned(round)) {
                kill(child, SIGKILL);
                int status = 0;
                ASSERT_EQ(waitpid(child, &status, 0), child);
                here.ring->neighbor_gone(*pair);
                killed = true;
            }
        }
        EXPECT_TRUE(killed);
        EXPECT_TRUE(whole);
        EXPECT_EQ(here.ring->shm_counters().broken_pairs, 0u);
    }
}

TEST(ShmRingProcess, AForkedChildDropsItsCopyHarmlessly) {
    Node a(1), b(2);
    join(a, b);
    ASSERT_TRUE(b.ring->steer(b.steered(kPort)));
    const pid_t child = fork();
    if (child == 0) {
        own_fds_close_in_child();
        a.ring.reset();
        b.ring.reset();
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    for (uint32_t i = 0; i < 10; ++i) {
        Frame f = udp(a.addr, b.addr, i);
        ASSERT_EQ(send_now(*a.ring, f), 0);
        Packet p;
        ASSERT_TRUE(take_asleep(*b.ring, p));
        EXPECT_TRUE(is_number(p, i));
    }
}

// ---- neighbours that lie

// Floods with frames that are refused: it gets its turn and no more.
TEST(ShmRingHostile, FloodsDoNotKeepOthersOut) {
    Node victim(1), honest(2), forged(3);
    join(victim, honest);
    ASSERT_TRUE(victim.ring->steer(victim.steered(kPort)));
    ShmParts parts;
    ASSERT_TRUE(victim.ring->add_pair(parts.end[0], nullptr));
    BadNeighbor bad(parts.end[1]);
    ASSERT_TRUE(bad.ok());
    const Frame junk = udp(forged.addr, victim.addr, 1);
    for (uint32_t i = 0; i < 200; ++i) {
        for (int k = 0; k < 64; ++k) bad.put(junk.view());
        Frame f = udp(honest.addr, victim.addr, i);
        ASSERT_EQ(send_now(*honest.ring, f), 0);
        Packet p[4];
        unsigned calls = 0, n = 0;
        while ((n = victim.ring->recv(p)) == 0 && calls < 10) ++calls;
        ASSERT_EQ(n, 1u);
        EXPECT_LE(calls, 1u);
        EXPECT_TRUE(is_number(p[0], i));
        for (int k = 0; k < 10; ++k) ASSERT_EQ(victim.ring->recv(p), 0u);  // the junk goes
    }
    EXPECT_GT(victim.ring->shm_counters().foreign_source, 1000u);
}

// It plays with its own bell, and with ours: the others' wake-ups arrive.
TEST(ShmRingHostile, BellsReachNobodyElse) {
    Node victim(1), honest(2);
    join(victim, honest);
    ASSERT_TRUE(victim.ring->steer(victim.steered(kPort)));
    ShmParts parts;
    const auto pair = victim.ring->add_pair(parts.end[0], nullptr);
    ASSERT_TRUE(pair);
    BadNeighbor bad(parts.end[1]);
    ASSERT_TRUE(victim.ring->route(victim.to(IpAddr::v4(10, 99, 1, 3), kPort), *pair));
    fcntl(bad.bell, F_SETFL, 0);
    fcntl(bad.victims_bell, F_SETFL, 0);
    const itimerspec often{{0, 1000}, {0, 1}}, never{};
    for (uint32_t i = 0; i < 300; ++i) {
        timerfd_settime(bad.victims_bell, 0, i % 2 ? &often : &never, nullptr);
        bad.mine().sleeping = i;  // its own sleep: another value each time
        Frame to_bad = udp(victim.addr, IpAddr::v4(10, 99, 1, 3), i);
        ASSERT_EQ(send_now(*victim.ring, to_bad), 0);
        ASSERT_TRUE(victim.ring->arm());
        Frame f = udp(honest.addr, victim.addr, i);
        ASSERT_EQ(send_now(*honest.ring, f), 0);
        uint64_t ticks;
        if (i % 2) (void)!read(bad.victims_bell, &ticks, sizeof ticks);  // drained before we look
        pollfd p{victim.ring->wake_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 4000), 1) << i;
        victim.ring->disarm();
        auto got = receive(*victim.ring, 1);
        ASSERT_EQ(got.size(), 1u);
        EXPECT_TRUE(is_number(got[0], i));
    }
    EXPECT_EQ(victim.ring->shm_counters().bells_rung, 299u) << "once per value but zero";
    timerfd_settime(bad.victims_bell, 0, &never, nullptr);
}

// Once it is out, by its own nonsense or by us, it cannot even wake us.
TEST(ShmRingHostile, TheBellOfAnEndedPairIsNotHeard) {
    for (bool by_nonsense : {true, false}) {
        Node victim(1);
        ShmParts parts;
        const auto pair = victim.ring->add_pair(parts.end[0], nullptr);
        ASSERT_TRUE(pair);
        BadNeighbor bad(parts.end[1]);
        BorrowedBell bell;
        ASSERT_TRUE(bell.adopt(ShmParts::copy(bad.victims_bell)));
        auto heard = [&] {
            EXPECT_TRUE(victim.ring->arm());
            bell.ring();
            pollfd p{victim.ring->wake_fd(), POLLIN, 0};
            const bool yes = poll(&p, 1, 0) == 1;
            victim.ring->disarm();
            return yes;
        };
        EXPECT_TRUE(heard());
        if (by_nonsense) {
            bad.store_word(0, 1);
            Packet p;
            EXPECT_EQ(victim.ring->recv({&p, 1}), 0u);
            EXPECT_EQ(victim.ring->pair_state(*pair), PairState::broken);
            EXPECT_EQ(victim.ring->pair_fault(*pair), Fault::record_word);
        } else {
            victim.ring->remove_pair(*pair);
        }
        EXPECT_FALSE(heard());
        EXPECT_FALSE(heard());
        victim.ring->remove_pair(*pair);
    }
}

class Hostile {
  public:
    explicit Hostile(uint32_t seed) : random_(seed) {
        join(victim_, honest_);
        EXPECT_TRUE(victim_.ring->steer(victim_.steered(kPort)));
        EXPECT_TRUE(honest_.ring->steer(honest_.steered(kPort)));
        renew();
    }
    void step() {
        for (unsigned n = random_() % 3; n > 0; --n) lie();
        switch (random_() % 6) {
            case 0:
                return send_to_bad();
            case 1:
                return sleep();
            case 2:
                return from_honest();
            case 3:
                return to_honest();
            default:
                return receive_some();
        }
    }
    void finish() {
        for (int i = 0; i < 100000 && honest_taken_ < honest_sent_; ++i) receive_some();
        for (int i = 0; i < 100000 && victim_taken_ < victim_sent_; ++i) take_at_honest();
        EXPECT_EQ(honest_taken_, honest_sent_);
        EXPECT_EQ(victim_taken_, victim_sent_);
        EXPECT_GT(honest_sent_, 1000u);
        EXPECT_GT(pairs_, 20u) << "lies that were seen through";
        EXPECT_GT(from_bad_, 50u) << "frames that were taken nevertheless";
        const uint64_t broken = victim_.ring->shm_counters().broken_pairs;
        EXPECT_TRUE(broken == pairs_ || broken == pairs_ - 1) << broken << " of " << pairs_;
    }

  private:
    static IpAddr bad_addr() { return IpAddr::v4(10, 99, 1, 3); }

    void renew() {
        bad_.reset();
        if (pair_) victim_.ring->remove_pair(pair_);
        ShmParts parts;
        const auto added = victim_.ring->add_pair(parts.end[pairs_ & 1], nullptr);
        ASSERT_TRUE(added);
        pair_ = *added;
        bad_ = std::make_unique<BadNeighbor>(parts.end[1 - (pairs_ & 1)]);
        ASSERT_TRUE(bad_->ok());
        ASSERT_TRUE(victim_.ring->route(victim_.to(bad_addr(), kPort), pair_));
        ++pairs_;
    }
    uint64_t bad_value(uint64_t near) {
        switch (random_() % 8) {
            case 0:
                return 0;
            case 1:
                return near - 64 * (random_() % 100);
            case 2:
                return near + 64 * (random_() % 100);
            case 3:
                return near + bad_->ring_bytes();
            case 4:
                return near + random_() % 64;
            case 5:
                return UINT64_MAX - random_() % 2;
            case 6:
                return uint64_t(1) << random_() % 64;
            default:
                return uint64_t(random_()) << 32 | random_();
        }
    }
    void scribble(uint8_t* at, size_t within, size_t most) {
        const size_t from = random_() % within;
        for (size_t n = random_() % most, i = from; i < within && n > 0; ++i, --n)
            at[i] = uint8_t(random_());
    }
    void lie() {
        switch (random_() % 16) {
            case 0:
                return bad_->store_word(bad_->produced(), bad_value(word_of({100, 0, 0})));
            case 1:
                return bad_->store_word(random_(), bad_value(word_of({100, 0, 0})));
            case 2: {  // any length, any gso size; the bytes are what they are
                const Record r{uint32_t(random_() % 70000), uint16_t(random_()),
                               uint8_t(random_() % 3)};
                return bad_->store_word(bad_->produced(), word_of(r));
            }
            case 3:
                bad_->mine().consumed = bad_value(sent_to_bad_bytes_);
                return;
            case 4:
                bad_->mine().sleeping = uint32_t(random_());
                return;
            case 5:  // header and all words, also the victim's own
                return scribble(bad_->memory(), kControlBytes, 600);
            case 6:
                if (random_() % 8) return;
                return scribble(bad_->memory(), bad_->bytes(), bad_->bytes());
            default: {
                Frame f = udp(bad_addr(), victim_.addr, random_(), random_() % 3000);
                if (random_() % 3 == 0) scribble(f.bytes.data(), f.bytes.size(), 20);
                bad_->put(f.view(), uint8_t(random_() % 2), uint16_t(random_()));
            }
        }
    }
    void send_to_bad() {
        Frame f = udp(victim_.addr, bad_addr(), 1, random_() % 20000);
        const PairState before = victim_.ring->pair_state(pair_);
        const int error = send_now(*victim_.ring, f);
        if (error == 0) sent_to_bad_bytes_ += record_span(uint32_t(f.bytes.size()));
        if (before == PairState::broken) {
            ASSERT_EQ(error, ENETDOWN);
        } else {
            ASSERT_TRUE(error == 0 || error == EAGAIN || error == ENETDOWN) << error;
        }
        if (error == ENETDOWN && random_() % 4 == 0) renew(), sent_to_bad_bytes_ = 0;
    }
    void sleep() {
        (void)victim_.ring->arm();
        victim_.ring->disarm();
    }
    void from_honest() {
        Frame f = udp(honest_.addr, victim_.addr, honest_sent_);
        const int error = send_now(*honest_.ring, f);
        if (error == 0) ++honest_sent_;
        ASSERT_TRUE(error == 0 || error == EAGAIN) << error;
    }
    void to_honest() {
        Frame f = udp(victim_.addr, honest_.addr, victim_sent_);
        const int error = send_now(*victim_.ring, f);
        if (error == 0) ++victim_sent_;
        ASSERT_TRUE(error == 0 || error == EAGAIN) << error;
        take_at_honest();
    }
    void take_at_honest() {
        Packet p;
        if (honest_.ring->recv({&p, 1}) == 0) return;
        ASSERT_TRUE(is_number(p, victim_taken_)) << victim_taken_;
        ++victim_taken_;
    }
    void receive_some() {
        Packet batch[16];
        const unsigned most = random_() % 16 + 1, n = victim_.ring->recv({batch, most});
        ASSERT_LE(n, most);
        for (unsigned i = 0; i < n; ++i) {
            const PacketBuf& p = *batch[i];
            PackedFlow flow;  // whatever it says, it is from whom it may be and for us
            ASSERT_TRUE(flow_of_frame(p.view(), p.len - 14, Toward::us, flow));
            const uint32_t from = uint32_t(flow.addresses);
            ASSERT_EQ(flow.addresses >> 32, victim_.addr.v4_host());
            ASSERT_EQ(flow.rest >> 16 & 0xffff, kPort);
            if (from == honest_.addr.v4_host()) {
                ASSERT_TRUE(is_number(batch[i], honest_taken_)) << honest_taken_;
                ++honest_taken_;
            } else {
                ASSERT_EQ(from, bad_addr().v4_host());
                ++from_bad_;
            }
        }
    }

    std::mt19937 random_;
    Node victim_{1}, honest_{2};
    std::unique_ptr<BadNeighbor> bad_;
    PairId pair_ = 0;
    unsigned pairs_ = 0;
    uint64_t sent_to_bad_bytes_ = 0;
    uint32_t honest_sent_ = 0, honest_taken_ = 0, victim_sent_ = 0, victim_taken_ = 0;
    unsigned from_bad_ = 0;
};

// Every word of the shared memory gets every kind of bad value at every point; the victim goes on with everybody else.
TEST(ShmRingHostile, AnythingInTheMemoryHarmsThatPairOnly) {
    for (uint32_t seed : {1u, 2u, 3u}) {
        SCOPED_TRACE(seed);
        Hostile run(seed);
        for (int i = 0; i < 12000 && !testing::Test::HasFatalFailure(); ++i) run.step();
        if (!testing::Test::HasFatalFailure()) run.finish();
    }
}

}  // namespace
}  // namespace vma::test
