// What /proc tells about the sockets of a process: proves that a row of its page is not of a socket closed meanwhile, and
// has addresses, TCP states and queues of kernel sockets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ip_addr.h"

namespace vma::stats {

struct KernelSocket {
    const char* protocol = "";  // tcp, udp, tcp6, udp6
    Endpoint local, remote;     // remote.port 0: none
    unsigned state = 0;         // include/net/tcp_states.h: 1 ESTABLISHED ... 11 CLOSING
    uint64_t rx_queue = 0, tx_queue = 0;
};

struct ProcessSockets {
    bool known = false;                        // fd/ could be read: the maps are complete
    std::map<uint64_t, std::vector<int>> fds;  // socket inode -> descriptors, ascending
    std::map<uint64_t, KernelSocket>
        internet;  // inode -> TCP and UDP sockets of the process's namespace
};

ProcessSockets read_process_sockets(uint32_t pid);
std::string executable_name(
    uint32_t pid);  // base name of /proc/<pid>/exe, "" when it cannot be read

}  // namespace vma::stats
