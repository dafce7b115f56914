// poll(), ppoll(), select(), pselect().
#include <signal.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <algorithm>

#include "differential/behaviour.h"

namespace {
void word_at(const char* name, int offset = 0) {
    const int s = connected(offset);
    step(name);
    put(s, "word");
    step("over");
}
}  // namespace

BEHAVIOUR(poll_mixed, "sockets, pipes, closed and negative descriptors in one poll()");
void poll_mixed::a() {
    const int s = connected();
    int ends[2];
    SEE(pipe(ends));
    const int closed = dup(0);
    close(closed);
    pollfd p[] = {{s, POLLIN, 0},
                  {ends[0], POLLIN, 0},
                  {closed, POLLIN, 0},
                  {-1, POLLIN, 77},
                  {s, POLLOUT, 0}};
    SEE(poll(p, 5, 0));
    for (const pollfd& each : p) SEE(events_text(uint32_t(each.revents)));
    SEE(poll(p, 2, 0));
    step("go");
    SEE(poll(p, 2, 5000));
    SEE(events_text(uint32_t(p[0].revents)) + " " + events_text(uint32_t(p[1].revents)));
    SEE(write(ends[1], "x", 1));
    SEE(poll(p, 2, 5000));
    SEE(events_text(uint32_t(p[0].revents)) + " " + events_text(uint32_t(p[1].revents)));
    step("over");
}
void poll_mixed::b() { word_at("go"); }

BEHAVIOUR(poll_norm, "POLLRDNORM, POLLWRNORM, POLLRDBAND, and events 0");
void poll_norm::a() {
    const int s = connected();
    SEE(polled(s, POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND));
    step("go");
    SEE(until(s, POLLRDNORM));
    SEE(polled(s, POLLRDNORM | POLLIN));
    SEE(polled(s, 0));
    SEE(polled(s, POLLRDBAND | POLLPRI));
    step("over");
}
void poll_norm::b() { word_at("go"); }

BEHAVIOUR(poll_errors, "bad arguments of poll() and select()");
void poll_errors::a() {
    const int s = connected();
    pollfd p{s, POLLIN, 0};
    SEE(poll(nullptr, 0, 0));
    SEE(poll(nullptr, 1, 0));
    SEE(poll(&p, ~0u, 0));
    const timespec bad{0, 2000000000};
    SEE(ppoll(&p, 1, &bad, nullptr));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    timeval negative{-1, 0};
    SEE(select(s + 1, &in, nullptr, nullptr, &negative));
    timeval zero{};
    SEE(select(-1, &in, nullptr, nullptr, &zero));
    const int closed = dup(s);
    close(closed);
    FD_SET(closed, &in);
    SEE(select(closed + 1, &in, nullptr, nullptr, &zero));
    FD_CLR(closed, &in);
    SEE(select(s + 1, &in, nullptr, nullptr, &zero));
    SEE(bool(FD_ISSET(s, &in)));
    step("over");
}
void poll_errors::b() {
    connected();
    step("over");
}

BEHAVIOUR(poll_timeouts,
          "timeouts of poll(), ppoll(), select(), pselect(); select() writes back what is left");
void poll_timeouts::a() {
    const int s = connected();
    pollfd p{s, POLLIN, 0};
    int64_t begin = milliseconds();
    SEE(poll(&p, 1, 80));
    SEE(waited(begin, 80));
    begin = milliseconds();
    const timespec ts{0, 80000000};
    SEE(ppoll(&p, 1, &ts, nullptr));
    SEE(waited(begin, 80));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    begin = milliseconds();
    timeval tv{0, 80000};
    SEE(select(s + 1, &in, nullptr, nullptr, &tv));
    SEE(waited(begin, 80));
    SEE(long(tv.tv_sec + tv.tv_usec));
    SEE(bool(FD_ISSET(s, &in)));
    FD_SET(s, &in);
    begin = milliseconds();
    SEE(pselect(s + 1, &in, nullptr, nullptr, &ts, nullptr));
    SEE(waited(begin, 80));
    SEE(long(ts.tv_nsec));
    step("go");
    FD_SET(s, &in);
    tv = {5, 0};
    SEE(select(s + 1, &in, nullptr, nullptr, &tv));
    SEE(tv.tv_sec < 5);
    step("over");
}
void poll_timeouts::b() { word_at("go"); }

BEHAVIOUR(select_sets, "select() with all three sets, several descriptors, and the count of bits");
void select_sets::a() {
    const int s = connected(), t = connected(1);
    step("go");
    until(s, POLLIN);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    for (int fd : {s, t, 0}) {
        FD_SET(fd, &in);
        if (fd) FD_SET(fd, &out);
    }
    timeval zero{};
    SEE(select(std::max(s, t) + 1, &in, &out, nullptr, &zero));
    SEE(bool(FD_ISSET(s, &in)) * 8 + bool(FD_ISSET(t, &in)) * 4 + bool(FD_ISSET(s, &out)) * 2 +
        bool(FD_ISSET(t, &out)));
    SEE(bool(FD_ISSET(0, &in)));  // /dev/null
    step("over");
}
void select_sets::b() {
    const int s = connected();
    connected(1);
    step("go");
    put(s, "word");
    step("over");
}

BEHAVIOUR(poll_blocked, "a blocked poll() wakes for data, a FIN and a reset");
void poll_blocked::a() {
    const int s = connected(), t = connected(1), u = connected(2);
    step("data");
    SEE(polled(s, POLLIN, 5000));
    // Asleep before the reset comes: a poll() at the same moment sees on the kernel, too, part of what it changes.
    Asleep ended([&] { return polled(t, POLLRDHUP, 5000); });
    step("fin");
    SEE(ended.wakes());
    Asleep reset([&] { return polled(u, POLLIN | POLLRDHUP, 5000); });
    step("reset");
    SEE(reset.wakes());
    SEE(got(u));
}
void poll_blocked::b() {
    const int s = connected(), t = connected(1), u = connected(2);
    step("data");
    put(s, "x");
    step("fin");
    shutdown(t, SHUT_WR);
    step("reset");
    linger_for(u, 0);
    close(u);
}

BEHAVIOUR(poll_udp, "UDP sockets: writable, readable, errors, two of them at once");
void poll_udp::a() {
    const int s = udp_pair(), t = udp_pair(1);
    SEE(polled(s));
    step("go");
    pollfd p[] = {{s, POLLIN, 0}, {t, POLLIN, 0}};
    SEE(poll(p, 2, 5000));
    SEE(events_text(uint32_t(p[0].revents)) + " " + events_text(uint32_t(p[1].revents)));
    SEE(got(t));
    SEE(polled(t));
    step("over");
}
void poll_udp::b() {
    udp_pair();
    const int t = udp_pair(1);
    step("go");
    put(t, "x");
    step("over");
}
