/* Templated sends: an order that is put together once, and sent again and again with another price and number.
 *
 *     cc -Iinclude examples/template.c -o template
 *     LD_PRELOAD=libvma.so ./template udp|tcp ADDRESS PORT COUNT     where somebody listens */
#include <arpa/inet.h>
#include <mellanox/vma_extra.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct order {
    char what[16];
    char number[8]; /* digits */
    char price[8];
    char newline;
};

static int die(const char* what) {
    perror(what);
    return 1;
}

int main(int argc, char** argv) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (argc != 5 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1) {
        fprintf(stderr, "usage: %s udp|tcp ADDRESS PORT COUNT\n", argv[0]);
        return 2;
    }
    to.sin_port = htons((uint16_t)atoi(argv[3]));
    const struct vma_own_api_t* const api = vma_get_own_api();
    if (api == NULL) {
        fprintf(stderr, "the library is not loaded, or too old\n");
        return 1;
    }
    const int tcp = strcmp(argv[1], "tcp") == 0, on = 1;
    const int fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
    if (connect(fd, (struct sockaddr*)&to, sizeof to) < 0) return die("connect");
    if (tcp && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        return die("TCP_NODELAY");

    /* One for each side, ready long before there is anything to say. */
    struct order order = {"BUY  100 ACME  @", "00000000", " 0000.00", '\n'};
    const struct iovec whole = {&order, sizeof order};
    vma_template_t buy, sell;
    if (api->template_alloc(fd, &whole, 1, &buy) < 0) return die("template_alloc");
    memcpy(order.what, "SELL", 4);
    if (api->template_alloc(fd, &whole, 1, &sell) < 0) return die("template_alloc");

    const int count = atoi(argv[4]);
    for (int i = 0; i < count; i++) {
        char number[9], price[9];
        snprintf(number, sizeof number, "%08d", i % 100000000);
        snprintf(price, sizeof price, " %04d.%02d", i / 100 % 10000, i % 100);
        const struct vma_patch_t patches[] = {
            {offsetof(struct order, number), sizeof order.number, number},
            {offsetof(struct order, price), sizeof order.price, price},
        };
        if (api->template_fire(fd, i % 2 ? sell : buy, patches, 2, 0) != sizeof order)
            return die("template_fire");
    }
    if (api->template_abort(fd, buy) < 0) return die("template_abort"); /* or by close() */
    printf("%d orders\n", count);
    return close(fd);
}
