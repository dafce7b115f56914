// Every call in every state of a TCP socket: what bind(), connect(), listen(), accept(), shutdown(), send() and recv() answer.
#include <sys/uio.h>

#include "differential/behaviour.h"

namespace {
// The calls that change nothing when they fail, one after the other.
void every_call(int s) {
    SEE(accept4(s, nullptr, nullptr, SOCK_NONBLOCK));
    SEE(got(s, 4, MSG_DONTWAIT));
    SEE(got(s, 4, MSG_DONTWAIT | MSG_PEEK));
    SEE(got(s, 0, MSG_DONTWAIT));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(option(s, SOL_SOCKET, SO_ACCEPTCONN));
    int n = -1;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(ready(s));
    SEE(state_of(s));
}
void stays() {
    connected();
    step("over");
}
// The first attempt of a program opens a ring, which takes its time: a thread that sleeps afterwards waits for an answer.
void warm_up() {
    const int s = tcp(SOCK_NONBLOCK);
    connect_to(s, "silent", 1);
    on_ring(s);
}
}  // namespace

SOLO(state_fresh, "a fresh socket", a_kernel) {
    const int s = tcp();
    SEE(accept4(s, nullptr, nullptr, SOCK_NONBLOCK));
    SEE(got(s, 4, MSG_DONTWAIT));
    SEE(got(s, 4, MSG_OOB));
    SEE(put(s, "x"));
    SEE(put(s, ""));
    SEE(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    SEE(shutdown(s, SHUT_RD));
    SEE(shutdown(s, SHUT_WR));
    SEE(shutdown(s, SHUT_RDWR));
    SEE(shutdown(s, -1));
    SEE(shutdown(s, 3));
    SEE(ready(s));
    SEE(state_of(s));
    SEE(read(s, nullptr, 0));
}

SOLO(state_listening, "a listener") {
    const int l = listening();
    on_ring(l);
    SEE(bind_any(l, "any"));
    SEE(accept4(l, nullptr, nullptr, 0x12345));
    SEE(got(l, 4, MSG_DONTWAIT));
    SEE(got(l, 4, MSG_OOB));
    SEE(put(l, "x"));
    SEE(shutdown(l, SHUT_WR));
    SEE(shutdown(l, 9));
    SEE(state_of(l));
    sockaddr_in nobody{};
    SEE(connect_to(l, "b"));
    SEE(ready(l));
    SEE(connect(l, raw(nobody), sizeof nobody));
    SEE(ready(l));
    SEE(name_of(l));
}

BEHAVIOUR(state_established, "a connection at rest");
void state_established::a() {
    const int s = connected();
    SEE(bind_any(s, "any"));
    SEE(listen(s, 1));
    every_call(s);
    SEE(shutdown(s, 9));
    SEE(shutdown(s, -1));
    SEE(connect_to(s, "b"));
    SEE(put(s, ""));
    step("over");
}
void state_established::b() { state_established::a(); }

BEHAVIOUR(state_fin_wait, "after SHUT_WR, the peer still open");
void state_fin_wait::a() {
    const int s = connected();
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_FIN_WAIT2));
    SEE(bind_any(s, "any"));
    SEE(listen(s, 1));
    every_call(s);
    SEE(put(s, "x"));
    SEE(put(s, ""));
    SEE(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    SEE(connect_to(s, "b"));
    SEE(shutdown(s, SHUT_WR));
    SEE(shutdown(s, SHUT_RD));
    SEE(ready(s));
    SEE(got(s));
    SEE(shutdown(s, SHUT_RDWR));
    step("over");
}
void state_fin_wait::b() { stays(); }

BEHAVIOUR(state_close_wait, "the peer's FIN was read");
void state_close_wait::a() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    every_call(s);
    SEE(got(s));
    SEE(put(s, "still"));
    SEE(put(s, ""));
    SEE(connect_to(s, "b"));
    SEE(shutdown(s, SHUT_RD));
    SEE(ready(s));
    step("over");
}
void state_close_wait::b() {
    const int s = connected();
    shutdown(s, SHUT_WR);
    step("fin");
    SEE(got(s, 5, MSG_WAITALL));
    step("over");
}

BEHAVIOUR(state_closed_by_both, "both have closed their direction");
void state_closed_by_both::a() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_CLOSE));
    every_call(s);
    SEE(put(s, "x"));
    SEE(shutdown(s, SHUT_RDWR));
    step("over");
}
void state_closed_by_both::b() {
    const int s = connected();
    shutdown(s, SHUT_WR);
    step("fin");
    SEE(until(s, POLLRDHUP));
    step("over");
}

BEHAVIOUR(state_closed_binds, "what bind() and listen() say once the connection has ended");
void state_closed_binds::a() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_CLOSE));
    SEE(bind_any(s, "any"));
    SEE(bind_any(s, "any"));
    SEE(listen(s, 1));
    step("over");
}
void state_closed_binds::b() {
    const int s = connected();
    shutdown(s, SHUT_WR);
    SEE(bind_any(s, "any"));
    step("fin");
    SEE(until(s, POLLHUP));
    SEE(until_state(s, TCP_CLOSE));
    SEE(bind_any(s, "any"));
    SEE(bind_any(s, "any"));
    SEE(listen(s, 1));
    step("over");
}

BEHAVIOUR(state_closed_connects, "a socket whose connection has ended connects again by AF_UNSPEC");
void state_closed_connects::a() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_CLOSE));
    step("again");
    SEE(connect_to(s, "b", 1));
    sockaddr_in nobody{};
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(connect_to(s, "b", 1));
    SEE(peer_of(s));
    SEE(put(s, "a second life"));
    step("over");
}
void state_closed_connects::b() {
    const int s = connected();
    shutdown(s, SHUT_WR);
    step("fin");
    SEE(rest(s));
    const int l = listening(1);
    step("again");
    const int c = accept(l, nullptr, nullptr);
    SEE(got(c));
    step("over");
}

BEHAVIOUR(state_reset, "a connection that was reset");
void state_reset::a() {
    const int s = connected();
    step("reset");
    SEE(until(s, POLLERR));
    SEE(shutdown(s, SHUT_RD));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(got(s, 0, MSG_DONTWAIT));
    SEE(got(s, 4, MSG_PEEK));
    SEE(got(s, 4));
    SEE(got(s, 4, MSG_OOB));
    SEE(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    SEE(put(s, ""));
    SEE(state_of(s));
}
void state_reset::b() {
    const int s = connected();
    linger_for(s, 0);
    step("reset");
    close(s);
}

BEHAVIOUR(state_reset_connects, "a socket whose connection was reset connects again by AF_UNSPEC");
void state_reset_connects::a() {
    const int s = connected();
    step("reset");
    SEE(until(s, POLLERR));
    SEE(got(s));
    step("again");
    SEE(connect_to(s, "b", 1));
    sockaddr_in nobody{};
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(connect_to(s, "b", 1));
    SEE(put(s, "a second life"));
    step("over");
}
void state_reset_connects::b() {
    const int s = connected();
    linger_for(s, 0);
    step("reset");
    close(s);
    const int l = listening(1);
    step("again");
    SEE(got(accept(l, nullptr, nullptr)));
    step("over");
}

SOLO(state_opening, "while a connection is being made") {
    const int s = tcp(SOCK_NONBLOCK);
    SEE(connect_to(s, "silent"));
    on_ring(s);
    SEE(bind_any(s, "any"));
    SEE(accept4(s, nullptr, nullptr, SOCK_NONBLOCK));
    SEE(got(s, 0));
    SEE(got(s, 4, MSG_OOB));
    SEE(put(s, ""));
    SEE(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    int n = -1;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(ioctl(s, TIOCOUTQ, &n));
    SEE(state_of(s));
    SEE(ready(s));
    sockaddr_in nobody{};
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(state_of(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
}

SOLO(state_opening_shut, "shutdown() while a connection is being made, each way") {
    for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
        const int s = tcp(SOCK_NONBLOCK);
        SEE(connect_to(s, "silent"));
        on_ring(s);
        SEE(shutdown(s, how));
        SEE(state_of(s));
        SEE(got(s));
        SEE(put(s, "x"));
        SEE(option(s, SOL_SOCKET, SO_ERROR));
        SEE(ready(s));
        close(s);
    }
}

SOLO(state_opening_closed, "close() while another thread is in connect()") {
    warm_up();
    const int s = tcp();
    set_time(s, SO_SNDTIMEO, 400);
    Asleep opener([&] { return connect_to(s, "silent") < 0 ? strerrorname_np(errno) : "made"; });
    on_ring(s);
    SEE(close(s));
    SEE(opener.wakes());
    SEE(close(s));
}

SOLO(state_opening_woken, "shutdown() ends the connect() of another thread") {
    warm_up();
    const int s = tcp();
    Asleep opener([&] { return connect_to(s, "silent") < 0 ? strerrorname_np(errno) : "made"; });
    on_ring(s);
    SEE(shutdown(s, SHUT_RDWR));
    SEE(opener.wakes());
    SEE(state_of(s));
}

BEHAVIOUR(shut_read_then_data, "SHUT_RD, then data: read all the same; SHUT_RD again");
void shut_read_then_data::a() {
    const int s = connected();
    SEE(shutdown(s, SHUT_RD));
    step("shut");
    SEE(until_bytes(s, 4));
    SEE(polled(s));
    SEE(got(s, 2, MSG_PEEK));
    SEE(got(s, 2));
    SEE(shutdown(s, SHUT_RD));
    SEE(got(s, 10, MSG_WAITALL));
    SEE(got(s, 10));
    step("over");
}
void shut_read_then_data::b() {
    const int s = connected();
    step("shut");
    SEE(put(s, "data"));
    step("over");
    SEE(put(s, "more"));
}

BEHAVIOUR(shut_write_with_data, "SHUT_WR with much that is not sent: all of it and the FIN arrive");
void shut_write_with_data::a() {
    const int s = connected();
    SEE(put(s, pattern(2000000)));
    SEE(shutdown(s, SHUT_WR));
    SEE(got(s));
}
void shut_write_with_data::b() {
    const int s = connected();
    SEE(until(s, POLLIN));
    SEE(rest(s));
    SEE(put(s, "thanks"));
}

BEHAVIOUR(linger_time_out,
          "SO_LINGER: close() gives up after its time when the peer does not read");
void linger_time_out::a() {
    const int s = connected();
    SEE(set(s, SOL_SOCKET, SO_SNDBUF, 1 << 20));
    fill(s);
    nonblocking(s, false);
    linger_for(s, 1);
    const int64_t begin = milliseconds();
    SEE(close(s));
    SEE(waited(begin, 1000));
    step("closed");
    step("over");
}
void linger_time_out::b() {
    const int s = connected();
    step("closed");
    linger_for(s, 0);
    step("over");
}

BEHAVIOUR(linger_nonblocking, "SO_LINGER on a non-blocking socket");
void linger_nonblocking::a() {
    const int s = connected();
    nonblocking(s);
    linger_for(s, 5);
    SEE(put(s, "last words"));
    SEE(close(s));
    step("closed");
}
void linger_nonblocking::b() {
    const int s = connected();
    step("closed");
    SEE(rest(s));
}

BEHAVIOUR(linger_after_shutdown, "SO_LINGER 0 after SHUT_WR and after the peer's FIN");
void linger_after_shutdown::a() {
    const int s = connected(), t = connected(1);
    SEE(shutdown(s, SHUT_WR));
    linger_for(s, 0);
    SEE(close(s));
    step("one");
    SEE(until(t, POLLRDHUP));
    linger_for(t, 0);
    SEE(close(t));
    step("two");
}
void linger_after_shutdown::b() {
    const int s = connected(), t = connected(1);
    shutdown(t, SHUT_WR);
    step("one");
    SEE(until(s, POLLERR));
    SEE(option(s, SOL_SOCKET, SO_ERROR) != "0");
    step("two");
    SEE(until(t, POLLHUP));
    SEE(state_of(t));
}

BEHAVIOUR(linger_of_duplicates, "SO_LINGER 0 with two descriptors: only the last close() resets");
void linger_of_duplicates::a() {
    const int s = connected(), d = dup(s);
    linger_for(s, 0);
    SEE(close(s));
    SEE(put(d, "alive"));
    step("first");
    SEE(close(d));
}
void linger_of_duplicates::b() {
    const int s = connected();
    step("first");
    SEE(until(s, POLLERR));
    SEE(got(s));
    SEE(got(s));
}

BEHAVIOUR(bind_corners, "bind() to port 0, to any, twice, with wrong lengths; connect() after it");
void bind_corners::a() {
    const int s = tcp(), t = tcp(), u = tcp();
    SEE(bind_any(s, "a"));
    SEE(name_of(s));
    sockaddr_in here = at("a", port(2));
    SEE(bind(t, raw(here), sizeof here - 1));
    SEE(bind(t, raw(here), 0));
    SEE(bind(t, raw(here), socklen_t(-1)));
    here.sin_family = AF_UNSPEC;
    SEE(bind(t, raw(here), sizeof here));
    here.sin_addr.s_addr = INADDR_ANY;
    SEE(bind(t, raw(here), sizeof here));
    SEE(name_of(t));
    sockaddr_in multicast = at("any", port(3));
    multicast.sin_addr.s_addr = inet_addr("224.0.0.5");
    SEE(bind(u, raw(multicast), sizeof multicast));
    multicast.sin_addr.s_addr = INADDR_BROADCAST;
    SEE(bind(u, raw(multicast), sizeof multicast));
    step("listening");
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(name_of(s));
    SEE(connect_to(t, "b"));
    SEE(name_of(t));
}
void bind_corners::b() {
    const int l = listening();
    on_ring(l);
    step("listening");
    accept(l, nullptr, nullptr);
    accept(l, nullptr, nullptr);
}

SOLO(connect_corners, "addresses that connect() refuses, in which order it looks", a_kernel) {
    const int s = tcp();
    sockaddr_in to = at("b", port());
    SEE(connect(s, nullptr, sizeof to));
    SEE(connect(s, raw(to), 0));
    SEE(connect(s, raw(to), 1));
    SEE(connect(s, raw(to), sizeof to - 1));
    SEE(connect(s, raw(to), socklen_t(-1)));
    SEE(connect(s, raw(to), 1000));
    to.sin_family = AF_INET6;
    SEE(connect(s, raw(to), sizeof to));
    to.sin_family = AF_UNIX;
    SEE(connect(s, raw(to), sizeof to));
    to = at("b", 0);
    to.sin_addr.s_addr = inet_addr("224.0.0.5");
    SEE(connect(s, raw(to), sizeof to));
    to.sin_addr.s_addr = INADDR_BROADCAST;
    SEE(connect(s, raw(to), sizeof to));
    to.sin_family = AF_UNSPEC;
    SEE(connect(s, raw(to), sizeof to));
    SEE(connect(s, raw(to), 2));
    SEE(state_of(s));
}

SOLO(connect_port_zero, "connect() to port 0") {
    const int s = tcp();
    const sockaddr_in to = at("b", 0);
    SEE(connect(s, raw(to), sizeof to));
    SEE(ready(s));
    const int t = tcp(SOCK_NONBLOCK);
    SEE(connect_to(t, "b", 9));
    on_ring(t);
}

BEHAVIOUR(listen_corners,
          "listen() with odd backlogs, twice, after connect(); accept() with odd arguments");
void listen_corners::a() {
    const int s = dialled();
    SEE(listen(s, 1));
    step("over");
}
void listen_corners::b() {
    const int l = listening();
    for (const int backlog : {0, -1, 1 << 30, 5}) SEE(listen(l, backlog));
    const int c = accepted(l);
    SEE(listen(c, 1));
    sockaddr_in name{};
    socklen_t len = socklen_t(-1);
    SEE(accept4(l, raw(name), &len, SOCK_NONBLOCK | 0x77));
    SEE(accept(c, nullptr, nullptr));
    SEE(accept(-1, nullptr, nullptr));
    SEE(accept(STDIN_FILENO, nullptr, nullptr));
    step("over");
}

BEHAVIOUR(listen_anew, "a listener is closed and made anew at once on the same port");
void listen_anew::a() {
    for (int i = 0; i < 3; i++) {
        const int s = dialled();
        SEE(got(s));
        close(s);
    }
}
void listen_anew::b() {
    for (int i = 0; i < 3; i++) {
        const int l = listening();
        const int c = accepted(l);
        close(l);
        SEE(put(c, "number " + std::to_string(i)));
        SEE(rest(c));
        close(c);
    }
}

BEHAVIOUR(accept_nonblocking_race, "accept() after the connection went away again");
void accept_nonblocking_race::a() {
    const int s = dialled();
    linger_for(s, 0);
    close(s);
    step("gone");
    step("over");
}
void accept_nonblocking_race::b() {
    const int l = listening();
    step("listening");
    SEE(until(l, POLLIN));
    step("gone");
    nonblocking(l);
    const int c = accept(l, nullptr, nullptr);
    SEE(c >= 0);
    SEE(until(c, POLLERR));
    SEE(got(c));
    SEE(accept(l, nullptr, nullptr));
    on_ring(l);
    step("over");
}

BEHAVIOUR(accept_two_threads, "two threads in accept(): each gets one connection");
void accept_two_threads::a() {
    step("asleep");
    const int s = tcp(), t = tcp();
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(connect_to(t, "b"));
    SEE(got(s));
    SEE(got(t));
}
void accept_two_threads::b() {
    const int l = listening();
    on_ring(l);
    const auto serves = [l] {
        const int c = accept(l, nullptr, nullptr);
        put(c, "served");
        close(c);
    };
    Thread one(serves), two(serves);
    one.sleeps();
    two.sleeps();
    step("asleep");
    one.join();
    two.join();
}

BEHAVIOUR(accept_beside_poll, "one thread in poll(), one in accept() of the same listener");
void accept_beside_poll::a() {
    step("asleep");
    const int s = tcp();
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(got(s));
}
void accept_beside_poll::b() {
    const int l = listening();
    on_ring(l);
    std::string seen;
    Thread poller([&] { seen = polled(l, POLLRDHUP | POLLPRI, 300); });
    Thread server([l] { put(accept(l, nullptr, nullptr), "served"); });
    poller.sleeps();
    server.sleeps();
    step("asleep");
    server.join();
    poller.join();
    SEE(seen);
}
