// Processes: descriptors passed, inherited, reopened; identities that change; ends of all kinds.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>

#include "differential/process_words.h"

namespace {
// Ends of the tests that leave root's identity or place: an echo on the connection there was and on a new one.
void echoed_anew(int s, const std::string& old_text, const std::string& new_text) {
    SEE(echoed(s, old_text));
    const int t = tcp();  // connected() would look at files that are out of reach now
    step("listening");
    SEE(connect_to(t, "b", 1));
    step("connected");
    SEE(echoed(t, new_text));
    SEE(shutdown(t, SHUT_WR));
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
void answers_anew(const std::string& old_text, const std::string& new_text) {
    const int s = connected();
    SEE(got(s));
    SEE(put(s, old_text));
    const int listener = listening(1), t = accepted(listener);
    step("connected");
    close(listener);
    SEE(got(t));
    SEE(put(t, new_text));
    SEE(rest(t));
    SEE(rest(s));
    SEE(close(s));
}
}  // namespace

BEHAVIOUR(fork_two_children,
          "two children use the connection one after the other, the parent last");
void fork_two_children::a() {
    const int s = connected();
    for (int i = 0; i < 2; i++) {
        const int pid = fork();
        if (pid == 0) {
            SEE(echoed(s, "child " + std::to_string(i)));
            _exit(i);
        }
        SEE(outcome(pid));
    }
    SEE(echoed(s, "parent"));
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
void fork_two_children::b() { echo(); }

BEHAVIOUR(fork_grandchild, "a grandchild uses the connection; parent and child are gone");
void fork_grandchild::a() {
    const int s = connected();
    int ends[2];
    SEE(pipe(ends));
    const int pid = fork();
    if (pid == 0) {
        if (fork() == 0) {
            char c;
            (void)!read(ends[0], &c, 1);
            put(s, "grandchild");
            _exit(0);
        }
        _exit(0);
    }
    SEE(outcome(pid));
    SEE(close(s));
    SEE(write(ends[1], "x", 1));
}
void fork_grandchild::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(fork_child_killed, "a child that used the connection is killed; the parent goes on");
void fork_child_killed::a() {
    const int s = connected();
    const int pid = fork();
    if (pid == 0) {
        SEE(echoed(s, "child"));
        raise(SIGKILL);
    }
    SEE(outcome(pid));
    SEE(echoed(s, "parent"));
    SEE(shutdown(s, SHUT_WR));
}
void fork_child_killed::b() { echo(); }

BEHAVIOUR(fork_with_unread,
          "data that waited before fork() is read by the child, what is left by the parent");
void fork_with_unread::a() {
    const int s = connected();
    SEE(put(s, "0123456789"));
    SEE(until_bytes(s, 10));
    const int pid = fork();
    if (pid == 0) {
        SEE(got(s, 4));
        _exit(0);
    }
    SEE(outcome(pid));
    SEE(got(s, 6, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
}
void fork_with_unread::b() { echo(); }

BEHAVIOUR(fork_beside_a_busy_thread,
          "fork() while a thread is in calls on the socket: the child's close() waits for nobody");
void fork_beside_a_busy_thread::a() {
    const int s = connected();
    std::atomic<bool> stop{false};
    Thread busy([&] {
        for (int on = 0; !stop; on = !on) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    });
    int ended = 0;
    for (int i = 0; i < 150; i++) {
        const int pid = fork();
        if (pid == 0) {
            alarm(3);
            close(s);
            _exit(0);
        }
        int status = -1;
        ended += waitpid(pid, &status, 0) == pid && status == 0;
        if (status != 0) break;
    }
    stop = true;
    SEE(ended);
    SEE(busy.join());
    SEE(echoed(s, "goes on"));
    close(s);
}
void fork_beside_a_busy_thread::b() { echo(); }

BEHAVIOUR(fork_with_unsent, "data that was not sent before fork() arrives whoever closes first");
void fork_with_unsent::a() {
    const int s = connected();
    SEE(put(s, pattern(2000000)));
    const int pid = fork();
    if (pid == 0) {
        put(s, "and the child's");
        _exit(0);
    }
    SEE(outcome(pid));
    SEE(close(s));
}
void fork_with_unsent::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(fork_while_opening, "fork() between connect() and its answer");
void fork_while_opening::a() {
    const int s = tcp(SOCK_NONBLOCK);
    step("listening");
    SEE(connect_to(s, "b"));
    const int pid = fork();
    if (pid == 0) _exit(0);
    SEE(outcome(pid));
    SEE(until(s, POLLOUT));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    on_ring(s);
    SEE(put(s, "made"));
}
void fork_while_opening::b() {
    const int c = accepted(listening());
    SEE(got(c));
}

BEHAVIOUR(fork_shuts_down, "shutdown() in a child is the connection's, not the descriptor's");
void fork_shuts_down::a() {
    const int s = connected();
    const int pid = fork();
    if (pid == 0) {
        SEE(shutdown(s, SHUT_WR));
        _exit(0);
    }
    SEE(outcome(pid));
    SEE(put(s, "x"));
    SEE(rest(s));
}
void fork_shuts_down::b() {
    const int s = connected();
    SEE(rest(s));
    SEE(put(s, "answer"));
    SEE(close(s));
}

BEHAVIOUR(fork_sets_flags, "O_NONBLOCK and options set by a child are the parent's, too");
void fork_sets_flags::a() {
    const int s = connected();
    const int pid = fork();
    if (pid == 0) {
        nonblocking(s);
        SEE(set(s, SOL_SOCKET, SO_KEEPALIVE));
        SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 3));
        SEE(fcntl(s, F_SETFD, FD_CLOEXEC));
        _exit(0);
    }
    SEE(outcome(pid));
    SEE(got(s));
    SEE((fcntl(s, F_GETFL) & O_NONBLOCK) != 0);
    SEE(option(s, SOL_SOCKET, SO_KEEPALIVE));
    SEE(option(s, SOL_SOCKET, SO_RCVLOWAT));
    SEE(fcntl(s, F_GETFD));
    SEE(shutdown(s, SHUT_WR));
}
void fork_sets_flags::b() { echo(); }

BEHAVIOUR(prefork_listener,
          "two children accept from one listener; the parent only waits for them");
void prefork_listener::a() {
    for (int i = 0; i < 2; i++) {
        const int s = dialled();
        SEE(rest(s));
        close(s);
    }
}
void prefork_listener::b() {
    const int l = listening();
    on_ring(l);
    int pids[2];
    for (int& pid : pids) {
        pid = fork();
        if (pid == 0) {
            const int c = accept(l, nullptr, nullptr);
            put(c, "from a worker");
            close(c);
            _exit(0);
        }
    }
    step("listening");
    step("listening");
    for (const int pid : pids) SEE(outcome(pid));
}

BEHAVIOUR(pass_several, "SCM_RIGHTS: several sockets at once, with MSG_CMSG_CLOEXEC");
void pass_several::a() {
    const int s = connected(), t = connected(1), u = udp();
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    SEE(pass(channel[0], {s, t, u}));
    const std::vector<int> copies = taken(channel[1], MSG_CMSG_CLOEXEC);
    SEE(long(copies.size()));
    for (const int fd : copies) SEE(fcntl(fd, F_GETFD));
    SEE(echoed(copies[0], "first"));
    SEE(echoed(copies[1], "second"));
    SEE(echoed(s, "first again"));
    SEE(shutdown(s, SHUT_WR));
    SEE(shutdown(copies[1], SHUT_WR));
}
void pass_several::b() {
    const int s = connected(), t = connected(1);
    for (const int fd : {s, t, s}) {
        char buffer[100];
        const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        put(fd, std::string(buffer, size_t(n)));
    }
    SEE(rest(s));
    SEE(rest(t));
}

BEHAVIOUR(pass_and_forget, "a passed socket that nobody takes is closed with the channel");
void pass_and_forget::a() {
    const int s = connected();
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    SEE(pass(channel[0], {s}));
    SEE(close(s));
    step("passed");
    step("looked");
    SEE(close(channel[0]));
    SEE(close(channel[1]));
    step("closed");
}
void pass_and_forget::b() {
    const int s = connected();
    step("passed");
    SEE(polled(s, POLLIN | POLLRDHUP, 50));
    step("looked");
    step("closed");
    SEE(rest(s));
}

BEHAVIOUR(pass_a_listener, "a listener that is passed to a child made before");
void pass_a_listener::a() {
    const int s = dialled();
    SEE(got(s));
}
void pass_a_listener::b() {
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const int pid = fork();
    if (pid == 0) {
        const int c = accept(taken(channel[1]).at(0), nullptr, nullptr);
        put(c, "from the other");
        _exit(0);
    }
    const int l = listening();
    on_ring(l);
    SEE(pass(channel[0], {l}));
    step("listening");
    SEE(outcome(pid));
}

BEHAVIOUR(pass_udp, "a bound UDP socket that is passed to a child; datagrams that waited go along");
void pass_udp::a() {
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const int pid = fork();
    if (pid == 0) {
        const int s = taken(channel[1]).at(0);
        const std::string first = got(s), second = got(s);
        put(s, "both came: " + first + ", " + second);
        _exit(0);
    }
    const int s = udp_pair();
    step("sent");
    SEE(until(s, POLLIN));
    pass(channel[0], {s});
    SEE(close(s));
    SEE(outcome(pid));
}
void pass_udp::b() {
    const int s = udp_pair();
    put(s, "one");
    put(s, "two");
    step("sent");
    SEE(got(s));
}

BEHAVIOUR(identity_dropped,
          "setuid() and setgid() after start: live connections and new ones work");
void identity_dropped::a() {
    const int s = connected();
    SEE(setgid(65534));
    SEE(setuid(65534));
    echoed_anew(s, "as nobody", "new, as nobody");
}
void identity_dropped::b() { answers_anew("as nobody", "new, as nobody"); }

BEHAVIOUR(root_changed, "chroot(): connections and new sockets work on");
void root_changed::a() {
    const int s = connected();
    SEE(chroot("/proc/self/fdinfo"));
    SEE(chdir("/"));
    echoed_anew(s, "inside", "new");
}
void root_changed::b() { answers_anew("inside", "new"); }

BEHAVIOUR(exec_with_listener, "a listener inherited over exec by its number, as LISTEN_FDS does");
void exec_with_listener::a() {
    const int s = dialled();
    SEE(rest(s));
    _exit(0);
}
void exec_with_listener::b() {
    const int l = listening();
    on_ring(l);
    SEE(dup2(l, 3) == 3);
    const int pid = fork();
    if (pid == 0) {
        setenv("LISTEN_FDS", "1", 1);
        execl("/usr/bin/python3", "python3", "-c",
              "import socket; c, _ = socket.socket(fileno=3).accept(); "
              "c.sendall(b'by the new program'); c.close()",
              nullptr);
        _exit(98);
    }
    step("listening");
    SEE(outcome(pid));
    _exit(0);
}

BEHAVIOUR(reopened, "a socket cannot be opened again through /proc/self/fd; its link still tells");
void reopened::a() {
    const int s = connected(), l = listening(3), u = udp_pair(5);
    for (const int fd : {s, l, u}) {
        char path[64], link[64] = {};
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        SEE(open(path, O_RDWR));
        SEE(open(path, O_RDONLY | O_PATH) >= 0);
        SEE(readlink(path, link, sizeof link) > 0);
        SEE(std::string(link).substr(0, 8));
    }
    step("over");
}
void reopened::b() {
    connected();
    udp_pair(5);
    step("over");
}

BEHAVIOUR(kept_over_pidfd, "pidfd_getfd() of one's own connection gives a working number's copy",
          a_kernel);
void kept_over_pidfd::a() {
    const int s = connected();
    SEE(echoed(s, "before"));
    SEE(set(s, IPPROTO_TCP, TCP_SAVE_SYN));  // the kernel's from here on
    const int pidfd = int(syscall(SYS_pidfd_open, getpid(), 0));
    const int copy = int(syscall(SYS_pidfd_getfd, pidfd, s, 0));
    SEE(copy > s);
    SEE(echoed(copy, "by the copy"));
    SEE(close(s));
    SEE(echoed(copy, "alone"));
    SEE(shutdown(copy, SHUT_WR));
}
void kept_over_pidfd::b() { echo(); }

BEHAVIOUR(abort_with_connection, "abort() with a connection open: the peer sees an end");
void abort_with_connection::a() {
    const int s = connected();
    prctl(PR_SET_DUMPABLE, 0);
    SEE(put(s, "last words"));
    SEE(until_acknowledged(s));
    step("aborts");
    abort();
}
void abort_with_connection::b() {
    const int s = connected();
    step("aborts");
    SEE(until(s, POLLIN));
    SEE(got(s));
    SEE(until(s, POLLRDHUP));
    _exit(0);
}

BEHAVIOUR(exit_handlers_talk, "atexit() handlers and destructors may use connections");
namespace {
int g_last = -1;
}
void exit_handlers_talk::a() {
    g_last = connected();
    atexit([] { put(g_last, "from an exit handler"); });
    step("exits");
    exit(0);
}
void exit_handlers_talk::b() {
    const int s = connected();
    step("exits");
    SEE(rest(s));
    _exit(0);
}
