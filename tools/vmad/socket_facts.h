// What the kernel says about a client and a descriptor that it passed: never what the client says.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/time.h"
#include "broker/dispatch.h"

namespace vmad {

vma::broker::SocketFacts socket_facts(int fd);
// The process at the other end of a unix socket, as it was when it made that.
struct Peer {
    pid_t pid = 0;
    uid_t user = 0;
    std::vector<gid_t> groups;  // the primary one first
};
// False: the kernel does not say.
bool peer_of(int socket, Peer& out);
// SO_NETNS_COOKIE: of the namespace that the socket was made in, 0 when the kernel has none.
uint64_t netns_cookie_of(int socket);
// The same of the calling thread's namespace.
uint64_t own_netns_cookie();
// How far a process's CLOCK_MONOTONIC is ahead of ours, which it is where one of us is in a time namespace (time_namespaces(7)).
vma::Duration clock_ahead(pid_t pid);
// Is it a memfd (or another shared-memory file)? Reading anything else could block.
bool is_memory_file(int fd);

}  // namespace vmad
