// libc's calls for sockets of polling groups: what a program's own would do, in the program's thread, with errno. Nothing
// waits: the sockets are non-blocking.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdint>

namespace vma::extra::group::calls {

int socket(int domain);
void close(int fd);
int bind(int fd, const sockaddr* address, socklen_t length);
int connect(int fd, const sockaddr* address, socklen_t length);
int listen(int fd);
int accept(int fd);
int setsockopt(int fd, int level, int name, const void* value, socklen_t length);
int getsockname(int fd, sockaddr* address, socklen_t* length);
int getpeername(int fd, sockaddr* address, socklen_t* length);
int pending_error(int fd);  // SO_ERROR
ssize_t send(int fd, const iovec* iov, unsigned count, bool more);
ssize_t receive(int fd, void* data, size_t length);

int epoll_create();
int epoll_control(int set, int operation, int fd, uint32_t events, void* data);
int epoll_look(int set, epoll_event* events, int most);

// EPOLL* of a socket now, and how many bytes its peer has not acknowledged.
struct Progress {
    uint32_t events = 0;
    uint32_t unacknowledged = 0;
};
Progress progress(int fd);

}  // namespace vma::extra::group::calls
