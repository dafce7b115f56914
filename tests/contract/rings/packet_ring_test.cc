// What only the packet ring has: the kernel as a peer, other processes on the same hook, owners that die.
#include <linux/capability.h>
#include <linux/if_packet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/own_fd.h"
#include "dev/packet/bpf_calls.h"
#include "ring_pair.h"
#include "support/root.h"
#include "wait.h"

namespace vma::test {
namespace {

constexpr int kUdpSegment = 103;

class PacketRingTest : public testing::Test {
  protected:
    void SetUp() override {
        NEEDS_ROOT("a packet ring");
        veth = std::make_unique<Veth>();
        ASSERT_TRUE(veth->ok()) << veth->error();
    }
    Result<Ring*> open_ring(const Veth::Side& side, PacketPool& pool, std::string* why,
                            uint32_t ring_bytes = 1u << 20) {
        Inside here(side);
        PacketRingConfig c;
        c.ifindex = side.ifindex;
        c.pool = &pool;
        c.ring_bytes = ring_bytes;
        return open_packet_ring(c, why);
    }
    FlowKey flow(uint16_t port, uint16_t remote = 0, uint8_t protocol = IPPROTO_UDP) const {
        FlowKey k;
        k.local = {veth->b().addr, port};
        if (remote) k.remote = {veth->a().addr, remote};
        k.protocol = protocol;
        return k;
    }
    FrameSpec to_b(uint16_t from_port, uint16_t to_port, uint32_t payload = 18) const {
        FrameSpec s;
        s.from = veth->a().mac;
        s.to = veth->b().mac;
        s.src = {veth->a().addr, from_port};
        s.dst = {veth->b().addr, to_port};
        s.payload = payload;
        return s;
    }
    // A kernel socket of a side, bound to its address and port.
    static int kernel_socket(const Veth::Side& side, int type, uint16_t port) {
        Inside here(side);
        const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
        const int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        const sockaddr_in in = Endpoint{side.addr, port}.to_sockaddr_in();
        EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&in), sizeof(in)), 0)
            << strerror(errno);
        return fd;
    }
    // That sends IP packets as they are given to it.
    static int kernel_raw(const Veth::Side& side) {
        Inside here(side);
        const int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
        EXPECT_GE(fd, 0) << strerror(errno);
        return fd;
    }
    static int connect_to(int fd, const Veth::Side& side, uint16_t port) {
        const sockaddr_in in = Endpoint{side.addr, port}.to_sockaddr_in();
        return connect(fd, reinterpret_cast<const sockaddr*>(&in), sizeof(in));
    }
    static bool readable(int fd, int ms) {
        pollfd p{fd, POLLIN, 0};
        return poll(&p, 1, ms) == 1;
    }
    unsigned programs_on(const Veth::Side& side, uint32_t type = bpf::kTcxIngress) const {
        Inside here(side);
        bpf::Attached found[64];
        const int n = bpf::attached(side.ifindex, type, found, 64);
        return n < 0 ? 99u : unsigned(n);
    }
    std::unique_ptr<Veth> veth;
};

TEST_F(PacketRingTest, kernel_udp_super_frames_come_whole_and_vouched_for) {
    Pool pool;
    std::string why;
    auto ring = open_ring(veth->b(), pool.pool, &why);
    ASSERT_TRUE(ring) << why;
    std::unique_ptr<Ring> owned(*ring);
    ASSERT_TRUE(owned->steer(flow(7000)));
    const int fd = kernel_socket(veth->a(), SOCK_DGRAM, 9000);
    const int size = 1000;
    ASSERT_EQ(setsockopt(fd, IPPROTO_UDP, kUdpSegment, &size, sizeof(size)), 0);
    ASSERT_EQ(connect_to(fd, veth->b(), 7000), 0);
    std::vector<uint8_t> data(40000);
    for (size_t i = 0; i < data.size(); ++i) data[i] = payload_byte(3, uint32_t(i));
    ASSERT_EQ(send(fd, data.data(), data.size(), 0), ssize_t(data.size()));
    auto got = receive(*owned, 1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0]->len, 42u + data.size());
    EXPECT_EQ(got[0]->meta.gso_size, 1000);
    EXPECT_TRUE(got[0]->meta.checksum_good);
    EXPECT_EQ(got[0]->meta.ifindex, uint32_t(veth->b().ifindex));
    EXPECT_EQ(std::memcmp(got[0]->data + 42, data.data(), data.size()), 0);
    got.clear();
    close(fd);
}

// As soon as any socket of the machine asks for stamps the kernel stamps what it receives, and the ring has that stamp.
TEST_F(PacketRingTest, frames_have_the_kernels_receive_stamp) {
    Pool pool;
    std::string why;
    auto ring = open_ring(veth->b(), pool.pool, &why);
    ASSERT_TRUE(ring) << why;
    std::unique_ptr<Ring> owned(*ring);
    ASSERT_TRUE(owned->steer(flow(7003)));
    const int fd = kernel_socket(veth->a(), SOCK_DGRAM, 9003);
    ASSERT_EQ(connect_to(fd, veth->b(), 7003), 0);
    const int one = 1;
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one)), 0);
    // The kernel begins to stamp a little after the call has returned.
    int64_t stamp = 0, before = 0;
    const Instant end = monotonic_now() + Duration::millis(10000);
    while (stamp == 0 && monotonic_now() < end) {
        before = realtime_ns();
        ASSERT_EQ(send(fd, "x", 1, 0), 1);
        auto got = receive(*owned, 1);
        ASSERT_EQ(got.size(), 1u);
        stamp = got[0]->meta.realtime_ns;
    }
    EXPECT_GE(stamp, before);
    EXPECT_LE(stamp, realtime_ns());
    close(fd);
}

TEST_F(PacketRingTest, kernel_tcp_super_frames_keep_the_stream) {
    Pool pool;
    std::string why;
    auto ring = open_ring(veth->b(), pool.pool, &why, 8u << 20);
    ASSERT_TRUE(ring) << why;
    std::unique_ptr<Ring> owned(*ring);
    const int listener = kernel_socket(veth->b(), SOCK_STREAM, 7001);
    ASSERT_EQ(listen(listener, 1), 0);
    const int client = kernel_socket(veth->a(), SOCK_STREAM, 9001);
    ASSERT_EQ(connect_to(client, veth->b(), 7001), 0);
    const int server = accept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0);
    ASSERT_TRUE(owned->steer(flow(7001, 9001, IPPROTO_TCP)));
    std::vector<uint8_t> data(300000);
    for (size_t i = 0; i < data.size(); ++i) data[i] = payload_byte(5, uint32_t(i));
    const ssize_t sent = send(client, data.data(), data.size(), MSG_DONTWAIT);
    ASSERT_GT(sent, 10000);
    // Nobody acknowledges: the first window arrives, in order.
    size_t at = 0;
    bool super = false;
    for (Packet& p : receive(*owned, 64, 100)) {
        const uint32_t head = 14 + 20 + (p->data[46] >> 4) * 4u;
        const uint32_t n = p->len - head;
        if (n == 0 || at + n > size_t(sent)) continue;
        if (std::memcmp(p->data + head, data.data() + at, n) != 0) break;  // a retransmission
        EXPECT_TRUE(p->meta.checksum_good);
        super = super || p->meta.gso_size > 0;
        at += n;
    }
    EXPECT_GT(at, 10000u);
    EXPECT_TRUE(super);
    EXPECT_FALSE(readable(server, 20)) << "the kernel got frames of a steered tuple";
    for (int fd : {client, server, listener}) close(fd);
}

// A ring with a listener's flow, and one at the other end that sends to it.
class ListenerFlowTest : public PacketRingTest {
  protected:
    void SetUp() override {
        PacketRingTest::SetUp();
        if (IsSkipped() || HasFatalFailure()) return;
        std::string why;
        auto ring = open_ring(veth->b(), pool.pool, &why);
        ASSERT_TRUE(ring) << why;
        owned.reset(*ring);
        auto other = open_ring(veth->a(), sender_pool.pool, &why);
        ASSERT_TRUE(other) << why;
        sender.reset(*other);
        ASSERT_TRUE(owned->steer(flow(7002, 0, IPPROTO_TCP)));
    }
    FrameSpec segment(uint8_t flags, uint32_t payload, uint16_t from = 9002) const {
        FrameSpec spec = to_b(from, 7002, payload);
        spec.protocol = IPPROTO_TCP;
        spec.tcp_flags = flags;
        return spec;
    }
    int send(const FrameSpec& spec) {
        Frame f = build_frame(spec);
        return send_one(*sender, f.plain());
    }
    Pool pool, sender_pool;
    std::unique_ptr<Ring> owned, sender;
};

// A SYN flood that nobody reads: what follows it on the same listener's flow still finds room.
TEST_F(ListenerFlowTest, connection_requests_leave_room_for_the_connected) {
    constexpr unsigned kRequests = 20000, kTexts = 200;  // twice the ring; a fifth of it
    for (unsigned i = 0; i < kRequests; ++i)
        ASSERT_EQ(send(segment(TH_SYN, 0, uint16_t(10000 + i))), 0);
    for (unsigned i = 0; i < kTexts; ++i)
        ASSERT_EQ(send(segment(TH_ACK, 1000, uint16_t(10000 + kRequests - 1))), 0);
    unsigned requests = 0, texts = 0;
    for (const Packet& p : receive(*owned, kRequests + kTexts, 500))
        ++(p->data[14 + 20 + 13] == TH_SYN ? requests : texts);
    EXPECT_EQ(texts, kTexts);
    EXPECT_GT(requests, 500u);
    EXPECT_LT(requests, 3000u);
    EXPECT_EQ(requests + owned->counters().drops.sum(), kRequests);
}

// What an application does not read keeps room of the ring, but no connection from being made.
TEST_F(ListenerFlowTest, connection_requests_pass_what_nobody_gives_back) {
    std::vector<Packet> kept;
    // More than an eighth of the ring, less than is moved away.
    for (unsigned i = 0; i < 300; ++i) {
        ASSERT_EQ(send(segment(TH_ACK, 1000)), 0);
        std::vector<Packet> came = receive(*owned, 1, 500);
        ASSERT_EQ(came.size(), 1u);
        if (kept.empty()) kept.push_back(std::move(came[0]));
    }
    ASSERT_EQ(send(segment(TH_SYN, 0)), 0);
    EXPECT_EQ(receive(*owned, 1, 500).size(), 1u);
    EXPECT_EQ(owned->counters().drops.sum(), 0u);
}

enum class Share { nobody, owner_first, owner_last };

class OwnerDies : public PacketRingTest, public testing::WithParamInterface<Share> {};

// SIGKILL of the process that owns the ring while a forked child of it sleeps with the kernel socket in hand: within a
// second that socket receives.
TEST_P(OwnerDies, the_port_works_on_the_kernel) {
    Pool pool;
    std::string why;
    std::unique_ptr<Ring> mine;
    auto share = [&] {
        auto r = open_ring(veth->b(), pool.pool, &why);
        ASSERT_TRUE(r) << why;
        mine.reset(*r);
    };
    if (GetParam() == Share::owner_last) share();
    const int twin = kernel_socket(veth->b(), SOCK_DGRAM, 7000);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t owner = fork();
    if (owner == 0) {
        own_fds_close_in_child();
        Pool own;
        std::string text;
        auto r = open_ring(veth->b(), own.pool, &text);
        if (!r || !(*r)->steer(flow(7000))) _exit(1);
        const pid_t sleeper = fork();
        if (sleeper == 0) {
            own_fds_close_in_child();
            alarm(30);
            for (;;) pause();
        }
        (void)!write(ready[1], &sleeper, sizeof(sleeper));
        alarm(30);
        for (;;) pause();
    }
    pid_t sleeper = 0;
    ASSERT_TRUE(readable(ready[0], 5000));
    ASSERT_EQ(read(ready[0], &sleeper, sizeof(sleeper)), ssize_t(sizeof(sleeper)));
    if (GetParam() == Share::owner_first) share();
    if (mine) {
        EXPECT_EQ(mine->steer(flow(7000)).error(), EEXIST) << "the owner is alive";
        EXPECT_EQ(sweep_packet_rings(), 0u);
    }
    EXPECT_EQ(programs_on(veth->b()), 1u);
    const int client = kernel_socket(veth->a(), SOCK_DGRAM, 9000);
    ASSERT_EQ(connect_to(client, veth->b(), 7000), 0);
    ASSERT_EQ(send(client, "x", 1, 0), 1);
    EXPECT_FALSE(readable(twin, 50)) << "steered: not for the kernel";

    ASSERT_EQ(kill(owner, SIGKILL), 0);
    const int64_t killed = clock_ns();
    bool works = false;
    while (!works && clock_ns() - killed < 1'000'000'000) {
        if (mine) sweep_packet_rings();
        (void)!send(client, "x", 1, 0);
        works = readable(twin, 5);
    }
    EXPECT_TRUE(works);
    RecordProperty("milliseconds", int((clock_ns() - killed) / 1000000));
    if (mine) {
        EXPECT_TRUE(mine->steer(flow(7000))) << "and anybody can have it";
    }
    waitpid(owner, nullptr, 0);
    kill(sleeper, SIGKILL);
    mine.reset();
    EXPECT_EQ(programs_on(veth->b()), 0u) << "nothing stays";
    for (int fd : {twin, client, ready[0], ready[1]}) close(fd);
}

INSTANTIATE_TEST_SUITE_P(shared, OwnerDies,
                         testing::Values(Share::nobody, Share::owner_first, Share::owner_last),
                         [](const auto& kind) {
                             return kind.param == Share::nobody        ? "by_nobody"
                                    : kind.param == Share::owner_first ? "owner_first"
                                                                       : "owner_last";
                         });

// Counts what the kernel of side b answers, as it arrives on side a.
class Answers {
  public:
    explicit Answers(const Veth::Side& side) {
        Inside here(side);
        fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        const int buffer = 16 << 20;
        setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
        sockaddr_ll to{};
        to.sll_family = AF_PACKET;
        to.sll_protocol = htons(0x0003);
        to.sll_ifindex = side.ifindex;
        EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    }
    ~Answers() { close(fd_); }
    void count() {
        uint8_t b[2048];
        sockaddr_ll from{};
        for (;;) {
            socklen_t length = sizeof(from);
            const ssize_t n =
                recvfrom(fd_, b, sizeof(b), 0, reinterpret_cast<sockaddr*>(&from), &length);
            if (n < 0) return;
            if (n < 54 - 12 || from.sll_pkttype == PACKET_OUTGOING || load_be16(b + 12) != 0x0800)
                continue;
            if (b[23] == IPPROTO_ICMP) ++icmp;
            if (b[23] == IPPROTO_TCP) {
                ++tcp;
                if (b[47] & 4) ++resets;
            }
        }
    }
    unsigned icmp = 0, tcp = 0, resets = 0;

  private:
    int fd_;
};

TEST_F(PacketRingTest, ten_thousand_cycles_under_load_and_the_kernel_answers_nothing) {
    Pool pool;
    std::string why;
    auto ring = open_ring(veth->b(), pool.pool, &why);
    ASSERT_TRUE(ring) << why;
    std::unique_ptr<Ring> owned(*ring);
    const int twin = kernel_socket(veth->b(), SOCK_DGRAM, 7000);
    const int client = kernel_socket(veth->a(), SOCK_DGRAM, 9000);
    ASSERT_EQ(connect_to(client, veth->b(), 7000), 0);
    Answers answers(veth->a());
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> sent{0};
    std::thread load([&] {
        while (!stop) {
            if (send(client, "0123456789", 10, MSG_DONTWAIT) == 10) ++sent;
        }
    });
    uint64_t by_ring = 0, by_twin = 0;
    // Longer where the sender has had no processor yet.
    const int64_t end = clock_ns() + 30'000'000'000;
    const auto is_enough = [&] { return by_ring > 100 && by_twin > 100 && sent > 1000; };
    for (int cycle = 0; cycle < 10000 || (!is_enough() && clock_ns() < end); ++cycle) {
        ASSERT_TRUE(owned->steer(flow(7000)));
        Packet batch[64];
        by_ring += owned->recv(batch);
        owned->unsteer(flow(7000));
        char c[16];
        while (recv(twin, c, sizeof(c), MSG_DONTWAIT) > 0) ++by_twin;
        if (cycle % 16 == 0) answers.count();
    }
    stop = true;
    load.join();
    by_ring += drain(*owned);
    answers.count();
    EXPECT_EQ(answers.icmp, 0u);
    EXPECT_EQ(answers.tcp, 0u);
    EXPECT_GT(by_ring, 100u);
    EXPECT_GT(by_twin, 100u);
    EXPECT_GT(sent, 1000u);
    for (int fd : {twin, client}) close(fd);
}

// A flow goes to and fro between two rings of a process: every frame reaches one of them, those of the ring before are the older
// ones, and the kernel gets none.
TEST_F(PacketRingTest, a_flow_moves_to_another_ring_between_two_frames) {
    Pool pools[2];
    std::string why;
    std::unique_ptr<Ring> rings[2];
    for (int i : {0, 1}) {
        auto ring = open_ring(veth->b(), pools[i].pool, &why);
        ASSERT_TRUE(ring) << why;
        rings[i].reset(*ring);
    }
    const int twin = kernel_socket(veth->b(), SOCK_DGRAM, 7000);
    const int client = kernel_socket(veth->a(), SOCK_DGRAM, 9000);
    ASSERT_EQ(connect_to(client, veth->b(), 7000), 0);
    EXPECT_EQ(rings[1]->take_flow(flow(7000), *rings[0]).error(), ENOENT);
    ASSERT_TRUE(rings[0]->steer(flow(7000)));
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> received{0};
    uint64_t sent = 0, moves = 0;
    std::thread load([&] {
        while (!stop)
            if (sent - received < 256 && send(client, &sent, sizeof sent, 0) == sizeof sent) ++sent;
    });
    const auto take_all = [&](Ring& ring, std::vector<uint64_t>& into) {
        Packet batch[64];
        while (const unsigned n = ring.recv(batch))
            for (Packet& p : std::span(batch).first(n)) {
                uint64_t number;
                std::memcpy(&number, p->data + 42, sizeof number);
                into.push_back(number);
                p.reset();
            }
    };
    int now = 0;
    const auto look = [&] {
        std::vector<uint64_t> newer, older;
        take_all(*rings[now], newer);
        take_all(*rings[1 - now], older);
        older.insert(older.end(), newer.begin(), newer.end());
        for (const uint64_t number : older) ASSERT_EQ(number, received++) << "move " << moves;
    };
    const int64_t deadline = clock_ns() + 20'000'000'000;
    for (; (moves < 500 || received < 20000) && !HasFatalFailure(); ++moves) {
        if (clock_ns() > deadline) break;
        ASSERT_TRUE(rings[1 - now]->take_flow(flow(7000), *rings[now]));
        now = 1 - now;
        look();
        look();
    }
    stop = true;
    load.join();
    look();
    EXPECT_EQ(received, sent);
    EXPECT_GE(received, 20000u);
    char c[16];
    EXPECT_LT(recv(twin, c, sizeof c, MSG_DONTWAIT), 0) << "the kernel had one";
    EXPECT_EQ(rings[now]->take_flow(flow(7000), *rings[1 - now]).error(), ENOENT);
    rings[now]->unsteer(flow(7000));
    for (int fd : {twin, client}) close(fd);
}

// A segment that the kernel gets past the ring, here from its own host: it knows no such connection and would reset it.
TEST_F(PacketRingTest, the_guard_keeps_the_kernels_resets_from_the_wire) {
    Pool pool;
    std::string why;
    auto b = open_ring(veth->b(), pool.pool, &why);
    ASSERT_TRUE(b) << why;
    std::unique_ptr<Ring> owned(*b);
    EXPECT_EQ(programs_on(veth->b(), bpf::kTcxEgress), 0u) << "no guard without a TCP flow";
    ASSERT_TRUE(owned->steer(flow(7001, 9001, IPPROTO_TCP)));
    EXPECT_EQ(programs_on(veth->b(), bpf::kTcxEgress), 1u);

    FrameSpec s = to_b(9001, 7001, 1000);
    s.protocol = IPPROTO_TCP;
    const Frame segment = build_frame(s);
    const ByteView packet = ByteView(segment.bytes).subspan(14);
    const int raw = kernel_raw(veth->b());
    const sockaddr_in to = Endpoint{veth->b().addr, 0}.to_sockaddr_in();
    auto send_past = [&] {
        ASSERT_EQ(sendto(raw, packet.data(), packet.size(), 0,
                         reinterpret_cast<const sockaddr*>(&to), sizeof to),
                  ssize_t(packet.size()));
    };
    Answers answers(veth->a());
    for (int i = 0; i < 1000; ++i) {
        send_past();
        const FlowKey other = flow(uint16_t(20000 + i));
        ASSERT_TRUE(owned->steer(other));
        owned->unsteer(other);
    }
    EXPECT_EQ(drain(*owned), 0u);
    answers.count();
    EXPECT_EQ(answers.resets, 0u);
    EXPECT_EQ(answers.tcp, 0u);

    owned->unsteer(flow(7001, 9001, IPPROTO_TCP));
    const int64_t end = clock_ns() + 2'000'000'000;
    while (answers.resets == 0 && clock_ns() < end) {
        send_past();
        answers.count();
    }
    EXPECT_GT(answers.resets, 0u) << "without the flow the kernel answers: the test can see it";
    close(raw);
}

// The first by its ports, the others, whose they may be, as copies.
TEST_F(PacketRingTest, fragments_of_tcp_reach_the_ring) {
    Pool pools[2];
    std::string why;
    auto a = open_ring(veth->a(), pools[0].pool, &why);
    ASSERT_TRUE(a) << why;
    std::unique_ptr<Ring> sender(*a);
    auto b = open_ring(veth->b(), pools[1].pool, &why);
    ASSERT_TRUE(b) << why;
    std::unique_ptr<Ring> owned(*b);

    auto fragment = [&](uint16_t from_port, uint32_t from, uint32_t bytes, bool more) {
        FrameSpec s = to_b(from_port, 7001, 1000);
        s.protocol = IPPROTO_TCP;
        const Frame whole = build_frame(s);
        Frame f = whole;
        f.bytes.assign(whole.bytes.begin(), whole.bytes.begin() + 34);
        f.bytes.insert(f.bytes.end(), whole.bytes.begin() + 34 + from,
                       whole.bytes.begin() + 34 + from + bytes);
        uint8_t* ip = &f.bytes[14];
        store_be16(ip + 2, uint16_t(20 + bytes));
        store_be16(ip + 4, 77);
        store_be16(ip + 6, uint16_t((more ? 0x2000 : 0) | from / 8));
        store_be16(ip + 10, 0);
        store_be16(ip + 10, uint16_t(~add_words(ip, 20, 0)));
        f.head = 34;
        return f;
    };
    // How many frames of a fragment get to the ring.
    auto got = [&](Frame f) {
        EXPECT_EQ(send_one(*sender, f.plain()), 0);
        return drain(*owned);
    };
    const Frame first = fragment(9001, 0, 504, true), last = fragment(9001, 504, 516, false);
    const Frame short_last = fragment(9001, 1016, 2, false);
    EXPECT_EQ(got(first) + got(last), 0u) << "no flow of TCP yet";
    ASSERT_TRUE(owned->steer(flow(7000)));
    EXPECT_EQ(got(first) + got(last), 0u) << "one of UDP";
    ASSERT_TRUE(owned->steer(flow(7001, 9001, IPPROTO_TCP)));
    EXPECT_EQ(got(first), 1u);
    EXPECT_EQ(got(last), 1u);
    EXPECT_EQ(got(short_last), 1u);
    EXPECT_EQ(got(fragment(9002, 0, 504, true)), 0u) << "of a connection of the kernel's";
    owned->unsteer(flow(7001, 9001, IPPROTO_TCP));
    EXPECT_EQ(got(first), 0u);
}

// A connection of the kernel's under a listener's flow (one that was handed back): the RST that its program asks for reaches the
// peer, who would wait for ever otherwise.
TEST_F(PacketRingTest, the_guard_lets_a_connection_of_the_kernels_reset) {
    Pool pool;
    std::string why;
    auto ring = open_ring(veth->b(), pool.pool, &why);
    ASSERT_TRUE(ring) << why;
    std::unique_ptr<Ring> owned(*ring);
    const int listener = kernel_socket(veth->b(), SOCK_STREAM, 7002);
    ASSERT_EQ(listen(listener, 1), 0);
    const int client = kernel_socket(veth->a(), SOCK_STREAM, 9002);
    ASSERT_EQ(connect_to(client, veth->b(), 7002), 0);
    const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(accepted, 0);
    ASSERT_TRUE(owned->steer(flow(7002, 0, IPPROTO_TCP)));
    EXPECT_EQ(programs_on(veth->b(), bpf::kTcxEgress), 1u);
    char c = 1;
    ASSERT_EQ(send(client, &c, 1, 0), 1);
    ASSERT_TRUE(readable(accepted, 2000)) << "the kernel goes on with its connection";
    const linger at_once{1, 0};
    ASSERT_EQ(setsockopt(accepted, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(accepted);
    EXPECT_TRUE(readable(client, 2000)) << "the peer was not told";
    EXPECT_EQ(recv(client, &c, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, ECONNRESET);
    for (int fd : {listener, client}) close(fd);
}

// What quotes a packet of a steered TCP flow is copied to the ring and still reaches the kernel.
TEST_F(PacketRingTest, icmp_errors_come_as_copies) {
    Pool pools[2];
    std::string why;
    auto a = open_ring(veth->a(), pools[0].pool, &why);
    ASSERT_TRUE(a) << why;
    std::unique_ptr<Ring> sender(*a);
    auto b = open_ring(veth->b(), pools[1].pool, &why);
    ASSERT_TRUE(b) << why;
    std::unique_ptr<Ring> owned(*b);
    ASSERT_TRUE(owned->steer(flow(7001, 9001, IPPROTO_TCP)));
    int raw;
    {
        Inside here(veth->b());
        raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
    }
    ASSERT_GE(raw, 0);
    auto error_about = [&](uint8_t type, uint16_t local_port, uint8_t protocol) {
        FrameSpec ours = to_b(9001, local_port, 0);
        std::swap(ours.src.addr, ours.dst.addr);
        ours.src.port = local_port;
        ours.dst.port = 9001;
        ours.protocol = protocol;
        const Frame quoted = build_frame(ours);
        Frame f = build_frame(to_b(0, 0, 28));  // 8 bytes of UDP header become the ICMP header
        f.bytes[23] = IPPROTO_ICMP;
        store_be16(&f.bytes[24], 0);
        store_be16(&f.bytes[24], uint16_t(~add_words(&f.bytes[14], 20, 0)));
        uint8_t* icmp = &f.bytes[34];
        std::memset(icmp, 0, 8);
        icmp[0] = type;
        icmp[1] = type == 3 ? 4 : 0;
        std::memcpy(icmp + 8, &quoted.bytes[14], 28);
        store_be16(icmp + 2, uint16_t(~add_words(icmp, 36, 0)));
        ASSERT_EQ(send_one(*sender, f.plain()), 0);
    };
    for (uint8_t type : {uint8_t(3), uint8_t(11), uint8_t(12)}) {
        error_about(type, 7001, IPPROTO_TCP);
        auto got = receive(*owned, 1);
        ASSERT_EQ(got.size(), 1u) << int(type);
        EXPECT_EQ(got[0]->data[34], type);
        uint8_t buffer[200];
        ASSERT_TRUE(readable(raw, 2000)) << "the kernel has it too";
        ASSERT_GT(recv(raw, buffer, sizeof(buffer), 0), 28);
    }
    error_about(8, 7001, IPPROTO_TCP);  // an echo request that happens to carry such bytes
    error_about(3, 7002, IPPROTO_TCP);  // another connection
    error_about(3, 7001, IPPROTO_UDP);  // UDP sockets hear of it from the kernel
    EXPECT_EQ(drain(*owned), 0u);
    close(raw);
}

TEST_F(PacketRingTest, only_untagged_and_priority_tagged_frames_are_taken) {
    Pool pools[2];
    std::string why;
    auto a = open_ring(veth->a(), pools[0].pool, &why);
    ASSERT_TRUE(a) << why;
    std::unique_ptr<Ring> sender(*a);
    auto b = open_ring(veth->b(), pools[1].pool, &why);
    ASSERT_TRUE(b) << why;
    std::unique_ptr<Ring> owned(*b);
    ASSERT_TRUE(owned->steer(flow(7000)));
    auto send_tagged = [&](uint16_t tci) {
        Frame f = build_frame(to_b(9000, 7000));
        const uint8_t tag[4] = {0x81, 0, uint8_t(tci >> 8), uint8_t(tci)};
        f.bytes.insert(f.bytes.begin() + 12, tag, tag + 4);
        f.head = uint16_t(f.head + 4);
        ASSERT_EQ(send_one(*sender, f.plain()), 0);
    };
    send_tagged(5);
    send_tagged(0x6005);
    EXPECT_EQ(drain(*owned), 0u);
    send_tagged(0x6000);
    auto got = receive(*owned, 1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(got[0]->meta.has_vlan);
    EXPECT_EQ(got[0]->meta.vlan_tci, 0x6000);
    EXPECT_EQ(load_be16(got[0]->data + 12), 0x0800) << "the tag is beside the frame";

    FrameSpec other = to_b(9000, 7000);
    other.to = {2, 9, 9, 9, 9, 9};
    Frame f = build_frame(other);
    ASSERT_EQ(send_one(*sender, f.plain()), 0);
    other = to_b(9000, 7000);
    other.src.addr = other.dst.addr;
    f = build_frame(other);
    ASSERT_EQ(send_one(*sender, f.plain()), 0);
    EXPECT_EQ(drain(*owned), 0u) << "somebody else's MAC, or our own address as the source";
    FrameSpec options = to_b(9000, 7000);
    options.ip_option_words = 10;
    f = build_frame(options);
    ASSERT_EQ(send_one(*sender, f.plain()), 0);
    EXPECT_EQ(receive(*owned, 1).size(), 1u) << "IP options";
}

TEST_F(PacketRingTest, twenty_processes_share_one_program) {
    constexpr unsigned kProcesses = 20, kFrames = 50;
    Pool pool;
    std::string why;
    auto a = open_ring(veth->a(), pool.pool, &why);
    ASSERT_TRUE(a) << why;
    std::unique_ptr<Ring> sender(*a);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    pid_t pids[kProcesses];
    for (unsigned i = 0; i < kProcesses; ++i) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        own_fds_close_in_child();
        alarm(60);
        Pool own;
        std::string text;
        auto r = open_ring(veth->b(), own.pool, &text, 256 * 1024);
        if (!r || !(*r)->steer(flow(uint16_t(8000 + i)))) _exit(1);
        (void)!write(ready[1], "r", 1);
        auto got = receive(**r, kFrames, 20000);
        if (got.size() != kFrames) _exit(2);
        for (Packet& p : got)
            if (load_be16(p->data + 36) != 8000 + i) _exit(3);
        got.clear();
        if (drain(**r) != 0) _exit(4);
        delete *r;
        _exit(0);
    }
    for (unsigned i = 0; i < kProcesses; ++i) {
        char c;
        ASSERT_TRUE(readable(ready[0], 20000)) << i << " of " << kProcesses << " came up";
        ASSERT_EQ(read(ready[0], &c, 1), 1);
    }
    EXPECT_EQ(programs_on(veth->b()), 1u);
    for (unsigned n = 0; n < kFrames; ++n)
        for (unsigned i = 0; i < kProcesses; ++i) {
            Frame f = build_frame(to_b(9000, uint16_t(8000 + i)));
            ASSERT_EQ(send_one(*sender, f.plain()), 0);
        }
    for (unsigned i = 0; i < kProcesses; ++i) {
        int status = 0;
        ASSERT_EQ(waitpid(pids[i], &status, 0), pids[i]);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << i << ": " << WEXITSTATUS(status);
    }
    EXPECT_EQ(programs_on(veth->b()), 0u);
    close(ready[0]);
    close(ready[1]);
}

// The internal thread of a process looks for dead owners while another thread closes the last ring.
TEST_F(PacketRingTest, sweeping_beside_rings_that_come_and_go) {
    Pool pool;
    std::atomic<bool> stop{false};
    std::thread sweeper([&] {
        Inside here(veth->b());
        while (!stop.load()) (void)sweep_packet_rings();
    });
    for (unsigned i = 0; i < 20; ++i) {
        std::string why;
        auto ring = open_ring(veth->b(), pool.pool, &why, 256 * 1024);
        EXPECT_TRUE(ring) << why;
        if (ring) delete *ring;
    }
    stop = true;
    sweeper.join();
    EXPECT_EQ(programs_on(veth->b()), 0u);
}

TEST_F(PacketRingTest, refused_segmentation_is_done_here) {
    ASSERT_EQ(Veth::run(veth->a(),
                        "ethtool -K vta tx-tcp-segmentation off tx-tcp-ecn-segmentation off "
                        "tx-udp-segmentation off >/dev/null"),
              0);
    Pool pools[2];
    std::string why;
    auto a = open_ring(veth->a(), pools[0].pool, &why);
    ASSERT_TRUE(a) << why;
    std::unique_ptr<Ring> sender(*a);
    auto b = open_ring(veth->b(), pools[1].pool, &why);
    ASSERT_TRUE(b) << why;
    std::unique_ptr<Ring> owned(*b);
    const int twin = kernel_socket(veth->b(), SOCK_DGRAM, 7000);
    FrameSpec s = to_b(9000, 7000, 10500);
    s.finished = false;
    Frame udp = build_frame(s);
    ASSERT_EQ(send_one(*sender, udp.segmented(1000, Gso::udp_l4)), 0);
    uint8_t data[2000];
    for (uint32_t i = 0; i < 11; ++i) {  // the kernel has checked each checksum
        ASSERT_TRUE(readable(twin, 2000)) << i;
        ASSERT_EQ(recv(twin, data, sizeof(data), 0), i < 10 ? 1000 : 500);
        EXPECT_EQ(std::memcmp(data, udp.bytes.data() + udp.head + 1000 * i, i < 10 ? 1000 : 500),
                  0);
    }
    ASSERT_TRUE(owned->steer(flow(7001, 0, IPPROTO_TCP)));
    s = to_b(9001, 7001, 40 * 1448 + 7);
    s.protocol = IPPROTO_TCP;
    s.finished = false;
    Frame tcp = build_frame(s);
    for (int i = 0; i < 2; ++i) {  // asked and refused, then without asking
        ASSERT_EQ(send_one(*sender, tcp.segmented(1448, Gso::tcp_v4)), 0);
        auto got = receive(*owned, 41);
        ASSERT_EQ(got.size(), 41u);
        for (uint32_t k = 0; k < 41; ++k) {
            const uint32_t n = k < 40 ? 1448 : 7;
            ASSERT_EQ(got[k]->len, 54 + n);
            EXPECT_EQ(load_be32(got[k]->data + 38), k * 1448);
            EXPECT_EQ(std::memcmp(got[k]->data + 54, tcp.bytes.data() + tcp.head + 1448 * k, n), 0);
        }
    }
    close(twin);
}

// The kernel gives up verifying a program when a signal comes: profilers and programs with interval timers have many.
TEST_F(PacketRingTest, opens_under_an_interval_timer) {
    struct sigaction action {
    }, old{};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    ASSERT_EQ(sigaction(SIGALRM, &action, &old), 0);
    const itimerval often{{0, 500}, {0, 500}}, never{};
    ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
    Pool pool;
    std::string why;
    const auto ring = open_ring(veth->b(), pool.pool, &why);
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &old, nullptr);
    ASSERT_TRUE(ring.ok()) << why;
    delete *ring;
}

TEST_F(PacketRingTest, what_cannot_open_says_why) {
    Pool pool;
    std::string why;
    Veth::Side side = veth->b();
    side.ifindex = 1;  // lo
    EXPECT_EQ(open_ring(side, pool.pool, &why).error(), EINVAL);
    EXPECT_NE(why.find("not Ethernet"), std::string::npos) << why;
    side.ifindex = 4242;
    EXPECT_EQ(open_ring(side, pool.pool, &why).error(), ENODEV);
    EXPECT_NE(why.find("does not exist"), std::string::npos) << why;

    struct Case {
        uint32_t lose;
        const char* says;
    } cases[] = {{1u << CAP_NET_RAW, "CAP_NET_RAW"}, {1u << CAP_NET_ADMIN, "CAP_NET_ADMIN"}};
    for (const Case& c : cases) {
        const pid_t child = fork();
        if (child == 0) {
            Inside here(veth->b());
            __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
            __user_cap_data_struct caps[2]{};
            syscall(SYS_capget, &head, caps);
            const uint32_t low = ~(c.lose | 1u << CAP_SYS_ADMIN);
            caps[0].effective &= low, caps[0].permitted &= low;
            if (syscall(SYS_capset, &head, caps) != 0) _exit(1);
            PacketRingConfig config;
            config.ifindex = veth->b().ifindex;
            config.pool = &pool.pool;
            std::string text;
            auto r = open_packet_ring(config, &text);
            _exit(r.error() == EPERM && text.find(c.says) != std::string::npos ? 0 : 2);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << c.says << " " << WEXITSTATUS(status);
    }
    // Without CAP_SYS_ADMIN the ring opens; it shares with nobody.
    const pid_t child = fork();
    if (child == 0) {
        Inside here(veth->b());
        __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
        __user_cap_data_struct caps[2]{};
        caps[0].effective = caps[0].permitted = 1u << CAP_NET_RAW | 1u << CAP_NET_ADMIN;
        caps[1].effective = caps[1].permitted = 1u << (CAP_BPF - 32) | 1u << (CAP_PERFMON - 32);
        if (syscall(SYS_capset, &head, caps) != 0) _exit(1);
        PacketRingConfig config;
        config.ifindex = veth->b().ifindex;
        config.pool = &pool.pool;
        std::string text;
        auto r = open_packet_ring(config, &text);
        if (!r) {
            fprintf(stderr, "%s\n", text.c_str());
            _exit(2);
        }
        if (!(*r)->steer(flow(7000)) || !(*r)->steer(flow(7001, 0, IPPROTO_TCP))) _exit(3);
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
}

}  // namespace
}  // namespace vma::test
