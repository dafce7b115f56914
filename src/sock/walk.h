// Walks over the descriptor table, without its lock: an object is referenced while fn looks at it, so fn may block, install
// and remove. An open description is met once for each of its descriptors; what is installed meanwhile may be missed.
#pragma once

#include "sock/fd_table.h"
#include "sock/socket.h"

namespace vma::sock {

// fn(Object&, int fd). On the internal thread each look is a Visit.
template <class Fn>
void for_each_object(Fn&& fn) {
    for (unsigned fd = 0; fd < FdTable::high_water(); fd++) {
        if (!maybe_ours(int(fd))) continue;
        const Visit visit;
        const ObjectRef ref{int(fd)};
        if (ref) fn(*ref.get(), int(fd));
    }
}

// fn(Socket&, int fd), with those that this process merely holds since a fork.
template <class Fn>
void for_each_socket(Fn&& fn) {
    for_each_object([&](Object& object, int fd) {
        if (object.is_socket()) fn(static_cast<Socket&>(static_cast<Pollable&>(object)), fd);
    });
}

// fn(Socket&, int fd), without those: they are the business of the process that they come from.
template <class Fn>
void for_each_own_socket(Fn&& fn) {
    for_each_socket([&](Socket& socket, int fd) {
        if (!socket.inherited.load(std::memory_order_acquire)) fn(socket, fd);
    });
}

}  // namespace vma::sock
