// poll() and select(): corners.
#include <signal.h>
#include <sys/resource.h>
#include <sys/select.h>

#include "differential/behaviour.h"

namespace {
// The peer: sends a byte when told, and stays.
void speaks(int times = 1) {
    const int s = connected();
    for (int i = 0; i < times; i++) {
        step("speak");
        put(s, "x");
    }
    step("over");
}
}  // namespace

BEHAVIOUR(select_large_numbers,
          "select() with descriptors above 1024 in a set of the program's own");
void select_large_numbers::a() {
    const int s = connected();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(4096, limit.rlim_max));
    setrlimit(RLIMIT_NOFILE, &limit);
    const int high = SEE(fcntl(s, F_DUPFD, 1500));
    std::vector<fd_mask> in(2048 / NFDBITS), out(2048 / NFDBITS);
    const auto in_set = [](std::vector<fd_mask>& set, int fd) -> fd_mask {
        return set[size_t(fd) / NFDBITS] & (fd_mask(1) << (fd % NFDBITS));
    };
    const auto enter = [](std::vector<fd_mask>& set, int fd) {
        set[size_t(fd) / NFDBITS] |= fd_mask(1) << (fd % NFDBITS);
    };
    enter(in, high);
    enter(out, high);
    timeval zero{};
    SEE(select(high + 1, reinterpret_cast<fd_set*>(in.data()),
               reinterpret_cast<fd_set*>(out.data()), nullptr, &zero));
    SEE(in_set(in, high) != 0);
    SEE(in_set(out, high) != 0);
    step("speak");
    enter(in, high);
    timeval tv{5, 0};
    SEE(select(high + 1, reinterpret_cast<fd_set*>(in.data()), nullptr, nullptr, &tv));
    SEE(in_set(in, high) != 0);
    SEE(got(high));
    step("over");
}
void select_large_numbers::b() { speaks(); }

BEHAVIOUR(select_below, "select() looks at no descriptor from nfds on, and leaves its bit");
void select_below::a() {
    const int s = connected(), d = dup(s);
    fd_set out;
    FD_ZERO(&out);
    FD_SET(s, &out);
    FD_SET(d, &out);
    timeval zero{};
    SEE(select(d, nullptr, &out, nullptr, &zero));
    SEE(bool(FD_ISSET(s, &out)));
    SEE(bool(FD_ISSET(d, &out)));
    SEE(select(0, nullptr, nullptr, nullptr, &zero));
    SEE(select(s, nullptr, nullptr, nullptr, &zero));
    step("speak");
    step("over");
}
void select_below::b() { speaks(); }

BEHAVIOUR(select_sleeps_alone, "select() and poll() as a way to sleep");
void select_sleeps_alone::a() {
    connected();
    int64_t begin = milliseconds();
    timeval tv{0, 50000};
    SEE(select(0, nullptr, nullptr, nullptr, &tv));
    SEE(waited(begin, 50));
    begin = milliseconds();
    SEE(poll(nullptr, 0, 50));
    SEE(waited(begin, 50));
    begin = milliseconds();
    const timespec ts{0, 50000000};
    SEE(pselect(0, nullptr, nullptr, nullptr, &ts, nullptr));
    SEE(waited(begin, 50));
    step("speak");
    step("over");
}
void select_sleeps_alone::b() { speaks(); }

BEHAVIOUR(select_fin_and_reset, "select(): a FIN is readable; a reset is readable and writable");
void select_fin_and_reset::a() {
    const int s = connected(), t = connected(1);
    step("end");
    SEE(until(s, POLLRDHUP));
    SEE(until(t, POLLERR));
    for (const int fd : {s, t}) {
        fd_set in, out, extra;
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_ZERO(&extra);
        FD_SET(fd, &in);
        FD_SET(fd, &out);
        FD_SET(fd, &extra);
        timeval tv{1, 0};
        SEE(select(fd + 1, &in, &out, &extra, &tv));
        SEE(FD_ISSET(fd, &in) * 4 + FD_ISSET(fd, &out) * 2 + FD_ISSET(fd, &extra));
    }
}
void select_fin_and_reset::b() {
    const int s = connected(), t = connected(1);
    shutdown(s, SHUT_WR);
    linger_for(t, 0);
    close(t);
    step("end");
}

BEHAVIOUR(poll_same_twice, "one descriptor several times in one poll(), blocked");
void poll_same_twice::a() {
    const int s = connected();
    pollfd p[] = {{s, POLLIN, 0}, {s, POLLRDHUP, 0}, {s, 0, 0}, {s, POLLIN | POLLPRI, 0}};
    SEE(poll(p, 4, 0));
    step("speak");
    SEE(poll(p, 4, 5000));
    for (const pollfd& each : p) SEE(events_text(uint32_t(each.revents)));
    step("over");
}
void poll_same_twice::b() { speaks(); }

BEHAVIOUR(poll_many, "a thousand entries, most of them the same socket, closed or negative");
void poll_many::a() {
    const int s = connected(), closed = dup(s);
    close(closed);
    std::vector<pollfd> p(900, pollfd{s, POLLIN, 0});
    for (size_t i = 0; i < p.size(); i += 3) p[i].fd = i % 2 ? -1 : closed;
    SEE(poll(p.data(), p.size(), 0));
    step("speak");
    SEE(until(s, POLLIN));
    SEE(poll(p.data(), p.size(), 0));
    SEE(events_text(uint32_t(p[0].revents)) + " " + events_text(uint32_t(p[3].revents)) + " " +
        events_text(uint32_t(p[1].revents)));
    step("over");
}
void poll_many::b() { speaks(); }

BEHAVIOUR(poll_closed_while_asleep, "a socket that is closed while poll() sleeps on it");
void poll_closed_while_asleep::a() {
    const int s = connected();
    Asleep poller([&] { return polled(s, POLLIN, 5000); });
    SEE(close(s));
    SEE(polled(s, POLLIN));
    step("speak");
    SEE(poller.wakes());
    step("over");
}
void poll_closed_while_asleep::b() { speaks(); }

BEHAVIOUR(poll_dup2_while_asleep, "dup2() of another socket onto one that poll() sleeps on");
void poll_dup2_while_asleep::a() {
    const int s = connected(), t = connected(1);
    Asleep poller([&] { return polled(s, POLLIN | POLLRDHUP, 300); });
    SEE(dup2(t, s) == s);
    step("speak");
    SEE(poller.wakes());
    step("over");
}
void poll_dup2_while_asleep::b() {
    const int s = connected();
    connected(1);
    step("speak");
    put(s, "x");
    step("over");
}

BEHAVIOUR(poll_two_sleepers, "two threads in poll() on one socket: both wake");
void poll_two_sleepers::a() {
    const int s = connected();
    std::string one, two;
    Thread first([&] { one = polled(s, POLLIN, 5000); });
    Thread second([&] { two = polled(s, POLLIN | POLLRDHUP, 5000); });
    first.sleeps();
    second.sleeps();
    step("speak");
    first.join();
    second.join();
    SEE(one);
    SEE(two);
    step("over");
}
void poll_two_sleepers::b() { speaks(); }

BEHAVIOUR(poll_beside_recv, "poll() and recv() of two threads on one socket");
void poll_beside_recv::a() {
    const int s = connected();
    Asleep poller([&] { return polled(s, POLLRDHUP, 5000); });
    Asleep reader([&] { return got(s, 1); });
    step("speak");
    SEE(reader.wakes());
    step("end");
    SEE(poller.wakes());
    step("over");
}
void poll_beside_recv::b() {
    const int s = connected();
    step("speak");
    put(s, "x");
    step("end");
    shutdown(s, SHUT_WR);
    step("over");
}

BEHAVIOUR(poll_for_ever, "negative timeouts of poll(), no timeout of ppoll() and pselect()");
void poll_for_ever::a() {
    const int s = connected();
    step("speak");
    SEE(polled(s, POLLIN, -7));
    SEE(got(s));
    step("speak");
    pollfd p{s, POLLIN, 0};
    SEE(ppoll(&p, 1, nullptr, nullptr));
    SEE(got(s));
    step("speak");
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    SEE(pselect(s + 1, &in, nullptr, nullptr, nullptr, nullptr));
    SEE(got(s));
    step("over");
}
void poll_for_ever::b() { speaks(3); }

BEHAVIOUR(poll_bad_times, "times that ppoll(), pselect() and select() refuse");
void poll_bad_times::a() {
    const int s = connected();
    pollfd p{s, POLLIN, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    for (const timespec ts : {timespec{-1, 0}, timespec{0, -1}, timespec{0, 1000000000}}) {
        SEE(ppoll(&p, 1, &ts, nullptr));
        SEE(pselect(s + 1, &in, nullptr, nullptr, &ts, nullptr));
    }
    for (timeval tv : {timeval{0, -1}, timeval{0, 1000001}, timeval{0, 2000000}}) {
        FD_SET(s, &in);
        SEE(tv.tv_usec > 0 ? 0 : select(s + 1, &in, nullptr, nullptr, &tv));
    }
    step("speak");
    step("over");
}
void poll_bad_times::b() { speaks(); }

BEHAVIOUR(poll_only_errors, "events 0 in a blocked poll(): woken by a reset alone");
void poll_only_errors::a() {
    const int s = connected();
    step("speak");
    SEE(until_bytes(s, 1));
    SEE(polled(s, 0, 20));
    Asleep poller([&] { return polled(s, 0, 5000); });
    step("reset");
    SEE(poller.wakes());
}
void poll_only_errors::b() {
    const int s = connected();
    step("speak");
    put(s, "x");
    step("reset");
    linger_for(s, 0);
    close(s);
}

BEHAVIOUR(poll_low_water, "poll() and select() honour SO_RCVLOWAT");
void poll_low_water::a() {
    const int s = connected();
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 2));
    step("speak");
    SEE(until_bytes(s, 1));
    SEE(polled(s, POLLIN, 20));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    timeval zero{};
    SEE(select(s + 1, &in, nullptr, nullptr, &zero));
    step("speak");
    SEE(polled(s, POLLIN, 5000));
    SEE(got(s));
    step("over");
}
void poll_low_water::b() { speaks(2); }

BEHAVIOUR(poll_sleeper_low_water, "who sleeps in poll() wakes when SO_RCVLOWAT is reached");
void poll_sleeper_low_water::a() {
    const int s = connected();
    set(s, SOL_SOCKET, SO_RCVLOWAT, 2);
    Asleep poller([&] { return polled(s, POLLIN, 5000); });
    step("speak");
    SEE(until_bytes(s, 1));
    poller.sleeps();
    step("speak");
    SEE(poller.wakes());
    step("over");
}
void poll_sleeper_low_water::b() { speaks(2); }

SOLO(poll_states, "poll() of fresh, bound, listening and failed sockets") {
    const int fresh = tcp(), bound = tcp(), refused = tcp(SOCK_NONBLOCK), l = listening(1);
    bind_to(bound, "a", 2);
    SEE(ready(fresh));
    SEE(ready(bound));
    SEE(ready(l));
    SEE(polled(l, POLLOUT | POLLRDHUP | POLLPRI));
    SEE(connect_to(refused, "b", 9));
    SEE(until(refused, POLLERR));
    SEE(ready(refused));
    SEE(option(refused, SOL_SOCKET, SO_ERROR));
    SEE(ready(refused));
    const int silent = tcp(SOCK_NONBLOCK);
    SEE(connect_to(silent, "silent"));
    on_ring(silent);
    SEE(ready(silent));
    SEE(shutdown(silent, SHUT_RDWR));
    SEE(ready(silent));
}

BEHAVIOUR(poll_udp_error_queued, "UDP: an error and a datagram at once, and what clears which");
void poll_udp_error_queued::a() {
    const int s = udp_pair();
    step("speak");
    SEE(until(s, POLLIN));
    SEE(connect_to(s, "b", 9));
    SEE(put(s, "refused"));
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(got(s));
    SEE(ready(s));
    SEE(got(s));
    SEE(ready(s));
}
void poll_udp_error_queued::b() {
    const int s = udp_pair();
    step("speak");
    put(s, "datagram");
}
