// epoll: sets within sets, several sets, several waiters, sets and members that are closed or changed while somebody waits.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

#include <atomic>

#include "differential/epoll_words.h"

namespace {
// A thread that waits in epoll_wait() once; what it got is in `seen`.
struct Waiter {
    Waiter(int ep, std::initializer_list<int> fds, int timeout = 5000)
        : thread([this, ep, members = std::vector<int>(fds), timeout] {
              epoll_event e{};
              const int n = epoll_wait(ep, &e, 1, timeout);
              const auto at = std::find(members.begin(), members.end(), int(e.data.u64));
              seen = n < 0 ? strerrorname_np(errno)
                     : n == 0
                         ? "nothing"
                         : "#" + std::to_string(at - members.begin()) + " " + events_text(e.events);
          }) {}
    void sleeps() { thread.sleeps(); }
    std::string seen;
    Thread thread;
};
std::string end_of(Waiter& waiter) {
    waiter.thread.join();
    return waiter.seen;
}
// Two threads that sleep in one set, each for one event.
class TwoSleepers {
  public:
    explicit TwoSleepers(int ep) : ep_(ep) {
        one_.sleeps();
        two_.sleeps();
    }
    // How many have woken, once one has.
    int woken() {
        const int64_t end = milliseconds() + 4000;
        while (woken_ == 0 && milliseconds() < end) poll(nullptr, 0, 1);
        return woken_;
    }
    // At the end of both.
    int all_woken() {
        one_.join();
        two_.join();
        return woken_;
    }

  private:
    void wait() {
        epoll_event e;
        woken_ += epoll_wait(ep_, &e, 1, 5000);
    }
    const int ep_;
    std::atomic<int> woken_{0};
    Thread one_{[this] { wait(); }}, two_{[this] { wait(); }};
};
}  // namespace

BEHAVIOUR(nested_edge, "an edge-triggered set in a set");
void nested_edge::a() {
    const int s = connected(), inner = epoll_create1(0), outer = epoll_create1(0);
    SEE(add(inner, s, EPOLLIN));
    SEE(add(outer, inner, EPOLLIN | EPOLLET));
    SEE(events(outer, {inner}));
    byte(s);
    SEE(events(outer, {inner}, 5000));
    SEE(events(outer, {inner}));
    byte(s, 2);
    SEE(events(outer, {inner}, 5000));
    SEE(events(outer, {inner}));
    SEE(events(inner, {s}));
    step("over");
}
void nested_edge::b() { bytes(2); }

BEHAVIOUR(nested_three, "a set in a set in a set");
void nested_three::a() {
    const int s = connected(), one = epoll_create1(0), two = epoll_create1(0),
              three = epoll_create1(0);
    SEE(add(two, one, EPOLLIN));
    SEE(add(three, two, EPOLLIN));
    SEE(add(one, s, EPOLLIN));
    SEE(events(three, {two}));
    byte(s);
    SEE(events(three, {two}, 5000));
    SEE(events(two, {one}, 5000));
    SEE(events(one, {s}, 5000));
    SEE(got(s));
    SEE(events(three, {two}));
    SEE(events(two, {one}));
    step("over");
}
void nested_three::b() { bytes(1); }

BEHAVIOUR(nested_too_deep, "chains and circles of sets: ELOOP, EINVAL");
void nested_too_deep::a() {
    const int s = connected();
    int chain[8];
    for (int& ep : chain) ep = epoll_create1(0);
    SEE(add(chain[0], s, EPOLLIN));
    for (int i = 1; i < 8; i++) SEE(add(chain[i], chain[i - 1], EPOLLIN));
    SEE(add(chain[0], chain[2], EPOLLIN));
    SEE(add(chain[0], chain[0], EPOLLIN));
    SEE(add(chain[7], s, EPOLLIN));
    byte(s);
    SEE(events(chain[1], {chain[0]}, 5000));
    step("over");
}
void nested_too_deep::b() { bytes(1); }

BEHAVIOUR(nested_exclusive, "EPOLLEXCLUSIVE is not for sets");
void nested_exclusive::a() {
    const int s = connected(), inner = epoll_create1(0), outer = epoll_create1(0);
    SEE(add(inner, s, EPOLLIN));
    SEE(add(outer, inner, EPOLLIN | EPOLLEXCLUSIVE));
    SEE(add(outer, inner, EPOLLOUT));
    SEE(events(outer, {inner}));
    SEE(add(outer, inner, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD));
    byte(s);
    SEE(events(outer, {inner}, 5000));
    step("over");
}
void nested_exclusive::b() { bytes(1); }

BEHAVIOUR(nested_closed, "an inner set that is closed leaves the outer one");
void nested_closed::a() {
    const int s = connected(), inner = epoll_create1(0), outer = epoll_create1(0);
    SEE(add(inner, s, EPOLLIN));
    SEE(add(outer, inner, EPOLLIN));
    byte(s);
    SEE(events(outer, {inner}, 5000));
    SEE(close(inner));
    SEE(events(outer, {inner}));
    SEE(got(s));
    step("over");
}
void nested_closed::b() { bytes(1); }

BEHAVIOUR(nested_sleeper, "who sleeps in the outer set wakes for the inner one's member");
void nested_sleeper::a() {
    const int s = connected(), inner = epoll_create1(0), outer = epoll_create1(0);
    add(inner, s, EPOLLIN);
    add(outer, inner, EPOLLIN);
    Waiter waiter(outer, {inner});
    waiter.sleeps();
    byte(s);
    SEE(end_of(waiter));
    step("over");
}
void nested_sleeper::b() { bytes(1); }

BEHAVIOUR(set_in_poll, "who sleeps in poll() or select() on a set wakes for its member");
void set_in_poll::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    Asleep poller([&] { return polled(ep, POLLIN, 5000); });
    byte(s);
    SEE(poller.wakes());
    SEE(got(s));
    SEE(polled(ep, POLLIN | POLLOUT));
    int n = 0;
    Thread selecter([&] {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(ep, &in);
        timeval tv{5, 0};
        n = select(ep + 1, &in, nullptr, nullptr, &tv);
    });
    selecter.sleeps();
    byte(s);
    selecter.join();
    SEE(n);
    step("over");
}
void set_in_poll::b() { bytes(2); }

BEHAVIOUR(two_sleepers_two_sets, "one socket in two sets: both sleepers wake");
void two_sleepers_two_sets::a() {
    const int s = connected(), one = epoll_create1(0), two = epoll_create1(0);
    add(one, s, EPOLLIN | EPOLLET);
    add(two, s, EPOLLIN);
    Waiter first(one, {s}), second(two, {s});
    first.sleeps();
    second.sleeps();
    byte(s);
    SEE(end_of(first));
    SEE(end_of(second));
    step("over");
}
void two_sleepers_two_sets::b() { bytes(1); }

BEHAVIOUR(two_sleepers_one_set, "two threads in one set: an edge wakes one, the next the other");
void two_sleepers_one_set::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN | EPOLLET);
    TwoSleepers sleepers(ep);
    byte(s);
    SEE(sleepers.woken());
    SEE(events(ep, {s}));
    byte(s, 2);
    SEE(sleepers.all_woken());
    step("over");
}
void two_sleepers_one_set::b() { bytes(2); }

BEHAVIOUR(oneshot_two_sleepers, "EPOLLONESHOT: one of two threads, until it is armed again");
void oneshot_two_sleepers::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN | EPOLLONESHOT);
    TwoSleepers sleepers(ep);
    byte(s);
    sleepers.woken();
    byte(s, 2);
    SEE(sleepers.woken());
    SEE(add(ep, s, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD));
    SEE(sleepers.all_woken());
    step("over");
}
void oneshot_two_sleepers::b() { bytes(2); }

BEHAVIOUR(added_while_asleep, "a ready member that is added wakes who sleeps");
void added_while_asleep::a() {
    const int s = connected(), ep = epoll_create1(0);
    byte(s);
    Waiter waiter(ep, {s});
    waiter.sleeps();
    SEE(add(ep, s, EPOLLIN));
    SEE(end_of(waiter));
    step("over");
}
void added_while_asleep::b() { bytes(1); }

BEHAVIOUR(modified_while_asleep, "EPOLL_CTL_MOD to what is so wakes who sleeps");
void modified_while_asleep::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    Waiter waiter(ep, {s});
    waiter.sleeps();
    SEE(add(ep, s, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD));
    SEE(end_of(waiter));
    step("over");
}
void modified_while_asleep::b() { bytes(0); }

BEHAVIOUR(removed_while_asleep, "a member that is removed wakes nobody any more");
void removed_while_asleep::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    Waiter waiter(ep, {s}, 250);
    waiter.sleeps();
    SEE(add(ep, s, 0, EPOLL_CTL_DEL));
    byte(s);
    SEE(end_of(waiter));
    step("over");
}
void removed_while_asleep::b() { bytes(1); }

BEHAVIOUR(member_closed_while_asleep,
          "a member that is closed while somebody sleeps; another wakes");
void member_closed_while_asleep::a() {
    const int s = connected(), t = connected(1), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    add(ep, t, EPOLLIN);
    Waiter waiter(ep, {s, t});
    waiter.sleeps();
    SEE(close(s));
    step("closed");
    SEE(end_of(waiter));
}
void member_closed_while_asleep::b() {
    const int s = connected(), t = connected(1);
    step("closed");
    SEE(rest(s));
    put(t, "x");
}

BEHAVIOUR(set_closed_while_asleep, "a set that is closed while somebody sleeps in it");
void set_closed_while_asleep::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    Waiter waiter(ep, {s});
    waiter.sleeps();
    SEE(close(ep));
    SEE(epoll_wait(ep, nullptr, 1, 0));
    byte(s);
    SEE(end_of(waiter));
    SEE(got(s));
    step("over");
}
void set_closed_while_asleep::b() { bytes(1); }

BEHAVIOUR(set_duplicated, "dup() of a set: one set; it lives until the last is closed");
void set_duplicated::a() {
    const int s = connected(), ep = epoll_create1(0), copy = dup(ep);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(copy, s, EPOLLIN));
    byte(s);
    SEE(events(copy, {s}, 5000));
    SEE(close(ep));
    SEE(events(copy, {s}, 5000));
    SEE(add(copy, s, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD));
    SEE(events(copy, {s}, 5000));
    SEE(dup2(copy, ep) == ep);
    SEE(events(ep, {s}, 5000));
    SEE(close(copy));
    SEE(close(ep));
    SEE(events(ep, {s}));
    step("over");
}
void set_duplicated::b() { bytes(1); }

BEHAVIOUR(set_flags, "flags of a set: O_CLOEXEC, fcntl(), read and write of it");
void set_flags::a() {
    const int s = connected(), ep = epoll_create1(EPOLL_CLOEXEC), plain = epoll_create(1);
    SEE(fcntl(ep, F_GETFD));
    SEE(fcntl(plain, F_GETFD));
    SEE(fcntl(ep, F_GETFL));
    SEE(fcntl(ep, F_SETFL, O_NONBLOCK));
    SEE(fcntl(ep, F_GETFL));
    add(ep, s, EPOLLIN);
    char c;
    SEE(read(ep, &c, 1));
    SEE(write(ep, &c, 1));
    SEE(put(ep, "x"));
    SEE(lseek(ep, 0, SEEK_SET));
    SEE(events(ep, {s}, 20));  // not a matter of O_NONBLOCK
    int n;
    SEE(ioctl(ep, FIONREAD, &n));
    SEE(polled(ep));
    step("over");
}
void set_flags::b() { bytes(0); }

BEHAVIOUR(duplicates_as_members, "duplicates of one socket as members: each its own interest");
void duplicates_as_members::a() {
    const int s = connected(), d = dup(s), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, d, EPOLLOUT));
    SEE(events(ep, {s, d}));
    byte(s);
    SEE(events(ep, {s, d}, 5000));
    SEE(add(ep, d, EPOLLRDHUP, EPOLL_CTL_MOD));
    SEE(events(ep, {s, d}, 5000));
    SEE(close(d));
    SEE(add(ep, d, EPOLLIN, EPOLL_CTL_MOD));
    SEE(add(ep, s, 0, EPOLL_CTL_DEL));
    SEE(events(ep, {s, d}));
    step("over");
}
void duplicates_as_members::b() { bytes(1); }

BEHAVIOUR(number_taken_over, "dup2() over a member: the old one leaves, the new one is no member");
void number_taken_over::a() {
    const int s = connected(), t = connected(1), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN));
    SEE(dup2(t, s) == s);
    step("taken over");
    SEE(until(t, POLLIN));
    SEE(events(ep, {s}));
    SEE(add(ep, s, EPOLLIN, EPOLL_CTL_MOD));
    SEE(add(ep, s, EPOLLIN));
    SEE(add(ep, t, EPOLLIN));
    SEE(events(ep, {s, t}));
}
void number_taken_over::b() {
    const int s = connected(), t = connected(1);
    step("taken over");
    SEE(rest(s));
    put(t, "x");
}

BEHAVIOUR(member_order, "members are told in the order in which they became ready");
void member_order::a() {
    const int s = connected(), t = connected(1), u = connected(2), ep = epoll_create1(0);
    for (const int fd : {s, t, u}) add(ep, fd, EPOLLIN);
    for (const int fd : {t, u, s}) {
        step("byte");
        until_bytes(fd, 1);
    }
    epoll_event e[3] = {};
    SEE(epoll_wait(ep, e, 3, 0));
    for (const epoll_event& each : e)
        note(each.data.fd == s ? "first" : each.data.fd == t ? "second" : "third");
}
void member_order::b() {
    const int s = connected(), t = connected(1), u = connected(2);
    for (const int fd : {t, u, s}) {
        step("byte");
        put(fd, "x");
    }
}

BEHAVIOUR(wait_arguments, "epoll_wait(): sizes, timeouts, pointers");
void wait_arguments::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLOUT);
    epoll_event e{};
    SEE(epoll_wait(ep, &e, 1, -5));
    SEE(epoll_wait(ep, &e, INT32_MAX, 0));
    SEE(epoll_wait(ep, &e, 0, 0));
    const timespec negative{-1, 0}, none{0, 0}, one{0, 1};
    SEE(epoll_pwait2(ep, &e, 1, &negative, nullptr));
    SEE(epoll_pwait2(ep, &e, 1, &none, nullptr));
    SEE(epoll_pwait2(ep, &e, 1, nullptr, nullptr));
    add(ep, s, EPOLLIN, EPOLL_CTL_MOD);
    SEE(epoll_pwait2(ep, &e, 1, &one, nullptr));
    SEE(epoll_pwait2(ep, &e, 1, &none, nullptr));
    SEE(epoll_pwait(ep, &e, 1, 0, nullptr));
    step("over");
}
void wait_arguments::b() { bytes(0); }

BEHAVIOUR(wait_nanoseconds, "epoll_pwait2(): timeouts below a millisecond, and how long they are");
void wait_nanoseconds::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    epoll_event e{};
    const timespec short_one{0, 300000};
    const auto now = [] {
        timespec ts{};
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return int64_t(ts.tv_sec) * 1000000000 + ts.tv_nsec;
    };
    const int64_t begin = now();
    for (int i = 0; i < 10; i++)
        if (epoll_pwait2(ep, &e, 1, &short_one, nullptr) != 0) note("an event");
    SEE(now() - begin >= 3000000);
    const timespec long_one{0, 60000000};
    const int64_t second = milliseconds();
    SEE(epoll_pwait2(ep, &e, 1, &long_one, nullptr));
    SEE(waited(second, 60));
    step("over");
}
void wait_nanoseconds::b() { bytes(0); }

BEHAVIOUR(many_members, "300 fresh sockets, a ready connection among them, few places");
void many_members::a() {
    const int s = connected(), ep = epoll_create1(0);
    std::vector<int> fds;
    for (int i = 0; i < 300; i++) {
        fds.push_back(tcp());
        if (add(ep, fds.back(), EPOLLIN) != 0) note("not added");
    }
    SEE(add(ep, s, EPOLLIN));
    byte(s);
    std::vector<epoll_event> e(400);
    SEE(epoll_wait(ep, e.data(), 400, 0));
    int hung_up = 0, readable = 0;
    for (int i = 0; i < 50; i++) {
        const int n = epoll_wait(ep, e.data(), 8, 0);
        for (int k = 0; k < n; k++) {
            hung_up += e[k].events == EPOLLHUP;
            readable += e[k].data.fd == s;
        }
    }
    SEE(hung_up > 300);
    SEE(readable > 0);
    for (const int fd : fds) close(fd);
    SEE(events(ep, {s}));
    step("over");
}
void many_members::b() { bytes(1); }

BEHAVIOUR(set_in_a_child, "a child waits in the set that it inherited; the parent goes on with it");
void set_in_a_child::a() {
    const int s = connected(), ep = epoll_create1(0);
    add(ep, s, EPOLLIN);
    byte(s);
    SEE(events(ep, {s}, 5000));
    const int pid = fork();
    if (pid == 0) {
        SEE(events(ep, {s}, 5000));
        SEE(got(s));
        SEE(events(ep, {s}));
        _exit(3);
    }
    SEE(outcome(pid));
    SEE(events(ep, {s}));
    byte(s);
    SEE(events(ep, {s}, 5000));
    SEE(got(s));
    step("over");
}
void set_in_a_child::b() { bytes(2); }

BEHAVIOUR(made_by_the_child, "a child makes its own set with an inherited connection");
void made_by_the_child::a() {
    const int s = connected();
    const int pid = fork();
    if (pid == 0) {
        const int ep = epoll_create1(0);
        SEE(add(ep, s, EPOLLIN | EPOLLRDHUP));
        SEE(events(ep, {s}, 5000));
        SEE(got(s));
        _exit(0);
    }
    step("byte");
    step("sent");
    SEE(outcome(pid));
    step("over");
}
void made_by_the_child::b() { bytes(1); }

BEHAVIOUR(connect_in_set, "a socket is added before connect(), blocking and not");
void connect_in_set::a() {
    const int s = tcp(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    SEE(events(ep, {s}));
    step("listening");
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(events(ep, {s}, 5000));
    SEE(events(ep, {s}));
    step("over");
}
void connect_in_set::b() {
    accepted(listening());
    step("over");
}

BEHAVIOUR(reconnect_in_set, "connect(AF_UNSPEC) and another connect() of a member");
void reconnect_in_set::a() {
    const int s = dialled(), ep = epoll_create1(0);
    SEE(add(ep, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP));
    SEE(events(ep, {s}, 5000));
    sockaddr_in nobody{};
    SEE(connect(s, raw(nobody), sizeof nobody));
    SEE(events(ep, {s}, 5000));
    step("again");
    SEE(connect_to(s, "b"));
    SEE(events(ep, {s}, 5000));
    step("over");
}
void reconnect_in_set::b() {
    const int l = listening();
    const int c = accepted(l);
    SEE(until(c, POLLERR));
    step("again");
    SEE(accept(l, nullptr, nullptr) > c);
    step("over");
}

BEHAVIOUR(listener_becomes_deaf, "shutdown() of a listener in a set", a_kernel);
void listener_becomes_deaf::a() { step("over"); }
void listener_becomes_deaf::b() {
    const int l = listening(), ep = epoll_create1(0);
    on_ring(l);
    SEE(add(ep, l, EPOLLIN | EPOLLRDHUP | EPOLLET));
    SEE(events(ep, {l}));
    SEE(shutdown(l, SHUT_RDWR));
    SEE(events(ep, {l}, 1000));
    SEE(ready(l));
    step("over");
}
