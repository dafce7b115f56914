// Ends of connections: shutdown(), close(), resets, and what poll(), epoll and select() say at each step.
#include <signal.h>

#include "differential/behaviour.h"

BEHAVIOUR(tcp_half_close, "after SHUT_WR the other direction still works, until its end");
void tcp_half_close::a() {
    const int s = connected();
    SEE(put(s, "question"));
    SEE(shutdown(s, SHUT_WR));
    SEE(ready(s));
    SEE(put(s, "x"));
    SEE(shutdown(s, SHUT_WR));
    step("closed");
    SEE(rest(s));
    SEE(ready(s));
    SEE(got(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
}
void tcp_half_close::b() {
    const int s = connected();
    step("closed");
    SEE(until(s, POLLRDHUP));
    SEE(ready(s));
    SEE(got(s));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "answer"));
    SEE(put(s, pattern(100000)));
    SEE(shutdown(s, SHUT_WR));
    SEE(until(s, POLLHUP));
    SEE(ready(s));
}

BEHAVIOUR(tcp_shut_read, "SHUT_RD: reads end at once, data that comes can still be read");
void tcp_shut_read::a() {
    const int s = connected();
    SEE(shutdown(s, SHUT_RD));
    SEE(ready(s));
    SEE(got(s));
    step("shut");
    step("sent");
    SEE(until_bytes(s, 3));
    SEE(got(s));
    SEE(got(s));
    SEE(put(s, "abc"));
    SEE(shutdown(s, SHUT_WR));
    SEE(ready(s));
}
void tcp_shut_read::b() {
    const int s = connected();
    step("shut");
    SEE(put(s, "xyz"));
    step("sent");
    SEE(rest(s));
}

BEHAVIOUR(tcp_shut_both, "SHUT_RDWR on both sides, in one step and in two");
void tcp_shut_both::a() {
    const int s = connected(), t = connected(1);
    SEE(shutdown(s, SHUT_RDWR));
    SEE(polled(s));
    SEE(put(s, "x"));
    SEE(got(s));
    step("one");
    SEE(shutdown(t, SHUT_RD));
    SEE(shutdown(t, SHUT_WR));
    SEE(polled(t, POLLIN | POLLOUT | POLLRDHUP));
    step("two");
    step("theirs");
    SEE(until(s, POLLHUP));
    SEE(until(t, POLLHUP));
    SEE(got(t));
}
void tcp_shut_both::b() {
    const int s = connected(), t = connected(1);
    step("one");
    SEE(until(s, POLLRDHUP));
    SEE(got(s));
    step("two");
    SEE(until(t, POLLRDHUP));
    SEE(shutdown(t, SHUT_RDWR));
    SEE(shutdown(s, SHUT_WR));
    step("theirs");
    SEE(until_state(t, TCP_CLOSE));
    SEE(ready(t));
    SEE(shutdown(t, SHUT_RDWR));
}

BEHAVIOUR(tcp_linger_zero,
          "close() with SO_LINGER 0 resets: ECONNRESET once, then EOF; writes EPIPE");
void tcp_linger_zero::a() {
    const int s = connected();
    linger_for(s, 0);
    SEE(close(s));
}
void tcp_linger_zero::b() {
    const int s = connected();
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(got(s));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "x"));
    SEE(peer_of(s));
    SEE(shutdown(s, SHUT_WR));
    SEE(name_of(s));
}

BEHAVIOUR(tcp_reset_seen_by_send, "a reset told by send(): ECONNRESET, then EPIPE");
void tcp_reset_seen_by_send::a() {
    const int s = connected();
    linger_for(s, 0);
    SEE(close(s));
}
void tcp_reset_seen_by_send::b() {
    const int s = connected();
    SEE(until(s, POLLERR));
    SEE(put(s, "x"));
    SEE(put(s, "x"));
    SEE(got(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
}

BEHAVIOUR(tcp_reset_seen_by_option, "SO_ERROR tells a reset and clears it");
void tcp_reset_seen_by_option::a() {
    const int s = connected();
    linger_for(s, 0);
    SEE(close(s));
}
void tcp_reset_seen_by_option::b() {
    const int s = connected();
    SEE(until(s, POLLERR));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
    SEE(got(s));
}

BEHAVIOUR(tcp_reset_unread, "data that waits is lost with a reset");
void tcp_reset_unread::a() {
    const int s = connected();
    SEE(put(s, "lost"));
    step("sent");
    step("arrived");
    linger_for(s, 0);
    SEE(close(s));
}
void tcp_reset_unread::b() {
    const int s = connected();
    step("sent");
    SEE(until_bytes(s, 4));
    step("arrived");
    SEE(until(s, POLLERR));
    SEE(got(s));
    SEE(got(s));
    SEE(got(s));
}

BEHAVIOUR(tcp_close_unread, "close() with unread data resets the peer");
void tcp_close_unread::a() {
    const int s = connected();
    step("sent");
    SEE(until_bytes(s, 5));
    SEE(close(s));
}
void tcp_close_unread::b() {
    const int s = connected();
    SEE(put(s, "never"));
    step("sent");
    SEE(until(s, POLLERR));
    SEE(got(s));
    SEE(got(s));
}

BEHAVIOUR(tcp_close_after_reading, "close() after everything was read sends a FIN");
void tcp_close_after_reading::a() {
    const int s = connected();
    SEE(got(s, 5, MSG_WAITALL));
    SEE(close(s));
    step("closed");
}
void tcp_close_after_reading::b() {
    const int s = connected();
    SEE(put(s, "hello"));
    step("closed");
    SEE(until(s, POLLRDHUP));
    SEE(ready(s));
    SEE(got(s));
    SEE(put(s, "x"));  // answered with a reset
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(put(s, "x"));
    SEE(got(s));
}

BEHAVIOUR(tcp_close_unsent, "close() with much unsent data: everything arrives");
void tcp_close_unsent::a() {
    const int s = connected();
    SEE(put(s, pattern(3000000)));
    SEE(close(s));
}
void tcp_close_unsent::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(tcp_linger_waits, "close() with SO_LINGER waits until the peer has it all");
void tcp_linger_waits::a() {
    const int s = connected();
    linger_for(s, 5);
    SEE(put(s, pattern(300000)));
    SEE(close(s));
    step("closed");
}
void tcp_linger_waits::b() {
    const int s = connected();
    SEE(rest(s));
    step("closed");
}

BEHAVIOUR(tcp_exit_unsent, "a program that ends with unsent data: everything arrives");
void tcp_exit_unsent::a() {
    const int s = connected();
    SEE(put(s, pattern(60000)));
    step("exits");
    _exit(3);
}
void tcp_exit_unsent::b() {
    const int s = connected();
    step("exits");
    SEE(rest(s));
    _exit(0);
}

BEHAVIOUR(
    tcp_sigpipe,
    "SIGPIPE: with and without MSG_NOSIGNAL, send(), write(), after a reset and after SHUT_WR");
namespace {
int g_pipes = 0;
}
void tcp_sigpipe::a() {
    signal(SIGPIPE, [](int) { g_pipes++; });
    const int s = connected();
    step("reset");
    SEE(until(s, POLLERR));
    SEE(got(s));
    SEE(put(s, "x"));
    SEE(long(g_pipes));
    SEE(send(s, "x", 1, 0));
    SEE(long(g_pipes));
    SEE(write(s, "x", 1));
    SEE(long(g_pipes));
    const int t = connected(1);
    SEE(shutdown(t, SHUT_WR));
    SEE(send(t, "x", 1, 0));
    SEE(long(g_pipes));
}
void tcp_sigpipe::b() {
    const int s = connected();
    linger_for(s, 0);
    close(s);
    step("reset");
    SEE(got(connected(1)));
}

BEHAVIOUR(tcp_sigpipe_kills, "an uncaught SIGPIPE ends the program");
void tcp_sigpipe_kills::a() {
    const int s = connected();
    SEE(shutdown(s, SHUT_WR));
    SEE(send(s, "x", 1, 0));
    note("not reached");
}
void tcp_sigpipe_kills::b() {
    const int s = connected();
    SEE(rest(s));
    _exit(0);
}

BEHAVIOUR(tcp_states_of_ends, "getpeername() and TCP_INFO's state while a connection ends");
void tcp_states_of_ends::a() {
    const int s = connected();
    SEE(state_of(s));
    SEE(shutdown(s, SHUT_WR));
    step("fin");
    SEE(until_state(s, TCP_FIN_WAIT2));
    SEE(peer_of(s));
    step("theirs");
    SEE(until(s, POLLRDHUP));
    SEE(state_of(s));
    SEE(peer_of(s));
    SEE(got(s));
    SEE(shutdown(s, SHUT_RDWR));
}
void tcp_states_of_ends::b() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    SEE(state_of(s));
    SEE(peer_of(s));
    step("theirs");
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_CLOSE));
    SEE(name_of(s));
    SEE(peer_of(s));
    SEE(ready(s));
    SEE(shutdown(s, SHUT_WR));
}
