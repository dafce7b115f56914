// epoll over TCP and UDP sockets.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "differential/epoll_words.h"

BEHAVIOUR(epoll_level, "level triggered: reported as long as it is so");
void epoll_level::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(events(ep, {s}));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}, 5000));
    SEE(add(ep, s, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    SEE(events(ep, {s}, 5000));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(events(ep, {s}));
    SEE(add(ep, s, 0, EPOLL_CTL_DEL));
    byte(s);
    SEE(events(ep, {s}));
    step("over");
}
void epoll_level::b() { bytes(2); }

BEHAVIOUR(epoll_edge, "edge triggered: reported once for each arrival");
void epoll_edge::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLET));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    byte(s, 2);
    SEE(events(ep, {s}, 5000));  // again, although nothing was read
    SEE(events(ep, {s}));
    SEE(got(s, 1));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLET, EPOLL_CTL_MOD));  // arms anew
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void epoll_edge::b() { bytes(2); }

BEHAVIOUR(epoll_oneshot, "EPOLLONESHOT: silent until EPOLL_CTL_MOD");
void epoll_oneshot::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    byte(s, 2);
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD));
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void epoll_oneshot::b() { bytes(2); }

BEHAVIOUR(epoll_bad_memory,
          "no array for the events: EFAULT when there is one to tell, and it is told later");
void epoll_bad_memory::a() {
    const int s = connected(), ep = epoll_create1(0);
    char* two = static_cast<char*>(
        mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mprotect(two + 4096, 4096, PROT_NONE) != 0) return;
    auto* const bad = reinterpret_cast<epoll_event*>(two + 4096);
    SEE(add(ep, s, EPOLLIN | EPOLLET));
    SEE(epoll_wait(ep, bad, 8, 0));  // nothing is ready
    byte(s);
    SEE(epoll_wait(ep, bad, 8, 5000));
    SEE(epoll_wait(ep, nullptr, 8, 5000));
    SEE(epoll_wait(ep, reinterpret_cast<epoll_event*>(two + 4090), 8, 5000));  // half of one
    SEE(epoll_wait(ep, bad - 1, 8, 5000));                                     // room for one
    SEE(epoll_wait(ep, bad, 8, 0));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(epoll_wait(ep, bad, 1, 5000));
    SEE(events(ep, {s}, 5000));
    step("over");
}
void epoll_bad_memory::b() { bytes(1); }

BEHAVIOUR(epoll_errors, "EEXIST, ENOENT, EBADF, EINVAL, EPERM, EFAULT, ELOOP");
void epoll_errors::a() {
    const int s = connected(), ep = epoll_create1(0), other = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_DEL));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_DEL));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(add(ep, -1, EPOLLIN));
    SEE(add(ep, ep, EPOLLIN));
    SEE(add(s, s, EPOLLIN));
    SEE(add(ep, s, EPOLLIN, 77));
    SEE(epoll_ctl(ep, EPOLL_CTL_ADD, s, nullptr));
    SEE(add(ep, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
    SEE(add(ep, s, EPOLLIN | EPOLLEXCLUSIVE));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(add(ep, other, EPOLLIN));
    SEE(add(other, ep, EPOLLIN));
    epoll_event e;
    SEE(epoll_wait(ep, &e, 0, 0));
    SEE(epoll_wait(ep, &e, -1, 0));
    SEE(epoll_wait(s, &e, 1, 0));
    SEE(epoll_wait(-1, &e, 1, 0));
    SEE(epoll_create(0));
    SEE(epoll_create1(77));
    const int file = open("/proc/self/exe", O_RDONLY);
    SEE(add(ep, file, EPOLLIN));
    step("over");
}
void epoll_errors::b() { bytes(0); }

BEHAVIOUR(epoll_end_of_stream, "EPOLLRDHUP and EPOLLHUP as a connection ends, edge and level");
void epoll_end_of_stream::a() {
    const int s = connected(), lt = epoll_create1(0), et = epoll_create1(0);
    SEE(add(lt, s, EPOLLRDHUP));
    SEE(add(et, s, EPOLLIN | EPOLLRDHUP | EPOLLET));
    SEE(events(lt, {s}));
    step("fin");
    SEE(events(lt, {s}, 5000));
    SEE(events(et, {s}, 5000));
    SEE(events(et, {s}));
    SEE(shutdown(s, SHUT_WR));
    SEE(events(lt, {s}, 5000));
    SEE(events(et, {s}, 5000));
    SEE(add(lt, s, 0, EPOLL_CTL_MOD));
    SEE(events(lt, {s}, 5000));  // HUP needs no asking
}
void epoll_end_of_stream::b() {
    const int s = connected();
    step("fin");
    SEE(shutdown(s, SHUT_WR));
    SEE(until(s, POLLRDHUP));
}

BEHAVIOUR(epoll_dup,
          "a member is a descriptor and its open file: duplicates, and closing one of them");
void epoll_dup::a() {
    const int s = connected(), ep = epoll_create1(0), d = dup(s);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, d, EPOLLIN));
    byte(s);
    SEE(events(ep, {s, d}, 5000));
    SEE(close(s));
    SEE(events(ep, {s, d}, 5000));  // the open file lives: both entries are there
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_DEL));
    SEE(got(d));
    SEE(close(d));
    SEE(events(ep, {s, d}));
    step("over");
}
void epoll_dup::b() { bytes(1); }

BEHAVIOUR(epoll_close_member, "a closed member leaves the set; its number can be added anew");
void epoll_close_member::a() {
    const int s = connected(), t = connected(1), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, t, EPOLLIN));
    step("both");
    SEE(until(s, POLLIN));
    SEE(until(t, POLLIN));
    SEE(events(ep, {s, t}));
    SEE(close(s));
    SEE(events(ep, {s, t}));
    SEE(dup2(t, s) == s);
    SEE(events(ep, {s, t}));
    SEE(add(ep, s, EPOLLIN | EPOLLOUT));
    SEE(events(ep, {s, t}));
}
void epoll_close_member::b() {
    const int s = connected(), t = connected(1);
    put(s, "x");
    put(t, "y");
    step("both");
}

BEHAVIOUR(epoll_nested, "an epoll set in an epoll set, in poll() and in select()");
void epoll_nested::a() {
    const int s = connected(), inner = epoll_create1(0), outer = epoll_create1(0);
    SEE(add(inner, s, EPOLLIN));
    SEE(add(outer, inner, EPOLLIN));
    SEE(events(outer, {inner}));
    SEE(polled(inner, POLLIN));
    byte(s);
    SEE(polled(inner, POLLIN, 5000));
    SEE(events(outer, {inner}, 5000));
    SEE(events(outer, {inner}, 5000));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(inner, &in);
    timeval zero{};
    SEE(select(inner + 1, &in, nullptr, nullptr, &zero));
    SEE(events(inner, {s}, 5000));
    SEE(got(s));
    SEE(events(outer, {inner}));
    SEE(polled(inner, POLLIN));
    step("over");
}
void epoll_nested::b() { bytes(1); }

BEHAVIOUR(epoll_mixed, "sockets on the ring beside pipes and event descriptors in one set");
void epoll_mixed::a() {
    const int s = connected(), ep = epoll_create1(0), event = eventfd(0, 0);
    int ends[2];
    SEE(pipe(ends));
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, event, EPOLLIN));
    SEE(add(ep, ends[0], EPOLLIN));
    SEE(events(ep, {s, event, ends[0]}));
    SEE(write(ends[1], "x", 1));
    SEE(events(ep, {s, event, ends[0]}, 5000));
    byte(s);
    SEE(events(ep, {s, event, ends[0]}, 5000));
    const uint64_t one = 1;
    SEE(write(event, &one, sizeof one));
    SEE(events(ep, {s, event, ends[0]}, 5000));
    epoll_event first;
    SEE(epoll_wait(ep, &first, 1, 0));  // fewer places than events
    SEE(close(ends[1]));
    char c;
    SEE(read(ends[0], &c, 1));
    SEE(events(ep, {s, event, ends[0]}, 5000));
    step("over");
}
void epoll_mixed::b() { bytes(1); }

BEHAVIOUR(epoll_two_sets, "one socket in two sets: both tell");
void epoll_two_sets::a() {
    const int s = connected(), one = epoll_create1(0), two = epoll_create1(0);
    SEE(add(one, s, EPOLLIN | EPOLLET));
    SEE(add(two, s, EPOLLIN));
    byte(s);
    SEE(events(one, {s}, 5000));
    SEE(events(two, {s}, 5000));
    SEE(events(one, {s}));
    SEE(close(one));
    SEE(events(two, {s}, 5000));
    step("over");
}
void epoll_two_sets::b() { bytes(1); }

BEHAVIOUR(epoll_listener, "a listener and its connections in one set");
void epoll_listener::a() {
    const int s = dialled();
    SEE(put(s, "x"));
    step("sent");
    step("read");
    close(s);
    step("closed");
}
void epoll_listener::b() {
    const int l = listening(), ep = epoll_create1(0);
    SEE(add(ep, l, EPOLLIN));
    SEE(events(ep, {l}));
    step("listening");
    SEE(events(ep, {l}, 5000));
    const int c = accept4(l, nullptr, nullptr, SOCK_NONBLOCK);
    on_ring(c);
    SEE(events(ep, {l}));
    SEE(add(ep, c, EPOLLIN | EPOLLRDHUP | EPOLLET));
    step("sent");
    SEE(until_bytes(c, 1));
    SEE(events(ep, {l, c}, 5000));
    SEE(got(c));
    step("read");
    step("closed");
    SEE(events(ep, {l, c}, 5000));
    SEE(got(c));
}

BEHAVIOUR(epoll_connecting, "EPOLLOUT when a connection is made, EPOLLERR when it is refused");
void epoll_connecting::a() {
    const int s = tcp(SOCK_NONBLOCK), t = tcp(SOCK_NONBLOCK), ep = epoll_create1(0);
    step("listening");
    SEE(add(ep, s, EPOLLOUT | EPOLLET));
    SEE(events(ep, {s}));  // an unconnected one hangs up
    SEE(connect_to(s, "b"));
    SEE(events(ep, {s}, 5000));
    on_ring(s);
    SEE(events(ep, {s}));
    SEE(connect_to(t, "b", 9));
    SEE(add(ep, t, EPOLLOUT | EPOLLIN));
    SEE(events(ep, {s, t}, 5000));
    SEE(option(t, SOL_SOCKET, SO_ERROR));
    SEE(events(ep, {s, t}, 5000));
}
void epoll_connecting::b() { accepted(listening()); }

BEHAVIOUR(epoll_udp, "datagrams: level, edge, and the error of an ICMP message");
void epoll_udp::a() {
    const int s = udp_pair(), lt = epoll_create1(0), et = epoll_create1(0);
    SEE(add(lt, s, EPOLLIN));
    SEE(add(et, s, EPOLLIN | EPOLLOUT | EPOLLET));
    SEE(events(et, {s}, 5000));
    SEE(events(lt, {s}));
    step("ready");
    SEE(events(lt, {s}, 5000));
    SEE(events(et, {s}, 5000));
    SEE(events(et, {s}));
    SEE(got(s));
    SEE(events(lt, {s}));
    SEE(connect_to(s, "b", 9));
    SEE(put(s, "x"));
    SEE(until(s, POLLERR));
    SEE(events(lt, {s}, 5000));
}
void epoll_udp::b() {
    const int s = udp_pair();
    step("ready");
    SEE(put(s, "x"));
}

BEHAVIOUR(epoll_timeout, "epoll_wait() times out, epoll_pwait2() too; negative and zero timeouts");
void epoll_timeout::a() {
    const int s = connected(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    int64_t begin = milliseconds();
    SEE(events(ep, {s}, 100));
    SEE(waited(begin, 100));
    begin = milliseconds();
    epoll_event e;
    const timespec ts{0, 100000000}, bad{0, 2000000000};
    SEE(epoll_pwait2(ep, &e, 1, &ts, nullptr));
    SEE(waited(begin, 100));
    SEE(epoll_pwait2(ep, &e, 1, &bad, nullptr));
    step("byte");
    SEE(events(ep, {s}, -1));
    step("sent");
    step("over");
}
void epoll_timeout::b() { bytes(1); }

BEHAVIOUR(epoll_rotation, "more ready members than places: nobody starves");
void epoll_rotation::a() {
    const int s = connected(), t = connected(1), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, t, EPOLLIN));
    step("both");
    until(s, POLLIN);
    until(t, POLLIN);
    bool seen_s = false, seen_t = false;
    for (int i = 0; i < 4; i++) {
        epoll_event e{};
        SEE(epoll_wait(ep, &e, 1, 0));
        seen_s = seen_s || int(e.data.u64) == s;
        seen_t = seen_t || int(e.data.u64) == t;
    }
    SEE(seen_s);
    SEE(seen_t);
}
void epoll_rotation::b() {
    const int s = connected(), t = connected(1);
    put(s, "x");
    put(t, "y");
    step("both");
}
