/* This library's own functions (vma_get_own_api), part by part; tests/e2e/test_extra_own.py is the peer. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

#include "extra_program.h"

static const struct vma_own_api_t* own;

static void take_own(void) {
    own = vma_get_own_api();
    EXPECT(own != NULL, 1);
    EXPECT(own->size, sizeof *own);
}

static vma_template_t of_bytes(int fd, const void* bytes, size_t size) {
    const struct iovec whole = {(void*)bytes, size};
    vma_template_t t = 0;
    EXPECT(own->template_alloc(fd, &whole, 1, &t), 0);
    EXPECT(t != 0, 1);
    return t;
}

/* Fires with the decimal digits of `number`, eight of them, in front. */
static ssize_t fire_number(int fd, vma_template_t t, unsigned number, int flags) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08u", number);
    const struct vma_patch_t patch = {0, 8, digits};
    return own->template_fire(fd, t, &patch, 1, flags);
}

static void next(const char* what) {
    puts(what);
    while (getchar() != '\n') continue;
}

static void errors(void) {
    take_own();
    const int fd = connected(SOCK_DGRAM), pipes = dup(STDIN_FILENO),
              ipv6 = socket(AF_INET6, SOCK_DGRAM, 0), fresh = socket(AF_INET, SOCK_DGRAM, 0);
    static char bytes[VMA_TEMPLATE_MAX_BYTES + 1];
    const struct iovec one = {bytes, 1}, none = {bytes, 0}, most = {bytes, sizeof bytes - 1},
                       several[2] = {most, one};
    vma_template_t t, all[VMA_TEMPLATE_MAX];
    FAILS(own->template_alloc(-1, &one, 1, &t), EINVAL);
    FAILS(own->template_alloc(pipes, &one, 1, &t), EINVAL);
    FAILS(own->template_alloc(ipv6, &one, 1, &t), EINVAL);
    FAILS(own->template_alloc(fd, &none, 1, &t), EINVAL);
    FAILS(own->template_alloc(fd, &one, 0, &t), EINVAL);
    FAILS(own->template_alloc(fd, NULL, 1, &t), EINVAL);
    FAILS(own->template_alloc(fd, &one, 1, NULL), EINVAL);
    FAILS(own->template_alloc(fd, several, 2, &t), EMSGSIZE);
    FAILS(own->template_fire(fd, 64, NULL, 0, 0), ENOENT);
    for (int i = 0; i < VMA_TEMPLATE_MAX; i++)
        EXPECT(own->template_alloc(fd, i % 2 ? &one : &most, 1, &all[i]), 0);
    FAILS(own->template_alloc(fd, &one, 1, &t), ENOBUFS);
    const int other = dup(fd);
    EXPECT(own->template_abort(other, all[7]), 0); /* the same socket */
    FAILS(own->template_abort(fd, all[7]), ENOENT);
    FAILS(own->template_update(fd, all[7], NULL, 0), ENOENT);
    FAILS(own->template_fire(fd, all[7], NULL, 0, 0), ENOENT);
    EXPECT(own->template_alloc(fd, &one, 1, &t), 0);
    EXPECT(t != all[7], 1); /* the place, not the number */
    FAILS(own->template_fire(fd, 0, NULL, 0, 0), ENOENT);

    struct vma_patch_t patches[2] = {{0, 4, "abcd"}, {VMA_TEMPLATE_MAX_BYTES - 3, 4, "wxyz"}};
    FAILS(own->template_update(fd, all[0], patches, 2), EINVAL);
    FAILS(own->template_fire(fd, all[0], patches, 2, 0), EINVAL);
    patches[1].offset = SIZE_MAX;
    FAILS(own->template_update(fd, all[0], patches, 2), EINVAL);
    FAILS(own->template_update(fd, all[0], NULL, 1), EINVAL);
    FAILS(own->template_update(fd, all[0], patches, -1), EINVAL);
    FAILS(own->template_fire(fd, all[0], NULL, 0, MSG_OOB), EINVAL);
    FAILS(own->template_fire(-1, all[0], NULL, 0, 0), EINVAL);
    /* Without a peer: what send() says. */
    const vma_template_t lost = of_bytes(fresh, "nobody", 6);
    FAILS(own->template_fire(fresh, lost, NULL, 0, 0), EDESTADDRREQ);
    EXPECT(close(fd), 0);
    EXPECT(own->template_update(other, all[0], patches, 1), 0);
    EXPECT(close(other), 0);
    FAILS(own->template_update(other, all[0], patches, 1), EINVAL);
    errno = 7; /* left alone by what succeeds */
    EXPECT(own->template_abort(fresh, lost), 0);
    EXPECT(errno, 7);
}

/* Datagrams of several templates, through all that can change under them; a turn of the peer between any two. */
static void datagrams(void) {
    take_own();
    const int fd = connected(SOCK_DGRAM);
    char large[1000];
    memset(large, 'L', sizeof large);
    const vma_template_t a = of_bytes(fd, "________ first template", 23),
                         b = of_bytes(fd, "________ second", 15),
                         c = of_bytes(fd, large, sizeof large);
    for (unsigned i = 0; i < 100; i++)
        EXPECT(fire_number(fd, i % 2 ? b : a, i, 0), i % 2 ? 15 : 23);
    next("many");
    /* At odd places, and of odd lengths. */
    const struct vma_patch_t odd[2] = {{9, 5, "third"}, {15, 7, "message"}};
    EXPECT(own->template_update(fd, a, odd, 2), 0);
    EXPECT(fire_number(fd, a, 1, MSG_DONTWAIT | MSG_NOSIGNAL), 23);
    EXPECT(fire_number(fd, c, 2, 0), 1000);
    next("patched");
    EXPECT(fire_number(fd, a, 3, 0), 23);
    next("another neighbour");
    EXPECT(fire_number(fd, a, 4, 0), 23);
    EXPECT(fire_number(fd, c, 5, 0), 1000);
    next("smaller packets");
    const int ttl = 33, segment = 10, zero = 0, on = 1;
    EXPECT(setsockopt(fd, IPPROTO_IP, IP_TTL, &ttl, sizeof ttl), 0);
    EXPECT(fire_number(fd, a, 6, 0), 23);
    next("another option");
    enum { SEGMENT = 103, CORK = 1 };
    EXPECT(setsockopt(fd, IPPROTO_UDP, SEGMENT, &segment, sizeof segment), 0);
    EXPECT(fire_number(fd, a, 7, 0), 23);
    EXPECT(setsockopt(fd, IPPROTO_UDP, SEGMENT, &zero, sizeof zero), 0);
    EXPECT(setsockopt(fd, IPPROTO_UDP, CORK, &on, sizeof on), 0);
    EXPECT(fire_number(fd, a, 8, 0), 23);
    EXPECT(fire_number(fd, b, 9, 0), 15);
    EXPECT(setsockopt(fd, IPPROTO_UDP, CORK, &zero, sizeof zero), 0);
    next("cut and put together");
    EXPECT(fire_number(fd, b, 10, 0), 15);
    next("one more");
    const struct sockaddr_in other = address(peer_ip, peer_port + 1);
    EXPECT(connect(fd, (const struct sockaddr*)&other, sizeof other), 0);
    EXPECT(fire_number(fd, b, 11, 0), 15);
    next("another peer");
    const pid_t child = fork();
    if (child == 0) _exit(fire_number(fd, b, 12, 0) != 15);
    int status;
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    EXPECT(fire_number(fd, b, 13, 0), 15);
    next("parent and child");
    /* Nobody listens there: told once, as send() does, and what comes then is sent. */
    const struct sockaddr_in closed = address(peer_ip, peer_port + 2);
    EXPECT(connect(fd, (const struct sockaddr*)&closed, sizeof closed), 0);
    EXPECT(fire_number(fd, b, 14, 0), 15);
    struct pollfd refused = {.fd = fd};
    EXPECT(poll(&refused, 1, 10000), 1);
    FAILS(fire_number(fd, b, 15, 0), ECONNREFUSED);
}

/* A stream of records that are all told apart, over a hand-back to the kernel. */
static void stream(void) {
    take_own();
    const int fd = connected(SOCK_STREAM), on = 1;
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    char record[100];
    memset(record, '.', sizeof record);
    const vma_template_t t = of_bytes(fd, record, sizeof record);
    unsigned i = 0;
    for (; i < 500; i++) EXPECT(fire_number(fd, t, i, 0), sizeof record);
    next("by rings");
    /* Until nothing more fits, then the rest of what was taken in part; and one that waits for room. */
    EXPECT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    ssize_t n;
    while ((n = fire_number(fd, t, i, 0)) == sizeof record) i++;
    size_t cut = n > 0 ? (size_t)n : 0;
    if (n < 0) EXPECT(errno, EAGAIN);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    next("full");
    if (cut > 0) {
        snprintf(record, 9, "%08u", i++);
        record[8] = '.';
        EXPECT(send(fd, record + cut, sizeof record - cut, 0), sizeof record - cut);
    }
    for (unsigned end = i + 1000; i < end; i++) EXPECT(fire_number(fd, t, i, 0), sizeof record);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &on, sizeof on), 0);
    for (unsigned end = i + 1000; i < end; i++) EXPECT(fire_number(fd, t, i, 0), sizeof record);
    printf("records %u\n", i);
    next("by the kernel");
    EXPECT(shutdown(fd, SHUT_WR), 0);
    FAILS(fire_number(fd, t, i, MSG_NOSIGNAL), EPIPE);
}

/* Between two processes of one host. */
static void shm(void) {
    take_own();
    const int fd = connected(SOCK_STREAM);
    const vma_template_t t = of_bytes(fd, "________ by shared memory", 25);
    const unsigned most = 20000, by_memory = 1000;
    for (unsigned i = 0, end = most; i < end; i++) {
        char back[26] = {0};
        if (end == most && CALL1(RINGS, fd) > 0) end = i + by_memory;
        EXPECT(fire_number(fd, t, i, 0), 25);
        EXPECT(recv(fd, back, 25, 0), 25);
        EXPECT(atoi(back), i);
        EXPECT(strcmp(back + 8, " by shared memory"), 0);
    }
    struct vma_explanation_t e;
    EXPECT(vma_explain(fd, &e), 0);
    EXPECT(strcmp(e.ring_kind, "shm"), 0);
}
static void echo(void) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in here = address(peer_ip, peer_port);
    EXPECT(bind(listener, (const struct sockaddr*)&here, sizeof here), 0);
    EXPECT(listen(listener, 1), 0);
    puts("ready");
    const int fd = accept(listener, NULL, NULL);
    char text[100];
    for (ssize_t n; (n = recv(fd, text, sizeof text, 0)) > 0;)
        EXPECT(send(fd, text, (size_t)n, 0), n);
}

/* Numbers that the peer sends by two streams and to two datagram sockets, each after the one before it has left: read in that
 * order, a hundred at a time, the first hundred when all of them are there. */
enum { ORDERED_PORT = 7191, CHUNK = 100, CHUNKS = 20 };

static void in_set(int set, int fd, uint32_t events) {
    struct epoll_event interest = {.events = events, .data.fd = fd};
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &interest), 0);
}
static int is_all_zero(const struct vma_ordered_event_t* order) {
    static const struct vma_ordered_event_t zero;
    return memcmp(order, &zero, sizeof zero) == 0;
}

static void ordered(void) {
    take_own();
    const int set = epoll_create1(0);
    const int fds[4] = {udp_bound(ORDERED_PORT), udp_bound(ORDERED_PORT + 1),
                        connected(SOCK_STREAM), connected(SOCK_STREAM)};
    int pipes[2];
    EXPECT(pipe(pipes), 0);
    in_set(set, pipes[0], EPOLLIN);
    for (int i = 0; i < 4; i++) in_set(set, fds[i], EPOLLIN);
    enum { MOST = 8 };
    struct epoll_event events[MOST];
    struct vma_ordered_event_t order[MOST];
    EXPECT(own->ordered_epoll_wait(set, events, order, MOST, 0), 0);
    EXPECT(write(pipes[1], "k", 1), 1); /* the kernel's, which has no place in the order */
    EXPECT(own->ordered_epoll_wait(set, events, order, MOST, 1000), 1);
    EXPECT(events[0].data.fd, pipes[0]);
    EXPECT(is_all_zero(&order[0]), 1);
    int64_t last = 0;
    for (int number = 0, runs = 0; number < CHUNK * CHUNKS; runs++) {
        if (number % CHUNK == 0) printf("next %d\n", number / CHUNK);
        if (number == 0)
            while (getchar() != '\n') continue;
        const int n = own->ordered_epoll_wait(set, events, order, 1 + runs % MOST, 10000);
        EXPECT(n > 0, 1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == pipes[0]) {
                EXPECT(is_all_zero(&order[i]), 1);
                continue;
            }
            const int64_t at = order[i].arrival.tv_sec * 1000000000LL + order[i].arrival.tv_nsec;
            EXPECT(at >= last, 1);
            last = at;
            EXPECT(order[i].bytes > 0, 1);
            const int is_stream = order[i].datagrams == 0;
            unsigned datagrams = 0;
            for (size_t left = order[i].bytes; left > 0; datagrams++) {
                char text[4000];
                const ssize_t got =
                    recv(events[i].data.fd, text, is_stream ? 8 : sizeof text, MSG_DONTWAIT);
                EXPECT(got >= 8 && (size_t)got <= left, 1);
                left -= (size_t)got;
                text[8] = 0;
                EXPECT(atoi(text), number);
                number++;
            }
            EXPECT(is_stream || datagrams == order[i].datagrams, 1);
        }
    }
    next("all");
    /* The end of a stream is nothing to read. */
    char byte;
    EXPECT(read(pipes[0], &byte, 1), 1);
    EXPECT(own->ordered_epoll_wait(set, events, order, MOST, 10000) > 0, 1);
    EXPECT(is_all_zero(&order[0]), 1);
    EXPECT(recv(events[0].data.fd, &byte, 1, 0), 0);
    for (int i = 2; i < 4; i++) EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, fds[i], NULL), 0);
    /* What would be told once only. */
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET, .data.fd = fds[0]};
    EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, fds[0], &edge), 0);
    next("edge");
    FAILS(own->ordered_epoll_wait(set, events, order, MOST, 10000), EINVAL);
    EXPECT(epoll_wait(set, events, MOST, 1000), 1);
    FAILS(own->ordered_epoll_wait(set, events, order, 0, 0), EINVAL);
    FAILS(own->ordered_epoll_wait(set, NULL, order, 1, 0), EFAULT);
    FAILS(own->ordered_epoll_wait(fds[0], events, order, 1, 0), EINVAL);
    FAILS(own->ordered_epoll_wait(-1, events, order, 1, 0), EBADF);
}

/* Two threads at one template: each fire is whole or refused. */
static int contended;
static vma_template_t shared_template;
static void* fire_often(void* byte) {
    char bytes[400];
    memset(bytes, *(char*)byte, sizeof bytes);
    const struct vma_patch_t all = {0, sizeof bytes, bytes};
    for (int i = 0; i < 2000;) {
        const ssize_t n = own->template_fire(contended, shared_template, &all, 1, 0);
        if (n < 0) EXPECT(errno, EBUSY);
        i += n > 0;
    }
    return NULL;
}
static void threads(void) {
    take_own();
    char bytes[400] = {0};
    contended = connected(SOCK_DGRAM);
    shared_template = of_bytes(contended, bytes, sizeof bytes);
    pthread_t a, b;
    EXPECT(pthread_create(&a, NULL, fire_often, "a"), 0);
    EXPECT(pthread_create(&b, NULL, fire_often, "b"), 0);
    EXPECT(pthread_join(a, NULL), 0);
    EXPECT(pthread_join(b, NULL), 0);
    EXPECT(send(contended, "end", 3, 0), 3);
}

static void set_messages(int fd, int bits) {
    socklen_t len = sizeof bits;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_MESSAGES, &bits, sizeof bits), 0);
    int now = -1;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_VMA_MESSAGES, &now, &len), 0);
    EXPECT(now, bits);
}

/* The peer counts segments. */
static void messages(void) {
    const int fd = connected(SOCK_STREAM), datagrams = connected(SOCK_DGRAM), on = 1, off = 0;
    int bits = 4;
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_MESSAGES, &bits, sizeof bits), EINVAL);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_MESSAGES, &bits, 1), EINVAL);
    bits = VMA_MESSAGES_SEND;
    FAILS(setsockopt(datagrams, SOL_SOCKET, SO_VMA_MESSAGES, &bits, sizeof bits), ENOPROTOOPT);
    char text[100];
    memset(text, 'm', sizeof text);
    set_messages(fd, VMA_MESSAGES_SEND);
    for (int i = 0; i < 3000; i++) EXPECT(send(fd, text, 20 + i % 80, 0), 20 + i % 80);
    next("many");
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0);
    for (int i = 0; i < 5; i++) {
        EXPECT(send(fd, text, 30, MSG_MORE), 30);
        EXPECT(send(fd, text, 30, 0), 30);
    }
    next("corked");
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off), 0);
    set_messages(fd, 0);
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0);
    for (int i = 0; i < 5; i++) EXPECT(send(fd, text, 30, 0), 30);
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off), 0);
    next("stream again");
    set_messages(fd, VMA_MESSAGES_RECEIVE);
    next("receives");
    for (int n; (n = (int)recv(fd, text, 40, 0)) > 0;) printf("%d\n", n);
    EXPECT(close(fd), 0);
    EXPECT(close(datagrams), 0);
}

const struct part parts[] = {{"errors", errors},     {"datagrams", datagrams}, {"stream", stream},
                             {"shm", shm},           {"echo", echo},           {"threads", threads},
                             {"messages", messages}, {"ordered", ordered},     {NULL, NULL}};
