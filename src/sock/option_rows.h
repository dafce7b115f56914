// What the option tables of TCP and UDP sockets (tcp_options.def, udp_options.def) share: names that old headers lack, the way
// to a row, the value of an integer option as Linux reads it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/sys.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif
#ifndef SO_BUSY_POLL_BUDGET
#define SO_BUSY_POLL_BUDGET 70
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

namespace vma::sock {

// The effect of the row for (level, name); an option without a row is the kernel's.
template <class Row, size_t n>
auto effect_in(const Row (&rows)[n], int level, int name) {
    const auto* row = std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) {
        return r.level == level && r.name == name;
    });
    return row == std::end(rows) ? decltype(row->effect)::to_kernel : row->effect;
}

// An int, or a single byte where less than an int was given.
inline int option_number(const void* value, socklen_t len) {
    int number = 0;
    if (len >= sizeof number)
        std::memcpy(&number, value, sizeof number);
    else if (len >= 1)
        number = *static_cast<const uint8_t*>(value);
    return number;
}

// An integer option of a twin; `otherwise` when the kernel does not tell.
inline int int_option(int fd, int level, int name, int otherwise = 0) {
    int value = otherwise;
    socklen_t len = sizeof value;
    return sys::getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

}  // namespace vma::sock
