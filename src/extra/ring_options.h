// What programs ask of rings (SO_VMA_RING_ALLOC_LOGIC, ring profiles).
#pragma once

#include "sock/using.h"

namespace vma::extra {

sock::Outcome set_ring_logic(const sock::Using& object, const void* value, socklen_t len);

// Has the socket a profile of external memory: queues for sending that only the program uses?
bool sends_by_program(const sock::Socket& socket);
// The descriptor of those queues on the device of a ring, or -errno. EOPNOTSUPP: that ring has no device.
int program_queues_of(int ring_fd);

}  // namespace vma::extra
