// What the kernel says about a descriptor that a client passed: never what the client says.
#pragma once

#include "broker/dispatch.h"

namespace vmad {

vma::broker::SocketFacts socket_facts(int fd);
// SO_NETNS_COOKIE of the calling thread's namespace, 0 when the kernel has none.
uint64_t own_netns_cookie();
// Is it a memfd (or another shared-memory file)? Reading anything else could block.
bool is_memory_file(int fd);

}  // namespace vmad
