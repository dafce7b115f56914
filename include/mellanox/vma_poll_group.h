/* Polling groups under names of this library: the functions of mellanox/xlio.h, each a second symbol of the same function. */
#ifndef MELLANOX_VMA_POLL_GROUP_H
#define MELLANOX_VMA_POLL_GROUP_H

#include <mellanox/xlio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef xlio_poll_group_t vma_poll_group_t;
typedef xlio_socket_t vma_socket_t;
typedef struct xlio_buf vma_buf_t;
typedef struct xlio_init_attr vma_init_attr_t;
typedef struct xlio_poll_group_attr vma_poll_group_attr_t;
typedef struct xlio_socket_attr vma_socket_attr_t;
typedef struct xlio_socket_send_attr vma_socket_send_attr_t;

enum {
    VMA_SOCKET_EVENT_ESTABLISHED = XLIO_SOCKET_EVENT_ESTABLISHED,
    VMA_SOCKET_EVENT_TERMINATED = XLIO_SOCKET_EVENT_TERMINATED,
    VMA_SOCKET_EVENT_CLOSED = XLIO_SOCKET_EVENT_CLOSED,
    VMA_SOCKET_EVENT_ERROR = XLIO_SOCKET_EVENT_ERROR,
    VMA_GROUP_FLAG_SAFE = XLIO_GROUP_FLAG_SAFE,
    VMA_GROUP_FLAG_DIRTY = XLIO_GROUP_FLAG_DIRTY,
    VMA_SOCKET_SEND_FLAG_FLUSH = XLIO_SOCKET_SEND_FLAG_FLUSH,
    VMA_SOCKET_SEND_FLAG_INLINE = XLIO_SOCKET_SEND_FLAG_INLINE
};

int vma_init_ex(const vma_init_attr_t* attr);
int vma_init(void);
int vma_exit(void);

int vma_poll_group_create(const vma_poll_group_attr_t* attr, vma_poll_group_t* group);
int vma_poll_group_destroy(vma_poll_group_t group);
int vma_poll_group_update(vma_poll_group_t group, const vma_poll_group_attr_t* attr);
void vma_poll_group_poll(vma_poll_group_t group);
void vma_poll_group_flush(vma_poll_group_t group);
void vma_poll_group_buf_free(vma_poll_group_t group, vma_buf_t* buf);

int vma_socket_create(const vma_socket_attr_t* attr, vma_socket_t* socket);
int vma_socket_destroy(vma_socket_t socket);
int vma_socket_update(vma_socket_t socket, unsigned flags, uintptr_t userdata_sq);
int vma_socket_setsockopt(vma_socket_t socket, int level, int name, const void* value,
                          socklen_t length);
int vma_socket_getsockname(vma_socket_t socket, struct sockaddr* address, socklen_t* length);
int vma_socket_getpeername(vma_socket_t socket, struct sockaddr* address, socklen_t* length);
int vma_socket_bind(vma_socket_t socket, const struct sockaddr* address, socklen_t length);
int vma_socket_connect(vma_socket_t socket, const struct sockaddr* address, socklen_t length);
int vma_socket_listen(vma_socket_t socket);
struct ibv_pd* vma_socket_get_pd(vma_socket_t socket);
int vma_socket_detach_group(vma_socket_t socket);
int vma_socket_attach_group(vma_socket_t socket, vma_poll_group_t group);
int vma_socket_send(vma_socket_t socket, const void* data, size_t length,
                    const vma_socket_send_attr_t* attr);
int vma_socket_sendv(vma_socket_t socket, const struct iovec* iov, unsigned count,
                     const vma_socket_send_attr_t* attr);
void vma_socket_flush(vma_socket_t socket);
void vma_socket_buf_free(vma_socket_t socket, vma_buf_t* buf);

#ifdef __cplusplus
}
#endif

#endif
