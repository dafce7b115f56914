// A library whose constructor and destructor use sockets: hooks must work before and after ours ran. Prints nothing; a
// failure ends the program with a code of its own.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

volatile int handled;
void on_usr2(int signal) { handled = signal; }

void exercise(int code) {
    int pair[2];
    char byte = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) _exit(code);
    if (write(pair[0], "e", 1) != 1 || read(pair[1], &byte, 1) != 1 || byte != 'e') _exit(code + 1);
    if (fcntl(pair[0], F_SETFL, fcntl(pair[0], F_GETFL) | O_NONBLOCK) != 0) _exit(code + 2);
    if (read(pair[0], &byte, 1) != -1 || errno != EAGAIN) _exit(code + 3);
    struct pollfd p = {pair[0], POLLOUT, 0};
    if (poll(&p, 1, 0) != 1) _exit(code + 4);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (ep < 0 || close(ep) != 0) _exit(code + 5);
    struct sigaction act {};
    struct sigaction old {};
    act.sa_handler = on_usr2;
    if (sigaction(SIGUSR2, &act, &old) != 0 || raise(SIGUSR2) != 0 || handled != SIGUSR2)
        _exit(code + 6);
    if (sigaction(SIGUSR2, &old, nullptr) != 0) _exit(code + 7);
    close(pair[0]);
    close(pair[1]);
}

__attribute__((constructor)) void begin() { exercise(80); }
__attribute__((destructor)) void end() { exercise(90); }

}  // namespace
