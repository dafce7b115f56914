/* What a program asks of the rings themselves, for test_extra_api.py: the queues of a device, and its own memory for frames. */
#include "extra_program.h"

#include <dlfcn.h>

static int ring_of(int fd) {
    int ring = -1;
    EXPECT(CALL3(RING_FDS, fd, &ring, 1), 1);
    return ring;
}

/* A socket with a profile of external memory, and what asking for that says. */
static int external(int type, int* said) {
    struct vma_ring_type_attr profile = {.ring_type = VMA_RING_EXTERNAL_MEM};
    struct vma_ring_alloc_logic_attr wish = {
        .comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_ENGRESS,
        .ring_alloc_logic = RING_LOGIC_PER_INTERFACE,
        .engress = 1};
    int key = 0;
    EXPECT(CALL2(PROFILE, &profile, &key), 0);
    wish.ring_profile_key = (uint32_t)key;
    const int fd = socket(AF_INET, type, 0);
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    errno = 0;
    *said =
        setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish) == 0 ? 0 : errno;
    EXPECT(connect(fd, (const struct sockaddr*)&peer, sizeof peer), 0);
    return fd;
}

static int sends_by(int fd) {
    const struct sockaddr_in peer = address(peer_ip, peer_port);
    return CALL3(TX_RING, fd, &peer, sizeof peer);
}

/* The queues that a program sends by itself: their own descriptor, their own memory. The socket goes on by its ring. */
static void external_memory(void) {
    int said = -1;
    const int fd = external(SOCK_DGRAM, &said), ring = ring_of(fd);
    EXPECT(said, 0);
    const int own = sends_by(fd);
    EXPECT(own >= 0, 1);
    EXPECT(own != ring, 1);
    EXPECT(sends_by(fd), own);
    EXPECT(sends_by(connected(SOCK_DGRAM)), ring); /* of this profile alone */

    struct vma_mlx_hw_device_data data;
    EXPECT(CALL2(DIRECT, own, &data), 0);
    EXPECT(data.valid_mask, DATA_VALID_DEV);
    EXPECT(data.dev_data.vendor_part_id, 0x5348);
    static char memory[4096];
    uint32_t key = 0, again = 0;
    EXPECT(call6(REGISTER_MEMORY, own, (long)memory, sizeof memory, (long)&key, 0, 0), 0);
    EXPECT(call6(REGISTER_MEMORY, own, (long)memory, sizeof memory, (long)&again, 0, 0), 0);
    EXPECT(again, key);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, memory, sizeof memory), ENOENT); /* another ring */
    for (int i = 0; i < 2; i++) EXPECT(CALL3(DEREGISTER_MEMORY, own, memory, sizeof memory), 0);
    FAILS(CALL3(DEREGISTER_MEMORY, own, memory, sizeof memory), ENOENT);

    struct vma_modify_ring_attr change = {VMA_MODIFY_RING_CQ_ARM, own, {{0, 0}}};
    EXPECT(CALL1(MODIFY, &change), 0);
    EXPECT(CALL1(MODIFY, &change), 0);
    change.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
    change.cq_moderation.cq_moderation_count = 8;
    EXPECT(CALL1(MODIFY, &change), 0);
    change.ring_fd = ring;
    change.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM;
    FAILS(CALL1(MODIFY, &change), EOPNOTSUPP);

    EXPECT(send(fd, "by its ring", 11, 0), 11);
    char text[20];
    EXPECT(recv(fd, text, sizeof text, 0), 6);
    const int tcp = external(SOCK_STREAM, &said);
    EXPECT(said, 0);
    EXPECT(sends_by(tcp), own);
    EXPECT(send(tcp, "and a stream", 12, 0), 12);
    EXPECT(shutdown(tcp, SHUT_WR), 0);
    EXPECT(recv(tcp, text, 1, 0), 0);
    int (*vma_exit)(void);
    *(void**)&vma_exit = dlsym(RTLD_DEFAULT, "vma_exit");
    EXPECT(vma_exit(), 0);
    FAILS(CALL2(DIRECT, own, &data), EBADFD);
}

/* No ring can have a device; or one might, and this interface's has none. */
static void no_external_memory(void) {
    int said = 0;
    const int fd = external(SOCK_DGRAM, &said);
    EXPECT(said, EOPNOTSUPP);
    EXPECT(sends_by(fd), ring_of(fd)); /* its usual ring */
}
static void none_after_all(void) {
    int said = -1;
    const int fd = external(SOCK_DGRAM, &said);
    EXPECT(said, 0);
    FAILS(sends_by(fd), EOPNOTSUPP);
}

/* A ring without a device: the packet ring. */
static void no_device(void) { has_no_device(ring_of(connected(SOCK_DGRAM))); }

/* The verbs ring's, which is the software HCA's. */
static void device(void) {
    const int ring = ring_of(connected(SOCK_DGRAM)), none = 12345;
    struct vma_mlx_hw_device_data data;
    memset(&data, 0xff, sizeof data);
    EXPECT(CALL2(DIRECT, ring, &data), 0);
    EXPECT(data.valid_mask, DATA_VALID_DEV); /* and no queues, which are nowhere in memory */
    EXPECT(data.dev_data.vendor_id, 0);
    EXPECT(data.dev_data.vendor_part_id, 0x5348);
    EXPECT(data.dev_data.device_cap, 0);
    EXPECT(data.sq_data.wq_data.buf == NULL, 1);
    FAILS(CALL2(DIRECT, ring, NULL), EINVAL);
    FAILS(CALL2(DIRECT, none, &data), EBADFD);
    FAILS(CALL2(DIRECT, -1, &data), EBADFD);

    static char memory[8192];
    const long size = 4096;
    uint32_t key = 0, again = 0;
#define REGISTER_IT(at, bytes, key) \
    call6(REGISTER_MEMORY, ring, (long)(at), bytes, (long)(key), 0, 0)
    EXPECT(REGISTER_IT(memory, size, &key), 0);
    EXPECT(REGISTER_IT(memory, size, &again), 0);
    EXPECT(key != 0, 1);
    EXPECT(again, key);
    EXPECT(REGISTER_IT(memory + size, size, &again), 0);
    EXPECT(again != key, 1);
    FAILS(REGISTER_IT(NULL, size, &key), EINVAL);
    FAILS(REGISTER_IT(memory, 0, &key), EINVAL);
    FAILS(REGISTER_IT(memory, size, NULL), EINVAL);
    FAILS(call6(REGISTER_MEMORY, none, (long)memory, size, (long)&key, 0, 0), EBADFD);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, NULL, size), EINVAL);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, memory, 0), EINVAL);
    FAILS(CALL3(DEREGISTER_MEMORY, none, memory, size), EBADFD);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, memory, 2 * size), ENOENT);
    for (int i = 0; i < 2; i++) EXPECT(CALL3(DEREGISTER_MEMORY, ring, memory, size), 0);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, memory, size), ENOENT);
    EXPECT(CALL3(DEREGISTER_MEMORY, ring, memory + size, size), 0);

    struct vma_modify_ring_attr change = {VMA_MODIFY_RING_CQ_MODERATION, ring, {{8, 50}}};
    EXPECT(CALL1(MODIFY, &change), 0);
    change.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM;
    FAILS(CALL1(MODIFY, &change), EOPNOTSUPP);
    change.comp_bit_mask = 4;
    FAILS(CALL1(MODIFY, &change), EINVAL);
    change.ring_fd = none;
    FAILS(CALL1(MODIFY, &change), EBADFD);
    FAILS(CALL1(MODIFY, NULL), EINVAL);
}

#if VMA_API_VERSION == 908

static struct {
    char* at;
    size_t bytes;
} taken[2];
static int takes, gives;

static void* take(size_t bytes) {
    EXPECT(takes < 2, 1);
    taken[takes].bytes = bytes;
    return taken[takes++].at = malloc(bytes);
}

static void give(void* memory) {
    EXPECT(memory == taken[0].at || memory == taken[1].at, 1);
    gives++;
    free(memory);
}

/* One control message; `wish` has 17 bytes. */
static int ask_for_memory(vma_cmsg_ioctl_user_alloc_t wish, int type, size_t bytes) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof wish)];
    memset(control, 0, sizeof control);
    struct cmsghdr* const header = (struct cmsghdr*)control;
    header->cmsg_len = CMSG_LEN(bytes);
    header->cmsg_type = type;
    memcpy(CMSG_DATA(header), &wish, sizeof wish);
    return CALL2(IOCTL, control, sizeof control);
}

static const vma_cmsg_ioctl_user_alloc_t both = {
    VMA_IOCTL_USER_ALLOC_FLAG_RX | VMA_IOCTL_USER_ALLOC_FLAG_TX, take, give};

static void asks_for_memory(void) {
    vma_cmsg_ioctl_user_alloc_t bad = both;
    FAILS(CALL2(IOCTL, NULL, 40), EINVAL);
    FAILS(ask_for_memory(both, CMSG_VMA_IOCTL_USER_ALLOC, sizeof both - 1), EINVAL);
    bad.flags = 0;
    FAILS(ask_for_memory(bad, CMSG_VMA_IOCTL_USER_ALLOC, sizeof bad), EINVAL);
    bad = both;
    bad.memfree = NULL;
    FAILS(ask_for_memory(bad, CMSG_VMA_IOCTL_USER_ALLOC, sizeof bad), EINVAL);
    EXPECT(ask_for_memory(bad, CMSG_VMA_IOCTL_USER_ALLOC + 1, sizeof bad),
           0); /* of no type that is known */
    EXPECT(ask_for_memory(both, CMSG_VMA_IOCTL_USER_ALLOC, sizeof both), 0);
}

static int is_in(int area, const char* text) {
    return memmem(taken[area].at, taken[area].bytes, text, strlen(text)) != NULL;
}

/* What is received and sent lies in memory of the program. */
static void user_memory(void) {
    asks_for_memory();
    const int fd = udp_bound(7124);
    EXPECT(takes, 2);
    puts("ready");
    char text[1000];
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    EXPECT(recvfrom(fd, text, sizeof text, 0, (struct sockaddr*)&peer, &len), 500);
    text[8] = 0;
    EXPECT(strcmp(text, "received"), 0);
    EXPECT(is_in(0, "received"), 1);
    memset(text, '.', sizeof text);
    memcpy(text, "sent by it", 10);
    EXPECT(sendto(fd, text, sizeof text, 0, (struct sockaddr*)&peer, len), sizeof text);
    EXPECT(is_in(1, "sent by it"), 1);
    FAILS(ask_for_memory(both, CMSG_VMA_IOCTL_USER_ALLOC, sizeof both),
          EINVAL); /* there is a ring */
    EXPECT(gives, 0);
    int (*vma_exit)(void);
    *(void**)&vma_exit = dlsym(RTLD_DEFAULT, "vma_exit");
    EXPECT(vma_exit(), 0);
    EXPECT(gives, 2);
}

/* A packet ring has the kernel's. */
static void no_user_memory(void) {
    asks_for_memory();
    EXPECT(CALL1(RINGS, udp_bound(7125)), 1);
    EXPECT(takes, 0);
}

#endif

const struct part parts[] = {
    {"device", device},
    {"no_device", no_device},
    {"external_memory", external_memory},
    {"no_external_memory", no_external_memory},
    {"none_after_all", none_after_all},
#if VMA_API_VERSION == 908
    {"user_memory", user_memory},
    {"no_user_memory", no_user_memory},
#endif
    {NULL, NULL},
};
