/* One message, one packet: each line of the input leaves in a TCP segment of its own, however fast they come.
 *
 *     cc -Iinclude examples/messages.c -o messages
 *     LD_PRELOAD=libvma.so ./messages ADDRESS PORT < orders.txt */
#include <arpa/inet.h>
#include <mellanox/vma_extra.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char** argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET};
    if (argc != 3 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT < LINES\n", argv[0]);
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    const int fd = socket(AF_INET, SOCK_STREAM, 0), mode = VMA_MESSAGES_SEND;
    if (setsockopt(fd, SOL_SOCKET, SO_VMA_MESSAGES, &mode, sizeof mode) < 0) {
        perror("SO_VMA_MESSAGES (is the library loaded?)");
        return 1;
    }
    if (connect(fd, (struct sockaddr*)&peer, sizeof peer) < 0) return perror("connect"), 1;
    char line[1400];
    unsigned sent = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (send(fd, line, strlen(line), 0) < 0) return perror("send"), 1;
        sent++;
    }
    struct vma_explanation_t served;
    if (vma_explain(fd, &served) == 0 && served.path != VMA_PATH_OFFLOADED)
        fprintf(stderr, "not by messages: %s\n", served.reason_meaning);
    close(fd);
    printf("%u messages\n", sent);
    return 0;
}
