/* Polling groups: TCP without descriptors and without sleeping. A program makes a group, makes sockets in it and polls it;
 * everything that happens is told by callbacks inside that poll. C and C++; names, numbers and layouts are those of XLIO, so that
 * programs written for it go on to work; vma_poll_group.h has the same under names of this library. docs/EXTRA_API.md says what
 * each function does here. */
#ifndef MELLANOX_XLIO_H
#define MELLANOX_XLIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t xlio_poll_group_t;
typedef uintptr_t xlio_socket_t;

/* Received text that the program has until it gives it back. */
struct xlio_buf {
    uint64_t userdata; /* the program's own; what it holds at first means nothing */
};

struct ibv_pd;

/* ---- Events of a socket */
enum {
    XLIO_SOCKET_EVENT_ESTABLISHED = 1, /* connected */
    XLIO_SOCKET_EVENT_TERMINATED = 2,  /* its end; the handle means nothing from now on */
    XLIO_SOCKET_EVENT_CLOSED = 3,      /* the peer sends no more */
    XLIO_SOCKET_EVENT_ERROR = 4 /* value: ECONNABORTED, ECONNRESET, ECONNREFUSED, ETIMEDOUT */
};

/* ---- Callbacks: all called from xlio_poll_group_poll() or xlio_poll_group_destroy() */
typedef void (*xlio_memory_cb_t)(void* address, size_t length, size_t hugepage_size);
typedef void (*xlio_socket_event_cb_t)(xlio_socket_t socket, uintptr_t userdata_sq, int event,
                                       int value);
typedef void (*xlio_socket_comp_cb_t)(xlio_socket_t socket, uintptr_t userdata_sq,
                                      uintptr_t userdata_op);
typedef void (*xlio_socket_rx_cb_t)(xlio_socket_t socket, uintptr_t userdata_sq, void* data,
                                    size_t length, struct xlio_buf* buf);
typedef void (*xlio_socket_accept_cb_t)(xlio_socket_t socket, xlio_socket_t parent,
                                        uintptr_t parent_userdata_sq);

/* ---- Start and end */
struct xlio_init_attr {
    unsigned flags;             /* none yet */
    xlio_memory_cb_t memory_cb; /* told of all memory in which received text can be */
    void* (*memory_alloc)(size_t length);
    void (*memory_free)(void* address);
};

int xlio_init_ex(const struct xlio_init_attr* attr);
int xlio_init(void);
int xlio_exit(void);

/* ---- Groups */
enum {
    XLIO_GROUP_FLAG_SAFE = 0x1, /* sends may run beside other calls on the group */
    XLIO_GROUP_FLAG_DIRTY = 0x2 /* xlio_poll_group_flush() finds the sockets that have something */
};

struct xlio_poll_group_attr {
    unsigned flags;
    xlio_socket_event_cb_t socket_event_cb; /* must be there */
    xlio_socket_comp_cb_t socket_comp_cb;
    xlio_socket_rx_cb_t socket_rx_cb;
    xlio_socket_accept_cb_t socket_accept_cb;
};

int xlio_poll_group_create(const struct xlio_poll_group_attr* attr, xlio_poll_group_t* group);
int xlio_poll_group_destroy(xlio_poll_group_t group);
int xlio_poll_group_update(xlio_poll_group_t group, const struct xlio_poll_group_attr* attr);
void xlio_poll_group_poll(xlio_poll_group_t group);
void xlio_poll_group_flush(xlio_poll_group_t group);
void xlio_poll_group_buf_free(xlio_poll_group_t group, struct xlio_buf* buf);

/* ---- Sockets */
struct xlio_socket_attr {
    unsigned flags; /* none yet */
    int domain;     /* AF_INET or AF_INET6 */
    xlio_poll_group_t group;
    uintptr_t userdata_sq;
};

int xlio_socket_create(const struct xlio_socket_attr* attr, xlio_socket_t* socket);
int xlio_socket_destroy(xlio_socket_t socket);
int xlio_socket_update(xlio_socket_t socket, unsigned flags, uintptr_t userdata_sq);
int xlio_socket_setsockopt(xlio_socket_t socket, int level, int name, const void* value,
                           socklen_t length);
int xlio_socket_getsockname(xlio_socket_t socket, struct sockaddr* address, socklen_t* length);
int xlio_socket_getpeername(xlio_socket_t socket, struct sockaddr* address, socklen_t* length);
int xlio_socket_bind(xlio_socket_t socket, const struct sockaddr* address, socklen_t length);
int xlio_socket_connect(xlio_socket_t socket, const struct sockaddr* address, socklen_t length);
int xlio_socket_listen(xlio_socket_t socket);
struct ibv_pd* xlio_socket_get_pd(xlio_socket_t socket);
int xlio_socket_detach_group(xlio_socket_t socket);
int xlio_socket_attach_group(xlio_socket_t socket, xlio_poll_group_t group);

/* ---- Sending */
enum {
    XLIO_SOCKET_SEND_FLAG_FLUSH = 0x1, /* push it now, with all that waits before it */
    XLIO_SOCKET_SEND_FLAG_INLINE = 0x2 /* the text is the caller's again when the call returns */
};

struct xlio_socket_send_attr {
    unsigned flags;
    uint32_t mkey;         /* not looked at: memory need not be registered */
    uintptr_t userdata_op; /* for the completion; 0: none is wanted */
};

int xlio_socket_send(xlio_socket_t socket, const void* data, size_t length,
                     const struct xlio_socket_send_attr* attr);
int xlio_socket_sendv(xlio_socket_t socket, const struct iovec* iov, unsigned count,
                      const struct xlio_socket_send_attr* attr);
void xlio_socket_flush(xlio_socket_t socket);
void xlio_socket_buf_free(xlio_socket_t socket, struct xlio_buf* buf);

#ifdef __cplusplus
}
#endif

#endif
