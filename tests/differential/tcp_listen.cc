// Binding, listening, accepting.
#include <sys/resource.h>

#include <algorithm>

#include "differential/behaviour.h"

SOLO(listen_again, "a port that was listened on is free when close() returns") {
    for (int i = 0; i < 20; i++) {
        const int l = tcp();
        SEE(set(l, SOL_SOCKET, SO_REUSEADDR));
        SEE(bind_to(l, "a"));
        SEE(::listen(l, 8));
        if (i == 19) nonblocking(l);
        if (i == 19) SEE(accept(l, nullptr, nullptr));
        if (i == 19) on_ring(l);
        SEE(close(l));
    }
}

SOLO(tcp_bind_errors, "what bind() refuses", a_kernel) {
    const int s = tcp(), t = tcp(), u = tcp();
    SEE(bind_to(s, "a"));
    SEE(bind_to(t, "a"));     // EADDRINUSE
    SEE(bind_to(s, "a", 1));  // bound already
    SEE(bind_to(t, "b"));     // not ours
    SEE(name_of(t));
    const sockaddr_in here = at("a", port(2));
    SEE(bind(u, raw(here), 8));
    SEE(bind(u, nullptr, sizeof here));
    sockaddr_in odd = here;
    odd.sin_family = AF_INET6;
    SEE(bind(u, raw(odd), sizeof odd));
    SEE(bind(-1, raw(here), sizeof here));
    SEE(bind(STDIN_FILENO, raw(here), sizeof here));
    SEE(set(u, SOL_SOCKET, SO_REUSEADDR));
    SEE(bind_to(u, "any"));  // the other has no SO_REUSEADDR
    SEE(bind_to(u, "any", 2));
    SEE(name_of(u));
}

SOLO(tcp_listen_states, "listen() on bound, unbound, listening and twice bound sockets") {
    const int s = listening();
    on_ring(s);
    SEE(listen(s, 1));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(ready(s));
    SEE(put(s, "x"));
    SEE(got(s));
    SEE(connect_to(s, "b"));
    SEE(shutdown(s, SHUT_WR));
    SEE(option(s, SOL_SOCKET, SO_ACCEPTCONN));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    const int t = tcp();
    set(t, SOL_SOCKET, SO_REUSEADDR);
    SEE(bind_to(t, "any"));
    const int u = tcp();
    SEE(listen(u, 5));  // chooses a port
    SEE(name_of(u));
}

BEHAVIOUR(tcp_accept_flags, "accept4() flags and addresses");
void tcp_accept_flags::a() {
    for (int i = 0; i < 5; i++) {
        const int s = dialled();
        step("accepted");
        close(s);
    }
}
void tcp_accept_flags::b() {
    const int l = listening();
    for (int flags : std::initializer_list<int>{0, SOCK_NONBLOCK, SOCK_CLOEXEC,
                                                SOCK_NONBLOCK | SOCK_CLOEXEC, 1 << 3}) {
        step("listening");
        until(l, POLLIN);
        sockaddr_in peer{};
        socklen_t len = sizeof peer;
        int c = SEE(accept4(l, raw(peer), &len, flags)) < 0 ? accept(l, raw(peer), &len) : 4;
        on_ring(c);
        SEE(shown(peer));
        SEE(long(len));
        SEE(fcntl(c, F_GETFL) & O_NONBLOCK);
        SEE(fcntl(c, F_GETFD));
        step("accepted");
        close(c);
    }
    socklen_t negative = socklen_t(-1);
    sockaddr_in peer{};
    nonblocking(l);
    SEE(accept(l, raw(peer), &negative));
    SEE(accept(l, nullptr, nullptr));
    SEE(accept(-1, nullptr, nullptr));
    SEE(accept(STDIN_FILENO, nullptr, nullptr));
    const int u = udp();
    SEE(accept(u, nullptr, nullptr));
}

BEHAVIOUR(tcp_accept_short_name, "accept() and getpeername() with too little room for the address");
void tcp_accept_short_name::a() {
    const int s = dialled();
    sockaddr_in name{};
    socklen_t len = 4;
    SEE(getpeername(s, raw(name), &len));
    SEE(long(len));
    SEE(long(name.sin_addr.s_addr));
    len = socklen_t(-5);
    SEE(getsockname(s, raw(name), &len));
    SEE(getsockname(s, nullptr, nullptr));
}
void tcp_accept_short_name::b() {
    const int l = listening();
    step("listening");
    sockaddr_in name{};
    socklen_t len = 6;
    const int c = accept(l, raw(name), &len);
    on_ring(c);
    SEE(long(len));
    SEE(long(name.sin_addr.s_addr));
}

BEHAVIOUR(tcp_accept_inherits, "an accepted socket has its listener's options, not its flags");
void tcp_accept_inherits::a() {
    const int s = dialled();
    step("looked");
    SEE(got(s));
}
void tcp_accept_inherits::b() {
    const int l = listening();
    SEE(set(l, IPPROTO_TCP, TCP_NODELAY));
    SEE(set(l, SOL_SOCKET, SO_KEEPALIVE));
    SEE(set(l, IPPROTO_TCP, TCP_KEEPIDLE, 77));
    SEE(set(l, IPPROTO_TCP, TCP_KEEPCNT, 5));
    SEE(set(l, SOL_SOCKET, SO_RCVBUF, 100000));
    SEE(set(l, SOL_SOCKET, SO_SNDBUF, 90000));
    SEE(set(l, IPPROTO_TCP, TCP_USER_TIMEOUT, 12345));
    SEE(set(l, IPPROTO_IP, IP_TOS, 0x10));
    SEE(set(l, IPPROTO_IP, IP_TTL, 33));
    SEE(set(l, SOL_SOCKET, SO_RCVLOWAT, 3));
    linger_for(l, 3);
    set_time(l, SO_RCVTIMEO, 1500);
    fcntl(l, F_SETFD, FD_CLOEXEC);
    nonblocking(l);
    step("listening");
    until(l, POLLIN);
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    SEE(option(c, IPPROTO_TCP, TCP_NODELAY));
    SEE(option(c, SOL_SOCKET, SO_KEEPALIVE));
    SEE(option(c, IPPROTO_TCP, TCP_KEEPIDLE));
    SEE(option(c, IPPROTO_TCP, TCP_KEEPCNT));
    SEE(option(c, SOL_SOCKET, SO_RCVBUF));
    SEE(option(c, SOL_SOCKET, SO_SNDBUF));
    SEE(option(c, IPPROTO_TCP, TCP_USER_TIMEOUT));
    SEE(option(c, IPPROTO_IP, IP_TOS));
    SEE(option(c, IPPROTO_IP, IP_TTL));
    SEE(option(c, SOL_SOCKET, SO_REUSEADDR));
    SEE(option(c, SOL_SOCKET, SO_RCVLOWAT));
    SEE(option(c, SOL_SOCKET, SO_ACCEPTCONN));
    SEE(option(c, SOL_SOCKET, SO_LINGER));
    SEE(option(c, SOL_SOCKET, SO_RCVTIMEO));
    SEE(fcntl(c, F_GETFL) & O_NONBLOCK);
    SEE(fcntl(c, F_GETFD));
    put(c, "done");
    step("looked");
}

BEHAVIOUR(tcp_accept_timeout, "SO_RCVTIMEO bounds accept()");
void tcp_accept_timeout::a() {
    step("waited");
    const int s = dialled();
    SEE(got(s));
}
void tcp_accept_timeout::b() {
    const int l = listening();
    set_time(l, SO_RCVTIMEO, 150);
    const int64_t begin = milliseconds();
    SEE(accept(l, nullptr, nullptr));
    SEE(waited(begin, 150));
    set_time(l, SO_RCVTIMEO, 0);
    step("waited");
    put(accepted(l), "x");
}

BEHAVIOUR(tcp_accept_emfile,
          "accept() without a free descriptor: the connection stays in the queue");
void tcp_accept_emfile::a() {
    const int s = dialled();
    SEE(got(s));
}
void tcp_accept_emfile::b() {
    const int l = listening();
    step("listening");
    until(l, POLLIN);
    rlimit old{};
    getrlimit(RLIMIT_NOFILE, &old);
    const rlimit low{4, old.rlim_max};  // 0, 1, 2 and the listener
    SEE(long(l));
    SEE(setrlimit(RLIMIT_NOFILE, &low));
    SEE(accept(l, nullptr, nullptr));
    SEE(accept(l, nullptr, nullptr));
    SEE(setrlimit(RLIMIT_NOFILE, &old));
    SEE(polled(l));
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    SEE(put(c, "here"));
}

BEHAVIOUR(tcp_accept_data_first, "data and FIN that arrive before accept() are there after it");
void tcp_accept_data_first::a() {
    const int s = dialled();
    SEE(put(s, "early"));
    SEE(shutdown(s, SHUT_WR));
    step("sent");
    SEE(got(s));
}
void tcp_accept_data_first::b() {
    const int l = listening();
    step("listening");
    step("sent");
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    SEE(until(c, POLLRDHUP));
    SEE(ready(c));
    SEE(got(c));
    SEE(got(c));
    SEE(put(c, "late"));
}

BEHAVIOUR(tcp_accept_reset_first, "a connection that was reset in the queue is still accepted");
void tcp_accept_reset_first::a() {
    const int s = dialled();
    linger_for(s, 0);
    close(s);
    step("reset");
}
void tcp_accept_reset_first::b() {
    const int l = listening();
    step("listening");
    SEE(until(l, POLLIN));
    step("reset");
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    SEE(until(c, POLLHUP));
    SEE(got(c));
    SEE(got(c));
}

BEHAVIOUR(tcp_listener_shutdown,
          "shutdown() ends listening and wakes accept(); listen() starts it again");
void tcp_listener_shutdown::a() {
    step("down");
    const int s = tcp();
    SEE(connect_to(s, "b"));
    close(s);
    step("refused");
    const int t = dialled();
    on_ring(t);
    SEE(got(t));
}
void tcp_listener_shutdown::b() {
    const int l = listening();
    on_ring(l);
    SEE(shutdown(l, SHUT_RD));
    SEE(ready(l));
    SEE(accept(l, nullptr, nullptr));
    SEE(option(l, SOL_SOCKET, SO_ACCEPTCONN));
    step("down");
    step("refused");
    SEE(listen(l, 4));
    nonblocking(l);
    SEE(accept(l, nullptr, nullptr));  // from here on it is served by the ring again
    nonblocking(l, false);
    put(accepted(l), "again");
}

BEHAVIOUR(tcp_listener_close, "closing a listener resets who waits and leaves who was accepted");
void tcp_listener_close::a() {
    const int s = dialled();
    const int t = tcp();
    SEE(connect_to(t, "b"));
    step("both");
    SEE(until(t, POLLHUP));
    SEE(got(t));
    SEE(got(s));
    const int u = tcp();
    SEE(connect_to(u, "b"));
}
void tcp_listener_close::b() {
    const int l = listening();
    const int c = accepted(l);
    step("both");
    until(l, POLLIN);
    close(l);
    SEE(put(c, "still here"));
}

BEHAVIOUR(tcp_listener_many, "five connections through one listener, in the order of connecting");
void tcp_listener_many::a() {
    int s[5];
    step("listening");
    for (int i = 0; i < 5; i++) {
        s[i] = tcp();
        connect_to(s[i], "b");
        put(s[i], std::string(1, char('0' + i)));
    }
    on_ring(s[0]);
    for (int i = 0; i < 5; i++) SEE(got(s[i]));
}
void tcp_listener_many::b() {
    const int l = listening();
    step("listening");
    for (int i = 0; i < 5; i++) {
        const int c = accept(l, nullptr, nullptr);
        if (i == 0) on_ring(c);
        SEE(got(c));
        put(c, "seen");
    }
    nonblocking(l);
    SEE(accept(l, nullptr, nullptr));
}

BEHAVIOUR(tcp_listener_backlog, "more connections than the backlog: all are served in the end");
void tcp_listener_backlog::a() {
    int s[5];
    step("listening");
    for (int i = 0; i < 5; i++) {
        s[i] = tcp(SOCK_NONBLOCK);
        connect_to(s[i], "b");
        if (i < 3) SEE(until(s[i], POLLOUT));  // as many as Linux queues for a backlog of 2
    }
    on_ring(s[0]);
    step("dialled");
    for (const int each : s) {
        nonblocking(each, false);
        set_time(each, SO_RCVTIMEO, 5000);
        SEE(got(each));
    }
}
void tcp_listener_backlog::b() {
    const int l = listening(0, 2);
    step("listening");
    step("dialled");
    SEE(until(l, POLLIN));
    for (int i = 0; i < 5; i++) {
        const int c = accept(l, nullptr, nullptr);
        if (i == 0) on_ring(c);
        SEE(put(c, "served"));
    }
}

BEHAVIOUR(tcp_listener_both,
          "one listener serves the other host and its own by turns, polled and blocked");
void tcp_listener_both::a() {
    for (int i = 0; i < 3; i++) {
        const int s = dialled();
        SEE(put(s, "from afar"));
        step("served");
    }
}
void tcp_listener_both::b() {
    const int l = listening();
    on_ring(l);
    for (int i = 0; i < 3; i++) {
        step("listening");
        if (i != 1) SEE(until(l, POLLIN));
        const int c = accept(l, nullptr, nullptr);
        SEE(peer_of(c));
        SEE(got(c));
        step("served");
        const int inside = tcp();
        SEE(connect_to(inside, "lo"));
        put(inside, "from here");
        if (i != 1) SEE(until(l, POLLIN));
        const int d = accept(l, nullptr, nullptr);
        SEE(peer_of(d));
        SEE(got(d));
        SEE(put(d, "back"));
        SEE(got(inside));
    }
}
