// Packet rings whose flows somebody else writes: opened by him, or given to him before the privileges go. Here he is in the
// same process, and may go away.
#include <sys/socket.h>
#include <unistd.h>

#include "dev/packet/hook.h"
#include "ring_pair.h"
#include "support/root.h"
#include "wait.h"

namespace vma::test {
namespace {

class NearKeeper final : public RingKeeper {
  public:
    Status open(int ifindex, uint32_t bytes, LentRing& out) override {
        if (!attach(ifindex)) return Errno{EIO};
        auto lent = lend_packet_ring(*hook_, ifindex, bytes);
        if (!lent) return Errno{lent.error()};
        out = *lent;
        return {};
    }
    Status show(int ifindex, uint32_t slot, uint32_t token, int) override {
        if (!attach(ifindex) || !hook_->owns(slot, token)) return Errno{EACCES};
        return refuse_show ? Status(Errno{EACCES}) : Status();
    }
    Status steer(uint32_t slot, const FlowKey& key, FlowGate gate, int twin) override {
        last_twin = twin;
        if (gone) return Errno{ENOLINK};
        return hook_->steer(slot, key, &gate);
    }
    void unsteer(uint32_t slot, const FlowKey& key, FlowGate gate) override {
        if (!gone) removed += hook_->unsteer(slot, key, &gate);
    }
    bool attach(int ifindex) {
        if (hook_) return true;
        auto opened = Hook::open(ifindex, nullptr);
        if (opened) hook_ = *opened;
        return opened.ok();
    }
    ~NearKeeper() {
        if (hook_) hook_->close();
    }
    bool gone = false, refuse_show = false;
    int last_twin = -1;
    unsigned removed = 0;

  private:
    Hook* hook_ = nullptr;
};

class KeptRing : public testing::Test {
  protected:
    void SetUp() override {
        NEEDS_ROOT("a packet ring");
        veth = std::make_unique<Veth>();
        ASSERT_TRUE(veth->ok()) << veth->error();
        set_ring_keeper(&keeper);
        client = kernel_socket(veth->a(), 9000);
        twin = kernel_socket(veth->b(), 7000);
        const sockaddr_in to = Endpoint{veth->b().addr, 7000}.to_sockaddr_in();
        ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    }
    void TearDown() override {
        set_ring_keeper(nullptr);
        for (const int fd : {client, twin})
            if (fd >= 0) close(fd);
    }
    std::unique_ptr<Ring> open(bool lent) {
        Inside here(veth->b());
        PacketRingConfig c;
        c.ifindex = veth->b().ifindex;
        c.pool = &pool.pool;
        c.ring_bytes = 1u << 20;
        std::string why;
        auto r = lent ? open_lent_packet_ring(c, &why) : open_packet_ring(c, &why);
        EXPECT_TRUE(r) << why;
        return std::unique_ptr<Ring>(r ? *r : nullptr);
    }
    static int kernel_socket(const Veth::Side& side, uint16_t port) {
        Inside here(side);
        const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const sockaddr_in in = Endpoint{side.addr, port}.to_sockaddr_in();
        EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&in), sizeof in), 0);
        return fd;
    }
    static bool readable(int fd, int ms) {
        pollfd p{fd, POLLIN, 0};
        return poll(&p, 1, ms) == 1;
    }
    FlowKey flow(uint16_t remote = 0) const {
        FlowKey k;
        k.local = {veth->b().addr, 7000};
        if (remote) k.remote = {veth->a().addr, remote};
        k.protocol = IPPROTO_UDP;
        return k;
    }
    void send_one() { ASSERT_EQ(send(client, "x", 1, 0), 1); }
    // One datagram reaches the ring and not the kernel, or the reverse.
    void expect_ring(Ring& ring) {
        send_one();
        EXPECT_EQ(receive(ring, 1).size(), 1u);
        EXPECT_FALSE(readable(twin, 20));
    }
    void expect_kernel(Ring& ring) {
        send_one();
        EXPECT_TRUE(readable(twin, 2000));
        char c;
        EXPECT_EQ(recv(twin, &c, 1, 0), 1);
        EXPECT_EQ(drain(ring, 10), 0u);
    }
    NearKeeper keeper;
    std::unique_ptr<Veth> veth;
    Pool pool;
    int client = -1, twin = -1;
};

TEST_F(KeptRing, lent_ring_takes_its_flows_and_gives_them_back) {
    auto ring = open(true);
    ASSERT_TRUE(ring);
    EXPECT_EQ(ring->steer(flow()).error(), EACCES) << "no twin to show";
    ASSERT_TRUE(ring->steer(flow(), twin));
    EXPECT_EQ(keeper.last_twin, twin);
    EXPECT_EQ(ring->steer(flow(), twin).error(), EEXIST);
    expect_ring(*ring);
    ring->unsteer(flow());
    EXPECT_EQ(keeper.removed, 1u) << "its entry goes, too";
    expect_kernel(*ring);
    EXPECT_TRUE(ring->steer(flow(9000), twin));
    expect_ring(*ring);
    FlowKey nonsense = flow();
    nonsense.protocol = 1;
    EXPECT_EQ(ring->steer(nonsense, twin).error(), EINVAL);
}

TEST_F(KeptRing, sleeper_is_woken) {
    auto ring = open(true);
    ASSERT_TRUE(ring);
    ASSERT_TRUE(ring->steer(flow(), twin));
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(ring->arm());
        EXPECT_FALSE(readable(ring->wake_fd(), 20));
        send_one();
        EXPECT_TRUE(readable(ring->wake_fd(), 2000));
        ring->disarm();
        EXPECT_EQ(receive(*ring, 1).size(), 1u);
    }
    EXPECT_EQ(ring->counters().wakeups, 3u);
}

TEST_F(KeptRing, keeper_gone_leaves_no_deaf_port) {
    auto ring = open(true);
    ASSERT_TRUE(ring);
    ASSERT_TRUE(ring->steer(flow(), twin));
    keeper.gone = true;
    expect_ring(*ring);
    EXPECT_EQ(ring->steer(flow(9000), twin).error(), ENOLINK);
    ring->unsteer(flow());
    EXPECT_EQ(keeper.removed, 0u);
    expect_kernel(*ring);
    // The entry that nobody could take out does not count, and is in nobody's way.
    keeper.gone = false;
    ASSERT_TRUE(ring->steer(flow(), twin)) << "the owner's";
    expect_ring(*ring);
    keeper.gone = true;
    ring->unsteer(flow());
    auto other = open(false);
    ASSERT_TRUE(other);
    ASSERT_TRUE(other->steer(flow())) << "anybody's";
    expect_ring(*other);
}

TEST_F(KeptRing, closed_ring_gives_all_to_the_kernel) {
    auto ring = open(true), other = open(false);
    ASSERT_TRUE(ring && other);
    ASSERT_TRUE(ring->steer(flow(), twin));
    keeper.gone = true;
    ring.reset();
    expect_kernel(*other);
    EXPECT_EQ(sweep_packet_rings(), 1u) << "its life token is gone";
}

TEST_F(KeptRing, flows_stay_when_the_privileges_go) {
    // With the second one the process, where the keeper is as well, keeps the tables.
    auto ring = open(false), other = open(false);
    ASSERT_TRUE(ring && other);
    ASSERT_TRUE(ring->steer(flow()));
    Inside here(veth->b());
    keeper.refuse_show = true;
    EXPECT_EQ(ring->lose_privileges().error(), EACCES);
    expect_ring(*ring);
    keeper.refuse_show = false;
    ASSERT_TRUE(ring->arm());
    ASSERT_EQ(ring->lose_privileges().error(), 0) << "somebody sleeps on it meanwhile";
    send_one();
    EXPECT_TRUE(readable(ring->wake_fd(), 2000));
    ring->disarm();
    EXPECT_EQ(receive(*ring, 1).size(), 1u);
    EXPECT_TRUE(ring->lose_privileges()) << "twice is once";
    EXPECT_EQ(ring->steer(flow(), twin).error(), EEXIST);
    EXPECT_TRUE(ring->steer(flow(9000), twin));
    keeper.gone = true;
    ring->unsteer(flow(9000));
    expect_ring(*ring);
    ring->unsteer(flow());
    expect_kernel(*ring);
}

}  // namespace
}  // namespace vma::test
