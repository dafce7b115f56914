/* Loads the library at run time, sends by it, unloads it and goes on without it, ten times over: nothing of it stays.
 *
 *     cc -Iinclude examples/load.c -o load
 *     ./load /usr/lib/libvma.so ADDRESS PORT      where somebody listens on TCP and sends back what comes
 *
 * A program that does this calls no function of the library while it is unloaded, nor any that it has taken out of it after
 * that. What it has open goes on in the kernel. */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <mellanox/vma_extra.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    void* handle;
    int (*socket)(int, int, int);
    int (*connect)(int, const struct sockaddr*, socklen_t);
    int (*getsockopt)(int, int, int, void*, socklen_t*);
    ssize_t (*send)(int, const void*, size_t, int);
    ssize_t (*recv)(int, void*, size_t, int);
} vma;

static void need(int good, const char* what) {
    if (good) return;
    perror(what);
    exit(1);
}

static void* function(const char* name) {
    void* const found = dlsym(vma.handle, name);
    need(found != NULL, name);
    return found;
}

static void load(const char* path) {
    vma.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (vma.handle == NULL) fprintf(stderr, "%s\n", dlerror());
    need(vma.handle != NULL, path);
    *(void**)&vma.socket = function("socket");
    *(void**)&vma.connect = function("connect");
    *(void**)&vma.getsockopt = function("getsockopt");
    *(void**)&vma.send = function("send");
    *(void**)&vma.recv = function("recv");
}

static int entries(const char* path) {
    DIR* const directory = opendir(path);
    need(directory != NULL, path);
    int count = 0;
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

/* Lines of /proc/self/maps that name the library. */
static int mapped(void) {
    FILE* const maps = fopen("/proc/self/maps", "r");
    need(maps != NULL, "maps");
    char line[500];
    int count = 0;
    while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, "libvma.so") != NULL;
    fclose(maps);
    return count;
}

/* Sends and waits until as much has come back. */
static int talk(int fd, ssize_t (*out)(int, const void*, size_t, int),
                ssize_t (*in)(int, void*, size_t, int)) {
    enum { SIZE = 50000 };
    static char text[SIZE], back[SIZE];
    for (int i = 0; i < SIZE; i++) text[i] = (char)rand();
    need(out(fd, text, SIZE, 0) == SIZE, "send");
    for (ssize_t got = 0, n; got < SIZE; got += n)
        need((n = in(fd, back + got, (size_t)(SIZE - got), 0)) > 0, "recv");
    return memcmp(text, back, SIZE) == 0;
}

int main(int argc, char** argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET};
    if (argc != 4 || inet_pton(AF_INET, argv[2], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s LIBRARY ADDRESS PORT\n", argv[0]);
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[3]));
    const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int round = 1; round <= 10; round++) {
        load(argv[1]);
        const int fd = vma.socket(AF_INET, SOCK_STREAM, 0);
        need(vma.connect(fd, (struct sockaddr*)&peer, sizeof peer) == 0, "connect");
        const int by_vma = talk(fd, vma.send, vma.recv);
        struct vma_explanation_t where;
        socklen_t size = sizeof where;
        need(vma.getsockopt(fd, SOL_SOCKET, SO_VMA_EXPLAIN, &where, &size) == 0, "vma_explain");
        const int offloaded = where.path == VMA_PATH_OFFLOADED;
        const int was_mapped = mapped() != 0;
        need(dlclose(vma.handle) == 0, "dlclose");
        const int by_kernel = talk(fd, send, recv);
        close(fd);
        printf(
            "round %d: offloaded %d, mapped %d, bytes good %d; after that bytes good %d, mapped "
            "%d, "
            "descriptors %+d, threads %+d\n",
            round, offloaded, was_mapped, by_vma, by_kernel, mapped(),
            entries("/proc/self/fd") - descriptors, entries("/proc/self/task") - threads);
    }
    return 0;
}
