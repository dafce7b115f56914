/* A program with a receive callback, for test_extra_api.py. Of the numbered datagrams of the peer it drops one in three and sends
 * it back, receives one, holds one; whichever call it waits by. */
#include "extra_program.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

#define PORT 7171
enum { COUNT = 30, INFO = VMA_API_VERSION == 606 ? 48 : 80 };

static pthread_t program;
static int seen;          /* packets shown */
static void* held[COUNT]; /* ids */
static struct iovec texts[COUNT];
static int held_count;

static void* id_of(const struct vma_info_t* info) {
#if VMA_API_VERSION == 606
    return info->datagram_id;
#else
    return info->packet_id;
#endif
}

/* "datagram N" */
static int number_in(const struct iovec* text) {
    char words[40] = "";
    memcpy(words, text->iov_base, text->iov_len < 39 ? text->iov_len : 39);
    EXPECT(strncmp(words, "datagram ", 9), 0);
    return atoi(words + 9);
}

static void check_info(const struct vma_info_t* info, size_t length) {
    EXPECT(info->struct_sz, INFO);
    EXPECT(info->payload_sz, length);
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    EXPECT(info->src->sin_addr.s_addr, peer.sin_addr.s_addr);
    EXPECT(info->src->sin_port, peer.sin_port);
    EXPECT(info->dst->sin_family, AF_INET);
    EXPECT(pthread_equal(program, pthread_self()) != 0, 1);
}

static vma_recv_callback_retval_t on_datagram(int fd, size_t count, struct iovec iov[],
                                              struct vma_info_t* info, void* context) {
    EXPECT(context == (void*)&seen, 1);
    EXPECT(count, 1);
    check_info(info, iov[0].iov_len);
    EXPECT(ntohs(info->dst->sin_port), PORT);
    const int number = number_in(&iov[0]);
    EXPECT(number, seen);
    seen++;
    char none;
    switch (number % 3) {
        case 0:
            EXPECT(sendto(fd, iov[0].iov_base, iov[0].iov_len, 0, (struct sockaddr*)info->src,
                          sizeof *info->src),
                   iov[0].iov_len);
            return VMA_PACKET_DROP;
        case 1:
            return VMA_PACKET_RECV;
        default:
            if (info->socket_ready_queue_pkt_count == 0)
                FAILS(recv(fd, &none, 1, MSG_DONTWAIT), EAGAIN);
            texts[held_count] = iov[0];
            held[held_count++] = id_of(info);
            return VMA_PACKET_HOLD;
    }
}

static int start(vma_recv_callback_t callback) {
    const int fd = udp_bound(PORT);
    program = pthread_self();
    FAILS(CALL3(REGISTER, 0, callback, &seen), EINVAL);
    EXPECT(CALL3(REGISTER, fd, callback, &seen), 0);
    puts("ready");
    return fd;
}

/* Receives what the callback lets through, after `wait` has said that there is something. */
static void receive(int (*wait)(int fd)) {
    const int fd = start(on_datagram);
    int got = 0;
    while (got < COUNT / 3) {
        char buffer[100] = "";
        if (wait && !wait(fd)) continue;
        const ssize_t n = recv(fd, buffer, sizeof buffer, wait ? MSG_DONTWAIT : 0);
        EXPECT(n > 0, 1);
        const struct iovec text = {buffer, (size_t)n};
        EXPECT(number_in(&text), 3 * got + 1);
        got++;
    }
    for (int i = 0; seen < COUNT; i++) {
        struct pollfd none = {fd, POLLIN, 0};
        EXPECT(i < 100, 1);
        EXPECT(poll(&none, 1, 100), 0);
    }
    char none;
    FAILS(recv(fd, &none, 1, MSG_DONTWAIT), EAGAIN);
    EXPECT(held_count, COUNT / 3);
    for (int i = 0; i < held_count; i++) {
        EXPECT(number_in(&texts[i]), 3 * i + 2);
        EXPECT(give_back(fd, held[i]), 0);
        FAILS(give_back(fd, held[i]), ENOENT);
    }
}

static int by_poll(int fd) {
    struct pollfd wait = {fd, POLLIN, 0};
    EXPECT(poll(&wait, 1, 10000), 1);
    return 1;
}
static int by_select(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval limit = {10, 0};
    EXPECT(select(fd + 1, &set, NULL, NULL, &limit), 1);
    return 1;
}
static int by_epoll(int fd) {
    static int set = -1;
    struct epoll_event event = {.events = EPOLLIN};
    if (set < 0) {
        set = epoll_create1(0);
        EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    }
    EXPECT(epoll_wait(set, &event, 1, 10000), 1);
    return 1;
}
/* Never waits. */
static int by_looking(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

static void blocking(void) { receive(NULL); }
static void polling(void) { receive(by_poll); }
static void selecting(void) { receive(by_select); }
static void epolling(void) { receive(by_epoll); }
static void looking(void) { receive(by_looking); }

static vma_recv_callback_retval_t drop(int fd, size_t count, struct iovec iov[],
                                       struct vma_info_t* info, void* context) {
    (void)fd, (void)count, (void)iov, (void)info, (void)context;
    seen++;
    return VMA_PACKET_DROP;
}

/* Without a callback everything is readable again. */
static void removed(void) {
    const int fd = start(drop);
    for (int i = 0; seen < 5; i++) {
        struct pollfd none = {fd, POLLIN, 0};
        EXPECT(i < 100, 1);
        EXPECT(poll(&none, 1, 100), 0);
    }
    EXPECT(CALL3(REGISTER, fd, NULL, NULL), 0);
    puts("removed");
    for (int i = 0; i < 5; i++) {
        char buffer[100];
        EXPECT(recv(fd, buffer, sizeof buffer, 0) > 0, 1);
    }
    EXPECT(seen, 5);
}

static unsigned next; /* byte of the stream */
static size_t dropped, kept;

static void follow(const void* data, size_t n) {
    const unsigned char* bytes = data;
    for (size_t i = 0; i < n; i++, next = (next + 1) % 251)
        if (bytes[i] != next) EXPECT(bytes[i], next);
}

static vma_recv_callback_retval_t on_text(int fd, size_t count, struct iovec iov[],
                                          struct vma_info_t* info, void* context) {
    (void)fd, (void)context;
    EXPECT(count, 1);
    check_info(info, iov[0].iov_len);
    if (seen < 3) printf("shown %d\n", seen);
    switch (seen++ % 3) {
        case 0:
            follow(iov[0].iov_base, iov[0].iov_len);
            dropped += iov[0].iov_len;
            return VMA_PACKET_DROP;
        case 1:
            return VMA_PACKET_RECV;
        default:
            if (held_count == COUNT) return VMA_PACKET_RECV;
            follow(iov[0].iov_base, iov[0].iov_len);
            kept += iov[0].iov_len;
            held[held_count++] = id_of(info);
            return VMA_PACKET_HOLD;
    }
}

/* Every byte of a stream is shown or read, in order. */
static void stream(void) {
    program = pthread_self();
    const int fd = connected(SOCK_STREAM);
    EXPECT(CALL3(REGISTER, fd, on_text, NULL), 0);
    puts("ready");
    size_t readable = 0;
    for (;;) {
        static char buffer[100000];
        struct pollfd wait = {fd, POLLIN, 0};
        const int events = poll(&wait, 1, 100);
        while (held_count > 0) EXPECT(give_back(fd, held[--held_count]), 0);
        if (events == 0) continue;
        const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n == 0) break;
        EXPECT(n > 0, 1);
        follow(buffer, (size_t)n);
        if (readable == 0) printf("read %zd\n", n);
        readable += (size_t)n;
    }
    printf("got %zu dropped %zu kept %zu read %zu\n", dropped + kept + readable, dropped, kept,
           readable);
}

static vma_recv_callback_retval_t close_it(int fd, size_t count, struct iovec iov[],
                                           struct vma_info_t* info, void* context) {
    (void)count, (void)info, (void)context;
    EXPECT(number_in(&iov[0]), seen);
    seen++;
    EXPECT(close(fd), 0);
    return VMA_PACKET_HOLD;
}

/* A socket that its callback closes shows nothing more. */
static void closing(void) {
    const int fd = start(close_it);
    char none;
    while (seen == 0) {
        struct pollfd wait = {fd, POLLIN, 0};
        EXPECT(poll(&wait, 1, 10) >= 0, 1);
    }
    FAILS(recv(fd, &none, 1, MSG_DONTWAIT), EBADF);
    EXPECT(seen, 1);
    EXPECT(udp_bound(PORT) >= 0, 1); /* the port is free */
}

static vma_recv_callback_retval_t read_it(int fd, size_t count, struct iovec iov[],
                                          struct vma_info_t* info, void* context) {
    (void)count, (void)iov, (void)info, (void)context;
    char some[10];
    seen++;
    EXPECT(CALL3(REGISTER, fd, NULL, NULL), 0);
    EXPECT(recv(fd, some, sizeof some, 0), sizeof some);
    follow(some, sizeof some);
    return VMA_PACKET_DROP;
}

/* Reads the stream to its end. */
static void rest(int fd) {
    size_t readable = 0;
    for (;;) {
        char buffer[1000];
        const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n == 0) break;
        EXPECT(n > 0, 1);
        follow(buffer, (size_t)n);
        readable += (size_t)n;
    }
    EXPECT(seen, 1);
    printf("read %zu\n", readable);
}

/* A callback that has unregistered itself and read from its packet cannot drop what is left of it. */
static void reading(void) {
    const int fd = connected(SOCK_STREAM);
    EXPECT(CALL3(REGISTER, fd, read_it, NULL), 0);
    puts("ready");
    rest(fd);
}

static vma_recv_callback_retval_t fork_it(int fd, size_t count, struct iovec iov[],
                                          struct vma_info_t* info, void* context) {
    (void)count, (void)info, (void)context;
    int status;
    seen++;
    const pid_t child = fork();
    if (child == 0) {
        char some[10];
        EXPECT(recv(fd, some, sizeof some, 0), sizeof some);
        follow(some, sizeof some);
        _exit(next == sizeof some ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    follow(iov[0].iov_base, 10); /* still there, although it is the kernel's by now */
    return VMA_PACKET_DROP;
}

/* A child that is forked in the callback reads first; what the callback says of text that has gone to the kernel means nothing. */
static void forking(void) {
    const int fd = connected(SOCK_STREAM);
    EXPECT(CALL3(REGISTER, fd, fork_it, NULL), 0);
    puts("ready");
    rest(fd);
}

const struct part parts[] = {
    {"blocking", blocking}, {"poll", polling},    {"select", selecting}, {"epoll", epolling},
    {"looking", looking},   {"removed", removed}, {"stream", stream},    {"closing", closing},
    {"reading", reading},   {"forking", forking}, {NULL, NULL},
};
