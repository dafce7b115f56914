// The views of vma_stats: one process's page and /proc joined (Process), and text made of it. Nothing is printed here.
#pragma once

#include <string>
#include <vector>

#include "stats/proc.h"
#include "stats/reader.h"

namespace vma::stats {

// A socket as the views show it: a row of the page that is alive, or a kernel socket that the library never saw made.
struct SocketView {
    SocketRow row;
    bool in_page = true;
    std::string protocol;  // udp, tcp, udp6 ...
    Endpoint local, remote;
    std::string tcp_state;                       // "" for UDP
    uint64_t receive_queue = 0, send_queue = 0;  // bytes, kernel's and ours together
};

struct Process {
    uint32_t pid = 0;
    Snapshot page;
    std::vector<SocketView> sockets;  // by descriptor
};

// Joins the two; rows whose socket was closed without the library seeing it are left out.
Process make_process(uint32_t pid, Snapshot page, const ProcessSockets& kernel);

std::string endpoint_text(
    const Endpoint& endpoint);  // "10.1.1.5:7001", "[fe80::1%2]:80", "0.0.0.0:*"
// "packet ring on eth0, packet ring on eth1" for SocketIdentity::rings; "" for none.
std::string rings_text(const Process& process, uint64_t rings);

std::string basic_header();                      // view 1, two lines
std::string basic_rows(const Process& process);  // Rx and Tx line of each socket, then 79 dashes
std::string netstat_header();                    // view 5
std::string netstat_rows(const Process& process);
std::string explain(const Process& process);  // a heading, one line per socket
std::string to_json(const std::vector<Process>& processes);

}  // namespace vma::stats
