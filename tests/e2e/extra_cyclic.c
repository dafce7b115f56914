/* Datagrams read where a cyclic buffer has them, for test_extra_api.py. Layout 902 alone has such rings. */
#include "extra_program.h"

#include <poll.h>

enum { PORT = 7191, ELEMENTS = 8, STRIDE = 700, USER = 12, NET = 42, MOST = 3 };

/* A socket whose datagrams go into a buffer of such elements; `memory`: of the program, or NULL. */
static int cyclic(vma_cb_packet_rec_mode mode, struct iovec* memory) {
    struct vma_ring_type_attr profile = {.ring_type = VMA_RING_CYCLIC_BUFFER};
    profile.ring_cyclicb.comp_mask = VMA_CB_HDR_BYTE | (memory ? VMA_CB_EXTERNAL_MEM : 0);
    profile.ring_cyclicb.num = ELEMENTS;
    profile.ring_cyclicb.stride_bytes = STRIDE;
    profile.ring_cyclicb.hdr_bytes = USER;
    profile.ring_cyclicb.packet_receive_mode = mode;
    int key = 0, again = 0;
    EXPECT(CALL2(PROFILE, &profile, &key), 0);
    EXPECT(CALL2(PROFILE, &profile, &again), 0);
    EXPECT(again, key);
    profile.ring_cyclicb.num++;
    EXPECT(CALL2(PROFILE, &profile, &again), 0);
    EXPECT(again != key, 1); /* another buffer, another profile */
    const int fd = udp_bound(PORT);
    if (memory)
        EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, memory, sizeof *memory), 0);
    struct vma_ring_alloc_logic_attr wish = {.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY,
                                             .ring_alloc_logic = RING_LOGIC_PER_SOCKET,
                                             .ring_profile_key = (uint32_t)key};
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish), 0);
    return fd;
}

static int look(int fd, struct vma_completion_cb_t* done, size_t min, size_t max) {
    memset(done, 0, sizeof *done);
    done->comp_mask = VMA_CB_MASK_TIMESTAMP;
    return call6(CYCLIC, fd, (long)done, (long)min, (long)max, MSG_DONTWAIT, 0);
}

/* Reads at least one run, however long that takes. */
static void read_some(int fd, struct vma_completion_cb_t* done, size_t min) {
    for (;;) {
        EXPECT(look(fd, done, min, MOST), 0);
        if (done->packets) return;
        struct pollfd readable = {fd, POLLIN, 0};
        EXPECT(poll(&readable, 1, 20000), 1);
    }
}

/* The test's datagrams: "datagram N", then the lower byte of N, 500 in all. */
static unsigned char expected(int number, int at) {
    char text[20];
    const int length = sprintf(text, "datagram %d", number);
    return at < length ? (unsigned char)text[at] : (unsigned char)number;
}

static void datagram_is(int number, const unsigned char* at, int from, int to) {
    for (int i = from; i < to; i++)
        if (*at++ != expected(number, i)) EXPECT(i, -1);
}

static void zero(const unsigned char* at, const unsigned char* end) {
    while (at < end) EXPECT(*at++, 0);
}

/* Ethernet, IPv4 and UDP of a datagram of `size` bytes. */
static void headers_are(const unsigned char* h, int size, int on_ring) {
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    static const unsigned char none[12];
    EXPECT(memcmp(h, none, sizeof none) != 0, on_ring);
    EXPECT(h[12] << 8 | h[13], 0x0800);
    EXPECT(h[14], 0x45);
    EXPECT(h[16] << 8 | h[17], 28 + size);
    EXPECT(h[23], 17);
    unsigned sum = 0;
    for (int i = 14; i < 34; i += 2) sum += (unsigned)(h[i] << 8 | h[i + 1]);
    EXPECT((sum & 0xffff) + (sum >> 16), 0xffff);
    EXPECT(memcmp(h + 26, &peer.sin_addr, 4), 0);
    EXPECT(memcmp(h + 34, &peer.sin_port, 2), 0);
    EXPECT(h[36] << 8 | h[37], PORT);
    EXPECT(h[38] << 8 | h[39], 8 + size);
}

/* Twenty datagrams in runs, round the buffer more than twice. */
static void reads(int fd, vma_cb_packet_rec_mode mode, int on_ring) {
    enum { SIZE_SENT = 500 };
    const int front = mode == RAW_PACKET ? NET : 0;
    const int apart = mode == STRIP_NETWORK_HDRS      ? USER
                      : mode == SEPERATE_NETWORK_HDRS ? NET + USER
                                                      : 0;
    const int user = apart ? USER : 0;
    const size_t stride = mode == RAW_PACKET      ? NET + USER + STRIDE
                          : mode == PADDED_PACKET ? 1024
                                                  : STRIDE;
    void* begin = NULL;
    size_t length = 0;
    uint32_t key = 1;
    EXPECT(call6(MEM_INFO, fd, (long)&begin, (long)&length, (long)&key, 0, 0), 0);
    EXPECT(length, ELEMENTS * stride);
    EXPECT(key, 0);
    const unsigned char* const memory = begin;
    puts("ready");
    for (int next = 0; next < 20;) {
        struct vma_completion_cb_t done;
        read_some(fd, &done, 1);
        EXPECT(done.packets <= MOST, 1);
        EXPECT(done.payload_length, done.packets * stride);
        EXPECT((unsigned char*)done.payload_ptr - memory, (long)(next % ELEMENTS * stride));
        EXPECT(next % ELEMENTS + done.packets <= ELEMENTS, 1); /* one run does not go round */
        EXPECT(done.usr_hdr_ptr_length, apart);
        EXPECT(done.usr_hdr_ptr == NULL, apart == 0);
        for (size_t i = 0; i < done.packets; i++, next++) {
            const unsigned char* const body = (unsigned char*)done.payload_ptr + i * stride;
            const unsigned char* const head = (unsigned char*)done.usr_hdr_ptr + i * (size_t)apart;
            if (front) headers_are(body, SIZE_SENT, on_ring);
            if (apart > USER) headers_are(head, SIZE_SENT, on_ring);
            if (apart) datagram_is(next, head + apart - USER, 0, USER);
            datagram_is(next, body + front, user, SIZE_SENT);
            zero(body + front + SIZE_SENT - user, body + stride);
        }
    }
}

static void raw(void) { reads(cyclic(RAW_PACKET, NULL), RAW_PACKET, 1); }
static void strip(void) { reads(cyclic(STRIP_NETWORK_HDRS, NULL), STRIP_NETWORK_HDRS, 1); }
static void separate(void) { reads(cyclic(SEPERATE_NETWORK_HDRS, NULL), SEPERATE_NETWORK_HDRS, 1); }
static void padded(void) { reads(cyclic(PADDED_PACKET, NULL), PADDED_PACKET, 1); }

/* The same of a socket that the kernel serves. */
static void by_kernel(void) {
    EXPECT(CALL1(RULE, "use os udp_receiver *:7191"), 0);
    reads(cyclic(RAW_PACKET, NULL), RAW_PACKET, 0);
}

/* In memory of the program; its first byte behind stays as it is. */
static void own_memory(void) {
    static unsigned char memory[ELEMENTS * (STRIDE + USER) + 1];
    memory[sizeof memory - 1] = 77;
    struct iovec at = {memory, sizeof memory - 1};
    const int fd = cyclic(STRIP_NETWORK_HDRS, &at);
    void* begin = NULL;
    size_t length = 0;
    uint32_t key;
    EXPECT(call6(MEM_INFO, fd, (long)&begin, (long)&length, (long)&key, 0, 0), 0);
    EXPECT((unsigned char*)begin - memory, 0);
    reads(fd, STRIP_NETWORK_HDRS, 1);
    EXPECT(memory[sizeof memory - 1], 77);
}

/* Never fewer than asked for; what is too long is dropped and counted; the usual calls go on. */
static void least(void) {
    const int fd = cyclic(STRIP_NETWORK_HDRS, NULL);
    int ring = -1;
    EXPECT(CALL1(RINGS, fd), 1);
    EXPECT(CALL3(RING_FDS, fd, &ring, 1), 1);
    EXPECT(ring, fd);
    puts("ready");
    struct vma_completion_cb_t done;
    struct pollfd readable = {fd, POLLIN, 0};
    for (int i = 0; i < 2; i++) { /* they come one after the other */
        EXPECT(poll(&readable, 1, 20000), 1);
        EXPECT(look(fd, &done, 3, MOST), 0);
        EXPECT(done.packets, 0);
        printf("has %d\n", i + 1);
    }
    EXPECT(poll(&readable, 1, 20000), 1);
    EXPECT(look(fd, &done, 3, MOST), 0);
    EXPECT(done.packets, 3);
    datagram_is(0, done.usr_hdr_ptr, 0, USER);
    puts("has 3");
    read_some(fd, &done, 1); /* one that is too long, then this one */
    EXPECT(done.packets, 1);
    datagram_is(4, done.usr_hdr_ptr, 0, USER);
    puts("has 4");
    char text[20];
    EXPECT(recv(fd, text, sizeof text, 0), 5);
    EXPECT(memcmp(text, "usual", 5), 0);
}

static void errors(void) {
    struct vma_completion_cb_t done;
    const int plain = udp_bound(7192), fd = cyclic(RAW_PACKET, NULL);
    void* begin;
    size_t length;
    uint32_t key;
    FAILS(look(plain, &done, 1, 1), EINVAL);
    FAILS(look(0, &done, 1, 1), EINVAL);
    FAILS(call6(CYCLIC, fd, 0, 1, 1, MSG_DONTWAIT, 0), EINVAL);
    FAILS(call6(CYCLIC, fd, (long)&done, 1, 1, 0, 0), EINVAL); /* it never waits */
    EXPECT(look(fd, &done, 0, 0), 0);
    EXPECT(done.packets, 0);
    FAILS(call6(MEM_INFO, plain, (long)&begin, (long)&length, (long)&key, 0, 0), EINVAL);
    FAILS(call6(MEM_INFO, fd, 0, (long)&length, (long)&key, 0, 0), EINVAL);

    struct vma_ring_type_attr profile = {.ring_type = VMA_RING_CYCLIC_BUFFER};
    int number = 0;
    FAILS(CALL2(PROFILE, &profile, &number), EINVAL); /* of nothing */
    profile.ring_cyclicb.num = 4;
    profile.ring_cyclicb.stride_bytes = 100;
    profile.ring_cyclicb.packet_receive_mode = 4;
    FAILS(CALL2(PROFILE, &profile, &number), EINVAL);
    profile.ring_cyclicb.packet_receive_mode = RAW_PACKET;
    profile.ring_cyclicb.comp_mask = VMA_CB_EXTERNAL_MEM;
    EXPECT(CALL2(PROFILE, &profile, &number), 0);
    struct vma_ring_alloc_logic_attr wish = {.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY,
                                             .ring_profile_key = (uint32_t)number};
#define ASK(s) setsockopt(s, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish)
    FAILS(ASK(plain), EINVAL); /* no memory was named */
    static char small[400];
    struct iovec memory = {small, sizeof small};
    EXPECT(setsockopt(plain, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory), 0);
    FAILS(ASK(plain), EINVAL); /* 4 of 142 do not fit */
    static char enough[4 * 142];
    memory.iov_base = enough;
    memory.iov_len = sizeof enough;
    EXPECT(setsockopt(plain, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory), 0);
    EXPECT(ASK(plain), 0);
    FAILS(ASK(plain), EINVAL); /* once for each socket */
    FAILS(ASK(socket(AF_INET, SOCK_STREAM, 0)), EOPNOTSUPP);
}

const struct part parts[] = {
    {"raw", raw},       {"strip", strip},      {"separate", separate},
    {"padded", padded}, {"kernel", by_kernel}, {"own_memory", own_memory},
    {"least", least},   {"errors", errors},    {NULL, NULL},
};
