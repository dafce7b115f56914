// Socket options: defaults, round trips, lengths and errors.
#include <linux/filter.h>
#include <sys/time.h>

#include "differential/behaviour.h"

namespace {
struct Option {
    const char* name;
    int level, number;
    std::initializer_list<int> values;
};
#define ROW(LEVEL, NAME, ...)               \
    {                                       \
#NAME, LEVEL, NAME, { __VA_ARGS__ } \
    }

// Each option: its default, then each value set and read back.
template <size_t N>
void round_trip(int s, const Option (&rows)[N], bool defaults) {
    for (const Option& row : rows) {
        if (defaults) note(std::string(row.name) + " is " + option(s, row.level, row.number));
        for (const int value : row.values) {
            const int result = set(s, row.level, row.number, value);
            note(
                std::string(row.name) + " " + std::to_string(value) + ": " +
                (result < 0 ? strerrorname_np(errno) : "then " + option(s, row.level, row.number)));
        }
    }
}

// The role whose peer tries options.
void looks_on() {
    connected();
    step("over");
}

constexpr Option socket_rows[] = {ROW(SOL_SOCKET, SO_REUSEADDR, 0, 1, 7),
                                  ROW(SOL_SOCKET, SO_KEEPALIVE, 1, 0),
                                  ROW(SOL_SOCKET, SO_BROADCAST, 1, 0),
                                  ROW(SOL_SOCKET, SO_SNDBUF, 100000, 1, -5),
                                  ROW(SOL_SOCKET, SO_RCVBUF, 100000, 1),
                                  ROW(SOL_SOCKET, SO_PRIORITY, 3),
                                  ROW(SOL_SOCKET, SO_RCVLOWAT, 10, 0, 1),
                                  ROW(SOL_SOCKET, SO_SNDLOWAT, 10),
                                  ROW(SOL_SOCKET, SO_TYPE, 1),
                                  ROW(SOL_SOCKET, SO_ERROR, 1),
                                  ROW(SOL_SOCKET, SO_DOMAIN),
                                  ROW(SOL_SOCKET, SO_PROTOCOL),
                                  ROW(SOL_SOCKET, SO_ACCEPTCONN),
                                  ROW(SOL_SOCKET, SO_MARK, 0),
                                  ROW(SOL_SOCKET, SO_DEBUG, 0),
                                  ROW(SOL_SOCKET, SO_LINGER),
                                  ROW(SOL_SOCKET, SO_OOBINLINE, 0),
                                  ROW(SOL_SOCKET, SO_BUSY_POLL, 0),
                                  ROW(SOL_SOCKET, SO_INCOMING_CPU),
                                  ROW(SOL_SOCKET, SO_MAX_PACING_RATE),
                                  ROW(SOL_SOCKET, 999, 1)};
constexpr Option tcp_rows[] = {ROW(IPPROTO_TCP, TCP_NODELAY, 1, 5, 0),
                               ROW(IPPROTO_TCP, TCP_CORK, 1, 0),
                               ROW(IPPROTO_TCP, TCP_KEEPIDLE, 100, 0, 40000),
                               ROW(IPPROTO_TCP, TCP_KEEPINTVL, 20, 0),
                               ROW(IPPROTO_TCP, TCP_KEEPCNT, 4, 0, 200),
                               ROW(IPPROTO_TCP, TCP_SYNCNT, 3, 0, 300),
                               ROW(IPPROTO_TCP, TCP_LINGER2, 10, -1),
                               ROW(IPPROTO_TCP, TCP_DEFER_ACCEPT, 0),
                               ROW(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000, 0, -1),
                               ROW(IPPROTO_TCP, TCP_QUICKACK, 1),
                               ROW(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0),
                               ROW(IPPROTO_TCP, TCP_WINDOW_CLAMP, 100000),
                               ROW(IPPROTO_TCP, 999, 1)};
constexpr Option ip_rows[] = {ROW(IPPROTO_IP, IP_TTL, 33, 0, 256, -1),
                              ROW(IPPROTO_IP, IP_TOS, 0x10, 0xff, 0),
                              ROW(IPPROTO_IP, IP_MTU_DISCOVER, 0, 1, 9),
                              ROW(IPPROTO_IP, IP_RECVERR, 0),
                              ROW(IPPROTO_IP, IP_FREEBIND, 0),
                              ROW(IPPROTO_IP, IP_MINTTL, 0),
                              ROW(IPPROTO_IP, 999, 1)};
}  // namespace

BEHAVIOUR(options_socket, "SOL_SOCKET options of a connection: defaults and round trips");
void options_socket::a() {
    const int s = connected();
    round_trip(s, socket_rows, false);
    step("over");
}
void options_socket::b() { options_socket::a(); }

SOLO(options_fresh, "options of sockets that are not connected: defaults", a_kernel) {
    const int s = tcp(), u = udp();
    round_trip(s, socket_rows, true);
    round_trip(s, tcp_rows, true);
    round_trip(s, ip_rows, true);
    round_trip(u, socket_rows, true);
    round_trip(u, ip_rows, true);
}

BEHAVIOUR(options_tcp, "IPPROTO_TCP options of a connection: round trips");
void options_tcp::a() {
    const int s = connected();
    round_trip(s, tcp_rows, false);
    step("over");
}
void options_tcp::b() { options_tcp::a(); }

BEHAVIOUR(options_ip, "IPPROTO_IP options of a connection: defaults and round trips");
void options_ip::a() {
    const int s = connected();
    round_trip(s, ip_rows, true);
    step("over");
}
void options_ip::b() { options_ip::a(); }

BEHAVIOUR(options_udp, "SOL_SOCKET and IPPROTO_IP options of a bound UDP socket");
void options_udp::a() {
    const int s = udp_bound();
    round_trip(s, ip_rows, true);
    round_trip(s, socket_rows, false);
    step("over");
}
void options_udp::b() { options_udp::a(); }

BEHAVIOUR(options_lengths, "values that are too short, too long, missing; levels that are not");
void options_lengths::a() {
    const int s = connected();
    int value = 1;
    SEE(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, 1));
    SEE(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, 0));
    SEE(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, nullptr, 4));
    SEE(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, 1));
    SEE(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, 8));
    SEE(setsockopt(s, IPPROTO_IP, IP_TOS, &value, 1));
    SEE(setsockopt(s, SOL_SOCKET, SO_LINGER, &value, 4));
    SEE(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &value, 4));
    SEE(setsockopt(s, 77, 1, &value, 4));
    SEE(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, socklen_t(-1)));
    for (const int length : {0, 1, 2, 3, 4, 100, -1}) {
        int box[32] = {-1, -1};
        socklen_t len = socklen_t(length);
        SEE(getsockopt(s, SOL_SOCKET, SO_TYPE, box, &len));
        SEE(long(len));
        SEE(long(box[0]));
        box[0] = -1;
        len = socklen_t(length);
        SEE(getsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, box, &len));
        SEE(long(len));
        len = socklen_t(length);
        box[0] = -1;
        SEE(getsockopt(s, SOL_SOCKET, SO_ERROR, box, &len));
        SEE(long(len));
        SEE(long(box[0]));
    }
    socklen_t len = 4;
    SEE(getsockopt(s, SOL_SOCKET, SO_TYPE, nullptr, &len));
    SEE(getsockopt(s, SOL_SOCKET, SO_TYPE, &value, nullptr));
    SEE(getsockopt(s, SOL_SOCKET, SO_ERROR, nullptr, &len));
    SEE(getsockopt(s, 77, 1, &value, &len));
    SEE(getsockopt(s, IPPROTO_UDP, 1, &value, &len));
    step("over");
}
void options_lengths::b() { looks_on(); }

BEHAVIOUR(options_times, "SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER: structures round trip, odd values");
void options_times::a() {
    const int s = connected();
    for (const timeval tv :
         {timeval{1, 500000}, timeval{0, 0}, timeval{-1, 0}, timeval{0, 1000000}}) {
        SEE(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
        timeval now{-9, -9};
        socklen_t len = sizeof now;
        SEE(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &now, &len));
        SEE(long(now.tv_sec) * 1000 + long(now.tv_usec) / 1000);
        SEE(long(len));
    }
    for (const struct linger l :
         {linger{1, 7}, linger{0, 3}, linger{5, 0}, linger{1, -1}, linger{0, 0}}) {
        SEE(setsockopt(s, SOL_SOCKET, SO_LINGER, &l, sizeof l));
        struct linger now {};
        socklen_t len = sizeof now;
        SEE(getsockopt(s, SOL_SOCKET, SO_LINGER, &now, &len));
        SEE(long(now.l_onoff));
        SEE(long(now.l_linger));
    }
    step("over");
}
void options_times::b() { looks_on(); }

BEHAVIOUR(options_tcp_info, "TCP_INFO: state and counts that do not depend on time; lengths");
void options_tcp_info::a() {
    const int s = connected();
    SEE(put(s, "hello"));
    SEE(got(s, 5, MSG_WAITALL));
    tcp_info info{};
    socklen_t len = sizeof info;
    SEE(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len));
    SEE(long(info.tcpi_state));
    SEE(long(info.tcpi_retransmits));
    SEE(long(info.tcpi_probes));
    SEE(long(info.tcpi_backoff));
    SEE((info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0);
    SEE((info.tcpi_options & TCPI_OPT_SACK) != 0);
    SEE((info.tcpi_options & TCPI_OPT_WSCALE) != 0);
    SEE(long(info.tcpi_unacked));
    SEE(long(info.tcpi_lost));
    SEE(long(info.tcpi_total_retrans));
    SEE(long(info.tcpi_snd_mss));
    SEE(long(info.tcpi_advmss));
    SEE(long(info.tcpi_pmtu));
    SEE(info.tcpi_rtt > 0);
    SEE(info.tcpi_snd_cwnd >= 10);
    SEE(long(info.tcpi_ca_state));
    len = 1;
    uint8_t state = 99;
    SEE(getsockopt(s, IPPROTO_TCP, TCP_INFO, &state, &len));
    SEE(long(state));
    SEE(long(len));
    SEE(option(s, IPPROTO_TCP, TCP_MAXSEG));
    step("over");
}
void options_tcp_info::b() {
    const int s = connected();
    SEE(got(s, 5, MSG_WAITALL));
    SEE(put(s, "hello"));
    step("over");
}

BEHAVIOUR(options_congestion, "TCP_CONGESTION by name; names that are not");
void options_congestion::a() {
    const int s = connected();
    char name[16] = {};
    SEE(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    socklen_t len = sizeof name;
    SEE(getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    SEE(std::string(name));
    SEE(long(len));
    SEE(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "nonesuch", 8));
    SEE(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "", 0));
    step("over");
}
void options_congestion::b() { looks_on(); }

BEHAVIOUR(options_udp_messages,
          "IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, SO_TIMESTAMP: control messages of a datagram");
namespace {
std::string messages(int s) {
    char data[100], control[512];
    iovec iov{data, sizeof data};
    msghdr m = message_of(iov, control, sizeof control);
    if (recvmsg(s, &m, 0) < 0) return strerrorname_np(errno);
    std::string text = "flags " + std::to_string(m.msg_flags);
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        text += "; level " + std::to_string(c->cmsg_level) + " type " +
                std::to_string(c->cmsg_type) + " len " + std::to_string(c->cmsg_len);
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TTL)
            text += " ttl " + std::to_string(*reinterpret_cast<int*>(CMSG_DATA(c)));
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS)
            text += " tos " + std::to_string(*CMSG_DATA(c));
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_PKTINFO) {
            const auto* info = reinterpret_cast<in_pktinfo*>(CMSG_DATA(c));
            sockaddr_in to = at("any", 0);
            to.sin_addr = info->ipi_addr;
            text += " to " + shown(to);
            to.sin_addr = info->ipi_spec_dst;
            text += " here " + shown(to) + (info->ipi_ifindex > 1 ? " by an interface" : "");
        }
    }
    return text;
}
}  // namespace
void options_udp_messages::a() {
    const int s = udp_pair();
    SEE(set(s, IPPROTO_IP, IP_TTL, 41));
    SEE(set(s, IPPROTO_IP, IP_TOS, 0x20));
    step("ready");
    for (int i = 0; i < 6; i++) {
        SEE(put(s, "datagram"));
        step("next");
    }
}
void options_udp_messages::b() {
    const int s = udp_pair();
    step("ready");
    SEE(messages(s));
    SEE(set(s, IPPROTO_IP, IP_PKTINFO));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    step("next");
    SEE(messages(s));
    SEE(set(s, IPPROTO_IP, IP_RECVTOS));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMP));
    step("next");
    SEE(messages(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS));
    step("next");
    SEE(messages(s));
    SEE(set(s, IPPROTO_IP, IP_PKTINFO, 0));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL, 0));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    step("next");
    SEE(messages(s));
    on_ring(s);
    step("next");
    char data[100];
    SEE(recv(s, data, 4, 0));
    step("next");
}

BEHAVIOUR(options_control_room, "too little room for control messages: MSG_CTRUNC");
void options_control_room::a() {
    const int s = udp_pair();
    step("ready");
    SEE(put(s, "datagram"));
    SEE(put(s, "datagram"));
    step("over");
}
void options_control_room::b() {
    const int s = udp_pair();
    SEE(set(s, IPPROTO_IP, IP_PKTINFO));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    step("ready");
    for (const size_t room : {CMSG_SPACE(sizeof(in_pktinfo)), size_t(5)}) {
        char data[100], control[512];
        iovec iov{data, sizeof data};
        msghdr m = message_of(iov, control, room);
        SEE(recvmsg(s, &m, 0));
        SEE(long(m.msg_flags));
        SEE(long(m.msg_controllen));
    }
    step("over");
}

BEHAVIOUR(options_reuse_udp, "SO_REUSEADDR: a second socket on the same port", b_kernel);
void options_reuse_udp::a() {
    const int s = udp();
    SEE(set(s, SOL_SOCKET, SO_REUSEADDR));
    SEE(bind_to(s, "a"));
    on_ring(s);
    const int t = udp();
    SEE(bind_to(t, "a"));
    SEE(set(t, SOL_SOCKET, SO_REUSEADDR));
    SEE(bind_to(t, "a"));
    close(s);
    const int u = udp();
    SEE(bind_to(u, "a"));
    SEE(bind_to(u, "a", 1));
}
void options_reuse_udp::b() {}

BEHAVIOUR(options_peer_port, "SO_REUSEADDR and a port in TIME_WAIT: listen again at once");
void options_peer_port::a() {
    const int s = connected();
    SEE(rest(s));
    close(s);
    step("ended");
    step("listening again");
    const int t = dialled();
    SEE(got(t));
}
void options_peer_port::b() {
    const int s = connected();
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
    SEE(close(s));
    step("ended");
    const int l = tcp(SOCK_NONBLOCK);
    SEE(set(l, SOL_SOCKET, SO_REUSEADDR));
    SEE(bind_to(l, "any"));
    SEE(listen(l, 4));
    SEE(accept(l, nullptr, nullptr));
    nonblocking(l, false);
    step("listening again");
    SEE(put(accepted(l), "again"));
}
