// Sockets as descriptors: duplicates, flags, numbers, /proc, fstat(), stdio.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdio>

#include "differential/behaviour.h"

namespace {
void echo() {
    const int s = connected();
    char buffer[4096];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) put(s, std::string(buffer, size_t(n)));
    close(s);
}
}  // namespace

BEHAVIOUR(dup_shares, "duplicates share data, flags and state; the last close ends the connection");
void dup_shares::a() {
    const int s = connected(), d = dup(s);
    SEE(d == s + 1);
    nonblocking(s);
    SEE((fcntl(d, F_GETFL) & O_NONBLOCK) != 0);
    SEE(got(d));
    nonblocking(d, false);
    SEE(put(s, "one"));
    SEE(got(d));
    SEE(close(s));
    SEE(put(s, "x"));
    SEE(put(d, "two"));
    SEE(got(d));
    SEE(name_of(d));
    const int e = dup(d);
    SEE(shutdown(e, SHUT_WR));
    SEE(put(d, "x"));
    SEE(got(d));
    SEE(close(d));
    SEE(close(e));
}
void dup_shares::b() { echo(); }

BEHAVIOUR(dup_numbers, "dup2(), dup3(), F_DUPFD, F_DUPFD_CLOEXEC: numbers, flags, errors");
void dup_numbers::a() {
    const int s = connected();
    SEE(dup2(s, 50));
    SEE(dup2(s, s) == s);
    SEE(dup3(s, s, 0));
    SEE(dup3(s, 51, O_CLOEXEC));
    SEE(fcntl(51, F_GETFD));
    SEE(dup3(s, 52, O_NONBLOCK));
    SEE(fcntl(s, F_DUPFD, 60));
    SEE(fcntl(60, F_GETFD));
    SEE(fcntl(s, F_DUPFD_CLOEXEC, 60));
    SEE(fcntl(61, F_GETFD));
    SEE(fcntl(s, F_DUPFD, -1));
    SEE(dup2(s, -1));
    SEE(dup(-1));
    SEE(dup2(-1, 50));
    SEE(put(61, "through 61"));
    SEE(got(50));
    SEE(fcntl(50, F_SETFD, FD_CLOEXEC));
    SEE(fcntl(50, F_GETFD));
    SEE(fcntl(s, F_GETFD));
    SEE(close(61));
    SEE(close(61));
    SEE(shutdown(50, SHUT_RDWR));
}
void dup_numbers::b() { echo(); }

BEHAVIOUR(dup2_over_socket, "dup2() over a socket closes it: its peer sees the end");
void dup2_over_socket::a() {
    const int s = connected(), t = connected(1);
    SEE(dup2(s, t) == t);
    step("over");
    SEE(put(t, "by the other number"));
    const int null = open("/dev/null", O_RDWR);
    SEE(dup2(null, s) == s);
    SEE(write(s, "x", 1));
    SEE(got(s));
    SEE(put(t, ", and again"));
    SEE(close(t));
}
void dup2_over_socket::b() {
    const int s = connected(), t = connected(1);
    step("over");
    SEE(rest(t));
    SEE(rest(s));
}

BEHAVIOUR(lowest_number, "new descriptors take the lowest free number, whatever the library holds");
void lowest_number::a() {
    const int s = connected();
    SEE(long(s));
    const int t = tcp(), u = udp(), e = epoll_create1(0);
    SEE(long(t));
    SEE(long(u));
    SEE(long(e));
    close(t);
    SEE(open("/dev/null", O_RDONLY) == t);
    close(s);
    SEE(socket(AF_UNIX, SOCK_STREAM, 0) == s);
    int ends[2];
    SEE(pipe(ends));
    SEE(long(ends[0]));
    SEE(long(ends[1]));
}
void lowest_number::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(what_it_is,
          "fstat(), isatty(), lseek(), readlink of /proc/self/fd, read-only calls of files");
void what_it_is::a() {
    const int s = connected();
    struct stat st {};
    SEE(fstat(s, &st));
    SEE(bool(S_ISSOCK(st.st_mode)));
    SEE(long(st.st_mode & 0777));
    SEE(long(st.st_size));
    SEE(isatty(s));
    SEE(lseek(s, 0, SEEK_SET));
    SEE(ftruncate(s, 10));
    SEE(fchmod(s, 0600));
    char link[64] = {}, path[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", s);
    SEE(readlink(path, link, sizeof link) > 0);
    SEE(std::string(link).substr(0, 8));
    SEE(std::string(link) == "socket:[" + std::to_string(st.st_ino) + "]");
    SEE(open(path, O_RDWR));
    SEE(fcntl(s, F_GETFL) & (O_ACCMODE | O_NONBLOCK | O_APPEND));
    SEE(posix_fadvise(s, 0, 0, POSIX_FADV_NORMAL));
    SEE(fdatasync(s));
    SEE(isfdtype(s, S_IFSOCK));
    SEE(isfdtype(s, S_IFREG));
    step("over");
}
void what_it_is::b() {
    connected();
    step("over");
}

BEHAVIOUR(nonblocking_ways, "O_NONBLOCK by socket(), fcntl(), FIONBIO and accept4() are one flag");
void nonblocking_ways::a() {
    const int s = connected();
    int on = 1, off = 0;
    SEE(ioctl(s, FIONBIO, &on));
    SEE((fcntl(s, F_GETFL) & O_NONBLOCK) != 0);
    SEE(got(s));
    SEE(ioctl(s, FIONBIO, &off));
    SEE((fcntl(s, F_GETFL) & O_NONBLOCK) != 0);
    SEE(ioctl(s, FIONBIO, nullptr));
    SEE(fcntl(s, F_SETFL, O_NONBLOCK));
    SEE(got(s));
    SEE(fcntl(s, F_SETFL, 0));
    SEE((fcntl(s, F_GETFL) & O_NONBLOCK) != 0);
    SEE(ioctl(s, FIOCLEX));
    SEE(fcntl(s, F_GETFD));
    SEE(ioctl(s, FIONCLEX));
    SEE(fcntl(s, F_GETFD));
    SEE(fcntl(s, 9999));
    step("over");
}
void nonblocking_ways::b() {
    connected();
    step("over");
}

BEHAVIOUR(bad_descriptors, "socket calls on what is closed or no socket");
void bad_descriptors::a() {
    const int s = connected();
    close(s);
    for (const int fd : {s, -1, STDIN_FILENO}) {
        SEE(put(fd, "x"));
        SEE(got(fd));
        SEE(name_of(fd));
        SEE(connect_to(fd, "b"));
        SEE(listen(fd, 1));
        SEE(shutdown(fd, SHUT_RDWR));
        SEE(option(fd, SOL_SOCKET, SO_ERROR));
        SEE(set(fd, SOL_SOCKET, SO_KEEPALIVE));
    }
    SEE(close(s));
    SEE(socket(AF_INET, 77, 0));
    SEE(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    SEE(socket(77, SOCK_STREAM, 0));
    int both[2];
    SEE(socketpair(AF_INET, SOCK_STREAM, 0, both));
}
void bad_descriptors::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(socket_limit, "socket() and dup() at the limit of descriptors");
void socket_limit::a() {
    const int s = connected();
    rlimit old{};
    getrlimit(RLIMIT_NOFILE, &old);
    const rlimit low{rlim_t(s + 1), old.rlim_max};
    SEE(setrlimit(RLIMIT_NOFILE, &low));
    SEE(tcp());
    SEE(udp());
    SEE(dup(s));
    SEE(epoll_create1(0));
    SEE(put(s, "still works"));
    SEE(got(s));
    SEE(polled(s));
    SEE(setrlimit(RLIMIT_NOFILE, &old));
    SEE(tcp() == s + 1);
    shutdown(s, SHUT_WR);
}
void socket_limit::b() { echo(); }

BEHAVIOUR(close_ranges, "close_range() and closefrom() close sockets");
void close_ranges::a() {
    const int s = connected(), t = connected(1), u = connected(2);
    SEE(close_range(unsigned(s), unsigned(s), CLOSE_RANGE_CLOEXEC));
    SEE(fcntl(s, F_GETFD));
    SEE(close_range(unsigned(t), unsigned(t), 0));
    SEE(put(t, "x"));
    SEE(put(s, "x"));
    SEE(put(u, "y"));
    SEE(close_range(10, 5, 0));
    SEE(close_range(unsigned(s), unsigned(u), 0));
    step("over");
}
void close_ranges::b() {
    const int s = connected(), t = connected(1), u = connected(2);
    SEE(rest(t));
    SEE(rest(s));
    SEE(rest(u));
    step("over");
}

BEHAVIOUR(stdio_on_socket, "fdopen(), fprintf(), fgets(), dprintf(), fclose() on a connection");
void stdio_on_socket::a() {
    const int s = connected();
    FILE* in = fdopen(dup(s), "r");
    FILE* out = fdopen(s, "w");
    SEE(in && out);
    SEE(fprintf(out, "line %d\n", 1));
    SEE(fflush(out));
    char text[64] = {};
    SEE(fgets(text, sizeof text, in) == text);
    SEE(std::string(text));
    SEE(dprintf(s, "%s %d\n", "line", 2));
    SEE(fgetc(in));
    SEE(fgets(text, sizeof text, in) == text);
    SEE(std::string(text));
    SEE(fclose(out));
    SEE(shutdown(fileno(in), SHUT_WR));
    SEE(fgetc(in));
    SEE(feof(in) != 0);
    SEE(fclose(in));
}
void stdio_on_socket::b() { echo(); }

BEHAVIOUR(close_wakes_nobody, "the number of a closed socket is another socket at once");
void close_wakes_nobody::a() {
    int s = connected();
    SEE(put(s, "first"));
    close(s);
    for (int i = 1; i < 4; i++) {
        const int t = connected(i);
        SEE(t == s);
        SEE(put(t, "number " + std::to_string(i)));
        SEE(got(t));
        close(t);
    }
}
void close_wakes_nobody::b() {
    SEE(rest(connected()));
    for (int i = 1; i < 4; i++) {
        const int t = connected(i);
        SEE(got(t));
        SEE(put(t, "yes"));
        close(t);
    }
}
