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
    for (const struct part* part = parts; part->name != NULL; part++)
        if (strcmp(argv[1], part->name) == 0) {
            part->run();
            puts("good");
            while (getchar() != EOF) continue;
            return 0;
        }
    return 2;
}
