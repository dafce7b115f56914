// Signals during calls that wait.
#include <signal.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <atomic>

#include "differential/behaviour.h"

namespace {
// Sends SIGUSR1 to this thread once it sleeps.
struct Interrupt : Thread {
    Interrupt()
        : Thread([tid = own_tid()] {
              until_asleep(tid);
              syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
          }) {}
};
template <class Call>
auto interrupted(Call call) {
    Interrupt interrupt;
    return call();
}
void silent() { connected(); }
void speaks() {
    const int s = connected();
    step("speak");
    put(s, "word");
    step("over");
}
// Makes the other role speak once the handler has run.
struct Prompt : Thread {
    Prompt()
        : Thread([] {
              until_caught(1);
              step("speak");
          }) {}
};
}  // namespace

BEHAVIOUR(eintr_recv, "a handler without SA_RESTART ends recv() and read() with EINTR");
void eintr_recv::a() {
    const int s = connected();
    catch_signal(SIGUSR1, 0);
    SEE(interrupted([&] { return got(s); }));
    SEE(interrupted([&] {
        char c;
        return read(s, &c, 1);
    }));
    SEE(interrupted([&] { return got(s, 10, MSG_WAITALL); }));
    SEE(caught());
}
void eintr_recv::b() { silent(); }

BEHAVIOUR(restart_recv, "with SA_RESTART recv() goes on waiting");
void restart_recv::a() {
    const int s = connected();
    catch_signal(SIGUSR1, SA_RESTART);
    {
        Prompt prompt;
        SEE(interrupted([&] { return got(s); }));
    }
    SEE(caught());
    step("over");
}
void restart_recv::b() { speaks(); }

BEHAVIOUR(eintr_with_timeout, "SO_RCVTIMEO: SA_RESTART does not restart");
void eintr_with_timeout::a() {
    const int s = connected();
    set_time(s, SO_RCVTIMEO, 4000);
    catch_signal(SIGUSR1, SA_RESTART);
    SEE(interrupted([&] { return got(s); }));
    SEE(caught());
}
void eintr_with_timeout::b() { silent(); }

BEHAVIOUR(eintr_accept, "accept() with and without SA_RESTART");
void eintr_accept::a() {
    step("speak");
    const int s = dialled();
    SEE(got(s));
}
void eintr_accept::b() {
    const int l = listening();
    catch_signal(SIGUSR1, 0);
    SEE(interrupted([&] { return accept(l, nullptr, nullptr); }));
    forget_caught();
    catch_signal(SIGUSR1, SA_RESTART);
    int c;
    {
        Thread prompt([] {
            until_caught(1);
            step("speak");
            step("listening");
        });
        c = interrupted([&] { return accept(l, nullptr, nullptr); });
    }
    on_ring(c);
    SEE(put(c, "x"));
}

SOLO(eintr_connect,
     "connect() interrupted: EINTR without SA_RESTART, and the connection is still being made") {
    const int s = tcp();
    catch_signal(SIGUSR1, 0);
    SEE(interrupted([&] { return connect_to(s, "silent"); }));
    on_ring(s);
    nonblocking(s);
    SEE(connect_to(s, "silent"));
}

BEHAVIOUR(eintr_send, "send() interrupted: the part that went, or EINTR");
void eintr_send::a() {
    const int s = connected();
    catch_signal(SIGUSR1, 0);
    const std::string much = pattern(32 << 20);
    const long n = interrupted([&] { return put(s, much); });
    SEE(n > 0 && n < long(much.size()));
    fill(s);
    nonblocking(s, false);
    // The peer's last acknowledgement may have made a little room.
    const long more = interrupted([&] { return put(s, much) < 0 ? -long(errno) : 1; });
    SEE(more == 1 || more == -EINTR);
    linger_for(s, 0);
    step("full");
}
void eintr_send::b() {
    const int s = connected();
    step("full");
    SEE(until(s, POLLIN));
}

BEHAVIOUR(eintr_waits, "poll(), ppoll(), select(), pselect(), epoll_wait() never restart");
void eintr_waits::a() {
    const int s = connected(), ep = epoll_create1(0);
    catch_signal(SIGUSR1, SA_RESTART);
    pollfd p{s, POLLIN, 0};
    const timespec ts{5, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    epoll_event e{EPOLLIN, {.fd = s}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    SEE(interrupted([&] { return poll(&p, 1, 5000); }));
    SEE(interrupted([&] { return ppoll(&p, 1, &ts, nullptr); }));
    SEE(interrupted([&] {
        timeval tv{5, 0};
        return select(s + 1, &in, nullptr, nullptr, &tv);
    }));
    SEE(interrupted([&] { return pselect(s + 1, &in, nullptr, nullptr, &ts, nullptr); }));
    SEE(interrupted([&] { return epoll_wait(ep, &e, 1, 5000); }));
    SEE(interrupted([&] { return epoll_pwait(ep, &e, 1, 5000, nullptr); }));
    SEE(caught());
}
void eintr_waits::b() { silent(); }

BEHAVIOUR(masks_of_waits,
          "the signal masks of ppoll(), pselect() and epoll_pwait() let a pending signal in");
void masks_of_waits::a() {
    const int s = connected(), ep = epoll_create1(0);
    catch_signal(SIGUSR1, SA_RESTART);
    sigset_t blocked, open_mask;
    sigemptyset(&blocked);
    sigemptyset(&open_mask);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    pollfd p{s, POLLIN, 0};
    const timespec ts{5, 0}, soon{0, 20000000};
    epoll_event e{EPOLLIN, {.fd = s}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    raise(SIGUSR1);
    SEE(poll(&p, 1, 20));
    SEE(ppoll(&p, 1, &soon, nullptr));
    SEE(caught());
    SEE(ppoll(&p, 1, &ts, &open_mask));
    SEE(caught());
    raise(SIGUSR1);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    SEE(pselect(s + 1, &in, nullptr, nullptr, &ts, &open_mask));
    SEE(caught());
    raise(SIGUSR1);
    SEE(epoll_pwait(ep, &e, 1, 5000, &open_mask));
    SEE(caught());
    raise(SIGUSR1);
    p.events = POLLOUT;
    SEE(ppoll(&p, 1, &ts, &open_mask));  // ready: not interrupted
    sigset_t now;
    sigprocmask(SIG_BLOCK, nullptr, &now);
    SEE(sigismember(&now, SIGUSR1));
}
void masks_of_waits::b() { silent(); }

BEHAVIOUR(eintr_udp, "recvfrom() on UDP with and without SA_RESTART");
void eintr_udp::a() {
    const int s = udp_pair();
    catch_signal(SIGUSR1, 0);
    SEE(interrupted([&] { return got(s); }));
    forget_caught();
    catch_signal(SIGUSR1, SA_RESTART);
    {
        Prompt prompt;
        SEE(interrupted([&] { return got(s); }));
    }
    SEE(caught());
}
void eintr_udp::b() {
    const int s = udp_pair();
    step("speak");
    put(s, "word");
}

BEHAVIOUR(sigio, "O_ASYNC with F_SETOWN: SIGIO when data comes", a_kernel);
void sigio::a() {
    const int s = connected();
    catch_signal(SIGIO, SA_RESTART);
    SEE(fcntl(s, F_SETOWN, getpid()));
    SEE(fcntl(s, F_GETOWN) == getpid());
    SEE(fcntl(s, F_SETFL, O_RDWR | O_ASYNC));
    SEE((fcntl(s, F_GETFL) & O_ASYNC) != 0);
    const int before = caught();
    step("speak");
    SEE(until_caught(before + 1));
    SEE(got(s));
    step("over");
}
void sigio::b() { speaks(); }

BEHAVIOUR(handler_uses_socket,
          "a handler may call socket functions while the call it interrupted waits");
namespace {
int g_socket = -1;
std::atomic<int> g_calls{0};
}  // namespace
void handler_uses_socket::a() {
    g_socket = connected();
    struct sigaction action {};
    action.sa_handler = [](int) {
        g_calls++;
        put(g_socket, "from the handler");
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    SEE(interrupted([&] { return got(g_socket); }));
    SEE(int(g_calls));
}
void handler_uses_socket::b() {
    const int s = connected();
    SEE(got(s));
    SEE(put(s, "answer"));
}
