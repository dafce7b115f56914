// The peers of dead processes: kernel sockets whose other end vanishes without a word, as it does when its process is killed and
// nobody knows of it. What says that to them may be lost; time is what the test says it is.
#include "engine/bereaved.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "namespace.h"

namespace vma {
namespace {

using test::shell;

constexpr uint32_t kLoopback = 0x7f000001;
constexpr Instant kStart{1000000000};

FlowKey key_of(uint16_t local, uint16_t remote) {
    FlowKey key;
    key.local = {IpAddr::v4(kLoopback), local};
    key.remote = {IpAddr::v4(kLoopback), remote};
    key.protocol = IPPROTO_TCP;
    return key;
}

uint16_t port_of(int fd) {
    sockaddr_in in{};
    socklen_t len = sizeof in;
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&in), &len), 0);
    return ntohs(in.sin_port);
}

// A connection of which only the end that has connected is left.
class Widow {
  public:
    Widow() {
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in in{};
        in.sin_family = AF_INET;
        in.sin_addr.s_addr = htonl(kLoopback);
        socklen_t len = sizeof in;
        EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&in), len), 0);
        EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&in), &len), 0);
        EXPECT_EQ(listen(listener, 1), 0);
        EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&in), len), 0);
        const int dead = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        close(listener);
        key_ = key_of(ntohs(in.sin_port), port_of(fd_));
        const int on = 1;  // closed in repair mode: not a segment leaves
        EXPECT_EQ(setsockopt(dead, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on), 0);
        EXPECT_EQ(close(dead), 0);
    }
    ~Widow() { close(fd_); }
    const FlowKey& key() const { return key_; }
    // Within the time that segments on lo may take.
    bool has_heard(int ms) const {
        pollfd p{fd_, 0, 0};
        return poll(&p, 1, ms) == 1;
    }
    int error() const {
        int error = 0;
        socklen_t len = sizeof error;
        EXPECT_EQ(getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &len), 0);
        return error;
    }

  private:
    int fd_ = -1;
    FlowKey key_;
};

// What comes over lo and is such a segment is dropped, and counted.
bool drop(const std::string& which) {
    return shell("nft -f -",
                 "add table ip t; add counter ip t lost\n"
                 "add chain ip t i { type filter hook input priority 0; }\n"
                 "add rule ip t i " +
                     which + " counter name lost drop\n");
}
bool stop_dropping() { return shell("nft delete table ip t"); }
bool was_lost(int times) {
    return shell("nft list counter ip t lost | grep -q 'packets " + std::to_string(times) + " '");
}

// Answers need a moment, which is not that of the test.
void hear(Bereaved& peers, Instant now) {
    for (int i = 0; i < 500 && !peers.empty(); i++) {
        peers.turn(now);
        if (!peers.empty()) usleep(10000);
    }
}

void in_namespace(const std::function<void()>& body) {
    IN_NAMESPACE([&] {
        // The time of the test is faster than that by which Linux answers a connection's SYNs twice a second.
        ASSERT_TRUE(shell("ip link set lo up && sysctl -qw net.ipv4.tcp_invalid_ratelimit=0"));
        body();
    });
}

TEST(Bereaved, APeerIsTold) {
    in_namespace([] {
        const Widow w;
        EXPECT_FALSE(w.has_heard(0));
        Bereaved peers;
        peers.add({&w.key(), 1}, kStart);
        EXPECT_TRUE(w.has_heard(5000));
        EXPECT_EQ(w.error(), ECONNRESET);
        EXPECT_FALSE(peers.empty()) << "it answered with where it is, not that it is gone";
        peers.turn(kStart + Bereaved::kFirstWait);
        hear(peers, kStart + Bereaved::kFirstWait);
        EXPECT_TRUE(peers.empty());
    });
}

TEST(Bereaved, AgainWhenItIsLost) {
    for (const char* lost :
         {"tcp flags == syn", "tcp flags & (syn | ack | rst) == ack", "tcp flags & rst == rst"}) {
        SCOPED_TRACE(lost);
        in_namespace([&] {
            const Widow w;
            Bereaved peers;
            ASSERT_TRUE(drop(lost));
            peers.add({&w.key(), 1}, kStart);
            ASSERT_TRUE(was_lost(1));
            ASSERT_TRUE(stop_dropping());
            peers.turn(kStart + Duration::millis(999));
            EXPECT_FALSE(w.has_heard(0)) << "too early";
            peers.turn(kStart + Bereaved::kFirstWait);
            EXPECT_TRUE(w.has_heard(5000));
            EXPECT_EQ(w.error(), ECONNRESET);
        });
    }
}

TEST(Bereaved, NobodyIsAskedForEver) {
    in_namespace([] {
        ASSERT_TRUE(drop("tcp flags == syn"));
        const FlowKey key = key_of(1, 2);
        Bereaved peers;
        peers.add({&key, 1}, kStart);
        for (int second = 1; second <= 15; second++) {
            peers.turn(kStart + Duration::seconds(second));
            EXPECT_FALSE(peers.empty());
        }
        ASSERT_TRUE(was_lost(Bereaved::kTries));
        peers.turn(kStart + Duration::seconds(16));
        EXPECT_TRUE(peers.empty());
        ASSERT_TRUE(was_lost(Bereaved::kTries));
    });
}

// One that has no such connection says so: it is asked once.
TEST(Bereaved, WhoHasForgottenItIsLeftAlone) {
    in_namespace([] {
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(listen(listener, 1), 0);
        const FlowKey keys[] = {key_of(1, 2), key_of(1, port_of(listener))};
        Bereaved peers;
        peers.add(keys, kStart);
        hear(peers, kStart);
        EXPECT_TRUE(peers.empty());
        close(listener);
    });
}

TEST(Bereaved, ThousandsAreBounded) {
    in_namespace([] {
        ASSERT_TRUE(drop("tcp flags == syn"));
        std::vector<FlowKey> keys;
        for (uint16_t i = 0; i < 5000; i++) keys.push_back(key_of(1, uint16_t(10000 + i)));
        Bereaved peers;
        peers.add(keys, kStart);
        ASSERT_TRUE(was_lost(5000)) << "each once";
        peers.turn(kStart + Bereaved::kFirstWait);
        ASSERT_TRUE(was_lost(5000 + int(Bereaved::kMost)));
    });
}

}  // namespace
}  // namespace vma
