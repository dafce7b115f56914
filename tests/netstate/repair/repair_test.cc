// TCP_REPAIR both ways against the running kernel. The connection's peer does not exist: the interface swallows what the
// kernel sends, and what the peer says is injected. So every state, queue and window can be put into a socket, gone on
// with, read out and compared, without traffic that would change it.
#include "repair/repair.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "support/namespace.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace vma {
namespace {

using tcp::Snapshot;
using tcp::State;

// In a namespace that has 10.9.0.1/24 on an interface whose other end nobody listens to.
void in_namespace(const std::function<void()>& body) {
    IN_NAMESPACE([&] {
        ASSERT_EQ(
            system("ip link set lo up && ip link add d0 type veth peer name d1 && "
                   "ip link set d1 up && ip addr add 10.9.0.1/24 dev d0 && "
                   "ip link set d0 up && "
                   "ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev d0 nud permanent "
                   "&& sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lo.rp_filter=0"),
            0);
        body();
    });
}

std::vector<uint8_t> pattern(size_t n, uint32_t seed) {
    std::vector<uint8_t> bytes(n);
    for (auto& b : bytes) b = uint8_t((seed = seed * 1664525 + 1013904223) >> 24);
    return bytes;
}

struct Connection {
    Snapshot s;
    std::vector<uint8_t> unacked, unsent, unread;
    RepairQueues queues() const { return {unacked, unsent, unread}; }
};

Connection connection(State state, size_t unacked, size_t unsent, size_t unread) {
    Connection c;
    c.unacked = pattern(unacked, 1);
    c.unsent = pattern(unsent, 2);
    c.unread = pattern(unread, 3);
    Snapshot& s = c.s;
    s.local = {IpAddr::v4(10, 9, 0, 1), 7001};
    s.remote = {IpAddr::v4(10, 9, 0, 2), 9001};
    s.state = state;
    s.fin_queued = state == State::FIN_WAIT_1 || state == State::FIN_WAIT_2 ||
                   state == State::CLOSING || state == State::LAST_ACK;
    s.peer_fin = state == State::CLOSE_WAIT || state == State::CLOSING || state == State::LAST_ACK;
    s.fin_sent = s.fin_queued;
    s.snd_una = Seq{0xffffff00u};  // the queue wraps
    s.snd_end = s.snd_una + uint32_t(unacked + unsent);
    s.snd_nxt = s.fin_sent ? s.snd_end + 1 : s.snd_una + uint32_t(unacked);
    s.rcv_nxt = Seq{0x7fffff00u} + uint32_t(unread);
    s.unread = uint32_t(unread);
    s.snd_wl1 = s.rcv_nxt - 1;
    s.snd_wnd = s.max_window = 60000;
    s.rcv_wup = s.rcv_nxt;
    s.rcv_wnd = 50000;
    s.peer_mss = 1400;
    s.snd_wscale = 7;
    s.rcv_wscale = 6;
    s.scaling = s.sack = s.timestamps = true;
    s.ts_value = 1000001;
    s.ts_recent = 5000;
    return c;
}

int tcp_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

int state_number(int fd) {
    tcp_info info{};
    socklen_t len = sizeof info;
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return info.tcpi_state;
}
int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    getsockopt(fd, level, name, &value, &len);
    return value;
}
void set_option(int fd, int level, int name, int value) {
    ASSERT_EQ(setsockopt(fd, level, name, &value, sizeof value), 0) << level << " " << name;
}

// A segment of the peer that does not exist.
void peer_sends(const Snapshot& s, Seq seq, Seq ack, uint8_t flags,
                const std::vector<uint8_t>& text) {
    std::vector<uint8_t> packet(kIpv4Size + kTcpSize + 12 + text.size());
    Ipv4Header ip;
    ip.src = s.remote.addr.v4_host();
    ip.dst = s.local.addr.v4_host();
    ip.total_len = uint16_t(packet.size());
    ip.ttl = 64;
    ip.protocol = ip_protocol::tcp;
    ASSERT_NE(emit_ipv4(ip, ByteSpan(packet).first(kIpv4Size)), 0u);
    TcpHeader h;
    h.src_port = s.remote.port;
    h.dst_port = s.local.port;
    h.seq = seq;
    h.ack = ack;
    h.flags = flags;
    h.header_len = kTcpSize + 12;
    h.window = uint16_t(s.snd_wnd >> s.snd_wscale);
    emit_tcp(h, ByteSpan(packet).subspan(kIpv4Size, kTcpSize));
    TcpOptions o;
    o.has_timestamps = true;
    o.ts_val = s.ts_recent + 10;
    o.ts_ecr = s.ts_value;
    ASSERT_TRUE(emit_tcp_options(o, ByteSpan(packet).subspan(kIpv4Size + kTcpSize, 12)));
    std::copy(text.begin(), text.end(), packet.begin() + kIpv4Size + kTcpSize + 12);
    const Status injected = repair_inject(packet);
    ASSERT_TRUE(injected.ok()) << strerror(injected.error());
}

// Until the socket is in the state, at most five seconds. A change of state wakes who polls, of some states only the time does.
bool becomes(int fd, int number) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (state_number(fd) != number && std::chrono::steady_clock::now() < end) {
        pollfd p{fd, POLLRDHUP, 0};
        poll(&p, 1, 1);
    }
    return state_number(fd) == number;
}

// Into a socket, on, out of it, and into another one.
void round_trip(const Connection& c, int expected_state) {
    const int fd = tcp_socket();
    RepairOptions saved;
    const Status in = repair_restore(fd, c.s, c.queues(), saved);
    ASSERT_TRUE(in.ok()) << strerror(in.error());
    ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
    ASSERT_TRUE(becomes(fd, expected_state)) << state_number(fd);

    std::vector<uint8_t> room(repair_room(fd));
    RepairImage image;
    const Status out = repair_checkpoint(fd, image, room);
    ASSERT_TRUE(out.ok()) << strerror(out.error());
    const Snapshot& s = image.snapshot;
    EXPECT_EQ(s.local, c.s.local);
    EXPECT_EQ(s.remote, c.s.remote);
    EXPECT_EQ(s.snd_una, Seq::min(c.s.snd_una, c.s.snd_end));
    EXPECT_EQ(s.snd_end, c.s.snd_end);
    EXPECT_EQ(s.rcv_nxt, c.s.rcv_nxt);
    EXPECT_EQ(s.unread, c.s.unread);
    EXPECT_EQ(s.fin_queued, c.s.fin_queued);
    EXPECT_EQ(s.peer_fin, c.s.peer_fin);
    EXPECT_EQ(s.peer_mss, c.s.peer_mss);
    EXPECT_EQ(s.scaling, c.s.scaling);
    EXPECT_EQ(s.snd_wscale, c.s.snd_wscale);
    EXPECT_EQ(s.rcv_wscale, c.s.rcv_wscale);
    EXPECT_EQ(s.sack, c.s.sack);
    EXPECT_EQ(s.timestamps, c.s.timestamps);
    if (c.s.timestamps) {
        EXPECT_LT(s.ts_value - c.s.ts_value, 10000u);
    }
    // The right edge of the window that the peer knows does not move left.
    EXPECT_GE(s.rcv_wup + s.rcv_wnd, c.s.rcv_wup + c.s.rcv_wnd);
    auto to_send = c.unacked;
    to_send.insert(to_send.end(), c.unsent.begin(), c.unsent.end());
    ASSERT_EQ(image.to_send, to_send.size());
    EXPECT_GE(image.sent, c.unacked.size());
    EXPECT_EQ(memcmp(room.data(), to_send.data(), to_send.size()), 0);
    EXPECT_EQ(memcmp(room.data() + image.to_send, c.unread.data(), c.unread.size()), 0);

    ASSERT_TRUE(repair_release(fd, image).ok());
    EXPECT_EQ(state_number(fd), TCP_CLOSE);
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
    // The same socket takes it back.
    const Status again = repair_restore(fd, s, image.queues(room), saved);
    ASSERT_TRUE(again.ok()) << strerror(again.error());
    ASSERT_TRUE(repair_finish(fd, s, image.queues(room), saved).ok());
    sockaddr_in name{};
    socklen_t len = sizeof name;
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len), 0);
    EXPECT_EQ(ntohs(name.sin_port), c.s.local.port);
    std::vector<uint8_t> unread(c.unread.size() + 1);
    const ssize_t got = recv(fd, unread.data(), unread.size(), 0);
    unread.resize(size_t(got < 0 ? 0 : got));
    EXPECT_EQ(unread, c.unread);
    close(fd);
}

TEST(Repair, EveryStateGoesInAndOut) {
    struct Case {
        State state;
        int then;  // FIN_WAIT_2: the FIN goes out again and nobody acknowledges it here
    } constexpr cases[] = {{State::ESTABLISHED, TCP_ESTABLISHED},
                           {State::CLOSE_WAIT, TCP_CLOSE_WAIT},
                           {State::FIN_WAIT_1, TCP_FIN_WAIT1},
                           {State::CLOSING, TCP_CLOSING},
                           {State::LAST_ACK, TCP_LAST_ACK}};
    for (const Case& c : cases) {
        SCOPED_TRACE(tcp::state_name(c.state));
        in_namespace([&] { round_trip(connection(c.state, 3000, 0, 2000), c.then); });
    }
}

TEST(Repair, FinWait2SendsItsFinAgain) {
    in_namespace([] {
        Connection c = connection(State::FIN_WAIT_2, 0, 0, 100);
        c.s.snd_una = c.s.snd_nxt;  // the FIN is acknowledged
        const int fd = tcp_socket();
        RepairOptions saved;
        ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(becomes(fd, TCP_FIN_WAIT1));
        peer_sends(c.s, c.s.rcv_nxt, c.s.snd_nxt, tcp_flag::ack, {});
        ASSERT_TRUE(becomes(fd, TCP_FIN_WAIT2));
        std::vector<uint8_t> room(repair_room(fd));
        RepairImage image;
        ASSERT_TRUE(repair_checkpoint(fd, image, room).ok());
        EXPECT_EQ(image.snapshot.state, State::FIN_WAIT_2);
        EXPECT_EQ(image.snapshot.snd_una, c.s.snd_nxt);
        EXPECT_EQ(image.snapshot.snd_end, c.s.snd_end);
        EXPECT_TRUE(image.snapshot.fin_sent);
        EXPECT_EQ(image.to_send, 0u);
        close(fd);
    });
}

// A socket that got its port by being accepted loses it in a disconnect; it must get the same again, beside the listener.
TEST(Repair, ThePortComesBackBesideAListener) {
    in_namespace([] {
        const Connection c = connection(State::ESTABLISHED, 100, 0, 100);
        const int listener = tcp_socket();
        set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
        sockaddr_in name = c.s.local.to_sockaddr_in();
        ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
        ASSERT_EQ(listen(listener, 1), 0);
        const int fd = tcp_socket();
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        std::vector<uint8_t> room(1 << 20);
        for (int i = 0; i < 5; i++) {
            SCOPED_TRACE(i);
            RepairOptions saved;
            RepairImage image;
            ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
            ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
            socklen_t len = sizeof name;
            ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len), 0);
            EXPECT_EQ(ntohs(name.sin_port), c.s.local.port);
            ASSERT_TRUE(repair_checkpoint(fd, image, room).ok());
            EXPECT_EQ(image.snapshot.local, c.s.local);
            ASSERT_TRUE(repair_release(fd, image).ok());
        }
        close(fd);
        close(listener);
    });
}

TEST(Repair, QueuesOfEverySize) {
    in_namespace([] { round_trip(connection(State::ESTABLISHED, 0, 0, 0), TCP_ESTABLISHED); });
    in_namespace([] { round_trip(connection(State::ESTABLISHED, 0, 300000, 0), TCP_ESTABLISHED); });
    in_namespace([] {
        round_trip(connection(State::ESTABLISHED, 250000, 700000, 1 << 20), TCP_ESTABLISHED);
    });
}

TEST(Repair, ZeroWindowAndNoOptions) {
    in_namespace([] {
        Connection c = connection(State::ESTABLISHED, 0, 5000, 0);
        c.s.snd_wnd = 0;
        round_trip(c, TCP_ESTABLISHED);
    });
    in_namespace([] {
        Connection c = connection(State::ESTABLISHED, 1000, 0, 1000);
        c.s.scaling = c.s.sack = c.s.timestamps = false;
        c.s.snd_wscale = c.s.rcv_wscale = 0;
        c.s.peer_mss = 536;
        round_trip(c, TCP_ESTABLISHED);
    });
}

TEST(Repair, ACaughtSegmentIsDelivered) {
    in_namespace([] {
        const Connection c = connection(State::ESTABLISHED, 0, 0, 10);
        const int fd = tcp_socket();
        RepairOptions saved;
        ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
        const auto text = pattern(500, 9);
        peer_sends(c.s, c.s.rcv_nxt, c.s.snd_una, tcp_flag::ack | tcp_flag::psh, text);
        std::vector<uint8_t> got(1000);
        set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 510);
        pollfd p{fd, POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 5000), 1);
        ASSERT_EQ(recv(fd, got.data(), got.size(), MSG_PEEK), 510);
        EXPECT_EQ(memcmp(got.data() + 10, text.data(), text.size()), 0);
        uint8_t junk[40] = {};
        EXPECT_EQ(repair_inject(junk).error(), EINVAL);
        close(fd);
    });
}

TEST(Repair, OptionsSurviveBothMoves) {
    in_namespace([] {
        const Connection c = connection(State::ESTABLISHED, 2000, 100000, 2000);
        const int fd = tcp_socket();
        struct Row {
            int level, name, value;
        } const rows[] = {{IPPROTO_IP, IP_TOS, 0x10},      {SOL_SOCKET, SO_REUSEADDR, 1},
                          {SOL_SOCKET, SO_KEEPALIVE, 1},   {SOL_SOCKET, SO_OOBINLINE, 1},
                          {SOL_SOCKET, SO_RCVLOWAT, 3},    {SOL_SOCKET, SO_PRIORITY, 4},
                          {SOL_SOCKET, SO_MARK, 77},       {IPPROTO_TCP, TCP_NODELAY, 1},
                          {IPPROTO_TCP, TCP_KEEPIDLE, 33}, {IPPROTO_TCP, TCP_KEEPINTVL, 7},
                          {IPPROTO_TCP, TCP_KEEPCNT, 4},   {IPPROTO_TCP, TCP_USER_TIMEOUT, 12345},
                          {IPPROTO_TCP, TCP_SYNCNT, 3},    {IPPROTO_TCP, TCP_LINGER2, 9},
                          {IPPROTO_IP, IP_TTL, 33}};
        for (const Row& row : rows) set_option(fd, row.level, row.name, row.value);
        const struct linger l { 1, 5 };
        ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l), 0);
        ASSERT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
        set_option(fd, SOL_SOCKET, SO_RCVBUF,
                   40000);  // fixed by the program; the other one is tuned
        const int rcvbuf = option(fd, SOL_SOCKET, SO_RCVBUF),
                  locks = option(fd, SOL_SOCKET, SO_BUF_LOCK);
        EXPECT_EQ(locks, 2);
        const auto check = [&](const char* when) {
            SCOPED_TRACE(when);
            for (const Row& row : rows)
                EXPECT_EQ(option(fd, row.level, row.name), row.value) << row.name;
            struct linger got {};
            socklen_t len = sizeof got;
            getsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &len);
            EXPECT_EQ(got.l_onoff, 1);
            EXPECT_EQ(got.l_linger, 5);
            char name[16] = {};
            len = sizeof name;
            getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len);
            EXPECT_STREQ(name, "reno");
            EXPECT_EQ(option(fd, SOL_SOCKET, SO_RCVBUF), rcvbuf);
            EXPECT_EQ(option(fd, SOL_SOCKET, SO_BUF_LOCK), locks);
        };
        RepairOptions saved;
        ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
        check("after hand-back");
        std::vector<uint8_t> room(repair_room(fd));
        RepairImage image;
        ASSERT_TRUE(repair_checkpoint(fd, image, room).ok());
        ASSERT_TRUE(repair_release(fd, image).ok());
        check("after adoption");
        close(fd);
    });
}

// ---- Undo

TEST(Repair, ARestoreThatFailsLeavesAnUnconnectedSocket) {
    struct Case {
        const char* step;
        int error;
        std::function<void(Connection&)> harm;
    } const cases[] = {
        {"state", EINVAL, [](Connection& c) { c.s.state = State::SYN_SENT; }},
        {"bind", EADDRNOTAVAIL, [](Connection& c) { c.s.local.addr = IpAddr::v4(10, 77, 0, 1); }},
        {"connect", ENETUNREACH,
         [](Connection& c) { c.s.remote.addr = IpAddr::v4(203, 0, 113, 9); }},
        {"options", EFBIG, [](Connection& c) { c.s.snd_wscale = 15; }},
        {"window", EINVAL, [](Connection& c) { c.s.rcv_wup = c.s.rcv_nxt + 1000; }},
    };
    for (const Case& k : cases) {
        SCOPED_TRACE(k.step);
        in_namespace([&] {
            Connection c = connection(State::ESTABLISHED, 1000, 1000, 1000);
            const Connection good = c;
            k.harm(c);
            const int fd = tcp_socket();
            set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            RepairOptions saved;
            EXPECT_EQ(repair_restore(fd, c.s, c.queues(), saved).error(), k.error);
            EXPECT_EQ(state_number(fd), TCP_CLOSE);
            EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_REPAIR), 0);
            EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
            EXPECT_EQ(option(fd, SOL_SOCKET, SO_REUSEADDR), 1);
            // And takes the right one.
            EXPECT_TRUE(repair_restore(fd, good.s, good.queues(), saved).ok());
            repair_cancel(fd, saved);
            EXPECT_EQ(state_number(fd), TCP_CLOSE);
            EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_REPAIR), 0);
            EXPECT_TRUE(repair_restore(fd, good.s, good.queues(), saved).ok());
            EXPECT_TRUE(repair_finish(fd, good.s, good.queues(), saved).ok());
            EXPECT_EQ(state_number(fd), TCP_ESTABLISHED);
            // The tuple is in use now.
            const int other = tcp_socket();
            EXPECT_NE(repair_restore(other, good.s, good.queues(), saved).error(), 0);
            EXPECT_EQ(option(other, IPPROTO_TCP, TCP_REPAIR), 0);
            EXPECT_EQ(state_number(fd), TCP_ESTABLISHED);
            close(other);
            close(fd);
        });
    }
}

TEST(Repair, ACheckpointThatFailsLeavesTheConnection) {
    in_namespace([] {
        const Connection c = connection(State::ESTABLISHED, 1000, 0, 1000);
        const int fd = tcp_socket();
        RepairOptions saved;
        RepairImage image;
        std::vector<uint8_t> room(1 << 20);
        EXPECT_EQ(repair_checkpoint(fd, image, room).error(), ENOTCONN);
        ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
        EXPECT_EQ(repair_checkpoint(fd, image, ByteSpan(room).first(1500)).error(), ENOBUFS);
        const auto unharmed = [&] {
            EXPECT_EQ(state_number(fd), TCP_ESTABLISHED);
            EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_REPAIR), 0);
            std::vector<uint8_t> got(2000);
            EXPECT_EQ(recv(fd, got.data(), got.size(), MSG_PEEK), 1000);
            EXPECT_EQ(memcmp(got.data(), c.unread.data(), 1000), 0);
        };
        unharmed();
        ASSERT_TRUE(repair_checkpoint(fd, image, room).ok());
        repair_resume(fd, image);
        unharmed();
        set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
        EXPECT_EQ(repair_checkpoint(fd, image, room).error(), EOPNOTSUPP);
        set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 0);
        unharmed();
        // Urgent data that was not read.
        peer_sends(c.s, c.s.rcv_nxt, c.s.snd_una, tcp_flag::ack | tcp_flag::urg, pattern(1, 5));
        close(fd);
        const int listener = tcp_socket();
        ASSERT_EQ(listen(listener, 1), 0);
        EXPECT_NE(repair_checkpoint(listener, image, room).error(), 0);
        close(listener);
    });
}

TEST(Repair, WithoutTheCapabilityNothingHappens) {
    in_namespace([] {
        const Connection c = connection(State::ESTABLISHED, 1000, 0, 1000);
        const int fd = tcp_socket(), fresh = tcp_socket();
        RepairOptions saved;
        ASSERT_TRUE(repair_restore(fd, c.s, c.queues(), saved).ok());
        ASSERT_TRUE(repair_finish(fd, c.s, c.queues(), saved).ok());
        ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
        RepairImage image;
        std::vector<uint8_t> room(1 << 20);
        EXPECT_EQ(repair_checkpoint(fd, image, room).error(), EPERM);
        EXPECT_EQ(state_number(fd), TCP_ESTABLISHED);
        EXPECT_EQ(repair_restore(fresh, c.s, c.queues(), saved).error(), EPERM);
        EXPECT_EQ(state_number(fresh), TCP_CLOSE);
        close(fd);
        close(fresh);
    });
}

TEST(Repair, TheTableKnowsEveryState) {
    for (unsigned i = 0; i <= unsigned(State::TIME_WAIT); i++) {
        const MoveMethod& m = move_method(State(i));
        EXPECT_EQ(unsigned(m.state), i);
        // What can be put into the kernel can be read out of it, and the reverse.
        EXPECT_EQ(m.adopt, m.back == MoveMethod::restore) << i;
        if (m.back != MoveMethod::restore) {
            EXPECT_EQ(m.after[0], MoveMethod::none) << i;
        }
    }
}

}  // namespace
}  // namespace vma
