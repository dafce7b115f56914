// Opening connections.
#include "differential/behaviour.h"

SOLO(tcp_fresh, "every call on a TCP socket that was never connected") {
    const int s = tcp();
    SEE(ready(s));
    SEE(put(s, "x"));
    SEE(got(s));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(shutdown(s, SHUT_WR));
    SEE(shutdown(s, 7));
    SEE(accept(s, nullptr, nullptr));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(connect_to(s, "b", 9));
    on_ring(s);
}

BEHAVIOUR(tcp_connect_blocking, "connect() waits for the peer and then knows both names");
void tcp_connect_blocking::a() {
    const int s = tcp();
    step("listening");
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(ready(s));
    SEE(connect_to(s, "b"));
    SEE(connect_to(s, "b", 1));
    SEE(listen(s, 5));
    SEE(bind_any(s, "a"));
}
void tcp_connect_blocking::b() {
    const int c = accepted(listening());
    SEE(name_of(c));
    SEE(peer_of(c));
    SEE(ready(c));
    SEE(connect_to(c, "a"));
    SEE(listen(c, 5));
    SEE(accept(c, nullptr, nullptr));
}

BEHAVIOUR(tcp_connect_nonblocking, "EINPROGRESS, writable when made, SO_ERROR 0, then EISCONN");
void tcp_connect_nonblocking::a() {
    const int s = tcp(SOCK_NONBLOCK);
    step("listening");
    SEE(connect_to(s, "b"));
    SEE(until(s, POLLOUT));
    on_ring(s);
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(connect_to(s, "b"));
    SEE(connect_to(s, "b"));
    SEE(name_of(s));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "hello"));
}
void tcp_connect_nonblocking::b() {
    const int c = accepted(listening());
    SEE(got(c, 5, MSG_WAITALL));
}

SOLO(tcp_connect_already, "a second connect() while the first is being made") {
    const int s = tcp(SOCK_NONBLOCK);
    SEE(connect_to(s, "silent"));
    on_ring(s);
    SEE(connect_to(s, "silent"));
    SEE(connect_to(s, "b"));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "x"));
    SEE(peer_of(s));
    SEE(name_of(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(listen(s, 1));
}

SOLO(tcp_connect_refused, "ECONNREFUSED is told once; the socket can be used again") {
    const int s = tcp();
    SEE(connect_to(s, "b", 9));
    on_ring(s);
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
    SEE(connect_to(s, "b", 8));
    SEE(put(s, "x"));
    SEE(got(s));
}

SOLO(tcp_connect_refused_poll, "a refused connect() that poll() tells of") {
    const int s = tcp(SOCK_NONBLOCK);
    SEE(connect_to(s, "b", 9));
    SEE(until(s, POLLERR));
    on_ring(s);
    SEE(ready(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "x"));
}

SOLO(tcp_connect_refused_again, "a refused connect() told by the next connect()") {
    const int s = tcp(SOCK_NONBLOCK);
    SEE(connect_to(s, "b", 9));
    SEE(until(s, POLLHUP));
    on_ring(s);
    SEE(connect_to(s, "b", 9));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(connect_to(s, "b", 9));
    SEE(until(s, POLLHUP));
    SEE(got(s));
    SEE(got(s));
}

SOLO(tcp_connect_user_timeout, "TCP_USER_TIMEOUT ends an attempt that nobody answers") {
    const int s = tcp();
    SEE(set(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 1500));
    const int64_t begin = milliseconds();
    SEE(connect_to(s, "silent"));
    on_ring(s);
    SEE(waited(begin, 1500));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
}

SOLO(tcp_connect_syncnt, "TCP_SYNCNT 1: one repetition of the SYN, then ETIMEDOUT") {
    const int s = tcp();
    SEE(set(s, IPPROTO_TCP, TCP_SYNCNT, 1));
    const int64_t begin = milliseconds();
    SEE(connect_to(s, "silent"));
    on_ring(s);
    SEE(waited(begin, 2900));
}

SOLO(tcp_connect_sndtimeo, "SO_SNDTIMEO bounds connect(), which goes on afterwards") {
    const int s = tcp();
    set_time(s, SO_SNDTIMEO, 200);
    const int64_t begin = milliseconds();
    SEE(connect_to(s, "silent"));
    SEE(waited(begin, 200));
    on_ring(s);
    SEE(connect_to(s, "silent"));
    SEE(ready(s));
}

SOLO(tcp_connect_unreachable, "no route: ENETUNREACH at once", a_kernel) {
    const int s = tcp();
    SEE(connect_to(s, "nowhere"));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
    SEE(name_of(s));
}

SOLO(tcp_connect_loopback, "connections inside the namespace stay with the kernel and work",
     a_kernel) {
    const int l = tcp();
    SEE(bind_to(l, "lo"));
    SEE(listen(l, 4));
    const int s = tcp();
    SEE(connect_to(s, "lo"));
    on_kernel(s);
    const int c = accept(l, nullptr, nullptr);
    SEE(put(s, "inside"));
    SEE(got(c));
    SEE(peer_of(s));
    const int t = tcp();
    SEE(bind_to(t, "a", 1));
    SEE(connect_to(t, "a", 1));  // to itself: simultaneous open
    on_kernel(t);
    SEE(put(t, "me"));
    SEE(got(t));
}

SOLO(tcp_connect_bad_address, "families, lengths and addresses that connect() refuses", a_kernel) {
    const int s = tcp();
    sockaddr_in to = at("b", port());
    SEE(connect(s, raw(to), 4));
    SEE(connect(s, raw(to), sizeof to - 1));
    SEE(connect(s, nullptr, sizeof to));
    to.sin_family = AF_INET6;
    SEE(connect(s, raw(to), sizeof to));
    to.sin_family = 99;
    SEE(connect(s, raw(to), sizeof to));
    to.sin_family = AF_UNSPEC;
    SEE(connect(s, raw(to), sizeof to));
}

BEHAVIOUR(tcp_connect_bound,
          "connect() from a bound address and port, and from a second address of the interface");
void tcp_connect_bound::a() {
    const int s = tcp(), t = tcp();
    SEE(bind_to(s, "a", 5));
    SEE(bind_any(t, "a2"));
    step("listening");
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(name_of(s));
    step("first");
    SEE(connect_to(t, "b"));
    on_ring(t);
    SEE(name_of(t));
}
void tcp_connect_bound::b() {
    const int l = listening();
    const int c = accepted(l);
    SEE(peer_of(c));
    step("first");
    const int d = accept(l, nullptr, nullptr);
    SEE(peer_of(d));
}

BEHAVIOUR(tcp_disconnect,
          "connect(AF_UNSPEC) ends a connection; the socket can be connected again");
void tcp_disconnect::a() {
    const int s = dialled();
    sockaddr_in nobody{};
    nobody.sin_family = AF_UNSPEC;
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(peer_of(s));
    SEE(put(s, "x"));
    SEE(got(s));
    step("disconnected");
    SEE(connect_to(s, "b"));
    SEE(put(s, "again"));
}
void tcp_disconnect::b() {
    const int l = listening();
    const int c = accepted(l);
    SEE(until(c, POLLHUP));
    SEE(got(c));
    SEE(got(c));
    step("disconnected");
    const int d = accept(l, nullptr, nullptr);
    SEE(got(d));
}

SOLO(tcp_connect_no_neighbour,
     "nobody has the address: EHOSTUNREACH after the neighbour was asked for") {
    const int s = tcp();
    SEE(connect_to(s, "absent"));
    on_ring(s);
    SEE(option(s, SOL_SOCKET, SO_ERROR));
}
