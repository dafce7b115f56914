/* Tells of some sockets of its own where they are served, and why: vma_explain().
 *
 *     cc -Iinclude examples/explain.c -o explain
 *     LD_PRELOAD=libvma.so ./explain ADDRESS PORT     where somebody listens on TCP */
#include <arpa/inet.h>
#include <errno.h>
#include <mellanox/vma_extra.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void tell(const char* what, int fd) {
    static const char* const paths[] = {"undecided", "offloaded", "kernel"};
    struct vma_explanation_t e;
    if (vma_explain(fd, &e) < 0) {
        printf("%s: %s\n", what,
               errno == ENOPROTOOPT ? "the library is not loaded" : strerror(errno));
        return;
    }
    printf("%s: %s", what, paths[e.path]);
    if (e.rings > 0) printf(", %s ring of interface %d", e.ring_kind, e.interface_index);
    if (e.state[0] != '\0') printf(", %s", e.state);
    if (e.reason != 0) printf(", %d %s (%s)", e.reason, e.reason_name, e.reason_meaning);
    if (e.reason_advice[0] != '\0') printf("; %s", e.reason_advice);
    puts("");
}

int main(int argc, char** argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET};
    if (argc != 3 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT\n", argv[0]);
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    const int fresh = socket(AF_INET, SOCK_DGRAM, 0), datagrams = socket(AF_INET, SOCK_DGRAM, 0),
              stream = socket(AF_INET, SOCK_STREAM, 0), ipv6 = socket(AF_INET6, SOCK_DGRAM, 0);
    if (connect(datagrams, (struct sockaddr*)&peer, sizeof peer) < 0 ||
        connect(stream, (struct sockaddr*)&peer, sizeof peer) < 0) {
        perror("connect");
        return 1;
    }
    tell("a new socket", fresh);
    tell("datagrams", datagrams);
    tell("a connection", stream);
    tell("IPv6", ipv6);
    tell("standard input", STDIN_FILENO);
    return 0;
}
