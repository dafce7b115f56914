/* A program that uses polling groups, for test_poll_group.py. Its peer sends back what it gets, unless a part says otherwise. */
#include <limits.h>
#include <mellanox/vma_poll_group.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "extra_program.h"

/* clang-format off */
#define IS(name, value) _Static_assert((name) == (value), #name)
#define AT(type, member, offset) _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)
IS(XLIO_SOCKET_EVENT_ESTABLISHED, 1); IS(XLIO_SOCKET_EVENT_TERMINATED, 2); IS(XLIO_SOCKET_EVENT_CLOSED, 3); IS(XLIO_SOCKET_EVENT_ERROR, 4);
IS(XLIO_GROUP_FLAG_SAFE, 1); IS(XLIO_GROUP_FLAG_DIRTY, 2); IS(XLIO_SOCKET_SEND_FLAG_FLUSH, 1); IS(XLIO_SOCKET_SEND_FLAG_INLINE, 2);
IS(sizeof(xlio_socket_t), 8); IS(sizeof(xlio_poll_group_t), 8);
AT(xlio_init_attr, flags, 0); AT(xlio_init_attr, memory_cb, 8); AT(xlio_init_attr, memory_alloc, 16); AT(xlio_init_attr, memory_free, 24);
IS(sizeof(struct xlio_init_attr), 32);
AT(xlio_poll_group_attr, flags, 0); AT(xlio_poll_group_attr, socket_event_cb, 8); AT(xlio_poll_group_attr, socket_comp_cb, 16);
AT(xlio_poll_group_attr, socket_rx_cb, 24); AT(xlio_poll_group_attr, socket_accept_cb, 32); IS(sizeof(struct xlio_poll_group_attr), 40);
AT(xlio_socket_attr, flags, 0); AT(xlio_socket_attr, domain, 4); AT(xlio_socket_attr, group, 8); AT(xlio_socket_attr, userdata_sq, 16);
IS(sizeof(struct xlio_socket_attr), 24);
AT(xlio_socket_send_attr, flags, 0); AT(xlio_socket_send_attr, mkey, 4); AT(xlio_socket_send_attr, userdata_op, 8);
IS(sizeof(struct xlio_socket_send_attr), 16);
AT(xlio_buf, userdata, 0); IS(sizeof(struct xlio_buf), 8);
/* clang-format on */

#define PORT 7191
enum { PATTERN = 251, MOST_HELD = 8 };

/* What has happened to one socket; its userdata_sq. */
struct seen {
    xlio_poll_group_t group;
    xlio_socket_t socket;
    int established, closed, errors, error, terminated;
    long received, completions; /* bytes; and userdata_op that came, which are 1, 2, ... */
    int echo;                   /* what comes is sent back */
    struct xlio_buf* held[MOST_HELD];
    unsigned held_count;
};

/* The text at a place of every stream here. */
static unsigned char g_text[1 << 20];
static const unsigned char* text_at(long place) { return g_text + place % PATTERN; }
__attribute__((constructor)) static void make_text(void) {
    for (size_t i = 0; i < sizeof g_text; i++) g_text[i] = (unsigned char)(i % PATTERN);
}

static void on_event(xlio_socket_t socket, uintptr_t userdata, int event, int value) {
    struct seen* s = (struct seen*)userdata;
    EXPECT(socket, s->socket);
    EXPECT(s->terminated, 0);
    EXPECT(value != 0, event == XLIO_SOCKET_EVENT_ERROR);
    switch (event) {
        case XLIO_SOCKET_EVENT_ESTABLISHED:
            s->established++;
            return;
        case XLIO_SOCKET_EVENT_CLOSED:
            s->closed++;
            return;
        case XLIO_SOCKET_EVENT_ERROR:
            s->errors++;
            s->error = value;
            return;
        default:
            EXPECT(event, XLIO_SOCKET_EVENT_TERMINATED);
            s->terminated++;
    }
}

static void send_all(struct seen* s, const void* data, size_t length, unsigned flags,
                     uintptr_t op) {
    const struct xlio_socket_send_attr attr = {.flags = flags, .userdata_op = op};
    EXPECT(xlio_socket_send(s->socket, data, length, &attr), 0);
}

static void on_completion(xlio_socket_t socket, uintptr_t userdata, uintptr_t op) {
    struct seen* s = (struct seen*)userdata;
    EXPECT(socket, s->socket);
    if (s->echo) { /* op is the buffer that was sent back */
        s->completions++;
        return xlio_socket_buf_free(socket, (struct xlio_buf*)op);
    }
    EXPECT(op, ++s->completions); /* each once, in their order */
}

static void on_text(xlio_socket_t socket, uintptr_t userdata, void* data, size_t length,
                    struct xlio_buf* buf) {
    struct seen* s = (struct seen*)userdata;
    EXPECT(socket, s->socket);
    EXPECT(length > 0, 1);
    EXPECT(memcmp(data, text_at(s->received), length), 0);
    s->received += (long)length;
    buf->userdata = (uintptr_t)s;
    if (s->echo) return send_all(s, data, length, XLIO_SOCKET_SEND_FLAG_FLUSH, (uintptr_t)buf);
    if (s->held_count++ % 2) return xlio_socket_buf_free(socket, buf);
    /* Of the other small ones the last stay for a while; what stays fills the receive buffer. */
    struct xlio_buf** place = &s->held[s->held_count / 2 % MOST_HELD];
    if (length > 2000) place = &buf;
    if (*place != NULL) {
        EXPECT((*place)->userdata, (uintptr_t)s);
        vma_poll_group_buf_free(s->group, *place);
    }
    if (place != &buf) *place = buf;
}

static void free_held(struct seen* s) {
    for (unsigned i = 0; i < MOST_HELD; i++)
        if (s->held[i] != NULL) xlio_poll_group_buf_free(s->group, s->held[i]);
    memset(s->held, 0, sizeof s->held);
}

static struct seen g_accepted[8];
static unsigned g_accepted_count;
static void on_accept(xlio_socket_t socket, xlio_socket_t parent, uintptr_t userdata) {
    struct seen* listener = (struct seen*)userdata;
    EXPECT(parent, listener->socket);
    EXPECT(g_accepted_count < 8, 1);
    struct seen* s = &g_accepted[g_accepted_count++];
    *s = (struct seen){.group = listener->group, .socket = socket, .echo = 1};
    EXPECT(xlio_socket_update(socket, 0, (uintptr_t)s), 0);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    EXPECT(xlio_socket_getsockname(socket, (struct sockaddr*)&name, &length), 0);
    EXPECT(name.sin_port, htons(PORT));
    length = sizeof name;
    EXPECT(xlio_socket_getpeername(socket, (struct sockaddr*)&name, &length), 0);
    EXPECT(name.sin_family, AF_INET);
}

static xlio_poll_group_t make_group(unsigned flags) {
    const struct xlio_poll_group_attr attr = {.flags = flags,
                                              .socket_event_cb = on_event,
                                              .socket_comp_cb = on_completion,
                                              .socket_rx_cb = on_text,
                                              .socket_accept_cb = on_accept};
    xlio_poll_group_t group;
    EXPECT(xlio_poll_group_create(&attr, &group), 0);
    return group;
}

static void make_socket(struct seen* s, xlio_poll_group_t group) {
    *s = (struct seen){.group = group};
    const struct xlio_socket_attr attr = {
        .domain = AF_INET, .group = group, .userdata_sq = (uintptr_t)s};
    EXPECT(xlio_socket_create(&attr, &s->socket), 0);
}

static time_t now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}
/* Polls until it holds, twenty seconds. */
#define POLL_UNTIL(group, condition)                     \
    for (const time_t begin_ = now_s(); !(condition);) { \
        EXPECT(now_s() - begin_ <= 20, 1);               \
        xlio_poll_group_poll(group);                     \
    }

static void connect_to(struct seen* s, int port) {
    const struct sockaddr_in to = address(peer_ip, port);
    EXPECT(xlio_socket_connect(s->socket, (const struct sockaddr*)&to, sizeof to), 0);
}
static void make_connected(struct seen* s, xlio_poll_group_t group) {
    make_socket(s, group);
    connect_to(s, peer_port);
    FAILS(xlio_socket_connect(s->socket, (const struct sockaddr*)s, sizeof *s), EALREADY);
    POLL_UNTIL(group, s->established);
    FAILS(xlio_socket_connect(s->socket, (const struct sockaddr*)s, sizeof *s), EISCONN);
}

static void end(struct seen* s) {
    EXPECT(xlio_socket_destroy(s->socket), 0);
    POLL_UNTIL(s->group, s->terminated);
    free_held(s);
}

/* Sends a stream in pieces of all sizes and takes it back: copied and referred to, flushed at once, by the socket, by the group, or
 * with the next. */
static void echo_stream(struct seen* s, long bytes) {
    const int one = 1;
    EXPECT(xlio_socket_setsockopt(s->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    long sent = s->received, ops = s->completions;
    const long all = sent + bytes;
    for (unsigned i = 0; sent < all; i++) {
        long length = i % 7 == 0 ? 50000 : 1 + (long)(i * 977 % 3000);
        if (length > all - sent) length = all - sent;
        const unsigned flush = i % 5 == 0 ? XLIO_SOCKET_SEND_FLAG_FLUSH : 0;
        if (i % 3 == 0) {
            send_all(s, text_at(sent), (size_t)length, flush | XLIO_SOCKET_SEND_FLAG_INLINE,
                     UINTPTR_MAX); /* not looked at */
        } else {
            const struct xlio_socket_send_attr attr = {.flags = flush,
                                                       .userdata_op = (uintptr_t)++ops};
            const long half = length / 2;
            const struct iovec halves[2] = {{(void*)text_at(sent), (size_t)half},
                                            {(void*)text_at(sent + half), (size_t)(length - half)}};
            EXPECT(vma_socket_sendv(s->socket, halves, 2, &attr), 0);
        }
        sent += length;
        if (i % 11 == 0) xlio_socket_flush(s->socket);
        if (i % 13 == 0) xlio_poll_group_flush(s->group);
        if (i % 3 == 0) xlio_poll_group_poll(s->group);
    }
    xlio_poll_group_flush(s->group);
    POLL_UNTIL(s->group, s->received == all && s->completions == ops);
    printf("echoed %ld in %ld\n", s->received, ops);
}

static void stream(void) {
    const xlio_poll_group_t group = make_group(XLIO_GROUP_FLAG_DIRTY);
    struct seen s;
    make_connected(&s, group);
    echo_stream(&s, 2000000);
    puts("held");
    while (getchar() != '\n') continue; /* the test looks at the statistics */
    end(&s);
    EXPECT(s.established == 1 && s.closed == 0 && s.errors == 0 && s.terminated == 1, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

/* Goes on while its connection goes to the kernel, until a line comes, and after that. */
static void handed_back(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s;
    make_connected(&s, group);
    echo_stream(&s, 100000);
    puts("by ring");
    struct pollfd line = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&line, 1, 0) == 0) echo_stream(&s, 100000);
    while (getchar() != '\n') continue;
    echo_stream(&s, 500000);
    puts("by kernel");
    while (getchar() != '\n') continue;
    end(&s);
    EXPECT(s.errors == 0 && s.closed == 0, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

static void* echo_in_thread(void* arg) {
    struct seen s;
    const xlio_poll_group_t group = make_group(0);
    make_connected(&s, group);
    echo_stream(&s, (long)arg);
    end(&s);
    EXPECT(xlio_poll_group_destroy(group), 0);
    return NULL;
}

/* Each thread with a group of its own. */
static void threads(void) {
    pthread_t thread[3];
    for (long i = 0; i < 3; i++)
        EXPECT(pthread_create(&thread[i], NULL, echo_in_thread, (void*)(300000 + i)), 0);
    for (int i = 0; i < 3; i++) EXPECT(pthread_join(thread[i], NULL), 0);
}

static void* send_beside(void* arg) {
    struct seen* s = arg;
    for (long i = 0; i < 3000; i++)
        send_all(s, text_at(i * 100), 100,
                 i % 2 ? XLIO_SOCKET_SEND_FLAG_FLUSH : XLIO_SOCKET_SEND_FLAG_INLINE,
                 (uintptr_t)(i + 1) / 2);
    return NULL;
}

/* One thread sends, another polls. */
static void safe(void) {
    const xlio_poll_group_t group = make_group(XLIO_GROUP_FLAG_SAFE);
    struct seen s;
    make_connected(&s, group);
    pthread_t sender;
    EXPECT(pthread_create(&sender, NULL, send_beside, &s), 0);
    POLL_UNTIL(group, s.received == 300000 && s.completions == 1500);
    EXPECT(pthread_join(sender, NULL), 0);
    end(&s);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

static void listen_at(struct seen* s, xlio_poll_group_t group) {
    make_socket(s, group);
    const int one = 1;
    EXPECT(xlio_socket_setsockopt(s->socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    FAILS(xlio_socket_listen(s->socket), EINVAL); /* has no name yet */
    const struct sockaddr_in any = address("0.0.0.0", PORT);
    EXPECT(xlio_socket_bind(s->socket, (const struct sockaddr*)&any, sizeof any), 0);
    EXPECT(xlio_socket_listen(s->socket), 0);
}

/* Sends back what three clients send, out of the buffers in which it came. */
static void server(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen listener;
    listen_at(&listener, group);
    puts("ready");
    for (unsigned ended = 0; ended < 3;) {
        xlio_poll_group_poll(group);
        for (unsigned i = ended = 0; i < g_accepted_count; i++) {
            struct seen* s = &g_accepted[i];
            EXPECT(s->errors, 0);
            if (s->closed == 1) {
                EXPECT(xlio_socket_destroy(s->socket), 0);
                s->closed++;
            }
            ended += (unsigned)s->terminated;
        }
    }
    EXPECT(g_accepted_count, 3);
    for (unsigned i = 0; i < 3; i++) printf("echoed %ld\n", g_accepted[i].received);
    end(&listener);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

static void refused(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s;
    make_socket(&s, group);
    connect_to(&s, peer_port + 1);
    POLL_UNTIL(group, s.errors);
    EXPECT(s.error, ECONNREFUSED);
    const struct sockaddr_in to = address(peer_ip, peer_port);
    FAILS(xlio_socket_connect(s.socket, (const struct sockaddr*)&to, sizeof to), ECONNABORTED);
    end(&s);
    EXPECT(s.established == 0 && s.errors == 1, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

/* The peer sends 100 bytes and ends its half; what is sent then arrives still. */
static void closed(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s;
    make_connected(&s, group);
    POLL_UNTIL(group, s.closed);
    EXPECT(s.received, 100);
    send_all(&s, text_at(0), 100, XLIO_SOCKET_SEND_FLAG_FLUSH, 1);
    POLL_UNTIL(group, s.completions);
    end(&s);
    EXPECT(s.closed == 1 && s.errors == 0, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

/* The peer reads nothing and resets: every send is told of, once, after that. `by_flush`: a flush is the first to find out. */
static void be_reset(int by_flush) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s;
    make_connected(&s, group);
    for (uintptr_t op = 1; op <= 20; op++)
        send_all(&s, g_text, PATTERN * 4000, XLIO_SOCKET_SEND_FLAG_FLUSH, op);
    puts("sent");
    while (getchar() != '\n') continue;
    for (int i = 0; i < 3 * by_flush; i++) xlio_socket_flush(s.socket);
    POLL_UNTIL(group, s.errors);
    EXPECT(s.error, ECONNRESET);
    EXPECT(s.completions, 20);
    const struct xlio_socket_send_attr attr = {0};
    FAILS(xlio_socket_send(s.socket, g_text, 1, &attr), ENOTCONN);
    end(&s);
    EXPECT(s.errors == 1 && s.completions == 20, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

static void reset(void) { be_reset(0); }
static void reset_by_flush(void) { be_reset(1); }

/* Sends more than any buffer holds and lets go at once: everything arrives, then the end. */
static void destroyed(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s;
    make_connected(&s, group);
    for (uintptr_t op = 1; op <= 10; op++) send_all(&s, g_text, PATTERN * 4000, 0, op);
    EXPECT(xlio_socket_destroy(s.socket), 0);
    EXPECT(xlio_socket_destroy(s.socket), 0); /* does nothing */
    const struct xlio_socket_send_attr attr = {0};
    FAILS(xlio_socket_send(s.socket, g_text, 1, &attr), ENOTCONN);
    POLL_UNTIL(group, s.terminated);
    EXPECT(s.completions, 10);
    EXPECT(xlio_poll_group_destroy(group), 0);
}

/* The same, but the group goes: the peer sees that something is missing. */
static void group_destroyed(void) {
    const xlio_poll_group_t group = make_group(0);
    struct seen s[3];
    make_connected(&s[0], group);
    make_socket(&s[1], group);
    listen_at(&s[2], group);
    for (uintptr_t op = 1; op <= 40; op++)
        send_all(&s[0], g_text, PATTERN * 4000, XLIO_SOCKET_SEND_FLAG_FLUSH, op);
    EXPECT(xlio_poll_group_destroy(group), 0);
    EXPECT(s[0].completions, 40);
    for (int i = 0; i < 3; i++) EXPECT(s[i].terminated, 1);
}

/* From one group to another while the peer sends. */
static void moved(void) {
    const xlio_poll_group_t groups[2] = {make_group(0), make_group(0)};
    struct seen s;
    make_connected(&s, groups[0]);
    FAILS(xlio_socket_attach_group(s.socket, groups[1]), EINVAL);
    long sent = 0;
    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < 20; k++, sent += 10000)
            send_all(&s, text_at(sent), 10000, 0, (uintptr_t)(sent / 10000 + 1));
        if (i % 2) xlio_socket_flush(s.socket);
        xlio_poll_group_poll(s.group);
        EXPECT(xlio_socket_detach_group(s.socket), 0);
        FAILS(xlio_socket_detach_group(s.socket), EINVAL);
        const struct xlio_socket_send_attr attr = {0};
        FAILS(xlio_socket_send(s.socket, g_text, 1, &attr), ENOTCONN);
        s.group = groups[(i + 1) % 2];
        EXPECT(xlio_socket_attach_group(s.socket, s.group), 0);
        xlio_poll_group_flush(s.group);
        const long before = s.received;
        POLL_UNTIL(s.group, s.received > before || s.received == sent);
    }
    POLL_UNTIL(s.group, s.received == sent && s.completions == sent / 10000);
    end(&s);
    for (int i = 0; i < 2; i++) EXPECT(xlio_poll_group_destroy(groups[i]), 0);
}

static struct {
    char* begin;
    size_t length;
} g_regions[4096];
static unsigned g_region_count, g_outside;
static void* g_allocated;
static void on_memory(void* begin, size_t length, size_t hugepage_size) {
    EXPECT(hugepage_size, 0);
    EXPECT(g_region_count < 4096, 1);
    g_regions[g_region_count].begin = begin;
    g_regions[g_region_count++].length = length;
}
static void* allocate(size_t length) {
    EXPECT(g_allocated == NULL, 1);
    return g_allocated = malloc(length);
}
static void text_in_regions(xlio_socket_t socket, uintptr_t userdata, void* data, size_t length,
                            struct xlio_buf* buf) {
    /* Pages of a region that has grown are told of in parts that lie side by side. */
    char* at = data;
    unsigned i = 0;
    while (at < (char*)data + length && i < g_region_count) {
        if (at >= g_regions[i].begin && at < g_regions[i].begin + g_regions[i].length) {
            at = g_regions[i].begin + g_regions[i].length;
            i = 0;
        } else {
            i++;
        }
    }
    g_outside += at < (char*)data + length;
    on_text(socket, userdata, data, length, buf);
}

/* All text is in memory that the program was told of. The peer is one that the kernel or a ring serves. */
static void memory(void) {
    const struct xlio_init_attr attr = {
        .memory_cb = on_memory, .memory_alloc = allocate, .memory_free = free};
    const struct xlio_init_attr half = {.memory_alloc = allocate};
    FAILS(xlio_init_ex(&half), EINVAL);
    EXPECT(xlio_init_ex(&attr), 0);
    EXPECT(xlio_init_ex(&attr), 0);
    EXPECT(xlio_init(), 0);
    const xlio_poll_group_t group = make_group(0);
    struct xlio_poll_group_attr other = {.socket_rx_cb = text_in_regions,
                                         .socket_comp_cb = on_completion};
    FAILS(xlio_poll_group_update(group, &other), EINVAL);
    other.socket_event_cb = on_event;
    EXPECT(xlio_poll_group_update(group, &other), 0);
    struct seen s;
    make_connected(&s, group);
    echo_stream(&s, 1000000);
    end(&s);
    EXPECT(g_outside, 0);
    EXPECT(g_region_count > 0, 1);
    EXPECT(xlio_poll_group_destroy(group), 0);
    printf("allocated %d\n", g_allocated != NULL);
}

static void errors(void) {
    struct xlio_poll_group_attr attr = {0};
    xlio_poll_group_t group;
    xlio_socket_t socket;
    FAILS(xlio_init_ex(NULL), EINVAL);
    FAILS(xlio_poll_group_create(NULL, &group), EINVAL);
    FAILS(xlio_poll_group_create(&attr, &group), EINVAL);
    attr.socket_event_cb = on_event;
    FAILS(xlio_poll_group_create(&attr, NULL), EINVAL);
    EXPECT(vma_poll_group_create(&attr, &group), 0);
    FAILS(xlio_poll_group_destroy(0), EINVAL);
    FAILS(xlio_poll_group_update(group, NULL), EINVAL);
    struct seen s;
    struct xlio_socket_attr of = {.domain = AF_UNIX, .group = group};
    FAILS(xlio_socket_create(&of, &socket), EINVAL);
    of = (struct xlio_socket_attr){.domain = AF_INET};
    FAILS(xlio_socket_create(&of, &socket), EINVAL);
    of =
        (struct xlio_socket_attr){.domain = AF_INET6, .group = group, .userdata_sq = (uintptr_t)&s};
    FAILS(xlio_socket_create(&of, NULL), EINVAL);
    s = (struct seen){.group = group};
    EXPECT(xlio_socket_create(&of, &s.socket), 0);
    EXPECT(xlio_socket_get_pd(s.socket) == NULL, 1);
    const struct xlio_socket_send_attr how = {0}, unknown = {.flags = 4};
    FAILS(xlio_socket_send(s.socket, "", 1, &how), ENOTCONN);
    FAILS(xlio_socket_send(s.socket, "", 1, &unknown), EINVAL);
    FAILS(xlio_socket_send(s.socket, "", 1, NULL), EINVAL);
    FAILS(xlio_socket_send(s.socket, "", 0, &how), EINVAL);
    FAILS(xlio_socket_sendv(s.socket, NULL, 1, &how), EINVAL);
    FAILS(xlio_socket_send(0, "", 1, &how), EINVAL);
    FAILS(xlio_socket_destroy(0), EINVAL);
    FAILS(xlio_socket_update(0, 0, 0), EINVAL);
    FAILS(xlio_socket_detach_group(s.socket), EINVAL);
    FAILS(xlio_socket_attach_group(s.socket, 0), EINVAL);
    FAILS(xlio_socket_setsockopt(s.socket, SOL_SOCKET, 999999, &s, 4), ENOPROTOOPT);
    int bytes = 1; /* of no effect: a queue has no limit */
    EXPECT(xlio_socket_setsockopt(s.socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(PORT + 1)};
    EXPECT(xlio_socket_bind(s.socket, (const struct sockaddr*)&any, sizeof any), 0);
    FAILS(xlio_socket_listen(s.socket), ENOTCONN); /* the group does not accept */
    socklen_t length = sizeof any;
    FAILS(xlio_socket_getpeername(s.socket, (struct sockaddr*)&any, &length), ENOTCONN);
    end(&s);
    EXPECT(xlio_poll_group_destroy(group), 0);
    EXPECT(xlio_exit(), 0);
}

const struct part parts[] = {
    {"stream", stream},
    {"threads", threads},
    {"safe", safe},
    {"server", server},
    {"refused", refused},
    {"closed", closed},
    {"reset", reset},
    {"reset_by_flush", reset_by_flush},
    {"destroyed", destroyed},
    {"group_destroyed", group_destroyed},
    {"moved", moved},
    {"handed_back", handed_back},
    {"memory", memory},
    {"errors", errors},
    {NULL, NULL},
};
