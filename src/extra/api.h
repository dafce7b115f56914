// The extra API (include/mellanox/vma_extra.h): the tables that programs get, and how they get them.
#pragma once

#include "sock/api.h"

namespace vma::extra {

// Is this getsockopt() call how a program asks for a table?
inline constexpr int kGetApi = 2800, kGetApiLayout = 0x564d0000;
inline bool asks_for_table(int fd, int level, int name) {
    return fd == -1 && level == SOL_SOCKET &&
           (name == kGetApi || (name & ~0xffff) == kGetApiLayout);
}
// Its answer. Starts the library if nothing has yet.
sock::Outcome give_table(int name, void* value, socklen_t* len);

// Is it vma_explain()? Its answer, for every socket.
inline constexpr int kExplain = 0x564e0000;
inline bool asks_to_explain(int level, int name) { return level == SOL_SOCKET && name == kExplain; }
sock::Outcome explain(int fd, void* value, socklen_t* len);

// Options of a socket, with those of mellanox/vma_extra.h.
sock::Outcome setsockopt(int fd, int level, int name, const void* value, socklen_t len);
sock::Outcome getsockopt(int fd, int level, int name, void* value, socklen_t* len);

}  // namespace vma::extra
