/* A program that receives by the extra API, for test_extra_api.py: without a copy, and keeping what it got. The peer sends to it
 * when it has said "ready". */
#include "extra_program.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>

#define PORT 7161
enum { COUNT = 20 };

static int zcopy(int fd, void* buffer, size_t size, int* flags, struct sockaddr_in* from) {
    socklen_t len = sizeof *from;
    const int got = call6(ZCOPY, fd, (long)buffer, (long)size, (long)flags, (long)from,
                          (long)(from ? &len : NULL));
    if (got >= 0 && from) EXPECT(len, sizeof *from);
    return got;
}

/* One datagram that was not copied: its id and text. */
struct kept {
    void* id;
    struct iovec text;
};

/* Takes the datagram that waits; it must be there. */
static struct kept take(int fd) {
    struct __attribute__((packed)) {
#if VMA_API_VERSION != 606
        size_t count;
#endif
        void* id;
        size_t pieces;
        struct iovec text;
    } buffer;
    memset(&buffer, 0xee, sizeof buffer);
    int flags = 0;
    struct sockaddr_in from;
    const int got = zcopy(fd, &buffer, sizeof buffer, &flags, &from);
    EXPECT(got > 0, 1);
    EXPECT(flags, MSG_VMA_ZCOPY);
#if VMA_API_VERSION != 606
    EXPECT(buffer.count, 1);
#endif
    EXPECT(buffer.pieces, 1);
    const struct iovec text = buffer.text;
    EXPECT(text.iov_len, got);
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    EXPECT(from.sin_addr.s_addr, peer.sin_addr.s_addr);
    EXPECT(from.sin_port, peer.sin_port);
    return (struct kept){buffer.id, text};
}

/* The peer numbers its datagrams: "datagram N" and then bytes of value N to the length. */
static void check(const struct kept* kept, int number) {
    char wanted[40];
    const int head = snprintf(wanted, sizeof wanted, "datagram %d", number);
    const unsigned char* bytes = kept->text.iov_base;
    EXPECT(kept->text.iov_len >= (size_t)head, 1);
    EXPECT(memcmp(bytes, wanted, (size_t)head), 0);
    for (size_t i = (size_t)head; i < kept->text.iov_len; i++)
        if (bytes[i] != (unsigned char)number) EXPECT(bytes[i], number);
}

static int ready(void) {
    const int fd = udp_bound(PORT);
    puts("ready");
    return fd;
}

static void udp(void) {
    const int fd = ready(), other = udp_bound(PORT + 1);
    struct kept kept[COUNT];
    for (int i = 0; i < COUNT; i++) kept[i] = take(fd);
    for (int i = 0; i < COUNT; i++) check(&kept[i], i);
    FAILS(give_back(other, kept[0].id), ENOENT);
    FAILS(give_back(0, kept[0].id), EINVAL);
    FAILS(give_back(fd, &kept[0]), ENOENT);
    FAILS(give_back(fd, NULL), ENOENT);
    FAILS(CALL3(FREE, fd, NULL, 1), EINVAL);
    EXPECT(CALL3(FREE, fd, NULL, 0), 0);
    for (int i = COUNT; i-- > 0;) {
        check(&kept[i], i);
        EXPECT(give_back(fd, kept[i].id), 0);
        FAILS(give_back(fd, kept[i].id), ENOENT);
    }
    char buffer[2000];
    int flags = MSG_DONTWAIT;
    FAILS(zcopy(fd, buffer, sizeof buffer, &flags, NULL), EAGAIN);
    puts("more"); /* one more datagram, and another */
    struct pollfd wait = {fd, POLLIN, 0};
    EXPECT(poll(&wait, 1, 10000), 1);
    flags = 0;
    const size_t record = SIZE == 40 ? 16 : 24; /* without an iovec */
    FAILS(zcopy(fd, buffer, record - 1, &flags, NULL), ENOBUFS);
    EXPECT(zcopy(fd, buffer, record, &flags, NULL), 0);
    EXPECT(flags, MSG_VMA_ZCOPY | MSG_TRUNC);
    flags = MSG_PEEK;
    const int size = zcopy(fd, buffer, sizeof buffer, &flags, NULL); /* is a copy */
    EXPECT(size > 0, 1);
    EXPECT(flags & MSG_VMA_ZCOPY, 0);
    EXPECT(recv(fd, buffer, sizeof buffer, 0), size);
}

/* Kept datagrams are the library's again when the socket is closed, and their ids nothing. */
static void closes(void) {
    const int fd = ready();
    struct kept kept[COUNT];
    for (int i = 0; i < COUNT; i++) kept[i] = take(fd);
    EXPECT(close(fd), 0);
    const int again = udp_bound(PORT);
    FAILS(give_back(again, kept[0].id), ENOENT);
}

/* What comes by the kernel is copied, or refused. */
static void kernel(void) {
    const int fd = ready(), from = udp_bound(PORT + 1);
    const struct sockaddr_in lo = address("127.0.0.1", PORT);
    char buffer[100] = "";
    int flags = 0;
    EXPECT(sendto(from, "hello", 5, 0, (const struct sockaddr*)&lo, sizeof lo), 5);
    EXPECT(zcopy(fd, buffer, sizeof buffer, &flags, NULL), 5);
    EXPECT(flags, 0);
    EXPECT(memcmp(buffer, "hello", 5), 0);
    EXPECT(sendto(from, "again", 5, 0, (const struct sockaddr*)&lo, sizeof lo), 5);
    flags = MSG_VMA_ZCOPY_FORCE;
    FAILS(zcopy(fd, buffer, sizeof buffer, &flags, NULL), EIO);
    EXPECT(recv(fd, buffer, sizeof buffer, 0), 5);
    EXPECT(memcmp(buffer, "again", 5), 0);
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    EXPECT(send(pair[0], "pair", 4, 0), 4);
    flags = MSG_VMA_ZCOPY_FORCE;
    FAILS(zcopy(pair[1], buffer, sizeof buffer, &flags, NULL), EIO);
    flags = 0;
    EXPECT(zcopy(pair[1], buffer, sizeof buffer, &flags, NULL), 4);
    EXPECT(flags, 0);
    FAILS(zcopy(-1, buffer, sizeof buffer, &flags, NULL), EBADF);
}

/* Until the test writes a line. */
static void wait_line(void) {
    int c;
    do {
        c = getchar();
        EXPECT(c != EOF, 1);
    } while (c != '\n');
}

/* Takes all that waits. */
static int take_all(int fd, struct kept* kept, int most) {
    for (int i = 0; i < most; i++) {
        char peek;
        if (recv(fd, &peek, 1, MSG_PEEK | MSG_DONTWAIT) < 0) return i;
        kept[i] = take(fd);
    }
    EXPECT(most, -1);
    return 0;
}

/* Kept datagrams fill the receive buffer: the peer sends until some are dropped, twice; so many fewer fit the first time. */
static void full(void) {
    const int fd = ready();
    struct kept kept[1000];
    for (int i = 0; i < COUNT; i++) kept[i] = take(fd);
    puts("keeps");
    wait_line();
    const int beside = take_all(fd, kept + COUNT, 900);
    for (int i = 0; i < COUNT + beside; i++) check(&kept[i], i);
    for (int i = 0; i < COUNT + beside; i++) EXPECT(give_back(fd, kept[i].id), 0);
    puts("empty");
    wait_line();
    const int alone = take_all(fd, kept, 900);
    EXPECT(alone, COUNT + beside);
    for (int i = 0; i < alone; i++) EXPECT(give_back(fd, kept[i].id), 0);
}

/* A child has the bytes and cannot give them back; the parent can, also when the socket has become the kernel's. */
static void forked(void) {
    const int fd = ready();
    struct kept kept[COUNT];
    for (int i = 0; i < COUNT; i++) kept[i] = take(fd);
    const pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < COUNT; i++) check(&kept[i], i);
        FAILS(give_back(fd, kept[0].id), ENOENT);
        exit(0);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    for (int i = 0; i < COUNT / 2; i++) EXPECT(give_back(fd, kept[i].id), 0);
    int (*vma_exit)(void);
    *(void**)&vma_exit = dlsym(RTLD_DEFAULT, "vma_exit");
    EXPECT(vma_exit(), 0);
    for (int i = COUNT / 2; i < COUNT; i++) check(&kept[i], i);
    for (int i = COUNT / 2; i < COUNT; i++) EXPECT(give_back(fd, kept[i].id), 0);
}

#if VMA_API_VERSION != 606

enum { HELD = 16 };
static struct {
    unsigned char bytes[8 + 4 * 32]; /* room for four packets */
    size_t count;
} held[HELD];

static void give_group_back(int fd, int i) {
    if (held[i].count) EXPECT(CALL3(FREE, fd, held[i].bytes + 8, held[i].count), 0);
    held[i].count = 0;
}

/* A stream in packets. As many are kept as the window allows: when nothing comes any more, the oldest goes back. */
static void tcp(void) {
    const int fd = connected(SOCK_STREAM);
    size_t total = 0;
    unsigned next = 0;
    int first = 0, count = 0;
    for (;;) {
        const int newest = (first + count) % HELD;
        int flags = MSG_DONTWAIT;
        const int got = zcopy(fd, held[newest].bytes, sizeof held[newest].bytes, &flags, NULL);
        if (got == 0) break;
        if (got < 0) {
            EXPECT(errno, EAGAIN);
            struct pollfd wait = {fd, POLLIN, 0};
            if (poll(&wait, 1, count ? 0 : 10000) == 1) continue;
            EXPECT(count > 0, 1);
        }
        if (got < 0 || count == HELD - 1) {
            give_group_back(fd, first);
            first = (first + 1) % HELD;
            count--;
        }
        if (got < 0) continue;
        count++;
        EXPECT(flags, MSG_DONTWAIT | MSG_VMA_ZCOPY);
        memcpy(&held[newest].count, held[newest].bytes, sizeof held[newest].count);
        EXPECT(held[newest].count >= 1 && held[newest].count <= 4, 1);
        size_t sum = 0;
        for (size_t k = 0; k < held[newest].count; k++) {
            size_t pieces;
            struct iovec text;
            memcpy(&pieces, held[newest].bytes + 8 + k * 32 + 8, sizeof pieces);
            memcpy(&text, held[newest].bytes + 8 + k * 32 + 16, sizeof text);
            EXPECT(pieces, 1);
            const unsigned char* bytes = text.iov_base;
            for (size_t n = 0; n < text.iov_len; n++, next = (next + 1) % 251)
                if (bytes[n] != next) EXPECT(bytes[n], next);
            sum += text.iov_len;
        }
        EXPECT(sum, got);
        total += sum;
    }
    printf("got %zu\n", total);
    for (int i = 0; i < HELD; i++) give_group_back(fd, i);
    int flags = 0;
    EXPECT(zcopy(fd, held, sizeof held, &flags, NULL), 0);
}

#endif

const struct part parts[] = {
    {"udp", udp}, {"closes", closes}, {"kernel", kernel}, {"full", full}, {"forked", forked},
#if VMA_API_VERSION != 606
    {"tcp", tcp},
#endif
    {NULL, NULL},
};
