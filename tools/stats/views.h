// The views of vma_stats: one process's page and /proc joined (Process), and text made of it. Nothing is printed here.
#pragma once

#include <map>
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
// Without the sockets whose descriptor is not in `fds`.
Process only(Process process, const FdRanges& fds);
// With counters since a viewer last asked for zeroes, instead of since the start.
Process since_zero(Process process);
// With the counters of `before` taken off those of `now`. What was not there before keeps its own.
Process since(Process now, const Process& before);

std::string endpoint_text(
    const Endpoint& endpoint);     // "10.1.1.5:7001", "[fe80::1%2]:80", "0.0.0.0:*"
const char* path_name(Path path);  // "offloaded"
// "packet ring on eth0, packet ring on eth1" for SocketIdentity::rings; "" for none.
std::string rings_text(const Process& process, uint64_t rings);
// Of waits that may have been polling all the time: 0 .. 100.
double polling_percent(uint64_t hit, uint64_t miss);
// "epoll[7]", "poll", "select".
std::string wait_name(const WaitIdentity& id);

const char* origin_name(uint32_t origin);  // of an OptionRow
// Line of a rule, "-": of none; and what is to be said about a rule that decides nothing, "" when it can.
std::string rule_line(uint32_t line);
std::string rule_note(const RuleRow& rule);
using LatencyByFd = std::map<int, const LatencyRow*>;
LatencyByFd latency_by_fd(const Process& process);

// Views 1 and 2. `rates`: the numbers are differences; `queues`: with the columns of view 2. `seconds`: between the looks,
// for the polling time of waits, 0: not known.
std::string basic_header(bool rates, bool queues);
std::string basic_rows(const Process& process, bool queues, double seconds);
// View 3: a block for each socket, waiting place, ring and pool.
std::string full_blocks(const Process& process, double seconds);
// View 4: which descriptors are members of which group.
std::string memberships(const Process& process);
// View 5.
std::string netstat_header();
std::string netstat_rows(const Process& process);
std::string explain(const Process& process);  // a heading, one line per socket
// The listing of one kind as a table.
std::string listing(const Process& process, SegmentKind kind);
std::string to_json(const std::vector<Process>& processes);
// Text exposition format of Prometheus.
std::string to_prometheus(const std::vector<Process>& processes);

}  // namespace vma::stats
