#define _GNU_SOURCE
/* exit_busy IP PORT: exit() while threads are busy with sockets of the library, in every step of a send and a receive, and a
 * signal comes every 50 us. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { kThreads = 4, kSends = 2000 };
static struct sockaddr_in peer = {.sin_family = AF_INET};
static atomic_int sent, caught;

static void on_alarm(int signal) {
    (void)signal;
    atomic_fetch_add(&caught, 1);
}

static void* busy(void* none) {
    (void)none;
    const int s = socket(AF_INET, SOCK_DGRAM, 0);
    char text[100] = "busy";
    if (s < 0 || connect(s, (const struct sockaddr*)&peer, sizeof peer) != 0) _exit(1);
    for (;;) {
        send(s, text, sizeof text, MSG_DONTWAIT);
        recv(s, text, sizeof text, MSG_DONTWAIT);
        atomic_fetch_add(&sent, 1);
    }
    return NULL;
}

static ssize_t at_the_end(void* none, const char* text, size_t n) {
    (void)none, (void)text;
    char line[512];
    int mapped = 0;
    FILE* maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        mapped |= strstr(line, "/memfd:vma-arena") != NULL;
    return write(STDOUT_FILENO, mapped ? "mapped\n" : "unmapped\n", mapped ? 7 : 9) > 0 ? (ssize_t)n
                                                                                        : -1;
}

int main(int argc, char** argv) {
    pthread_t thread;
    if (argc != 3 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) return 2;
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    for (int i = 0; i < kThreads; i++)
        if (pthread_create(&thread, NULL, busy, NULL) != 0) return 1;
    while (atomic_load(&sent) < kSends) usleep(100);
    FILE* last = fopencookie(NULL, "w", (cookie_io_functions_t){.write = at_the_end});
    if (last == NULL || fputs("?", last) < 0) return 1;
    const struct itimerval often = {{0, 50}, {0, 50}};
    signal(SIGALRM, on_alarm);
    if (setitimer(ITIMER_REAL, &often, NULL) != 0) return 1;
    while (atomic_load(&caught) == 0) usleep(50);
    return 0;
}
