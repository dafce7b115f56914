// Sockets and several processes: fork, exec, passing descriptors.
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>

#include "differential/process_words.h"

extern char** environ;

namespace {
int child(void (*body)(int), int s) {
    const int pid = fork();
    if (pid == 0) {
        body(s);
        _exit(7);
    }
    return pid;
}
}  // namespace

BEHAVIOUR(fork_child_talks, "a child uses the connection, the parent goes on afterwards");
void fork_child_talks::a() {
    const int s = connected();
    SEE(put(s, "parent "));
    SEE(got(s, 7, MSG_WAITALL));
    const int pid = child(
        [](int fd) {
            SEE(put(fd, "child "));
            SEE(got(fd, 6, MSG_WAITALL));
            SEE(peer_of(fd));
        },
        s);
    SEE(outcome(pid));
    SEE(put(s, "again"));
    SEE(got(s, 5, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
void fork_child_talks::b() { echo(); }

BEHAVIOUR(fork_parent_talks,
          "the child only holds and closes: the parent's connection is not touched");
void fork_parent_talks::a() {
    const int s = connected();
    const int pid = child([](int fd) { SEE(close(fd)); }, s);
    SEE(outcome(pid));
    SEE(put(s, "parent"));
    SEE(got(s, 6, MSG_WAITALL));
    on_ring(s);
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
void fork_parent_talks::b() { echo(); }

BEHAVIOUR(fork_parent_closes,
          "the parent closes, the child goes on: no FIN before the child's close");
void fork_parent_closes::a() {
    const int s = connected();
    int ends[2];
    SEE(pipe(ends));
    const int pid = fork();
    if (pid == 0) {
        char c;
        read(ends[0], &c, 1);
        SEE(put(s, "the child is alone"));
        SEE(got(s, 18, MSG_WAITALL));
        _exit(0);
    }
    SEE(close(s));
    if (write(ends[1], "x", 1) != 1) note("no word to the child");
    SEE(outcome(pid));
}
void fork_parent_closes::b() { echo(); }

BEHAVIOUR(fork_both_read, "parent and child read by turns from one stream");
void fork_both_read::a() {
    const int s = connected();
    SEE(got(s, 3, MSG_WAITALL));
    const int pid = child([](int fd) { SEE(got(fd, 3, MSG_WAITALL)); }, s);
    SEE(outcome(pid));
    SEE(got(s, 3, MSG_WAITALL));
    const int second = child([](int fd) { SEE(got(fd, 3, MSG_WAITALL)); }, s);
    SEE(outcome(second));
    SEE(put(s, "done"));
    SEE(shutdown(s, SHUT_WR));
}
void fork_both_read::b() {
    const int s = connected();
    SEE(put(s, "abcdefghijkl"));
    SEE(rest(s));
}

BEHAVIOUR(fork_per_connection, "a server that forks for each connection");
void fork_per_connection::a() {
    for (int i = 0; i < 3; i++) {
        const int s = dialled();
        SEE(put(s, "question " + std::to_string(i)));
        SEE(rest(s));
        close(s);
    }
}
void fork_per_connection::b() {
    const int l = listening();
    on_ring(l);
    for (int i = 0; i < 3; i++) {
        step("listening");
        const int c = accept(l, nullptr, nullptr);
        const int pid = fork();
        if (pid == 0) {
            close(l);
            SEE(got(c));
            SEE(put(c, "answer"));
            _exit(i);
        }
        close(c);  // unseen: the child's lines come at the same time
        SEE(outcome(pid));
    }
}

BEHAVIOUR(fork_child_accepts, "a child accepts from its parent's listener");
void fork_child_accepts::a() {
    const int s = dialled();
    SEE(got(s));
    const int t = tcp();
    step("parent's turn");
    SEE(connect_to(t, "b"));
    SEE(got(t));
}
void fork_child_accepts::b() {
    const int l = listening();
    on_ring(l);
    step("listening");
    const int pid = child(
        [](int fd) {
            const int c = accept(fd, nullptr, nullptr);
            SEE(put(c, "from the child"));
        },
        l);
    SEE(outcome(pid));
    step("parent's turn");
    const int c = accept(l, nullptr, nullptr);
    SEE(put(c, "from the parent"));
}

// Three connections have sent a number and wait to be accepted; each is answered with its number and who accepted it.
void three_dial() {
    int s[3];
    step("listening");
    for (int i = 0; i < 3; i++) {
        s[i] = tcp();
        SEE(connect_to(s[i], "b"));
        SEE(put(s[i], std::to_string(i)));
        SEE(until_acknowledged(s[i]));
    }
    on_ring(s[0]);
    step("waiting");
    for (int i = 0; i < 3; i++) SEE(got(s[i], 2, MSG_WAITALL));
}
void answer_one(int l, const char* who) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    const int c = accept(l, raw(peer), &size);
    SEE(c >= 0);
    SEE(shown(peer));
    const std::string number = got(c, 1);
    SEE(number);
    SEE(put(c, std::string(1, number[3]) + who));
}
int three_wait() {
    const int l = listening();
    on_ring(l);
    step("listening");
    step("waiting");
    SEE(until(l, POLLIN));
    return l;
}

BEHAVIOUR(fork_waiting_accepts,
          "connections that waited at a fork: the child accepts two, the parent one");
void fork_waiting_accepts::a() { three_dial(); }
void fork_waiting_accepts::b() {
    const int l = three_wait();
    const int pid = child(
        [](int fd) {
            answer_one(fd, "c");
            answer_one(fd, "c");
        },
        l);
    SEE(outcome(pid));
    answer_one(l, "p");
}

BEHAVIOUR(fork_waiting_polls,
          "connections that waited at a fork: both processes find them by poll and epoll");
void fork_waiting_polls::a() { three_dial(); }
void fork_waiting_polls::b() {
    const int l = three_wait();
    nonblocking(l);
    const int pid = child(
        [](int fd) {
            SEE(ready(fd));
            answer_one(fd, "c");
            SEE(ready(fd));
        },
        l);
    SEE(outcome(pid));
    SEE(ready(l));
    answer_one(l, "p");
    answer_one(l, "p");
    SEE(ready(l));
    SEE(accept(l, nullptr, nullptr));
}

BEHAVIOUR(fork_waiting_epoll,
          "connections that waited at a fork: an epoll set that both processes have");
void fork_waiting_epoll::a() { three_dial(); }
void fork_waiting_epoll::b() {
    const int l = three_wait();
    const int e = epoll_create1(0);
    epoll_event event{EPOLLIN, {}};
    SEE(epoll_ctl(e, EPOLL_CTL_ADD, l, &event));
    static int set;
    set = e;
    const auto take = [](int fd) {
        epoll_event got_event{};
        SEE(epoll_wait(set, &got_event, 1, 5000));
        SEE(events_text(got_event.events));
        answer_one(fd, "x");
    };
    const int pid = child(take, l);
    SEE(outcome(pid));
    take(l);
    take(l);
    epoll_event none{};
    SEE(epoll_wait(e, &none, 1, 0));
}

BEHAVIOUR(
    spawn_waiting,
    "inetd's way: a command gets the listener as its standard input while a connection waits");
void spawn_waiting::a() {
    const int s = dialled();
    step("there");
    SEE(got(s, 3, MSG_WAITALL));
}
void spawn_waiting::b() {
    const int l = listening();
    on_ring(l);
    step("listening");
    step("there");
    SEE(until(l, POLLIN));
    const int pid = vfork();
    if (pid == 0) {
        dup2(l, 0);
        execl("/usr/bin/python3", "python3", "-Bc",
              "import socket; socket.socket(fileno=0).accept()[0].sendall(b'yes')", nullptr);
        _exit(9);
    }
    SEE(outcome(pid));
}

BEHAVIOUR(fork_udp, "a child uses an inherited UDP socket, then the parent");
void fork_udp::a() {
    const int s = udp_pair();
    const int pid = child(
        [](int fd) {
            SEE(put(fd, "child"));
            SEE(got(fd));
        },
        s);
    SEE(outcome(pid));
    SEE(put(s, "parent"));
    SEE(got(s));
}
void fork_udp::b() {
    const int s = udp_pair();
    for (int i = 0; i < 2; i++) {
        SEE(got(s));
        SEE(put(s, "answer"));
    }
}

BEHAVIOUR(exec_inherits, "a program after exec has the connection as standard input and output");
void exec_inherits::a() {
    const int s = connected();
    SEE(put(s, "before exec;"));
    step("go");
    dup2(s, 0);
    dup2(s, 1);
    close(s);
    // The other role's last step and the end of this one are said by nobody after exec.
    execlp("cat", "cat", nullptr);
    _exit(98);
}
void exec_inherits::b() {
    const int s = connected();
    step("go");
    SEE(got(s, 12, MSG_WAITALL));
    SEE(put(s, "through cat"));
    SEE(got(s, 11, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
    _exit(0);
}

BEHAVIOUR(exec_cloexec, "SOCK_CLOEXEC: the new program has not got it, the peer sees the end");
void exec_cloexec::a() {
    const int s = connected();
    fcntl(s, F_SETFD, FD_CLOEXEC);
    SEE(put(s, "last words"));
    step("go");
    char command[64];
    snprintf(command, sizeof command, "test ! -e /proc/self/fd/%d", s);
    execlp("sh", "sh", "-c", command, nullptr);
    _exit(98);
}
void exec_cloexec::b() {
    const int s = connected();
    step("go");
    SEE(rest(s));
    _exit(0);
}

BEHAVIOUR(spawn_with_socket,
          "posix_spawn() of a program whose standard input and output are the connection");
void spawn_with_socket::a() {
    const int s = connected();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, s, 0);
    posix_spawn_file_actions_adddup2(&actions, s, 1);
    const char* argv[] = {"head", "-c", "5", nullptr};
    pid_t pid = -1;
    step("go");
    SEE(posix_spawnp(&pid, "head", &actions, nullptr, const_cast<char**>(argv), environ));
    SEE(outcome(pid));
    SEE(put(s, " parent"));
    SEE(shutdown(s, SHUT_WR));
}
void spawn_with_socket::b() {
    const int s = connected();
    step("go");
    SEE(put(s, "12345"));
    SEE(rest(s));
}

BEHAVIOUR(system_beside, "system() while a connection is open leaves it alone");
void system_beside::a() {
    const int s = connected();
    SEE(system("exit 3") >> 8);
    FILE* p = popen("echo from a shell", "r");
    char text[64] = {};
    SEE(fgets(text, sizeof text, p) == text);
    SEE(pclose(p));
    SEE(put(s, "still"));
    SEE(got(s, 5, MSG_WAITALL));
    on_ring(s);
    SEE(shutdown(s, SHUT_WR));
}
void system_beside::b() { echo(); }

BEHAVIOUR(pass_to_child, "SCM_RIGHTS: a process that was forked before gets the connection");
void pass_to_child::a() {
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const int pid = child(
        [](int fd) {
            const int s = taken(fd).at(0);
            SEE(put(s, "received"));
            SEE(got(s, 8, MSG_WAITALL));
            SEE(shutdown(s, SHUT_WR));
            SEE(rest(s));
        },
        channel[1]);
    const int s = connected();
    pass(channel[0], {s});  // unseen: the child's lines come at the same time
    close(s);
    SEE(outcome(pid));
}
void pass_to_child::b() { echo(); }

BEHAVIOUR(pass_to_self, "SCM_RIGHTS to oneself: a duplicate");
void pass_to_self::a() {
    int channel[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const int s = connected();
    SEE(pass(channel[0], {s}));
    const int d = taken(channel[1]).at(0);
    SEE(d > s);
    SEE(put(d, "by the copy"));
    SEE(got(s, 11, MSG_WAITALL));
    SEE(close(s));
    SEE(put(d, "more"));
    SEE(got(d, 4, MSG_WAITALL));
    SEE(shutdown(d, SHUT_WR));
}
void pass_to_self::b() { echo(); }

BEHAVIOUR(vfork_exec, "vfork() and exec beside an open connection");
void vfork_exec::a() {
    const int s = connected();
    const int pid = vfork();
    if (pid == 0) {
        execlp("true", "true", nullptr);
        _exit(98);
    }
    SEE(outcome(pid));
    SEE(put(s, "still"));
    SEE(got(s, 5, MSG_WAITALL));
    SEE(shutdown(s, SHUT_WR));
}
void vfork_exec::b() { echo(); }
