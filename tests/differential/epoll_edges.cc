// epoll: what is an edge and what is not; one-shot and exclusive members.
#include <netinet/tcp.h>

#include "differential/epoll_words.h"

namespace {
// The peer of a test that fills: reads everything when told.
void drains() {
    const int s = connected();
    step("drain");
    SEE(got(s, 1, MSG_WAITALL));
    rest(s);
}
// The peer of a listener: a connection before the step "one", another before "two".
void dials_twice() {
    const int s = dialled();
    step("one");
    const int t = tcp();
    SEE(connect_to(t, "b"));
    step("two");
    step("over");
    close(s);
}
}  // namespace

BEHAVIOUR(edge_partial_read, "a part is read: no edge; more comes: an edge");
void edge_partial_read::a() {
    const int s = connected(), ep = epoll_create1(0);
    byte(s);
    byte(s, 2);
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    SEE(events(ep, {s}, 5000));
    SEE(got(s, 1));
    SEE(events(ep, {s}));
    byte(s, 2);
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    SEE(events(ep, {s}));
    step("over");
}
void edge_partial_read::b() { bytes(3); }

BEHAVIOUR(edge_of_arrival_shows_all, "an edge reports everything that is so: data and room");
void edge_of_arrival_shows_all::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    SEE(events(ep, {s}, 5000));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    SEE(events(ep, {s}));
    step("over");
}
void edge_of_arrival_shows_all::b() { bytes(1); }

BEHAVIOUR(edge_of_room, "EPOLLOUT edge only after the buffer was full");
void edge_of_room::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLOUT | EPOLLET));
    SEE(events(ep, {s}, 5000));
    SEE(put(s, "a little"));
    SEE(until_acknowledged(s));
    SEE(events(ep, {s}));
    fill(s);
    SEE(events(ep, {s}));
    step("drain");
    SEE(events(ep, {s}, 5000));
    linger_for(s, 0);
    close(s);
}
void edge_of_room::b() { drains(); }

BEHAVIOUR(level_of_room, "EPOLLOUT level: gone when the buffer is full, there again after");
void level_of_room::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLOUT));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    fill(s);
    SEE(events(ep, {s}));
    step("drain");
    SEE(events(ep, {s}, 5000));
    linger_for(s, 0);
    close(s);
}
void level_of_room::b() { drains(); }

BEHAVIOUR(edge_of_end, "FIN is an edge; nothing comes after it");
void edge_of_end::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLRDHUP | EPOLLET));
    step("fin");
    SEE(until(s, POLLRDHUP));
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    SEE(got(s));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLRDHUP | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
}
void edge_of_end::b() {
    const int s = connected();
    put(s, "last");
    SEE(shutdown(s, SHUT_WR));
    step("fin");
}

BEHAVIOUR(edge_of_reset, "a reset is an edge: everything at once, the error afterwards");
void edge_of_reset::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET));
    SEE(events(ep, {s}, 5000));
    step("reset");
    SEE(until(s, POLLERR));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    SEE(got(s));
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
}
void edge_of_reset::b() {
    const int s = connected();
    linger_for(s, 0);
    step("reset");
    close(s);
}

BEHAVIOUR(edge_of_own_shutdown, "shutdown() here: its edges on the socket's own sets");
void edge_of_own_shutdown::a() {
    const int s = connected(), t = connected(1), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLRDHUP | EPOLLET));
    SEE(add(ep, t, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    SEE(events(ep, {s, t}, 5000));
    SEE(shutdown(s, SHUT_RD));
    SEE(events(ep, {s, t}, 5000));
    SEE(events(ep, {s, t}));
    SEE(shutdown(t, SHUT_WR));
    SEE(polled(t));
    step("over");
}
void edge_of_own_shutdown::b() {
    connected();
    connected(1);
    step("over");
}

BEHAVIOUR(edge_of_listener, "each connection that comes to a listener is an edge");
void edge_of_listener::a() { dials_twice(); }
void edge_of_listener::b() {
    const int l = listening(), ep = epoll_create1(0);
    SEE(add(ep, l, EPOLLIN | EPOLLET));
    step("listening");
    SEE(events(ep, {l}, 5000));
    SEE(events(ep, {l}));
    step("one");
    step("two");
    SEE(events(ep, {l}, 5000));
    SEE(events(ep, {l}));
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    SEE(events(ep, {l}));
    SEE(accept(l, nullptr, nullptr) > c);
    SEE(events(ep, {l}));
    step("over");
}

BEHAVIOUR(edge_of_datagrams, "each datagram is an edge, whatever is still queued");
void edge_of_datagrams::a() {
    const int s = udp_pair(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    for (const char* word : {"first", "second"}) {
        step(word);
        SEE(events(ep, {s}, 5000));
        SEE(events(ep, {s}));
    }
    SEE(got(s));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    SEE(got(s));
    SEE(add(ep, s, EPOLLIN | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
}
void edge_of_datagrams::b() {
    const int s = udp_pair();
    for (const char* word : {"first", "second"}) {
        step(word);
        put(s, word);
    }
}

BEHAVIOUR(edge_low_water, "SO_RCVLOWAT: no edge before that many bytes are there");
void edge_low_water::a() {
    const int s = connected(), ep = epoll_create1(0), lt = epoll_create1(0);
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 3));
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    SEE(add(lt, s, EPOLLIN));
    byte(s);
    SEE(events(ep, {s}));
    SEE(events(lt, {s}));
    byte(s, 2);
    SEE(events(ep, {s}));
    byte(s, 3);
    SEE(events(ep, {s}, 5000));
    SEE(events(lt, {s}, 5000));
    SEE(events(ep, {s}));
    SEE(got(s, 1));
    SEE(events(lt, {s}));
    step("over");
}
void edge_low_water::b() { bytes(3); }

BEHAVIOUR(edge_low_water_end, "SO_RCVLOWAT: the end of the stream is reported with less");
void edge_low_water_end::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 100));
    SEE(add(ep, s, EPOLLIN | EPOLLRDHUP));
    step("fin");
    SEE(events(ep, {s}, 5000));
    SEE(got(s, 200));
    SEE(got(s, 200));
}
void edge_low_water_end::b() {
    const int s = connected();
    step("fin");
    shutdown(s, SHUT_WR);
}

BEHAVIOUR(low_water_lowered, "SO_RCVLOWAT lowered below what waits makes a socket readable");
void low_water_lowered::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 50));
    SEE(add(ep, s, EPOLLIN));
    byte(s);
    SEE(events(ep, {s}));
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 1));
    SEE(polled(s, POLLIN));
    byte(s, 2);
    SEE(events(ep, {s}, 5000));
    step("over");
}
void low_water_lowered::b() { bytes(2); }

BEHAVIOUR(added_when_ready, "a member that is ready when it is added is an edge at once");
void added_when_ready::a() {
    const int s = connected(), ep = epoll_create1(0);
    byte(s);
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    SEE(events(ep, {s}));
    SEE(events(ep, {s}));
    SEE(add(ep, s, 0, EPOLL_CTL_DEL));
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    SEE(events(ep, {s}));
    SEE(events(ep, {s}));
    step("over");
}
void added_when_ready::b() { bytes(1); }

BEHAVIOUR(removed_when_ready, "a member that is removed while it is ready is not reported");
void removed_when_ready::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    byte(s);
    SEE(add(ep, s, 0, EPOLL_CTL_DEL));
    SEE(events(ep, {s}));
    step("over");
}
void removed_when_ready::b() { bytes(1); }

BEHAVIOUR(oneshot_rearmed, "EPOLLONESHOT: armed again, it fires at once or when something comes");
void oneshot_rearmed::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLONESHOT, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void oneshot_rearmed::b() { bytes(2); }

BEHAVIOUR(oneshot_silent_at_end, "a fired EPOLLONESHOT does not even tell of a reset");
void oneshot_silent_at_end::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLOUT | EPOLLONESHOT));
    SEE(events(ep, {s}, 5000));
    step("reset");
    SEE(until(s, POLLERR));
    SEE(events(ep, {s}));
    SEE(add(ep, s, 0, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
}
void oneshot_silent_at_end::b() {
    const int s = connected();
    linger_for(s, 0);
    step("reset");
    close(s);
}

BEHAVIOUR(oneshot_edge, "EPOLLONESHOT with EPOLLET");
void oneshot_edge::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT | EPOLLET));
    byte(s);
    SEE(events(ep, {s}, 5000));
    byte(s, 2);
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void oneshot_edge::b() { bytes(2); }

BEHAVIOUR(oneshot_listener, "EPOLLONESHOT on a listener");
void oneshot_listener::a() { dials_twice(); }
void oneshot_listener::b() {
    const int l = listening(), ep = epoll_create1(0);
    SEE(add(ep, l, EPOLLIN | EPOLLONESHOT));
    step("listening");
    SEE(events(ep, {l}, 5000));
    const int c = accept(l, nullptr, nullptr);
    on_ring(c);
    step("one");
    step("two");
    SEE(events(ep, {l}));
    SEE(add(ep, l, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD));
    SEE(events(ep, {l}, 5000));
    SEE(events(ep, {l}));
    step("over");
}

BEHAVIOUR(exclusive_in_two_sets, "EPOLLEXCLUSIVE in two sets that nobody waits for: both tell");
void exclusive_in_two_sets::a() {
    const int s = connected(), one = epoll_create1(0), two = epoll_create1(0);
    SEE(add(one, s, EPOLLIN | EPOLLEXCLUSIVE));
    SEE(add(two, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET));
    byte(s);
    SEE(events(one, {s}, 5000));
    SEE(events(two, {s}, 5000));
    SEE(events(one, {s}));
    SEE(events(two, {s}));
    SEE(add(one, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(add(one, s, 0, EPOLL_CTL_DEL));
    SEE(add(one, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP));
    SEE(add(one, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLWAKEUP));
    SEE(add(two, s, EPOLLIN | EPOLLEXCLUSIVE, EPOLL_CTL_MOD));
    step("over");
}
void exclusive_in_two_sets::b() { bytes(1); }

BEHAVIOUR(exclusive_listener, "EPOLLEXCLUSIVE on a listener in the sets of two workers");
void exclusive_listener::a() {
    for (int i = 0; i < 2; i++) {
        const int s = dialled();
        SEE(got(s));
        close(s);
    }
}
void exclusive_listener::b() {
    const int l = listening(), one = epoll_create1(0), two = epoll_create1(0);
    SEE(add(one, l, EPOLLIN | EPOLLEXCLUSIVE));
    SEE(add(two, l, EPOLLIN | EPOLLEXCLUSIVE));
    for (int i = 0; i < 2; i++) {
        step("listening");
        SEE(events(i ? two : one, {l}, 5000));
        const int c = accept(l, nullptr, nullptr);
        on_ring(c);
        SEE(put(c, "served"));
        close(c);
    }
}

BEHAVIOUR(modified_interest, "EPOLL_CTL_MOD between what is and what is not so; other user data");
void modified_interest::a() {
    const int s = connected(), ep = epoll_create1(0);
    byte(s);
    SEE(add(ep, s, EPOLLIN));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLRDHUP, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLOUT, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    epoll_event e{EPOLLIN, {.u64 = 0xfedcba9876543210u}}, found{};
    SEE(epoll_ctl(ep, EPOLL_CTL_MOD, s, &e));
    SEE(epoll_wait(ep, &found, 1, 5000));
    SEE(found.data.u64 == 0xfedcba9876543210u);
    step("over");
}
void modified_interest::b() { bytes(1); }

BEHAVIOUR(bands, "EPOLLRDNORM, EPOLLWRNORM, EPOLLRDBAND, EPOLLWRBAND, EPOLLMSG");
void bands::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLRDNORM | EPOLLWRNORM | EPOLLRDBAND | EPOLLWRBAND | EPOLLMSG));
    SEE(events(ep, {s}));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(add(ep, s, EPOLLRDBAND | EPOLLMSG | EPOLLPRI, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLRDNORM | EPOLLET, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void bands::b() { bytes(1); }

BEHAVIOUR(wanted_nothing, "events 0: a reset is told all the same, data is not");
void wanted_nothing::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, 0));
    step("data");
    SEE(until_bytes(s, 1));
    SEE(events(ep, {s}));
    step("reset");
    SEE(events(ep, {s}, 5000));
}
void wanted_nothing::b() {
    const int s = connected();
    step("data");
    put(s, "x");
    linger_for(s, 0);
    step("reset");
    close(s);
}

BEHAVIOUR(wakeup_flag, "EPOLLWAKEUP is taken and not reported");
void wakeup_flag::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLWAKEUP));
    byte(s);
    epoll_event e{};
    SEE(epoll_wait(ep, &e, 1, 5000));
    SEE(long(e.events));
    SEE(got(s));
    SEE(events(ep, {s}));
    step("over");
}
void wakeup_flag::b() { bytes(1); }

BEHAVIOUR(udp_shutdown_events, "shutdown() of a connected UDP socket and its epoll events");
void udp_shutdown_events::a() {
    const int s = udp_pair(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    SEE(events(ep, {s}));
    SEE(shutdown(s, SHUT_RD));
    SEE(events(ep, {s}));
    SEE(shutdown(s, SHUT_RDWR));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
}
void udp_shutdown_events::b() { udp_pair(); }

BEHAVIOUR(not_sent_low_water, "TCP_NOTSENT_LOWAT: not writable with so much that was not sent");
void not_sent_low_water::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(set(s, SOL_SOCKET, SO_SNDBUF, 4 << 20));
    SEE(set(s, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000));
    SEE(add(ep, s, EPOLLOUT));
    SEE(events(ep, {s}));
    fill(s);
    SEE(events(ep, {s}));
    int unsent = 0, queued = 0;
    SEE(ioctl(s, 0x894b, &unsent));
    SEE(ioctl(s, TIOCOUTQ, &queued));
    SEE(unsent > 0 && unsent < 200000);
    step("drain");
    SEE(events(ep, {s}, 5000));
    linger_for(s, 0);
    close(s);
}
void not_sent_low_water::b() { drains(); }
