/* The functions of the extra API on a connection by shared memory, for test_extra_api.py. The peer echoes. */
#include "extra_program.h"

#include <dlfcn.h>
#include <poll.h>

enum { ROUNDS = 200 };

static int say(int fd, int number, char* text, size_t room) {
    const int size = snprintf(text, room, "message %d", number);
    EXPECT(send(fd, text, (size_t)size, 0), size);
    return size;
}

/* A round of the usual calls: the connection lives. */
static void goes_on(int fd, int number) {
    char text[40], back[40];
    const int size = say(fd, number, text, sizeof text);
    EXPECT(recv(fd, back, (size_t)size, MSG_WAITALL), size);
    EXPECT(memcmp(text, back, (size_t)size), 0);
}

static void readable(int fd) {
    struct pollfd wait = {fd, POLLIN, 0};
    EXPECT(poll(&wait, 1, 10000), 1);
}

struct __attribute__((packed)) record {
    size_t count;
    void* id;
    size_t pieces;
    struct iovec text;
};

static struct record take(int fd, int size) {
    struct record got;
    int flags = 0;
    readable(fd);
    EXPECT(call6(ZCOPY, fd, (long)&got, sizeof got, (long)&flags, 0, 0), size);
    EXPECT(flags, MSG_VMA_ZCOPY);
    EXPECT(got.count, 1);
    EXPECT(got.pieces, 1);
    EXPECT(got.text.iov_len, size);
    return got;
}

/* Some are kept while others come, and are what they were. */
static void zcopy(void) {
    enum { KEPT = 8 };
    const int fd = by_shared_memory();
    struct record kept[KEPT];
    char texts[KEPT][40];
    for (int i = 0; i < ROUNDS; i++) {
        const int at = i % KEPT;
        if (i >= KEPT) {
            EXPECT(memcmp(kept[at].text.iov_base, texts[at], kept[at].text.iov_len), 0);
            EXPECT(give_back(fd, kept[at].id), 0);
            FAILS(give_back(fd, kept[at].id), ENOENT);
        }
        kept[at] = take(fd, say(fd, i, texts[at], sizeof texts[at]));
    }
    puts("kept");
    for (int c; (c = getchar()) != '\n';) EXPECT(c != EOF, 1);
    for (int i = 0; i < KEPT; i++) EXPECT(give_back(fd, kept[i].id), 0);
    goes_on(fd, ROUNDS);
}

static int seen;
static void* held;
static struct iovec held_text;

static vma_recv_callback_retval_t on_text(int fd, size_t count, struct iovec iov[],
                                          struct vma_info_t* info, void* context) {
    (void)fd;
    EXPECT(context == &seen, 1);
    EXPECT(count, 1);
    held_text = iov[0];
    held = info->packet_id;
    return (vma_recv_callback_retval_t)(seen++ % 3);
}

/* One is dropped, one read, one held, and so on. */
static void callback(void) {
    const int fd = by_shared_memory();
    EXPECT(CALL3(REGISTER, fd, on_text, &seen), 0);
    for (int i = 0; i < ROUNDS; i++) {
        char text[40], back[40];
        const int size = say(fd, i, text, sizeof text);
        for (int turns = 0; seen == i; turns++) {
            struct pollfd wait = {fd, POLLIN, 0};
            EXPECT(turns < 2000, 1);
            EXPECT(poll(&wait, 1, 5) >= 0, 1);
        }
        EXPECT(held_text.iov_len, size);
        if (i % 3 == VMA_PACKET_RECV) {
            EXPECT(recv(fd, back, sizeof back, 0), size);
            EXPECT(memcmp(text, back, (size_t)size), 0);
            continue;
        }
        FAILS(recv(fd, back, sizeof back, MSG_DONTWAIT), EAGAIN);
        if (i % 3 != VMA_PACKET_HOLD) continue;
        EXPECT(memcmp(text, held_text.iov_base, (size_t)size), 0);
        EXPECT(give_back(fd, held), 0);
    }
    EXPECT(CALL3(REGISTER, fd, NULL, NULL), 0);
    goes_on(fd, ROUNDS);
    EXPECT(seen, ROUNDS);
}

/* Nothing of it arrives. The other end is there, too, when it has answered. */
static void dummy(void) {
    const int fd = by_shared_memory();
    for (int i = 0; i < 5; i++) {
        goes_on(fd, i);
        EXPECT(send(fd, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
    }
    goes_on(fd, 5);
    FAILS(send(fd, "", 0, VMA_SND_FLAGS_DUMMY), EAGAIN);
    FAILS(send(fd, "dummy", 5, VMA_SND_FLAGS_DUMMY | MSG_MORE), EAGAIN);
}

/* What is asked of the ring: its descriptor; headers as they are in its frames; nothing of a device. */
static void rings(void) {
    const int fd = by_shared_memory();
    int ring = -1;
    EXPECT(CALL1(RINGS, fd), 1);
    EXPECT(CALL3(RING_FDS, fd, &ring, 1), 1);
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    EXPECT(CALL3(TX_RING, fd, &peer, sizeof peer), ring);
    unsigned char header[64];
    uint16_t size = sizeof header;
    EXPECT(CALL3(HEADER, fd, header, &size), 0);
    EXPECT(size, 54);
    EXPECT(memcmp(header + 36, &peer.sin_port, 2), 0);

    has_no_device(ring);
    EXPECT(CALL2(DUMP, fd, 3), 0);
    goes_on(fd, 0);
}

/* The kernel's, and the other way round: it stays that. */
static void shutdown_rx(void) {
    const int fd = by_shared_memory(), one = 1;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one), 0);
    EXPECT(CALL1(RINGS, fd), 0);
    for (int i = 0; i < ROUNDS; i++) goes_on(fd, i);
    EXPECT(CALL1(RINGS, fd), 0);
}

static void ends(void) {
    const int fd = by_shared_memory();
    int (*vma_exit)(void);
    *(void**)&vma_exit = dlsym(RTLD_DEFAULT, "vma_exit");
    EXPECT(vma_exit(), 0);
    EXPECT(CALL1(RINGS, fd), 0);
    for (int i = 0; i < ROUNDS; i++) goes_on(fd, i);
}

const struct part parts[] = {
    {"zcopy", zcopy}, {"callback", callback},       {"dummy", dummy},
    {"rings", rings}, {"shutdown_rx", shutdown_rx}, {"exit", ends},
    {NULL, NULL},
};
