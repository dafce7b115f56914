/* Sends back what comes by TCP, out of the memory in which it came: polling groups (mellanox/xlio.h).
 *
 *     cc -Iinclude examples/poll_group_server.c -o server -lvma
 *     ./server PORT CONNECTIONS     for so many connections */
#include <arpa/inet.h>
#include <mellanox/xlio.h>
#include <stdio.h>
#include <stdlib.h>

struct connection {
    xlio_socket_t socket;
    int over, gone;
};
static struct connection* connections;
static int wanted, accepted;

static void on_event(xlio_socket_t socket, uintptr_t userdata, int event, int value) {
    struct connection* c = (struct connection*)userdata;
    (void)socket, (void)value;
    if (event == XLIO_SOCKET_EVENT_CLOSED || event == XLIO_SOCKET_EVENT_ERROR) c->over = 1;
    if (event == XLIO_SOCKET_EVENT_TERMINATED) c->gone = 1;
}

/* The peer has it all: the buffer may go back. */
static void on_completion(xlio_socket_t socket, uintptr_t userdata, uintptr_t op) {
    (void)userdata;
    xlio_socket_buf_free(socket, (struct xlio_buf*)op);
}

static void on_text(xlio_socket_t socket, uintptr_t userdata, void* data, size_t length,
                    struct xlio_buf* buf) {
    (void)userdata;
    const struct xlio_socket_send_attr how = {.flags = XLIO_SOCKET_SEND_FLAG_FLUSH,
                                              .userdata_op = (uintptr_t)buf};
    if (xlio_socket_send(socket, data, length, &how) < 0) xlio_socket_buf_free(socket, buf);
}

static void on_accept(xlio_socket_t socket, xlio_socket_t parent, uintptr_t userdata) {
    (void)parent, (void)userdata;
    if (accepted == wanted) {
        static struct connection nobody;
        xlio_socket_update(socket, 0, (uintptr_t)&nobody);
        xlio_socket_destroy(socket);
        return;
    }
    connections[accepted].socket = socket;
    xlio_socket_update(socket, 0, (uintptr_t)&connections[accepted++]);
}

int main(int argc, char** argv) {
    struct sockaddr_in here = {.sin_family = AF_INET};
    if (argc != 3) {
        fprintf(stderr, "usage: %s PORT CONNECTIONS\n", argv[0]);
        return 2;
    }
    here.sin_port = htons((uint16_t)atoi(argv[1]));
    wanted = atoi(argv[2]);
    connections = calloc((size_t)wanted, sizeof *connections);

    struct connection listener = {0};
    xlio_poll_group_t group;
    const struct xlio_poll_group_attr events = {.socket_event_cb = on_event,
                                                .socket_comp_cb = on_completion,
                                                .socket_rx_cb = on_text,
                                                .socket_accept_cb = on_accept};
    if (xlio_init() < 0 || xlio_poll_group_create(&events, &group) < 0) {
        perror("group");
        return 1;
    }
    const struct xlio_socket_attr tcp = {
        .domain = AF_INET, .group = group, .userdata_sq = (uintptr_t)&listener};
    if (xlio_socket_create(&tcp, &listener.socket) < 0 ||
        xlio_socket_bind(listener.socket, (struct sockaddr*)&here, sizeof here) < 0 ||
        xlio_socket_listen(listener.socket) < 0) {
        perror("listen");
        return 1;
    }
    puts("listening");
    fflush(stdout);

    int gone = 0;
    while (gone < wanted) {
        xlio_poll_group_poll(group);
        gone = 0;
        for (int i = 0; i < accepted; i++) {
            if (connections[i].over == 1) {
                connections[i].over++;
                xlio_socket_destroy(connections[i].socket); /* what is queued still goes out */
            }
            gone += connections[i].gone;
        }
    }
    xlio_poll_group_destroy(group); /* and the listener with it */
    printf("served %d connections\n", gone);
    free(connections);
    return xlio_exit();
}
