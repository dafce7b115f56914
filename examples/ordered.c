/* Ordered waits: datagrams of several sockets and what comes by a stream, printed in the order in which they reached the host.
 *
 *     cc -Iinclude examples/ordered.c -o ordered
 *     LD_PRELOAD=libvma.so ./ordered ADDRESS PORT COUNT      two UDP sockets at PORT and PORT + 1, a stream from ADDRESS PORT */
#include <arpa/inet.h>
#include <mellanox/vma_extra.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOCKETS = 3 };

static int die(const char* what) {
    perror(what);
    return 1;
}

int main(int argc, char** argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET}, here = {.sin_family = AF_INET};
    if (argc != 4 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT COUNT\n", argv[0]);
        return 2;
    }
    const int port = atoi(argv[2]), count = atoi(argv[3]);
    const struct vma_own_api_t* const api = vma_get_own_api();
    if (api == NULL) {
        fprintf(stderr, "the library is not loaded, or too old\n");
        return 1;
    }
    const int set = epoll_create1(0);
    int sockets[SOCKETS];
    for (int i = 0; i < SOCKETS; i++) {
        const int stream = i == SOCKETS - 1;
        sockets[i] = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0);
        here.sin_port = htons((uint16_t)(port + i));
        peer.sin_port = htons((uint16_t)port);
        if (stream ? connect(sockets[i], (struct sockaddr*)&peer, sizeof peer)
                   : bind(sockets[i], (struct sockaddr*)&here, sizeof here))
            return die(stream ? "connect" : "bind");
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = sockets[i]};
        if (epoll_ctl(set, EPOLL_CTL_ADD, sockets[i], &interest) < 0) return die("epoll_ctl");
    }
    struct epoll_event events[SOCKETS];
    struct vma_ordered_event_t order[SOCKETS];
    /* The first wait makes the sockets keep their stamps; nothing has come yet. */
    if (api->ordered_epoll_wait(set, events, order, SOCKETS, 0) < 0) return die("wait");
    puts("ready");
    fflush(stdout);
    for (int got = 0; got < count;) {
        const int n = api->ordered_epoll_wait(set, events, order, SOCKETS, 10000);
        if (n <= 0) return die("wait");
        for (int i = 0; i < n; i++) {
            char text[2000];
            size_t left = order[i].bytes;
            if (left == 0) return fprintf(stderr, "nothing to read\n"), 1; /* an end, or an error */
            while (left > 0) {
                /* Not a byte more: what comes behind is younger than what another socket has. */
                const size_t most = left < sizeof text ? left : sizeof text;
                const ssize_t bytes = recv(events[i].data.fd, text, most, 0);
                if (bytes <= 0) return die("recv");
                left -= (size_t)bytes;
                got += (int)bytes;
                fwrite(text, 1, (size_t)bytes, stdout);
                fflush(stdout);
            }
        }
    }
    return close(set);
}
