#include "extra_program.h"

struct vma_api_t* api;
const char* peer_ip;
int peer_port;

any_function at(size_t offset) {
    any_function f;
    memcpy(&f, (char*)api + offset, sizeof f);
    return f;
}
int call6(size_t offset, long a, long b, long c, long d, long e, long f) {
    return at(offset)(a, b, c, d, e, f);
}

void expect(int line, const char* what, long got, long wanted) {
    if (got == wanted) return;
    printf("line %d: %s is %ld, not %ld (errno %d %s)\n", line, what, got, wanted, errno,
           strerror(errno));
    exit(1);
}

struct sockaddr_in address(const char* ip, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, ip, &to.sin_addr);
    return to;
}

int udp_bound(int port) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const struct sockaddr_in any = address("0.0.0.0", port);
    EXPECT(bind(fd, (const struct sockaddr*)&any, sizeof any), 0);
    return fd;
}

int connected(int type) {
    const int fd = socket(AF_INET, type, 0);
    const struct sockaddr_in to = address(peer_ip, peer_port);
    EXPECT(connect(fd, (const struct sockaddr*)&to, sizeof to), 0);
    return fd;
}

int listening(const char* ip, int port) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    const struct sockaddr_in here = address(ip, port);
    EXPECT(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    EXPECT(bind(listener, (const struct sockaddr*)&here, sizeof here), 0);
    EXPECT(listen(listener, 5), 0);
    return listener;
}

/* One connection; what comes goes back, by the usual calls. */
static void echo(void) {
    const int listener = listening(peer_ip, peer_port);
    puts("ready");
    const int fd = accept(listener, NULL, NULL);
    char text[1000];
    for (ssize_t got; (got = recv(fd, text, sizeof text, 0)) != 0;) {
        EXPECT(got > 0, 1);
        EXPECT(send(fd, text, (size_t)got, 0), got);
    }
}

#if VMA_API_VERSION != 606
void has_no_device(int ring) {
    struct vma_mlx_hw_device_data data;
    struct vma_modify_ring_attr change = {VMA_MODIFY_RING_CQ_MODERATION, ring, {{8, 50}}};
    static char memory[4096];
    uint32_t key = 0;
    FAILS(CALL2(DIRECT, ring, &data), EOPNOTSUPP);
    FAILS(call6(REGISTER_MEMORY, ring, (long)memory, sizeof memory, (long)&key, 0, 0), EOPNOTSUPP);
    FAILS(CALL3(DEREGISTER_MEMORY, ring, memory, sizeof memory), EOPNOTSUPP);
    FAILS(CALL1(MODIFY, &change), EOPNOTSUPP);
}

int by_shared_memory(void) {
    enum { MOST_ROUNDS = 20000 };
    const int fd = connected(SOCK_STREAM);
    char text[20];
    for (int round = 0; CALL1(RINGS, fd) == 0; round++) {
        EXPECT(round < MOST_ROUNDS, 1);
        EXPECT(send(fd, "moves", 5, 0), 5);
        EXPECT(recv(fd, text, sizeof text, 0), 5);
    }
    return fd;
}
#endif

int give_back(int fd, void* id) {
#if VMA_API_VERSION == 606
    return CALL3(FREE, fd, &id, 1);
#else
    struct vma_packet_t packet = {.packet_id = id, .sz_iov = 1};
    return CALL3(FREE, fd, &packet, 1);
#endif
}

/* PART PEER PORT [plain]: plain asks for the table as VMA's header does. Then waits for the end of its input. */
int main(int argc, char** argv) {
    if (argc < 4) return 2;
    peer_ip = argv[2];
    peer_port = atoi(argv[3]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 4) {
        void* room[2] = {NULL, NULL};
        socklen_t len = sizeof room;
        EXPECT(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, room, &len), 0);
        EXPECT(len, sizeof room[0]);
        api = room[0];
        len--;
        FAILS(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, room, &len), EINVAL);
        len = sizeof room;
        FAILS(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API_LAYOUT + 7, room, &len), ENOPROTOOPT);
    } else {
        api = vma_get_api();
    }
    if (strcmp(argv[1], "absent") == 0) {
        EXPECT(api == NULL, 1);
        puts("good");
        return 0;
    }
    EXPECT(api != NULL, 1);
    if (strcmp(argv[1], "echo") == 0) {
        echo();
        puts("good");
        return 0;
    }
    for (const struct part* part = parts; part->name != NULL; part++)
        if (strcmp(argv[1], part->name) == 0) {
            part->run();
            puts("good");
            while (getchar() != EOF) continue;
            return 0;
        }
    return 2;
}
