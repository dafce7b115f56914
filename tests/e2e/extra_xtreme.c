/* A program that takes everything by SocketXtreme, for test_extra_api.py. */
#include "extra_program.h"

#include <sys/epoll.h>
#include <time.h>

#define PORT 7181
enum { COUNT = 20, BATCH = 4 };
static const uint64_t PACKET = VMA_SOCKETXTREME_PACKET,
                      ACCEPTED = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;

static int poll_ring(int ring, struct vma_completion_t* done, unsigned n) {
    return call6(XTREME_POLL, ring, (long)done, n, 0, 0, 0);
}
static int unref(struct vma_buff_t* buff) { return CALL1(XTREME_UNREF, buff); }
static int free_packets(struct vma_packet_desc_t* packets, int n) {
    return CALL2(XTREME_FREE, packets, n);
}

/* The one ring of a socket. */
static int ring_of(int fd) {
    int rings[4] = {-1, -1, -1, -1};
    EXPECT(CALL1(RINGS, fd), 1);
    EXPECT(CALL3(RING_FDS, fd, rings, 4), 1);
    return rings[0];
}

/* As many results as there are, at most n; waits for the first, ten seconds. */
static unsigned wait_for(int ring, struct vma_completion_t* done, unsigned n) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        const int got = poll_ring(ring, done, n);
        EXPECT(got >= 0 && got <= (int)n, 1);
        if (got > 0) return (unsigned)got;
        clock_gettime(CLOCK_MONOTONIC, &now);
        EXPECT(now.tv_sec - begin.tv_sec <= 10, 1);
    }
}

/* A packet of the peer: its length, and that the parts are of that length together. */
static void check_packet(const struct vma_completion_t* c) {
    EXPECT(c->events, PACKET);
    size_t sum = 0, parts = 0;
    for (const struct vma_buff_t* b = c->packet.buff_lst; b != NULL; b = b->next, parts++)
        sum += b->len;
    EXPECT(sum, c->packet.total_len);
    EXPECT(parts, c->packet.num_bufs);
    EXPECT(c->src.sin_family, AF_INET);
    EXPECT(c->src.sin_addr.s_addr, address(peer_ip, 0).sin_addr.s_addr);
}

static void off(void) {
    struct vma_completion_t done;
    struct vma_buff_t buff;
    FAILS(poll_ring(0, &done, 1), EOPNOTSUPP);
    FAILS(free_packets(&done.packet, 1), EOPNOTSUPP);
    FAILS(CALL1(XTREME_REF, &buff), EOPNOTSUPP);
    FAILS(unref(&buff), EOPNOTSUPP);
}

static void errors(void) {
    struct vma_completion_t done = {0};
    struct vma_buff_t buff = {0};
    const int ring = ring_of(udp_bound(PORT));
    FAILS(poll_ring(0, &done, 1), EBADFD);
    FAILS(poll_ring(ring, NULL, 1), EINVAL);
    FAILS(poll_ring(ring, &done, 0), EINVAL);
    EXPECT(poll_ring(ring, &done, 1), 0);
    FAILS(free_packets(NULL, 1), EINVAL);
    EXPECT(free_packets(&done.packet, 1), 0); /* has no parts */
    done.packet.buff_lst = &buff;
    FAILS(free_packets(&done.packet, 1), ENOENT);
    FAILS(CALL1(XTREME_REF, NULL), EINVAL);
    FAILS(CALL1(XTREME_REF, &buff), ENOENT);
    FAILS(unref(NULL), EINVAL);
    FAILS(unref(&buff), ENOENT);
}

static void check_text(const struct vma_completion_t* c, int number) {
    char wanted[40];
    const int size = snprintf(wanted, sizeof wanted, "datagram %d", number);
    EXPECT(c->packet.num_bufs, 1);
    EXPECT(c->packet.total_len, size);
    EXPECT(memcmp(c->packet.buff_lst->payload, wanted, (size_t)size), 0);
    EXPECT(ntohs(c->src.sin_port), peer_port);
}

/* Each datagram once, in order, in memory that stays: also when the socket is closed. */
static void udp(void) {
    const int fd = udp_bound(PORT), ring = ring_of(fd);
    struct vma_completion_t done[COUNT + BATCH];
    puts("ready");
    for (unsigned got = 0; got < COUNT;) got += wait_for(ring, done + got, BATCH);
    for (int i = 0; i < COUNT; i++) {
        check_packet(&done[i]);
        check_text(&done[i], i);
        EXPECT(done[i].user_data, fd);
    }
    const uint64_t data = 0x1122334455667788;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
    puts("more"); /* one more */
    struct vma_completion_t last;
    EXPECT(wait_for(ring, &last, 1), 1);
    check_packet(&last);
    check_text(&last, COUNT);
    EXPECT(last.user_data == data, 1);

    struct vma_buff_t* const buff = done[0].packet.buff_lst;
    EXPECT(CALL1(XTREME_REF, buff), 2);
    EXPECT(CALL1(XTREME_REF, buff), 3);
    EXPECT(unref(buff), 2);
    EXPECT(free_packets(&done[0].packet, 1), 0);
    check_text(&done[0], 0);
    EXPECT(unref(buff), 0);
    FAILS(unref(buff), ENOENT);
    FAILS(free_packets(&done[0].packet, 1), ENOENT);
    FAILS(give_back(fd, buff), ENOENT); /* is no packet of recvfrom_zcopy */
    puts("kept");
    for (int c; (c = getchar()) != '\n';) EXPECT(c != EOF, 1);

    EXPECT(close(fd), 0);
    const int again = udp_bound(PORT); /* takes the record of the first */
    struct vma_packet_desc_t packets[COUNT];
    for (int i = 1; i < COUNT; i++) {
        check_text(&done[i], i);
        packets[i] = done[i].packet;
    }
    EXPECT(free_packets(packets + 1, COUNT - 1), 0);
    EXPECT(free_packets(&last.packet, 1), 0);
    EXPECT(close(again), 0);
}

/* What the kernel has is told, and taken by the usual calls. */
static void kernel(void) {
    struct vma_completion_t done[2];
    const int fd = udp_bound(PORT), ring = ring_of(fd), from = udp_bound(PORT + 1);
    const struct sockaddr_in lo = address("127.0.0.1", PORT);
    EXPECT(sendto(from, "hello", 5, 0, (const struct sockaddr*)&lo, sizeof lo), 5);
    do EXPECT(wait_for(ring, done, 1), 1);
    while (done[0].events == EPOLLOUT);
    EXPECT(done[0].events & ~(uint64_t)EPOLLOUT, EPOLLIN);
    EXPECT(done[0].user_data, fd);
    char text[10];
    EXPECT(recv(fd, text, sizeof text, MSG_DONTWAIT), 5);
    EXPECT(memcmp(text, "hello", 5), 0);

    const int listener = listening("0.0.0.0", PORT);
    EXPECT(ring_of(listener), ring);
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(connect(client, (const struct sockaddr*)&lo, sizeof lo), 0);
    do EXPECT(wait_for(ring, done, 1), 1);
    while (done[0].events == EPOLLOUT);
    EXPECT(done[0].events, ACCEPTED);
    EXPECT(done[0].listen_fd, listener);
    const int child = (int)done[0].user_data;
    EXPECT(CALL1(RINGS, child), 0);
    EXPECT(send(client, "world", 5, 0), 5);
    EXPECT(recv(child, text, sizeof text, 0), 5);
}

static void check_stream(const struct vma_completion_t* c, size_t* total) {
    for (const struct vma_buff_t* b = c->packet.buff_lst; b != NULL; b = b->next)
        for (size_t i = 0; i < b->len; i++, ++*total)
            if (((unsigned char*)b->payload)[i] != *total % 251)
                EXPECT(((unsigned char*)b->payload)[i], *total % 251);
}

/* Takes packets of a stream until `bytes` of it are there or its end; what was told besides them. Those taken go back at once or
 * are kept. */
static uint64_t take_stream(int fd, int ring, size_t* total, size_t bytes,
                            struct vma_packet_desc_t* kept, int* count) {
    uint64_t events = 0;
    struct vma_completion_t done[BATCH];
    while (*total < bytes && (events & EPOLLRDHUP) == 0) {
        const unsigned got = wait_for(ring, done, BATCH);
        for (unsigned i = 0; i < got; i++) {
            EXPECT(events & EPOLLRDHUP, 0); /* the end comes last */
            EXPECT(done[i].user_data, fd);
            if ((done[i].events & PACKET) == 0) {
                events |= done[i].events;
                continue;
            }
            check_packet(&done[i]);
            check_stream(&done[i], total);
            if (kept != NULL)
                kept[(*count)++] = done[i].packet;
            else
                EXPECT(free_packets(&done[i].packet, 1), 0);
        }
    }
    return events;
}

/* A stream to its end, through a small window: what is kept of it fills that, and is room again when it is given back. */
static void tcp(void) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), small = 32768;
    const struct sockaddr_in to = address(peer_ip, peer_port);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    EXPECT(connect(fd, (const struct sockaddr*)&to, sizeof to), 0);
    const int ring = ring_of(fd);
    struct vma_packet_desc_t kept[1000];
    int count = 0;
    size_t total = 0;
    uint64_t events = take_stream(fd, ring, &total, 10000, kept, &count);
    puts("kept");
    for (int c; (c = getchar()) != '\n';) EXPECT(c != EOF, 1);
    EXPECT(free_packets(kept, count), 0);
    events |= take_stream(fd, ring, &total, SIZE_MAX, NULL, NULL);
    EXPECT(events, EPOLLIN | EPOLLOUT | EPOLLRDHUP); /* connected; the end is readable */
    printf("got %zu\n", total);
    char end;
    EXPECT(recv(fd, &end, 1, 0), 0);
    EXPECT(shutdown(fd, SHUT_WR), 0);
    struct vma_completion_t done;
    for (events = 0; (events & EPOLLHUP) == 0; events |= done.events)
        EXPECT(wait_for(ring, &done, 1), 1);
    EXPECT(poll_ring(ring, &done, 1), 0);
}

/* Connections are accepted by the library; each message goes back, and the end of each connection is answered by its close. */
static void server(void) {
    enum { CONNECTIONS = 3, MOST_FD = 64 };
    const int listener = listening("0.0.0.0", PORT);
    const int ring = ring_of(listener);
    uint16_t port_of[MOST_FD] = {0};
    puts("ready");
    for (int accepted = 0, ended = 0; ended < CONNECTIONS;) {
        struct vma_completion_t done[BATCH];
        const unsigned got = wait_for(ring, done, BATCH);
        for (unsigned i = 0; i < got; i++) {
            const struct vma_completion_t* c = &done[i];
            const int fd = (int)c->user_data;
            EXPECT(fd >= 0 && fd < MOST_FD, 1);
            if (c->events & ACCEPTED) {
                EXPECT(c->events, ACCEPTED);
                EXPECT(c->listen_fd, listener);
                EXPECT(c->src.sin_addr.s_addr, address(peer_ip, 0).sin_addr.s_addr);
                EXPECT(ring_of(fd), ring);
                port_of[fd] = c->src.sin_port;
                accepted++;
            } else if (c->events & PACKET) {
                check_packet(c);
                EXPECT(c->src.sin_port, port_of[fd]);
                for (const struct vma_buff_t* b = c->packet.buff_lst; b != NULL; b = b->next)
                    EXPECT(send(fd, b->payload, b->len, 0), b->len);
                EXPECT(free_packets(&done[i].packet, 1), 0);
            } else if (c->events & EPOLLRDHUP) {
                EXPECT(port_of[fd] != 0, 1);
                port_of[fd] = 0;
                EXPECT(close(fd), 0);
                ended++;
            }
        }
        EXPECT(accepted >= ended, 1);
    }
    struct vma_completion_t none;
    EXPECT(poll_ring(ring, &none, 1), 0);
}

/* Over the ring between processes: the peer echoes; once the connection has moved there its answers come by SocketXtreme. */
static void shm(void) {
    enum { ROUNDS = 200 };
    const int fd = by_shared_memory(), ring = ring_of(fd);
    char text[100];
    for (int round = 0; round < ROUNDS; round++) {
        struct vma_completion_t done;
        const int size = snprintf(text, sizeof text, "message %d", round);
        EXPECT(send(fd, text, (size_t)size, 0), size);
        do EXPECT(wait_for(ring, &done, 1), 1);
        while ((done.events & PACKET) == 0);
        check_packet(&done);
        EXPECT(ntohs(done.src.sin_port), peer_port);
        EXPECT(done.packet.num_bufs, 1);
        EXPECT(done.packet.total_len, size);
        EXPECT(memcmp(done.packet.buff_lst->payload, text, (size_t)size), 0);
        EXPECT(free_packets(&done.packet, 1), 0);
    }
}

const struct part parts[] = {
    {"off", off}, {"errors", errors}, {"udp", udp}, {"kernel", kernel},
    {"tcp", tcp}, {"server", server}, {"shm", shm}, {NULL, NULL},
};
