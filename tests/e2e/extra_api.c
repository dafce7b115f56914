/* A program that asks the library by the extra API, for test_extra_api.py. It takes each function from the place in the table that
 * VMA published, not by its name, so that a slot in the wrong place is seen. Built once for each layout. */
#include "extra_program.h"

#include <dlfcn.h>

/* Each slot is a function, and those without an effect say so. */
static void table(void) {
    for (size_t offset = 0; offset < SIZE; offset += 8)
        if (at(offset) == NULL) EXPECT(offset, -1);
#if VMA_API_VERSION != 606
    uint64_t mask;
    memcpy(&mask, (char*)api + MASK, sizeof mask);
#endif
#if VMA_API_VERSION == 902
    EXPECT(mask, 0x1fffff); /* all but the last */
    FAILS(CALL2(DPCP, 0, 0), EOPNOTSUPP);
#elif VMA_API_VERSION == 908
    EXPECT(mask, 0x377fff); /* all: 15 and 19 were functions of layout 902 */
#endif
}

static int offloaded(int fd, int otherwise) {
#if VMA_API_VERSION == 606
    (void)fd;
    return otherwise; /* that layout has no function that tells; the test looks at the statistics */
#else
    (void)otherwise;
    return CALL1(RINGS, fd);
#endif
}

static void rules(void) {
    EXPECT(CALL1(RULE, "use os udp_receiver *:7101"), 0);
    EXPECT(CALL1(RULE, "use nonsense"), 1);
    FAILS(CALL1(RULE, NULL), EINVAL);
    EXPECT(offloaded(udp_bound(7101), 0), 0);
    EXPECT(offloaded(udp_bound(7102), 1), 1);
}

static void* makes_socket(void* port) { return (void*)(long)udp_bound((int)(long)port); }

static int made_by_thread(int port) {
    pthread_t thread;
    void* fd;
    EXPECT(pthread_create(&thread, NULL, makes_socket, (void*)(long)port), 0);
    EXPECT(pthread_join(thread, &fd), 0);
    return (int)(long)fd;
}

static void thread(void) {
    EXPECT(CALL2(OFFLOAD, 0, pthread_self()), 0);
    EXPECT(offloaded(udp_bound(7111), 0), 0);
    EXPECT(offloaded(made_by_thread(7112), 1), 1); /* of this thread alone */
    EXPECT(CALL2(OFFLOAD, 1, pthread_self()), 0);
    EXPECT(offloaded(udp_bound(7113), 1), 1);
}

#if VMA_API_VERSION != 606

static void rings(void) {
    const int udp = connected(SOCK_DGRAM);
    int fds[4] = {-1, -1, -1, -1};
    EXPECT(CALL1(RINGS, udp), 1);
    EXPECT(CALL1(RINGS, 0), 0);
    EXPECT(CALL3(RING_FDS, udp, fds, 4), 1);
    EXPECT(fds[0] >= 0, 1);
    EXPECT(CALL3(RING_FDS, udp, fds, 4), 1);
    FAILS(CALL3(RING_FDS, udp, fds, 0), EINVAL);
    FAILS(CALL3(RING_FDS, udp, NULL, 4), EINVAL);
    EXPECT(CALL3(RING_FDS, 0, fds, 4), 0);
    const struct sockaddr_in peer = address(peer_ip, peer_port),
                             nowhere = address("203.0.113.9", 9);
    EXPECT(CALL3(TX_RING, udp, &peer, sizeof peer), fds[0]);
    FAILS(CALL3(TX_RING, udp, &nowhere, sizeof nowhere), ENODATA);
    FAILS(CALL3(TX_RING, udp, NULL, 0), EINVAL);
    const int tcp = connected(SOCK_STREAM);
    EXPECT(CALL1(RINGS, tcp), 1);
    EXPECT(CALL3(RING_FDS, tcp, fds, 4), 1);
}

static void header(void) {
    unsigned char h[64];
    uint16_t size = sizeof h;
    const int unconnected = udp_bound(7121);
    FAILS(CALL3(HEADER, unconnected, h, &size), ENOTCONN);
    FAILS(CALL3(HEADER, 0, h, &size), EINVAL);
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    const uint16_t wanted[] = {42, 54};
    const unsigned char protocol[] = {17, 6};
    for (int i = 0; i < 2; i++) {
        const int fd = connected(i ? SOCK_STREAM : SOCK_DGRAM);
        struct sockaddr_in mine;
        socklen_t len = sizeof mine;
        EXPECT(getsockname(fd, (struct sockaddr*)&mine, &len), 0);
        size = 0;
        EXPECT(CALL3(HEADER, fd, NULL, &size), 0);
        EXPECT(size, wanted[i]);
        size--;
        FAILS(CALL3(HEADER, fd, h, &size), ENOBUFS);
        size = sizeof h;
        EXPECT(CALL3(HEADER, fd, h, &size), 0);
        EXPECT(size, wanted[i]);
        EXPECT(h[12] << 8 | h[13], 0x0800);
        EXPECT(h[14], 0x45);
        EXPECT(h[14 + 9], protocol[i]);
        EXPECT(memcmp(h + 14 + 12, &mine.sin_addr, 4), 0);
        EXPECT(memcmp(h + 14 + 16, &peer.sin_addr, 4), 0);
        EXPECT(memcmp(h + 34, &mine.sin_port, 2), 0);
        EXPECT(memcmp(h + 36, &peer.sin_port, 2), 0);
    }
}

static void dump(void) {
    const int fd = udp_bound(7131);
    EXPECT(CALL2(DUMP, fd, 3), 0);
    EXPECT(CALL2(DUMP, 0, 999), 0);
}

static void dummy(void) {
    const int udp = connected(SOCK_DGRAM);
    for (int i = 0; i < 5; i++) EXPECT(send(udp, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
    char large[3000] = "";
    FAILS(send(udp, large, sizeof large, VMA_SND_FLAGS_DUMMY), EMSGSIZE);
    const struct sockaddr_in lo = address("127.0.0.1", 9);
    FAILS(sendto(udp_bound(7141), "dummy", 5, VMA_SND_FLAGS_DUMMY, (const struct sockaddr*)&lo,
                 sizeof lo),
          EINVAL);
    EXPECT(send(udp, "last", 4, 0), 4);
    const int tcp = connected(SOCK_STREAM);
    EXPECT(send(tcp, "first ", 6, 0), 6);
    for (int i = 0; i < 5; i++) EXPECT(send(tcp, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
    FAILS(send(tcp, "", 0, VMA_SND_FLAGS_DUMMY), EAGAIN);
    FAILS(send(tcp, "dummy", 5, VMA_SND_FLAGS_DUMMY | MSG_MORE), EAGAIN);
    FAILS(send(tcp, large, sizeof large, VMA_SND_FLAGS_DUMMY), EAGAIN);
    struct iovec two[] = {{"dum", 3}, {"my", 2}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    FAILS(sendmsg(tcp, &message, VMA_SND_FLAGS_DUMMY), EAGAIN);
    const int unconnected = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(send(unconnected, "dummy", 5, VMA_SND_FLAGS_DUMMY), EINVAL);
    EXPECT(send(tcp, "last", 4, 0), 4);
    EXPECT(shutdown(tcp, SHUT_WR), 0);
    char rest;
    EXPECT(recv(tcp, &rest, 1, 0), 0);
}

/* Live connections go on in the kernel, and a second call finds nothing to do. */
static void end(void) {
    const int udp = connected(SOCK_DGRAM), tcp = connected(SOCK_STREAM);
    EXPECT(CALL1(RINGS, tcp), 1);
    EXPECT(send(tcp, "by the ring, ", 13, 0), 13);
    int (*vma_exit)(void);
    *(void**)&vma_exit = dlsym(RTLD_DEFAULT, "vma_exit");
    EXPECT(vma_exit != NULL, 1);
    EXPECT(vma_exit(), 0);
    EXPECT(vma_exit(), 0);
    EXPECT(CALL1(RINGS, udp), 0);
    EXPECT(CALL1(RINGS, tcp), 0);
    EXPECT(send(tcp, "by the kernel", 13, 0), 13);
    EXPECT(send(udp, "end", 3, 0), 3);
    EXPECT(shutdown(tcp, SHUT_WR), 0);
    char rest;
    EXPECT(recv(tcp, &rest, 1, 0), 0);
    EXPECT(CALL1(RINGS, udp_bound(7151)), 0);
}

#endif

/* What is set is there again, on the ring and in the kernel; a rate is the kernel's in other units. */
static void options_of(int fd) {
    uint64_t data = 0x1122334455667788, got = 0;
    socklen_t len = sizeof got;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len), 0);
    EXPECT(got, 0);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len), 0);
    EXPECT(got == data, 1);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4), EINVAL);
    len = 4;
    FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len), EINVAL);

    uint32_t tag = 7, none = 0, mask = 0xfffff;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, sizeof tag), 0);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &none, sizeof none), EINVAL);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &mask, sizeof mask), EINVAL);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 8), EINVAL);
    tag = 0;
    len = sizeof tag;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, &len), 0);
    EXPECT(tag, 7);

    struct vma_rate_limit_t limit = {.rate = 8000}, now;
    uint64_t rate = 0;
    len = sizeof rate;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit), 0);
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len), 0);
    EXPECT(rate, 1000000);
    len = sizeof now;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &now, &len), 0);
    EXPECT(now.rate, 8000);
    limit.rate = 0;
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit), 0);
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &now, &len), 0);
    EXPECT(now.rate, 0);
    len = sizeof rate;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len), 0);
    EXPECT(rate == UINT64_MAX, 1);
}

#if VMA_API_VERSION != 606

/* Profiles have keys from 1 on, by their type; a socket takes one of packet rings, once. */
static void profiles(void) {
    const int fd = udp_bound(7122);
    struct vma_ring_type_attr profile = {.ring_type = VMA_RING_EXTERNAL_MEM};
    int external = 0, packet = 0, again = 0;
    FAILS(CALL2(PROFILE, NULL, &packet), EINVAL);
    FAILS(CALL2(PROFILE, &profile, NULL), EINVAL);
    EXPECT(CALL2(PROFILE, &profile, &external), 0);
    profile.ring_type = VMA_RING_PACKET;
    EXPECT(CALL2(PROFILE, &profile, &packet), 0);
    EXPECT(CALL2(PROFILE, &profile, &again), 0);
    EXPECT(external, 1);
    EXPECT(packet, 2);
    EXPECT(again, packet);
    profile.ring_type = 7;
    FAILS(CALL2(PROFILE, &profile, &again), EINVAL);

    struct vma_ring_alloc_logic_attr wish = {.ring_alloc_logic = RING_LOGIC_PER_SOCKET};
#define ASK setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish)
    FAILS(ASK, EINVAL); /* no field counts */
    wish.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS;
    EXPECT(ASK, 0);
    wish.ring_alloc_logic = 12;
    FAILS(ASK, EINVAL);
    wish.ring_alloc_logic = RING_LOGIC_PER_INTERFACE;
    wish.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY;
    const int keys[] = {0, 3, packet, packet}, errors[] = {EINVAL, EINVAL, 0, EINVAL};
    for (int i = 0; i < 4; i++) {
        wish.ring_profile_key = (uint32_t)keys[i];
        errno = 0;
        EXPECT(ASK, errors[i] ? -1 : 0);
        EXPECT(errno, errors[i]);
    }
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, 16), EINVAL);
    char bytes[100];
    const struct iovec memory = {bytes, sizeof bytes};
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory), 0);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, 8), EINVAL);
    EXPECT(CALL1(RINGS, fd), 1);
}

/* Receives by the ring, and after SO_VMA_SHUTDOWN_RX by the kernel; sends by the ring all the time. */
static void shutdown_rx(void) {
    const int fd = udp_bound(7123), one = 1;
    char text[20];
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    puts("ready");
    EXPECT(recvfrom(fd, text, sizeof text, 0, (struct sockaddr*)&peer, &len), 8);
    EXPECT(memcmp(text, "by rings", 8), 0);
    puts("next"); /* waits for its reader when no ring receives any more */
    for (int c; (c = getchar()) != '\n';) EXPECT(c != EOF, 1);
    EXPECT(CALL1(RINGS, fd), 1);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one), 0);
    EXPECT(CALL1(RINGS, fd), 0);
    EXPECT(recv(fd, text, sizeof text, 0), 6);
    EXPECT(memcmp(text, "queued", 6), 0);
    EXPECT(sendto(fd, "shut", 4, 0, (struct sockaddr*)&peer, len), 4);
    EXPECT(recv(fd, text, sizeof text, 0), 9);
    EXPECT(memcmp(text, "by kernel", 9), 0);
    EXPECT(CALL3(TX_RING, fd, &peer, len) >= 0, 1);

    const int tcp = connected(SOCK_STREAM);
    EXPECT(CALL1(RINGS, tcp), 1);
    EXPECT(setsockopt(tcp, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one), 0);
    EXPECT(CALL1(RINGS, tcp), 0);
    EXPECT(send(tcp, "stream", 6, 0), 6);
    EXPECT(shutdown(tcp, SHUT_WR), 0);
    EXPECT(recv(tcp, text, 1, 0), 0);
}

#endif

static void options(void) {
    options_of(connected(SOCK_STREAM));
    options_of(connected(SOCK_DGRAM));
    EXPECT(CALL1(RULE, "use os udp_receiver *:7121"), 0);
    options_of(udp_bound(7121));
    int pipes[2];
    uint64_t data = 0;
    EXPECT(pipe(pipes), 0);
    FAILS(setsockopt(pipes[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), ENOTSOCK);
}

const struct part parts[] = {
    {"table", table}, {"rules", rules},     {"thread", thread},
#if VMA_API_VERSION != 606
    {"rings", rings}, {"header", header},   {"dump", dump},         {"dummy", dummy},
    {"exit", end},    {"options", options}, {"profiles", profiles}, {"shutdown_rx", shutdown_rx},
#endif
    {NULL, NULL},
};
