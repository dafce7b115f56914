// Signals: which calls start again, which do not, masks, jumps out of handlers, SIGIO.
#include <setjmp.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <atomic>
#include <memory>

#include "differential/behaviour.h"

namespace {
// Sends a signal to the thread that makes it, once that sleeps; then does something else.
struct Signal : Thread {
    explicit Signal(int number = SIGUSR1, std::function<void()> then = {})
        : Thread([tid = own_tid(), number, then = std::move(then)] {
              until_asleep(tid);
              const int before = caught();
              syscall(SYS_tgkill, getpid(), tid, number);
              if (!then) return;
              until_caught(before + 1);
              until_asleep(tid);
              then();
          }) {}
};
void speaks(int times = 1) {
    const int s = connected();
    for (int i = 0; i < times; i++) {
        step("speak");
        put(s, "word");
    }
    step("over");
}
// What each way to read gives when a signal comes; `reads` starts again or not.
template <class Call>
void interrupted_by(Call call) {
    Signal signal;
    call();
}
template <class Call>
void restarted(Call call) {
    Signal signal(SIGUSR1, [] { step("speak"); });
    call();
}
}  // namespace

BEHAVIOUR(eintr_other_reads, "readv(), recvmsg(), recvmmsg(), recvfrom(): EINTR");
void eintr_other_reads::a() {
    const int s = connected();
    catch_signal(SIGUSR1);
    char c;
    iovec iov{&c, 1};
    msghdr m = message_of(iov);
    mmsghdr mm{};
    mm.msg_hdr = m;
    interrupted_by([&] { SEE(readv(s, &iov, 1)); });
    interrupted_by([&] { SEE(recvmsg(s, &m, 0)); });
    interrupted_by([&] { SEE(recvmmsg(s, &mm, 1, 0, nullptr)); });
    interrupted_by([&] { SEE(recvfrom(s, &c, 1, 0, nullptr, nullptr)); });
    interrupted_by([&] { SEE(recv(s, &c, 1, MSG_PEEK)); });
    SEE(caught());
    step("speak");
    step("over");
}
void eintr_other_reads::b() { speaks(); }

BEHAVIOUR(restart_other_reads, "readv(), recvmsg(), read(), recv(MSG_PEEK) start again");
void restart_other_reads::a() {
    const int s = connected();
    catch_signal(SIGUSR1, SA_RESTART);
    char c[8];
    iovec iov{c, sizeof c};
    msghdr m = message_of(iov);
    restarted([&] { SEE(readv(s, &iov, 1)); });
    restarted([&] { SEE(recvmsg(s, &m, 0)); });
    restarted([&] { SEE(read(s, c, sizeof c)); });
    restarted([&] { SEE(recv(s, c, sizeof c, MSG_PEEK)); });
    SEE(caught());
    step("over");
}
void restart_other_reads::b() { speaks(4); }

BEHAVIOUR(waitall_interrupted, "MSG_WAITALL gives what it has when a signal comes");
void waitall_interrupted::a() {
    const int s = connected();
    catch_signal(SIGUSR1);
    step("speak");
    SEE(until_bytes(s, 4));
    interrupted_by([&] { SEE(got(s, 10, MSG_WAITALL)); });
    catch_signal(SIGUSR1, SA_RESTART);
    step("speak");
    SEE(until_bytes(s, 4));
    interrupted_by([&] { SEE(got(s, 10, MSG_WAITALL)); });
    step("over");
}
void waitall_interrupted::b() { speaks(2); }

BEHAVIOUR(ignored_signals, "ignored signals and those without a handler's effect wake nobody");
void ignored_signals::a() {
    const int s = connected();
    signal(SIGUSR1, SIG_IGN);
    Thread sender([tid = own_tid()] {
        until_asleep(tid);
        syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
        syscall(SYS_tgkill, getpid(), tid, SIGCHLD);
        syscall(SYS_tgkill, getpid(), tid, SIGWINCH);
        until_asleep(tid);
        step("speak");
    });
    SEE(got(s));
    sender.join();
    step("over");
}
void ignored_signals::b() { speaks(); }

BEHAVIOUR(stopped_and_continued,
          "SIGSTOP and SIGCONT: recv() goes on, epoll_wait() is interrupted");
void stopped_and_continued::a() {
    const int s = connected(), ep = epoll_create1(0);
    epoll_event e{EPOLLIN, {.fd = s}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    const auto stop_and_go = [](bool then_speak) {
        const int parent = getpid(), tid = own_tid();
        return [=] {
            until_asleep(tid);
            const int pid = int(syscall(SYS_fork));
            if (pid == 0) {
                syscall(SYS_kill, parent, SIGSTOP);
                const timespec nap{0, 50000000};
                syscall(SYS_nanosleep, &nap, nullptr);
                syscall(SYS_kill, parent, SIGCONT);
                syscall(SYS_exit_group, 0);
            }
            if (outcome(pid) != "exit 0") note("no child");
            if (then_speak) step("speak");
        };
    };
    {
        Thread other(stop_and_go(true));
        SEE(got(s));
    }
    {
        Thread other(stop_and_go(false));
        SEE(epoll_wait(ep, &e, 1, 500));
    }
    step("over");
}
void stopped_and_continued::b() { speaks(); }

BEHAVIOUR(blocked_signals, "a blocked signal does not end a wait; it comes when it is let in");
void blocked_signals::a() {
    const int s = connected();
    catch_signal(SIGUSR1);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    Thread sender([tid = own_tid()] {
        until_asleep(tid);
        syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
        until_asleep(tid);
        step("speak");
    });
    SEE(got(s));
    sender.join();
    SEE(caught());
    pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
    SEE(caught());
    step("over");
}
void blocked_signals::b() { speaks(); }

namespace {
sigjmp_buf g_back;
void jump_on(int number) {
    struct sigaction action {};
    action.sa_handler = [](int) { siglongjmp(g_back, 1); };
    sigaction(number, &action, nullptr);
}
// A Signal that outlives the jump.
void will_interrupt() {
    static std::vector<std::unique_ptr<Signal>> all;
    all.push_back(std::make_unique<Signal>());
}
}  // namespace

BEHAVIOUR(jump_out_of_recv, "longjmp() out of a handler while recv() waits; the socket works on");
void jump_out_of_recv::a() {
    static int s;
    s = connected();
    jump_on(SIGUSR1);
    for (static int i = 0; i < 3; i++) {
        if (sigsetjmp(g_back, 1) == 0) {
            will_interrupt();
            got(s);
            note("not reached");
        }
    }
    step("speak");
    SEE(got(s));
    SEE(put(s, "still works"));
    step("over");
}
void jump_out_of_recv::b() {
    const int s = connected();
    step("speak");
    put(s, "word");
    SEE(got(s));
    step("over");
}

BEHAVIOUR(jump_out_of_waits, "longjmp() out of a handler while poll(), select() and epoll wait");
void jump_out_of_waits::a() {
    static int s, ep;
    s = connected();
    ep = epoll_create1(0);
    epoll_event e{EPOLLIN, {.fd = s}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    jump_on(SIGUSR1);
    for (static int i = 0; i < 3; i++) {
        if (sigsetjmp(g_back, 1) != 0) continue;
        will_interrupt();
        if (i == 0) {
            polled(s, POLLIN, 5000);
        } else if (i == 1) {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(s, &in);
            timeval tv{5, 0};
            select(s + 1, &in, nullptr, nullptr, &tv);
        } else {
            epoll_wait(ep, &e, 1, 5000);
        }
        note("not reached");
    }
    step("speak");
    SEE(epoll_wait(ep, &e, 1, 5000));
    SEE(polled(s, POLLIN));
    SEE(got(s));
    step("over");
}
void jump_out_of_waits::b() { speaks(); }

BEHAVIOUR(jump_by_alarm, "connect() bounded by alarm() and longjmp(), as old programs do");
void jump_by_alarm::a() {
    static int silent, s;
    silent = tcp();
    jump_on(SIGUSR1);
    if (sigsetjmp(g_back, 1) == 0) {
        will_interrupt();
        connect_to(silent, "silent");
        note("not reached");
    }
    SEE(close(silent));
    s = connected();
    step("speak");
    SEE(got(s));
    step("over");
}
void jump_by_alarm::b() { speaks(); }

BEHAVIOUR(handler_closes, "a handler closes the socket that recv() waits on");
namespace {
int g_socket = -1;
}
void handler_closes::a() {
    g_socket = connected();
    struct sigaction action {};
    action.sa_handler = [](int) { close(g_socket); };
    sigaction(SIGUSR1, &action, nullptr);
    interrupted_by([] { SEE(got(g_socket)); });
    SEE(got(g_socket));
}
void handler_closes::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(handler_shuts, "a handler shuts down the socket that recv() waits on; recv() restarts");
void handler_shuts::a() {
    g_socket = connected();
    struct sigaction action {};
    action.sa_handler = [](int) { shutdown(g_socket, SHUT_RD); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    interrupted_by([] { SEE(got(g_socket)); });
    SEE(put(g_socket, "out"));
    SEE(shutdown(g_socket, SHUT_WR));
}
void handler_shuts::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(signal_details, "siginfo and the number are what they were; SA_RESETHAND, SA_NODEFER");
namespace {
std::atomic<int> g_number{0}, g_code{0}, g_sender{0}, g_depth{0}, g_deepest{0};
}
void signal_details::a() {
    const int s = connected();
    struct sigaction action {};
    action.sa_sigaction = [](int number, siginfo_t* info, void*) {
        g_number = number;
        g_code = info->si_code;
        g_sender = info->si_pid == getpid();
    };
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    sigaction(SIGUSR1, &action, nullptr);
    interrupted_by([&] { SEE(got(s)); });
    SEE(g_number == SIGUSR1);
    SEE(g_code == SI_TKILL);
    SEE(int(g_sender));
    struct sigaction now {};
    sigaction(SIGUSR1, nullptr, &now);
    SEE(now.sa_handler == SIG_DFL);
    action = {};
    action.sa_flags = SA_NODEFER;
    action.sa_handler = [](int number) {
        g_depth++;
        g_deepest = std::max<int>(g_deepest, g_depth);
        if (g_depth < 3) raise(number);
        g_depth--;
    };
    sigaction(SIGUSR1, &action, nullptr);
    interrupted_by([&] { SEE(got(s)); });
    SEE(int(g_deepest));
    step("speak");
    step("over");
}
void signal_details::b() { speaks(); }

BEHAVIOUR(own_stack, "a handler on its own stack uses sockets");
namespace {
std::atomic<bool> g_on_stack{false};
}
void own_stack::a() {
    g_socket = connected();
    static char room[65536];
    const stack_t own{room, 0, sizeof room};
    SEE(sigaltstack(&own, nullptr));
    struct sigaction action {};
    action.sa_handler = [](int) {
        char here;
        g_on_stack = &here >= room && &here < room + sizeof room;
        put(g_socket, "from the handler");
    };
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    interrupted_by([] { SEE(got(g_socket)); });
    SEE(bool(g_on_stack));
}
void own_stack::b() {
    const int s = connected();
    SEE(got(s));
    SEE(put(s, "answer"));
}

BEHAVIOUR(mask_in_handler, "sa_mask holds while the handler runs, the old mask is back afterwards");
namespace {
std::atomic<int> g_usr2_inside{-1}, g_usr2_runs{0};
}
void mask_in_handler::a() {
    const int s = connected();
    struct sigaction action {};
    action.sa_handler = [](int) {
        sigset_t now;
        sigprocmask(SIG_BLOCK, nullptr, &now);
        raise(SIGUSR2);
        g_usr2_inside = sigismember(&now, SIGUSR2) * 10 + g_usr2_runs;
    };
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, nullptr);
    struct sigaction other {};
    other.sa_handler = [](int) { g_usr2_runs++; };
    sigaction(SIGUSR2, &other, nullptr);
    interrupted_by([&] { SEE(got(s)); });
    SEE(int(g_usr2_inside));
    SEE(int(g_usr2_runs));
    sigset_t now;
    sigprocmask(SIG_BLOCK, nullptr, &now);
    SEE(sigismember(&now, SIGUSR1) * 10 + sigismember(&now, SIGUSR2));
    step("speak");
    step("over");
}
void mask_in_handler::b() { speaks(); }

BEHAVIOUR(pselect_race,
          "a signal that came before: pselect(), ppoll(), epoll_pwait() do not sleep");
void pselect_race::a() {
    const int s = connected(), ep = epoll_create1(0);
    epoll_event e{EPOLLIN, {.fd = s}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    catch_signal(SIGUSR1, SA_RESTART);
    sigset_t blocked, open_mask;
    sigemptyset(&blocked);
    sigemptyset(&open_mask);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    raise(SIGUSR1);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(s, &in);
    SEE(pselect(s + 1, &in, nullptr, nullptr, nullptr, &open_mask));
    raise(SIGUSR1);
    SEE(epoll_pwait(ep, &e, 1, -1, &open_mask));
    raise(SIGUSR1);
    SEE(epoll_pwait2(ep, &e, 1, nullptr, &open_mask));
    raise(SIGUSR1);
    const timespec none{};
    pollfd p{s, POLLIN, 0};
    SEE(ppoll(&p, 1, &none, &open_mask));
    SEE(caught());
    SEE(epoll_pwait(ep, &e, 1, 0, &blocked));
    step("speak");
    step("over");
}
void pselect_race::b() { speaks(); }

BEHAVIOUR(signal_at_another_thread, "a signal for one thread does not end the wait of another");
void signal_at_another_thread::a() {
    const int s = connected();
    catch_signal(SIGUSR1);
    std::string one, two;
    Thread first([&] { one = got(s, 4); });
    Thread second([&] { two = polled(s, POLLRDHUP, 5000); });
    first.sleeps();
    second.sleeps();
    SEE(second.kill(SIGUSR1));
    second.join();
    SEE(two);
    first.sleeps();
    step("speak");
    first.join();
    SEE(one);
    step("over");
}
void signal_at_another_thread::b() { speaks(); }

BEHAVIOUR(signalfd_beside, "signalfd() and timerfd-like descriptors beside a socket in epoll");
void signalfd_beside::a() {
    const int s = connected(), ep = epoll_create1(0);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    const int fd = int(syscall(SYS_signalfd4, -1, &mask, 8, O_CLOEXEC));
    epoll_event e{EPOLLIN, {.u64 = 1}}, f{EPOLLIN, {.u64 = 2}}, found{};
    SEE(epoll_ctl(ep, EPOLL_CTL_ADD, s, &e));
    SEE(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &f));
    SEE(epoll_wait(ep, &found, 1, 0));
    raise(SIGUSR2);
    SEE(epoll_wait(ep, &found, 1, 5000));
    SEE(long(found.data.u64));
    char info[128];
    SEE(read(fd, info, sizeof info));
    step("speak");
    SEE(epoll_wait(ep, &found, 1, 5000));
    SEE(long(found.data.u64));
    step("over");
}
void signalfd_beside::b() { speaks(); }

BEHAVIOUR(sigio_with_signal, "F_SETSIG: the signal of one's choice, with descriptor and band");
namespace {
std::atomic<int> g_fd{-1}, g_band{0};
}
void sigio_with_signal::a() {
    const int s = connected();
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
        g_fd = info->si_fd;
        g_band = int(info->si_band);
    };
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGRTMIN + 1, &action, nullptr);
    SEE(fcntl(s, F_SETSIG, SIGRTMIN + 1));
    SEE(fcntl(s, F_GETSIG) == SIGRTMIN + 1);
    SEE(fcntl(s, F_SETOWN, getpid()));
    SEE(fcntl(s, F_SETFL, O_ASYNC | O_RDWR));
    step("speak");
    const int64_t end = milliseconds() + 4000;
    while (g_fd == -1 && milliseconds() < end) poll(nullptr, 0, 1);
    SEE(g_fd == s);
    SEE(events_text(uint32_t(g_band)));
    SEE(got(s));
    step("over");
}
void sigio_with_signal::b() { speaks(); }

BEHAVIOUR(sigio_by_ioctl, "FIOASYNC, FIOSETOWN, SIOCSPGRP: the same by ioctl()");
void sigio_by_ioctl::a() {
    const int s = udp_pair();
    catch_signal(SIGIO, SA_RESTART);
    int pid = getpid(), on = 1, owner = 0;
    SEE(ioctl(s, SIOCSPGRP, &pid));
    SEE(ioctl(s, FIOGETOWN, &owner));
    SEE(owner == pid);
    SEE(ioctl(s, FIOASYNC, &on));
    SEE((fcntl(s, F_GETFL) & O_ASYNC) != 0);
    step("speak");
    SEE(until_caught(1));
    SEE(got(s));
    on = 0;
    SEE(ioctl(s, FIOASYNC, &on));
    SEE((fcntl(s, F_GETFL) & O_ASYNC) != 0);
    step("over");
}
void sigio_by_ioctl::b() {
    const int s = udp_pair();
    step("speak");
    put(s, "word");
    step("over");
}
