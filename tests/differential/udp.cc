// Datagrams.
#include <linux/sockios.h>
#include <sys/uio.h>

#include "differential/datagram_words.h"

namespace {
// b in most of these: sends every datagram back to where it came from, until one says "end".
void echo() {
    const int s = udp_bound();
    step("bound");
    char buffer[65536];
    for (;;) {
        sockaddr_in from{};
        socklen_t len = sizeof from;
        const ssize_t n = recvfrom(s, buffer, sizeof buffer, 0, raw(from), &len);
        if (n == 3 && memcmp(buffer, "end", 3) == 0) return;
        if (n >= 0) sendto(s, buffer, size_t(n), 0, raw(from), len);
    }
}
int partnered() {
    const int s = udp_bound();
    step("bound");
    return s;
}
}  // namespace

SOLO(udp_fresh, "every call on a UDP socket that was never bound", a_kernel) {
    const int s = udp();
    SEE(ready(s));
    SEE(put(s, "x"));
    SEE(got(s, 10, MSG_DONTWAIT));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(shutdown(s, SHUT_RD));
    SEE(listen(s, 1));
    SEE(option(s, SOL_SOCKET, SO_TYPE));
    SEE(option(s, SOL_SOCKET, SO_PROTOCOL));
    SEE(option(s, SOL_SOCKET, SO_DOMAIN));
}

BEHAVIOUR(udp_unconnected, "sendto() and recvfrom(), names, sizes");
void udp_unconnected::a() {
    const int s = partnered();
    SEE(sent(s, "hello", "b"));
    SEE(taken(s));
    SEE(sent(s, "", "b"));
    SEE(until(s, POLLIN));
    SEE(ready(s));
    SEE(taken(s));
    SEE(sent(s, pattern(1400), "b"));
    SEE(taken(s));
    SEE(taken(s, 10, MSG_DONTWAIT));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(put(s, "nowhere"));
    SEE(sent(s, "end", "b"));
}
void udp_unconnected::b() { echo(); }

BEHAVIOUR(udp_autobind, "a socket that never bound gets a port with its first datagram");
void udp_autobind::a() {
    step("bound");
    const int s = udp();
    SEE(sent(s, "hello", "b"));
    on_ring(s);
    SEE(name_of(s));
    SEE(taken(s));
    SEE(sent(s, "end", "b"));
}
void udp_autobind::b() { echo(); }

BEHAVIOUR(udp_connected, "connect() fixes the peer: others are not heard, names are known");
void udp_connected::a() {
    const int s = partnered();
    SEE(connect_to(s, "b"));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(put(s, "one"));
    SEE(taken(s));
    SEE(sent(s, "elsewhere", "b", 5));  // an address given overrides
    const int stranger = udp_bound(1);
    SEE(sent(stranger, "stray", "a"));
    SEE(put(s, "two"));
    SEE(taken(s));
    SEE(taken(s, 10, MSG_DONTWAIT));
    SEE(connect_to(s, "b", 1));
    SEE(peer_of(s));
    SEE(connect_to(s, "b"));
    SEE(put(s, "end"));
}
void udp_connected::b() { echo(); }

BEHAVIOUR(udp_disconnect, "connect(AF_UNSPEC) dissolves the association");
void udp_disconnect::a() {
    const int s = partnered();
    SEE(connect_to(s, "b"));
    sockaddr_in nobody{};
    nobody.sin_family = AF_UNSPEC;
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(peer_of(s));
    SEE(name_of(s));
    SEE(put(s, "x"));
    SEE(sent(s, "still here", "b"));
    SEE(taken(s));
    SEE(sent(s, "end", "b"));
}
void udp_disconnect::b() { echo(); }

BEHAVIOUR(udp_refused, "an ICMP port unreachable becomes ECONNREFUSED on a connected socket, once");
void udp_refused::a() {
    const int s = partnered();
    SEE(connect_to(s, "b", 9));
    SEE(put(s, "x"));
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(got(s, 10, MSG_DONTWAIT));
    SEE(got(s, 10, MSG_DONTWAIT));
    SEE(put(s, "x"));
    SEE(until(s, POLLERR));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(put(s, "x"));
    SEE(until(s, POLLERR));
    SEE(put(s, "y"));
    SEE(sent(udp_bound(2), "end", "b"));
}
void udp_refused::b() { echo(); }

BEHAVIOUR(udp_truncation, "a datagram larger than the buffer: MSG_TRUNC, and the rest is gone");
void udp_truncation::a() {
    const int s = partnered();
    SEE(sent(s, "0123456789", "b"));
    SEE(until(s, POLLIN));
    SEE(taken(s, 4, MSG_PEEK));
    SEE(taken(s, 4, MSG_PEEK | MSG_TRUNC));
    char a[3], b[3];
    iovec in[] = {{a, 3}, {b, 3}};
    msghdr m{};
    m.msg_iov = in;
    m.msg_iovlen = 2;
    SEE(recvmsg(s, &m, 0));
    SEE(long(m.msg_flags));
    SEE(std::string(a, 3) + std::string(b, 3));
    SEE(taken(s, 4, MSG_DONTWAIT));
    SEE(sent(s, "abcdef", "b"));
    SEE(got(s, 2, MSG_TRUNC));
    SEE(sent(s, "abcdef", "b"));
    SEE(got(s, 0));
    SEE(got(s, 2, MSG_DONTWAIT));
    SEE(sent(s, "end", "b"));
}
void udp_truncation::b() { echo(); }

BEHAVIOUR(udp_sizes, "the largest datagram, one byte more, and larger than the MTU");
void udp_sizes::a() {
    const int s = partnered();
    SEE(sent(s, pattern(1472), "b"));
    SEE(taken(s));
    SEE(sent(s, pattern(1473), "b"));
    SEE(taken(s));
    SEE(sent(s, pattern(9000), "b"));
    SEE(taken(s, 10000));
    SEE(sent(s, pattern(65507), "b"));
    SEE(taken(s, 70000));
    SEE(sent(s, pattern(65508), "b"));
    SEE(sent(s, pattern(70000), "b"));
    SEE(set(s, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO));
    SEE(sent(s, pattern(1473), "b"));
    SEE(sent(s, pattern(1472), "b"));
    SEE(taken(s));
    SEE(sent(s, "end", "b"));
}
void udp_sizes::b() { echo(); }

BEHAVIOUR(udp_queue,
          "FIONREAD is the next datagram's size, datagrams keep their order and borders");
void udp_queue::a() {
    const int s = partnered();
    for (const char* word : {"first", "the second", "3"}) SEE(sent(s, word, "b"));
    step("sent");
    SEE(taken(s));
    step("seen");
}
void udp_queue::b() {
    const int s = partnered();
    step("sent");
    SEE(until(s, POLLIN));
    int n = -1;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(taken(s, 100, MSG_PEEK));
    SEE(taken(s));
    SEE(until(s, POLLIN));
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(taken(s));
    SEE(taken(s, 100, MSG_WAITALL));
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(ioctl(s, SIOCOUTQ, &n));
    SEE(long(n));
    sent(s, "answer", "a");
    step("seen");
}

BEHAVIOUR(udp_errors, "addresses and flags that sendto() refuses");
void udp_errors::a() {
    const int s = partnered();
    const sockaddr_in to = at("b", port());
    SEE(sendto(s, "x", 1, 0, raw(to), 4));
    SEE(sendto(s, "x", 1, 0, nullptr, sizeof to));
    SEE(sent(s, "x", "nowhere"));
    SEE(sendto(s, "x", 1, MSG_OOB, raw(to), sizeof to));
    sockaddr_in odd = to;
    odd.sin_port = 0;
    SEE(sendto(s, "x", 1, 0, raw(odd), sizeof odd));
    odd = to;
    odd.sin_family = AF_INET6;
    SEE(sendto(s, "x", 1, 0, raw(odd), sizeof odd));
    odd = to;
    odd.sin_addr.s_addr = INADDR_BROADCAST;
    SEE(sendto(s, "x", 1, 0, raw(odd), sizeof odd));
    SEE(sendto(s, nullptr, 10, 0, raw(to), sizeof to));
    SEE(got(s, 10, MSG_OOB | MSG_DONTWAIT));
    SEE(got(s, 10, MSG_ERRQUEUE | MSG_DONTWAIT));
    SEE(sendto(-1, "x", 1, 0, raw(to), sizeof to));
    SEE(sendto(STDIN_FILENO, "x", 1, 0, raw(to), sizeof to));
    SEE(sent(s, "end", "b"));
}
void udp_errors::b() { echo(); }

BEHAVIOUR(udp_bind_errors, "bind() refuses what is taken, not ours or bound already");
void udp_bind_errors::a() {
    const int s = partnered(), t = udp(), u = udp();
    SEE(bind_to(t, "a"));
    SEE(bind_to(t, "b", 1));
    SEE(bind_to(t, "any"));
    SEE(bind_to(s, "a", 1));
    SEE(name_of(t));
    SEE(set(u, SOL_SOCKET, SO_REUSEADDR));
    SEE(bind_to(u, "a"));
    SEE(bind_to(u, "any", 3));
    SEE(name_of(u));
    SEE(sent(u, "from any", "b"));
    SEE(taken(u));
    SEE(sent(s, "end", "b"));
}
void udp_bind_errors::b() { echo(); }

BEHAVIOUR(udp_second_address, "datagrams to and from a second address of the interface");
void udp_second_address::a() {
    const int s = partnered();
    step("ready");
    SEE(sent(s, "to the second", "b2"));
    SEE(taken(s));
    const int t = udp_bound(1, "a2");
    SEE(sent(t, "from the second", "b"));
    SEE(taken(t));
    const int u = udp_bound(2, "any");
    SEE(sent(u, "from any", "b"));
    SEE(taken(u));
    step("done");
}
void udp_second_address::b() {
    const int s = partnered(), t = udp_bound(0, "b2");
    step("ready");
    SEE(taken(t));
    SEE(sent(t, "from b2", "a"));
    for (int i = 0; i < 2; i++) {
        sockaddr_in from{};
        socklen_t len = sizeof from;
        char buffer[100];
        const ssize_t n = SEE(recvfrom(s, buffer, sizeof buffer, 0, raw(from), &len));
        SEE(shown(from));
        SEE(sendto(s, buffer, size_t(n), 0, raw(from), len));
    }
    step("done");
}

BEHAVIOUR(udp_timeouts, "SO_RCVTIMEO and O_NONBLOCK");
void udp_timeouts::a() {
    const int s = partnered();
    set_time(s, SO_RCVTIMEO, 120);
    const int64_t begin = milliseconds();
    SEE(taken(s));
    SEE(waited(begin, 120));
    nonblocking(s);
    SEE(taken(s));
    SEE(sent(s, "x", "b"));
    SEE(until(s, POLLIN));
    SEE(taken(s));
    SEE(taken(s));
    SEE(sent(s, "end", "b"));
}
void udp_timeouts::b() { echo(); }

BEHAVIOUR(udp_mmsg, "sendmmsg() and recvmmsg(), WAITFORONE, a timeout");
void udp_mmsg::a() {
    const int s = udp_pair();
    char text[3][4] = {"one", "two", "tri"};
    iovec out[3];
    mmsghdr m[3]{};
    for (int i = 0; i < 3; i++) {
        out[i] = {text[i], 3};
        m[i].msg_hdr.msg_iov = &out[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(sendmmsg(s, m, 3, 0));
    SEE(long(m[2].msg_len));
    step("sent");
    SEE(sendmmsg(s, m, 0, 0));
    step("seen");
    SEE(got(s));
}
void udp_mmsg::b() {
    const int s = udp_pair();
    step("sent");
    char text[4][8] = {};
    iovec in[4];
    mmsghdr m[4]{};
    for (int i = 0; i < 4; i++) {
        in[i] = {text[i], 8};
        m[i].msg_hdr.msg_iov = &in[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(recvmmsg(s, m, 2, 0, nullptr));
    SEE(std::string(text[1]));
    SEE(recvmmsg(s, m, 4, MSG_WAITFORONE, nullptr));
    SEE(std::string(text[0]));
    SEE(long(m[0].msg_len));
    SEE(recvmmsg(s, m, 4, MSG_DONTWAIT, nullptr));
    SEE(recvmmsg(s, m, 0, 0, nullptr));
    timespec bad{0, 2000000000};
    SEE(recvmmsg(s, m, 1, MSG_DONTWAIT, &bad));
    put(s, "done");
    step("seen");
}

BEHAVIOUR(udp_shutdown, "shutdown() of a connected socket: reads end, writes fail");
void udp_shutdown::a() {
    const int s = udp_pair();
    SEE(shutdown(s, SHUT_WR));
    SEE(put(s, "x"));
    SEE(polled(s));
    SEE(shutdown(s, SHUT_RD));
    SEE(got(s));
    SEE(polled(s));
    step("shut");
    const int t = udp_bound(1);
    SEE(shutdown(t, SHUT_RDWR));
}
void udp_shutdown::b() {
    const int s = udp_pair();
    step("shut");
    SEE(put(s, "x"));
}

BEHAVIOUR(udp_close_unread, "datagrams that nobody read vanish; the port is free again");
void udp_close_unread::a() {
    const int s = udp_pair();
    SEE(put(s, "one"));
    SEE(put(s, "two"));
    step("sent");
    step("bound again");
    SEE(put(s, "three"));
    SEE(got(s));
}
void udp_close_unread::b() {
    int s = udp_pair();
    step("sent");
    SEE(until(s, POLLIN));
    close(s);
    s = udp_bound();
    step("bound again");
    SEE(taken(s));
    SEE(sent(s, "yes", "a"));
}
