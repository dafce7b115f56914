// What only the xdp ring has: two ways in one order, frames that only the kernel can judge, other XDP programs.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev/packet/bpf_calls.h"
#include "ring_pair.h"
#include "support/root.h"
#include "wait.h"

namespace vma::test {
namespace {

constexpr int kUdpSegment = 103;

class XdpRingTest : public testing::Test {
  protected:
    void SetUp() override { NEEDS_ROOT("an xdp ring"); }
    // Null: *why, and *error if it is given.
    static std::unique_ptr<Ring> open_on(const Veth::Side& side, Pool& pool, std::string* why,
                                         int* error = nullptr) {
        Inside here(side);
        XdpRingConfig c;
        c.packet.ifindex = side.ifindex;
        c.packet.pool = &pool.pool;
        c.packet.ring_bytes = 1u << 20;
        c.mac = side.mac;
        c.arena = pool.arena.get();
        const auto ring = open_xdp_ring(c, why);
        if (ring) return std::unique_ptr<Ring>(*ring);
        if (error) *error = ring.error();
        return nullptr;
    }
    // A kernel socket of side a, connected to a port of side b.
    static int kernel_sender(const Veth& veth, uint16_t from, uint16_t to) {
        Inside here(veth.a());
        const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const sockaddr_in own = Endpoint{veth.a().addr, from}.to_sockaddr_in();
        const sockaddr_in peer = Endpoint{veth.b().addr, to}.to_sockaddr_in();
        EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
        EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0);
        return fd;
    }
};

// Large ones come by the ring buffer, small ones by the socket, and nobody waits for either.
TEST_F(XdpRingTest, frames_of_both_ways_come_in_the_order_in_which_they_were_sent) {
    XdpPair pair;
    ASSERT_TRUE(pair.ring[1]) << pair.why;
    ASSERT_TRUE(pair.ring[1]->steer(pair.flow(7000, 9000, IPPROTO_TCP)));
    constexpr uint32_t kFrames = 400;
    for (uint32_t i = 0; i < kFrames; ++i) {
        FrameSpec s = pair.spec(9000, 7000, i % 3 == 1 ? 2 * 1448 : 100);
        s.protocol = IPPROTO_TCP;
        s.finished = false;
        s.seed = i;
        Frame f = build_frame(s);
        ASSERT_EQ(
            send_one(*pair.ring[0], i % 3 == 1 ? f.segmented(1448, Gso::tcp_v4) : f.plain(true)),
            0);
        if (i % 100 != 99) continue;
        const auto got = receive(*pair.ring[1], 100, 2000, 7);
        ASSERT_EQ(got.size(), 100u);
        for (uint32_t k = 0; k < 100; ++k) {
            const uint32_t seed = i - 99 + k;
            EXPECT_EQ(got[k]->meta.gso_size, seed % 3 == 1 ? 1448 : 0);
            ASSERT_EQ(got[k]->data[f.head + 5], payload_byte(seed, 5)) << seed;
        }
    }
    EXPECT_EQ(pair.ring[1]->counters().drops.sum(), 0u);
}

// Nothing in the frame itself tells how many datagrams it is.
TEST_F(XdpRingTest, datagrams_that_the_kernel_sends_as_one_stay_several) {
    Veth veth;
    ASSERT_TRUE(veth.ok()) << veth.error();
    Pool pool;
    std::string why;
    auto owned = open_on(veth.b(), pool, &why);
    ASSERT_TRUE(owned) << why;
    FlowKey flow;
    flow.local = {veth.b().addr, 7000};
    flow.protocol = IPPROTO_UDP;
    ASSERT_TRUE(owned->steer(flow));
    const int fd = kernel_sender(veth, 9000, 7000);
    const std::string data(900, 'x');
    ASSERT_EQ(send(fd, data.data(), data.size(), 0), 900);
    const int size = 300;
    ASSERT_EQ(setsockopt(fd, IPPROTO_UDP, kUdpSegment, &size, sizeof size), 0);
    ASSERT_EQ(send(fd, data.data(), data.size(), 0), 900);
    auto got = receive(*owned, 2);
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0]->meta.gso_size, 0);
    EXPECT_EQ(got[1]->meta.gso_size, 300);
    EXPECT_TRUE(got[0]->meta.checksum_good)
        << "unfinished: nobody inside the machine has to finish it";
    got.clear();
    close(fd);
}

// Groups are copied, not steered, and come the packet ring's way; so does what is for another address of the link.
TEST_F(XdpRingTest, what_is_not_for_this_interface_alone_is_not_taken_from_the_kernel) {
    XdpPair pair;
    ASSERT_TRUE(pair.ring[1]) << pair.why;
    ASSERT_TRUE(pair.ring[1]->steer(pair.flow(7000)));
    FrameSpec s = pair.spec(9000, 7000);
    s.to = {2, 0, 0, 0, 0, 0x77};
    Frame f = build_frame(s);
    ASSERT_EQ(send_one(*pair.ring[0], f.plain()), 0);
    EXPECT_EQ(drain(*pair.ring[1]), 0u);
}

TEST_F(XdpRingTest, another_program_on_the_interface_is_the_reason_that_is_given) {
    Veth veth;
    ASSERT_TRUE(veth.ok()) << veth.error();
    Pool pool;
    std::string why;
    // Of another hook, as it were: in its own namespace it is somebody else's.
    ASSERT_EQ(Veth::run(veth.b(), "ip link set dev " + veth.b().name +
                                      " xdpgeneric obj " XDP_PASS_OBJECT " sec xdp"),
              0);
    int error = 0;
    auto ring = open_on(veth.b(), pool, &why, &error);
    ASSERT_FALSE(ring);
    EXPECT_EQ(error, EBUSY);
    EXPECT_NE(why.find("another XDP program"), std::string::npos) << why;
    ASSERT_EQ(Veth::run(veth.b(), "ip link set dev " + veth.b().name + " xdpgeneric off"), 0);
    ring = open_on(veth.b(), pool, &why);
    EXPECT_TRUE(ring) << why;
}

TEST_F(XdpRingTest, a_second_ring_of_the_queue_is_refused_and_the_first_goes_on) {
    XdpPair pair;
    ASSERT_TRUE(pair.ring[1]) << pair.why;
    Pool pool;
    std::string why;
    int error = 0;
    auto second = open_on(pair.veth.b(), pool, &why, &error);
    ASSERT_FALSE(second);
    EXPECT_EQ(error, EADDRINUSE) << why;
    EXPECT_NE(why.find("queue 0"), std::string::npos) << why;
    ASSERT_TRUE(pair.ring[1]->steer(pair.flow(7000)));
    Frame f = build_frame(pair.spec(9000, 7000));
    ASSERT_EQ(send_one(*pair.ring[0], f.plain()), 0);
    EXPECT_EQ(receive(*pair.ring[1], 1).size(), 1u);
    // When it goes, program and queue are free.
    pair.owned[1].reset();
    second = open_on(pair.veth.b(), pool, &why);
    EXPECT_TRUE(second) << why;
}

// A flow goes from a packet ring to the xdp ring of the interface and back.
TEST_F(XdpRingTest, flows_move_between_it_and_a_packet_ring) {
    XdpPair pair;
    ASSERT_TRUE(pair.ring[1]) << pair.why;
    Pool pool;
    std::string why;
    PacketRingConfig c;
    c.ifindex = pair.veth.b().ifindex;
    c.pool = &pool.pool;
    Inside here(pair.veth.b());
    auto opened = open_packet_ring(c, &why);
    ASSERT_TRUE(opened) << why;
    std::unique_ptr<Ring> other(*opened);
    Frame f = build_frame(pair.spec(9000, 7000));
    ASSERT_TRUE(other->steer(pair.flow(7000)));
    for (int round = 0; round < 3; ++round) {
        ASSERT_EQ(send_one(*pair.ring[0], f.plain()), 0);
        EXPECT_EQ(receive(*other, 1).size(), 1u);
        ASSERT_TRUE(pair.ring[1]->take_flow(pair.flow(7000), *other));
        ASSERT_EQ(send_one(*pair.ring[0], f.plain()), 0);
        EXPECT_EQ(receive(*pair.ring[1], 1).size(), 1u);
        ASSERT_TRUE(other->take_flow(pair.flow(7000), *pair.ring[1]));
    }
}

// The process is gone, and with it program and socket.
TEST_F(XdpRingTest, a_killed_owner_leaves_nothing) {
    XdpPair pair;
    ASSERT_TRUE(pair.ring[1]) << pair.why;
    pair.owned[1].reset();
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        Pool pool;
        std::string why;
        auto ring = open_on(pair.veth.b(), pool, &why);
        const bool steered = ring && ring->steer(pair.flow(7000)).ok();
        if (write(ready[1], steered ? "y" : "n", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char answer = 0;
    ASSERT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(ready[0]), close(ready[1]);
    Pool pool;
    std::string why;
    std::unique_ptr<Ring> owned;
    const int64_t end = clock_ns() + 5'000'000'000;
    while (!owned && clock_ns() < end) owned = open_on(pair.veth.b(), pool, &why);
    ASSERT_TRUE(owned) << why;
    ASSERT_TRUE(owned->steer(pair.flow(7000)));
    Frame f = build_frame(pair.spec(9000, 7000));
    ASSERT_EQ(send_one(*pair.ring[0], f.plain()), 0);
    EXPECT_EQ(receive(*owned, 1).size(), 1u);
}

}  // namespace
}  // namespace vma::test
