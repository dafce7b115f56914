/* What the programs of test_extra_api.py share: the published places of the functions, checks, sockets, and main(), which runs
 * one part of the program. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <mellanox/vma_extra.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
#if VMA_API_VERSION == 606
enum { REGISTER = 0, ZCOPY = 8, FREE = 16, RULE = 24, OFFLOAD = 32, SIZE = 40 };
#elif VMA_API_VERSION == 902
enum { REGISTER = 0, ZCOPY = 8, FREE = 16, RULE = 24, OFFLOAD = 32, XTREME_POLL = 40, RINGS = 48, RING_FDS = 56, TX_RING = 64,
       XTREME_FREE = 72, XTREME_REF = 80, XTREME_UNREF = 88, DUMP = 96, CYCLIC = 104, PROFILE = 112, HEADER = 120, DIRECT = 128,
       REGISTER_MEMORY = 136, DEREGISTER_MEMORY = 144, MEM_INFO = 152, MODIFY = 160, MASK = 168, DPCP = 176, SIZE = 184 };
#else
enum { REGISTER = 0, ZCOPY = 8, FREE = 16, RULE = 24, OFFLOAD = 32, XTREME_POLL = 40, RINGS = 48, RING_FDS = 56, TX_RING = 64,
       XTREME_FREE = 72, XTREME_REF = 80, XTREME_UNREF = 88, DUMP = 96, PROFILE = 104, HEADER = 112, DIRECT = 120,
       REGISTER_MEMORY = 128, DEREGISTER_MEMORY = 136, MODIFY = 144, MASK = 152, IOCTL = 160, SIZE = 168 };
#endif
/* clang-format on */
_Static_assert(sizeof(struct vma_api_t) == SIZE, "size of the table");

struct part {
    const char* name;
    void (*run)(void);
};
extern const struct part parts[]; /* of the program; the last has no name */

extern struct vma_api_t* api;
extern const char* peer_ip;
extern int peer_port;

typedef int (*any_function)(long, long, long, long, long, long);
any_function at(size_t offset);
/* Calls the function at an offset of the table; arguments are integers or pointers. */
int call6(size_t offset, long a, long b, long c, long d, long e, long f);
#define CALL1(offset, a) call6(offset, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(offset, a, b) call6(offset, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(offset, a, b, c) call6(offset, (long)(a), (long)(b), (long)(c), 0, 0, 0)

/* Ends the program with a line that says what is wrong. */
void expect(int line, const char* what, long got, long wanted);
#define EXPECT(got, wanted) expect(__LINE__, #got, (long)(got), (long)(wanted))
#define FAILS(got, error)     \
    do {                      \
        errno = 0;            \
        EXPECT(got, -1);      \
        EXPECT(errno, error); \
    } while (0)

struct sockaddr_in address(const char* ip, int port);
int udp_bound(int port);
int connected(int type); /* to the peer */
int listening(const char* ip, int port);
#if VMA_API_VERSION != 606
int by_shared_memory(
    void); /* to the peer, a program that runs "echo"; by shared memory when this returns */
void has_no_device(int ring); /* the functions that need one refuse */
#endif
int give_back(int fd, void* id); /* one kept packet */
