#include "extra/group_api.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include <new>

#include "engine/runtime.h"
#include "extra/boundary.h"
#include "extra/group.h"
#include "extra/group_calls.h"
#include "extra/group_memory.h"
#include "sock/slab.h"

namespace vma::extra::group {
namespace {

constinit sock::Slab<Group> g_groups;

int fails(int error) {
    errno = error;
    return -1;
}

Group* group_of(xlio_poll_group_t handle) { return reinterpret_cast<Group*>(handle); }

// What the kernel cannot know of a connection, but the program is told by an event.
bool is_told_by_event(int error) {
    return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

bool may_send(const GroupSocket* socket) {
    return socket && socket->group && socket->stage == Stage::open && !socket->leaving;
}

int send_pieces(GroupSocket* socket, const iovec* iov, size_t count, size_t length,
                const xlio_socket_send_attr* attr) {
    constexpr unsigned kKnown = XLIO_SOCKET_SEND_FLAG_FLUSH | XLIO_SOCKET_SEND_FLAG_INLINE;
    if (socket == nullptr || attr == nullptr || (attr->flags & ~kKnown) || length == 0)
        return fails(EINVAL);
    if (!may_send(socket)) return fails(ENOTCONN);
    const bool copy = attr->flags & XLIO_SOCKET_SEND_FLAG_INLINE;
    const bool sent =
        socket->group->send(*socket, iov, unsigned(count), copy,
                            attr->flags & XLIO_SOCKET_SEND_FLAG_FLUSH, attr->userdata_op);
    return sent ? 0 : fails(ENOMEM);
}

}  // namespace

int init_ex(const xlio_init_attr* attr) {
    if (attr == nullptr || !attr->memory_alloc != !attr->memory_free) return fails(EINVAL);
    const bool first = ReceiveMemory::set(*attr);
    const int result = ask_library([] {
        if (started()) Runtime::heavy_start();
        return 0;
    });
    if (first && result == 0) ReceiveMemory::announce();
    return result;
}

int init() {
    const xlio_init_attr nothing{};
    return init_ex(&nothing);
}

int poll_group_create(const xlio_poll_group_attr* attr, xlio_poll_group_t* group) {
    if (attr == nullptr || group == nullptr || attr->socket_event_cb == nullptr)
        return fails(EINVAL);
    bool recycled;
    void* const memory = g_groups.take(&recycled);
    if (memory == nullptr) return fails(ENOMEM);
    // The library has to be at work before the set is made, or it will be the kernel's.
    (void)init();
    const int set = calls::epoll_create();
    if (set < 0) {
        g_groups.give(memory);
        return -1;
    }
    *group = reinterpret_cast<xlio_poll_group_t>(new (memory) Group(*attr, set));
    return 0;
}

int poll_group_destroy(xlio_poll_group_t group) {
    if (group == 0) return fails(EINVAL);
    if (!group_of(group)->end()) return fails(EBUSY);
    g_groups.give(group_of(group));
    return 0;
}

int poll_group_update(xlio_poll_group_t group, const xlio_poll_group_attr* attr) {
    if (group == 0 || attr == nullptr || attr->socket_event_cb == nullptr) return fails(EINVAL);
    group_of(group)->update(*attr);
    return 0;
}

void poll_group_poll(xlio_poll_group_t group) { group_of(group)->poll(); }
void poll_group_flush(xlio_poll_group_t group) { group_of(group)->flush(); }
void poll_group_buf_free(xlio_poll_group_t, xlio_buf* buf) { ReceiveMemory::give_back(buf); }
void socket_buf_free(xlio_socket_t, xlio_buf* buf) { ReceiveMemory::give_back(buf); }

int socket_create(const xlio_socket_attr* attr, xlio_socket_t* socket) {
    if (attr == nullptr || socket == nullptr || attr->group == 0 ||
        (attr->domain != AF_INET && attr->domain != AF_INET6))
        return fails(EINVAL);
    const int fd = calls::socket(attr->domain);
    if (fd < 0) return -1;
    GroupSocket* const made = GroupSocket::make(fd);
    if (made == nullptr) {
        calls::close(fd);
        return fails(ENOMEM);
    }
    made->userdata = attr->userdata_sq;
    group_of(attr->group)->add(*made);
    *socket = made->handle();
    return 0;
}

int socket_destroy(xlio_socket_t handle) {
    GroupSocket* const socket = GroupSocket::of(handle);
    if (socket == nullptr || socket->group == nullptr) return fails(EINVAL);
    socket->group->leave(*socket);
    return 0;
}

int socket_update(xlio_socket_t handle, unsigned, uintptr_t userdata) {
    if (handle == 0) return fails(EINVAL);
    GroupSocket::of(handle)->userdata = userdata;
    return 0;
}

int socket_setsockopt(xlio_socket_t handle, int level, int name, const void* value,
                      socklen_t length) {
    if (handle == 0) return fails(EINVAL);
    // There is no limit to what may be queued, so that sends are all or nothing.
    if (level == SOL_SOCKET && name == SO_SNDBUF) return 0;
    return calls::setsockopt(GroupSocket::of(handle)->fd, level, name, value, length);
}

int socket_getsockname(xlio_socket_t handle, sockaddr* address, socklen_t* length) {
    if (handle == 0) return fails(EINVAL);
    return calls::getsockname(GroupSocket::of(handle)->fd, address, length);
}

int socket_getpeername(xlio_socket_t handle, sockaddr* address, socklen_t* length) {
    if (handle == 0) return fails(EINVAL);
    return calls::getpeername(GroupSocket::of(handle)->fd, address, length);
}

int socket_bind(xlio_socket_t handle, const sockaddr* address, socklen_t length) {
    if (handle == 0) return fails(EINVAL);
    GroupSocket& socket = *GroupSocket::of(handle);
    const int result = calls::bind(socket.fd, address, length);
    socket.bound |= result == 0;
    return result;
}

int socket_connect(xlio_socket_t handle, const sockaddr* address, socklen_t length) {
    GroupSocket* const socket = GroupSocket::of(handle);
    if (socket == nullptr || socket->group == nullptr || socket->leaving) return fails(EINVAL);
    switch (socket->stage) {
        case Stage::connecting:
            return fails(EALREADY);
        case Stage::open:
        case Stage::listening:
            return fails(EISCONN);
        case Stage::failed:
            return fails(ECONNABORTED);
        case Stage::idle:
            break;
    }
    const int before = errno;
    if (calls::connect(socket->fd, address, length) < 0 && errno != EINPROGRESS) {
        if (!is_told_by_event(errno)) return -1;
        socket->group->fail_later(*socket, errno);
    } else if (!socket->group->watch(*socket)) {
        return -1;
    }
    socket->stage = Stage::connecting;
    errno = before;
    return 0;
}

int socket_listen(xlio_socket_t handle) {
    GroupSocket* const socket = GroupSocket::of(handle);
    if (socket == nullptr || socket->group == nullptr || socket->stage != Stage::idle ||
        socket->leaving || !socket->bound)
        return fails(EINVAL);
    if (!socket->group->accepts()) return fails(ENOTCONN);
    if (calls::listen(socket->fd) < 0 || !socket->group->watch(*socket)) return -1;
    socket->stage = Stage::listening;
    return 0;
}

// No ring lets programs have one, and none is needed: memory that is sent need not be registered.
ibv_pd* socket_get_pd(xlio_socket_t) { return nullptr; }

int socket_detach_group(xlio_socket_t handle) {
    GroupSocket* const socket = GroupSocket::of(handle);
    if (socket == nullptr || socket->group == nullptr || socket->leaving ||
        socket->stage != Stage::open)
        return fails(EINVAL);
    socket->group->remove(*socket);
    return 0;
}

int socket_attach_group(xlio_socket_t handle, xlio_poll_group_t group) {
    GroupSocket* const socket = GroupSocket::of(handle);
    if (socket == nullptr || group == 0 || socket->group != nullptr) return fails(EINVAL);
    if (!group_of(group)->watch(*socket)) return -1;
    group_of(group)->add(*socket);
    return 0;
}

int socket_send(xlio_socket_t handle, const void* data, size_t length,
                const xlio_socket_send_attr* attr) {
    const iovec whole{const_cast<void*>(data), length};
    return send_pieces(GroupSocket::of(handle), &whole, 1, length, attr);
}

int socket_sendv(xlio_socket_t handle, const iovec* iov, unsigned count,
                 const xlio_socket_send_attr* attr) {
    if (iov == nullptr) return fails(EINVAL);
    size_t length = 0;
    for (unsigned i = 0; i < count; i++) length += iov[i].iov_len;
    return send_pieces(GroupSocket::of(handle), iov, count, length, attr);
}

void socket_flush(xlio_socket_t handle) {
    if (may_send(GroupSocket::of(handle)))
        GroupSocket::of(handle)->group->flush(*GroupSocket::of(handle));
}

}  // namespace vma::extra::group
