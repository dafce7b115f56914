/* Sends a stream to an echo server and takes it back, without a copy in the program: polling groups under the library's own
 * names (mellanox/vma_poll_group.h).
 *
 *     cc -Iinclude examples/poll_group_client.c -o client -lvma
 *     ./client ADDRESS PORT MEGABYTES */
#include <arpa/inet.h>
#include <mellanox/vma_poll_group.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 64 * 1024 };
static char text[PIECE]; /* each piece of the stream is this */
static int connected, over, failed;
static size_t echoed, wrong;
static unsigned long acknowledged;

static void on_event(vma_socket_t socket, uintptr_t userdata, int event, int value) {
    (void)socket, (void)userdata;
    connected |= event == VMA_SOCKET_EVENT_ESTABLISHED;
    over |= event == VMA_SOCKET_EVENT_TERMINATED;
    failed |= event == VMA_SOCKET_EVENT_CLOSED;
    if (event != VMA_SOCKET_EVENT_ERROR) return;
    fprintf(stderr, "the connection: %s\n", strerror(value));
    failed = 1;
}

static void on_completion(vma_socket_t socket, uintptr_t userdata, uintptr_t op) {
    (void)socket, (void)userdata;
    acknowledged = op;
}

static void on_text(vma_socket_t socket, uintptr_t userdata, void* data, size_t length,
                    vma_buf_t* buf) {
    (void)userdata;
    for (size_t i = 0; i < length; i++) wrong += ((char*)data)[i] != text[(echoed + i) % PIECE];
    echoed += length;
    vma_socket_buf_free(socket, buf);
}

int main(int argc, char** argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET};
    if (argc != 4 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT MEGABYTES\n", argv[0]);
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    const unsigned long pieces = strtoul(argv[3], NULL, 10) * (1024 * 1024 / PIECE);
    for (size_t i = 0; i < PIECE; i++) text[i] = (char)(i * 7 % 253);

    const vma_poll_group_attr_t events = {
        .socket_event_cb = on_event, .socket_comp_cb = on_completion, .socket_rx_cb = on_text};
    vma_poll_group_t group;
    vma_socket_t socket;
    if (vma_poll_group_create(&events, &group) < 0) {
        perror("group");
        return 1;
    }
    const vma_socket_attr_t tcp = {.domain = AF_INET, .group = group};
    if (vma_socket_create(&tcp, &socket) < 0 ||
        vma_socket_connect(socket, (struct sockaddr*)&peer, sizeof peer) < 0) {
        perror("connect");
        return 1;
    }
    while (!connected && !failed) vma_poll_group_poll(group);

    unsigned long sent = 0;
    while (echoed < pieces * PIECE && !failed) {
        /* At most eight pieces that the peer has not acknowledged; each is told of by its number. */
        while (sent < pieces && sent - acknowledged < 8) {
            const vma_socket_send_attr_t how = {.userdata_op = sent + 1};
            if (vma_socket_send(socket, text, PIECE, &how) < 0) break;
            sent++;
        }
        vma_socket_flush(socket);
        vma_poll_group_poll(group);
    }
    vma_socket_destroy(socket);
    while (!over) vma_poll_group_poll(group);
    vma_poll_group_destroy(group);
    printf("%zu bytes came back, %zu of them wrong\n", echoed, wrong);
    return failed || wrong != 0;
}
