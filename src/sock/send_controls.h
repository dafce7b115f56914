// The control messages of a sendmsg() as far as a ring has to know them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#ifndef SCM_TS_OPT_ID  // Linux 6.13
#define SCM_TS_OPT_ID 81
#endif

namespace vma::sock {

struct SendControls {
    std::optional<uint16_t> segment;   // UDP_SEGMENT: instead of the option's
    std::optional<uint32_t> stamping;  // SO_TIMESTAMPING: what is stamped, instead of the option's
    std::optional<uint32_t> stamp_id;  // SCM_TS_OPT_ID: what its stamps shall be known by
    bool others = false;               // there is what only the kernel does, or refuses
};

SendControls read_send_controls(const msghdr& msg);

}  // namespace vma::sock
