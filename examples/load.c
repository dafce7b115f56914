/* Loads the library at run time, sends by it, unloads it and goes on without it, ten times over: nothing of it stays.
 *
 *     cc -Iinclude examples/load.c -o load -ldl -lpthread
 *     ./load /usr/lib/libvma.so ADDRESS PORT [HOW]     where somebody sends back what comes
 *
 * HOW: tcp (unless said), udp, epoll (waits by a set that lives on), thread (one that used the library is still there when it goes,
 * and goes on), exit (calls vma_exit() before), shm (waits until the connection goes by shared memory: VMA_SHM_AFTER=8 at both
 * ends, on one host).
 *
 * A program that does this calls no function of the library while it is unloaded, nor any that it has taken out of it after
 * that. What it has open goes on in the kernel. */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <mellanox/vma_extra.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* The library's functions, or libc's. */
struct calls {
    ssize_t (*send)(int, const void*, size_t, int);
    ssize_t (*recv)(int, void*, size_t, int);
    int (*epoll_wait)(int, struct epoll_event*, int, int);
};
static const struct calls libc = {send, recv, epoll_wait};
static struct {
    void* handle;
    struct calls calls;
    int (*socket)(int, int, int);
    int (*connect)(int, const struct sockaddr*, socklen_t);
    int (*getsockopt)(int, int, int, void*, socklen_t*);
    int (*epoll_create1)(int);
    int (*epoll_ctl)(int, int, int, struct epoll_event*);
    int (*vma_exit)(void);
} vma;

static struct sockaddr_in peer = {.sin_family = AF_INET};
static const char* how = "tcp";

static int is(const char* what) { return strcmp(how, what) == 0; }

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
    *(void**)&vma.calls.send = function("send");
    *(void**)&vma.calls.recv = function("recv");
    *(void**)&vma.calls.epoll_wait = function("epoll_wait");
    *(void**)&vma.epoll_create1 = function("epoll_create1");
    *(void**)&vma.epoll_ctl = function("epoll_ctl");
    *(void**)&vma.vma_exit = function("vma_exit");
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

/* A socket, and a set that waits for it, or -1. */
struct way {
    int fd, set;
};

/* Sends so much and waits until it has come back. */
static int there_and_back(struct way way, const struct calls* by, ssize_t size) {
    static char text[50000], back[50000];
    for (int i = 0; i < size; i++) text[i] = (char)rand();
    need(by->send(way.fd, text, (size_t)size, 0) == size, "send");
    for (ssize_t got = 0, n; got < size; got += n) {
        struct epoll_event event;
        if (way.set >= 0) need(by->epoll_wait(way.set, &event, 1, 10000) == 1, "epoll_wait");
        need((n = by->recv(way.fd, back + got, (size_t)(size - got), 0)) > 0, "recv");
    }
    return memcmp(text, back, (size_t)size) == 0;
}

static int talk(struct way way, const struct calls* by) {
    if (!is("udp")) return there_and_back(way, by, 50000);
    int good = 1;
    for (int i = 0; i < 20; i++) good &= there_and_back(way, by, 1000);
    return good;
}

static struct vma_explanation_t explain(int fd) {
    struct vma_explanation_t where;
    socklen_t size = sizeof where;
    need(vma.getsockopt(fd, SOL_SOCKET, SO_VMA_EXPLAIN, &where, &size) == 0, "vma_explain");
    return where;
}

/* What happened by the library, and after it. */
static struct { int offloaded, good, mapped, good_after; } seen;

static struct way by_library(void) {
    struct way way = {vma.socket(AF_INET, is("udp") ? SOCK_DGRAM : SOCK_STREAM, 0), -1};
    need(vma.connect(way.fd, (struct sockaddr*)&peer, sizeof peer) == 0, "connect");
    if (is("epoll")) {
        struct epoll_event event = {.events = EPOLLIN};
        way.set = vma.epoll_create1(EPOLL_CLOEXEC);
        need(vma.epoll_ctl(way.set, EPOLL_CTL_ADD, way.fd, &event) == 0, "epoll_ctl");
    }
    seen.good = talk(way, &vma.calls);
    for (int i = 0; is("shm") && strcmp(explain(way.fd).ring_kind, "shm") != 0; i++) {
        need(i < 10000, "shared memory");
        seen.good &= talk(way, &vma.calls);
    }
    seen.offloaded = explain(way.fd).path == VMA_PATH_OFFLOADED;
    if (is("exit")) {
        need(vma.vma_exit() == 0, "vma_exit");
        seen.good &= talk(way, &vma.calls);
    }
    return way;
}

static void unload(void) {
    seen.mapped = mapped() != 0;
    need(dlclose(vma.handle) == 0, "dlclose");
}

static void without_it(struct way way) {
    seen.good_after = talk(way, &libc);
    close(way.fd);
    if (way.set >= 0) close(way.set);
}

static sem_t used, gone;

static void wait_for(sem_t* what) {
    while (sem_wait(what) != 0) continue;
}

/* A thread that is in no function of the library while that goes. */
static void* stays(void* none) {
    (void)none;
    const struct way way = by_library();
    sem_post(&used);
    wait_for(&gone);
    without_it(way);
    return NULL;
}

static void with_a_thread(void) {
    pthread_t thread;
    need(sem_init(&used, 0, 0) == 0 && sem_init(&gone, 0, 0) == 0, "sem_init");
    need(pthread_create(&thread, NULL, stays, NULL) == 0, "pthread_create");
    wait_for(&used);
    unload();
    sem_post(&gone);
    need(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(int argc, char** argv) {
    if (argc < 4 || inet_pton(AF_INET, argv[2], &peer.sin_addr) != 1) {
        fprintf(stderr, "usage: %s LIBRARY ADDRESS PORT [tcp|udp|epoll|thread|exit|shm]\n",
                argv[0]);
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[3]));
    if (argc > 4) how = argv[4];
    const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int round = 1; round <= 10; round++) {
        load(argv[1]);
        if (is("thread")) {
            with_a_thread();
        } else {
            const struct way way = by_library();
            unload();
            without_it(way);
        }
        printf(
            "round %d: offloaded %d, mapped %d, bytes good %d; after that bytes good %d, mapped "
            "%d, descriptors %+d, threads %+d\n",
            round, seen.offloaded, seen.mapped, seen.good, seen.good_after, mapped(),
            entries("/proc/self/fd") - descriptors, entries("/proc/self/task") - threads);
    }
    return 0;
}
