/* template_cost udp|tcp send|fire ADDRESS PORT TIMES: sends a message of 64 bytes that often, each time with another 8 of them, and
 * waits for its echo. Run under callgrind, which counts what is in sends() and fires(): the whole call, from the program on. */
#include <arpa/inet.h>
#include <mellanox/vma_extra.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>

static const struct vma_own_api_t* api;
static char text[64];

ssize_t sends(int fd, const uint64_t* number);
ssize_t fires(int fd, vma_template_t t, const uint64_t* number);

__attribute__((noinline)) ssize_t sends(int fd, const uint64_t* number) {
    memcpy(text + 16, number, sizeof *number);
    return send(fd, text, sizeof text, 0);
}

__attribute__((noinline)) ssize_t fires(int fd, vma_template_t t, const uint64_t* number) {
    const struct vma_patch_t patch = {16, sizeof *number, number};
    return api->template_fire(fd, t, &patch, 1, 0);
}

int main(int argc, char** argv) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (argc != 6 || inet_pton(AF_INET, argv[3], &to.sin_addr) != 1) return 2;
    to.sin_port = htons((uint16_t)atoi(argv[4]));
    const int fd = socket(AF_INET, argv[1][0] == 'u' ? SOCK_DGRAM : SOCK_STREAM, 0), on = 1;
    if (connect(fd, (struct sockaddr*)&to, sizeof to) < 0) return perror("connect"), 1;
    if (argv[1][0] == 't' && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) return 1;
    const struct iovec whole = {text, sizeof text};
    vma_template_t t = 0;
    api = vma_get_own_api();
    if (api == NULL || api->template_alloc(fd, &whole, 1, &t) < 0) return perror("template"), 1;
    const uint64_t times = (uint64_t)atoll(argv[5]);
    for (uint64_t i = 1; i <= times; i++) {
        const ssize_t n = argv[2][0] == 's' ? sends(fd, &i) : fires(fd, t, &i);
        char echo[64];
        uint64_t back = 0;
        if (n != sizeof text || recv(fd, echo, sizeof echo, MSG_WAITALL) != sizeof echo) return 1;
        memcpy(&back, echo + 16, sizeof back);
        if (back != i) return printf("%llu came back\n", (unsigned long long)back), 1;
    }
    printf("good\n");
    return 0;
}
