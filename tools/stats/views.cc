#include "stats/views.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <set>

#include "stats/fields.h"
#include "stats/socket_text.h"

namespace vma::stats {
namespace {

// Names of the kernel's TCP states as VMA's netstat view writes them, by number from 1 (include/net/tcp_states.h).
const char* tcp_state_name(unsigned state) {
    static constexpr const char* names[] = {
        "",       "ESTABLISHED", "SYN_SENT", "SYN_RCVD", "FIN_WAIT_1", "FIN_WAIT_2", "TIME_WAIT",
        "CLOSED", "CLOSE_WAIT",  "LAST_ACK", "LISTEN",   "CLOSING",    "SYN_RCVD"};
    return state < std::size(names) ? names[state] : "";
}

std::string protocol_name(const SocketIdentity& id) {
    const char* base = id.protocol == IPPROTO_UDP   ? "udp"
                       : id.protocol == IPPROTO_TCP ? "tcp"
                                                    : nullptr;
    if (base == nullptr) return fmt::format("ip{}", id.protocol);
    return std::string(base) + (id.domain == AF_INET6 ? "6" : "");
}

SocketView view_of(const SocketRow& row, const ProcessSockets& kernel) {
    SocketView v;
    v.row = row;
    v.protocol = protocol_name(row.id);
    v.local = to_endpoint(row.id.local);
    v.remote = to_endpoint(row.id.remote);
    v.receive_queue = row.numbers.rx_queue_bytes;
    v.send_queue = row.numbers.tx_queue_bytes;
    if (row.id.protocol == IPPROTO_TCP) v.tcp_state = tcp_state_text(row.id.tcp_state);
    const auto twin = kernel.internet.find(row.id.inode);
    if (twin == kernel.internet.end()) return v;
    const KernelSocket& k = twin->second;
    v.receive_queue += k.rx_queue;
    v.send_queue += k.tx_queue;
    // The kernel knows the names of its own sockets; those of an offloaded one are in the row and may be more.
    if (row.id.path != Path::offloaded) {
        v.local = k.local;
        v.remote = k.remote;
        if (row.id.protocol == IPPROTO_TCP) v.tcp_state = tcp_state_name(k.state);
    }
    return v;
}

// `descriptors`: Header::descriptors. Above it the library has no place for a socket, not even in the page.
SocketView unseen(uint64_t inode, int fd, const KernelSocket& k, uint32_t descriptors) {
    SocketView v;
    v.in_page = descriptors != 0 && uint32_t(fd) >= descriptors;
    if (v.in_page) v.row.id.reason = Reason::fd_limit;
    v.protocol = k.protocol;
    v.local = k.local;
    v.remote = k.remote;
    v.receive_queue = k.rx_queue;
    v.send_queue = k.tx_queue;
    if (v.protocol.rfind("tcp", 0) == 0) v.tcp_state = tcp_state_name(k.state);
    v.row.id.fd = fd;
    v.row.id.inode = inode;
    v.row.id.path = Path::kernel;
    return v;
}

std::string served_by(const Process& process, const SocketView& v) {
    const SocketIdentity& id = v.row.id;
    if (!v.in_page)
        return "kernel: not in the page: not used yet, or accepted by a kernel listener, inherited "
               "or passed in";
    std::string text;
    if (id.path == Path::offloaded) {
        const std::string rings = rings_text(process, id.rings);
        text = "offloaded: " + (rings.empty() ? std::string("sends by rings") : rings);
        if (id.reason == Reason::none) {
            const SocketNumbers& n = v.row.numbers;
            if (n.rx_os_packets || n.tx_os_packets)
                text += fmt::format(" ({} received and {} sent by the kernel)", n.rx_os_packets,
                                    n.tx_os_packets);
            return text;
        }
        text += fmt::format("; receives by the kernel: {}: ", reason_name(id.reason));
    } else if (id.path == Path::undecided) {
        text = fmt::format("kernel so far: {}: ", reason_name(id.reason));
    } else {
        text = fmt::format("kernel: {}: ", reason_name(id.reason));
    }
    text += reason_meaning(id.reason);
    if (const char* advice = reason_advice(id.reason); *advice) text += fmt::format("; {}", advice);
    return text;
}

}  // namespace

Process make_process(uint32_t pid, Snapshot page, const ProcessSockets& kernel) {
    Process p;
    p.pid = pid;
    p.page = std::move(page);
    std::set<uint64_t> seen;
    for (SocketRow row : p.page.sockets) {
        if (kernel.known && row.id.inode != 0) {
            const auto open = kernel.fds.find(row.id.inode);
            if (open == kernel.fds.end())
                continue;  // closed; its number was not used for a socket since
            if (!std::binary_search(open->second.begin(), open->second.end(), row.id.fd))
                row.id.fd = open->second.front();
        }
        seen.insert(row.id.inode);
        p.sockets.push_back(view_of(row, kernel));
    }
    for (const auto& [inode, fds] : kernel.fds) {
        const auto k = kernel.internet.find(inode);
        if (k != kernel.internet.end() && !seen.contains(inode))
            p.sockets.push_back(unseen(inode, fds.front(), k->second, p.page.header.descriptors));
    }
    std::stable_sort(
        p.sockets.begin(), p.sockets.end(),
        [](const SocketView& a, const SocketView& b) { return a.row.id.fd < b.row.id.fd; });
    return p;
}

Process only(Process process, const FdRanges& fds) {
    std::erase_if(process.sockets, [&](const SocketView& v) { return !fds.has(v.row.id.fd); });
    return process;
}

Process since_zero(Process process) {
    for (SocketView& v : process.sockets)
        v.row.numbers = difference(socket_fields(), v.row.numbers, v.row.base);
    for (RingRow& r : process.page.rings) r.numbers = difference(ring_fields(), r.numbers, r.base);
    for (WaitRow& w : process.page.waits) w.numbers = difference(wait_fields(), w.numbers, w.base);
    return process;
}

Process since(Process now, const Process& before) {
    std::map<uint64_t, const SocketNumbers*> by_cookie;
    for (const SocketView& old : before.sockets)
        if (old.in_page) by_cookie[old.row.id.cookie] = &old.row.numbers;
    for (SocketView& v : now.sockets)
        if (const auto old = by_cookie.find(v.row.id.cookie); v.in_page && old != by_cookie.end())
            v.row.numbers = difference(socket_fields(), v.row.numbers, *old->second);
    for (size_t i = 0; i < std::min(now.page.rings.size(), before.page.rings.size()); i++)
        now.page.rings[i].numbers =
            difference(ring_fields(), now.page.rings[i].numbers, before.page.rings[i].numbers);
    for (WaitRow& w : now.page.waits)
        for (const WaitRow& old : before.page.waits)
            if (old.id.kind == w.id.kind && old.id.fd == w.id.fd)
                w.numbers = difference(wait_fields(), w.numbers, old.numbers);
    return now;
}

LatencyByFd latency_by_fd(const Process& process) {
    LatencyByFd out;
    for (const LatencyRow& l : process.page.latencies) out[l.fd] = &l;
    return out;
}

std::string endpoint_text(const Endpoint& e) {
    char text[72];
    return endpoint_text(text, e);
}

const char* path_name(Path path) {
    switch (path) {
        case Path::undecided:
            return "undecided";
        case Path::offloaded:
            return "offloaded";
        case Path::kernel:
            break;
    }
    return "kernel";
}

std::string rings_text(const Process& process, uint64_t rings) {
    std::string text;
    for (size_t i = 0; i < process.page.rings.size() && i < 64; i++) {
        const RingRow& ring = process.page.rings[i];
        if (!(rings >> i & 1) || !ring.in_use) continue;
        if (!text.empty()) text += ", ";
        const std::string interface = printable(ring.id.interface, sizeof ring.id.interface);
        text += fmt::format(
            "{} ring on {}", printable(ring.id.kind, sizeof ring.id.kind),
            interface.empty() ? fmt::format("interface {}", ring.id.ifindex) : interface);
    }
    return text;
}

std::string netstat_header() {
    return fmt::format("{:<5} {:<9} {:<20} {:<20} {:<22} {:<21} {:<11} {:<10} {}\n", "Proto",
                       "Offloaded", "Recv-Q", "Send-Q", "Local Address", "Foreign Address", "State",
                       "Inode", "PID/Program name");
}

std::string netstat_rows(const Process& process) {
    std::string out;
    for (const SocketView& v : process.sockets) {
        const SocketIdentity& id = v.row.id;
        if (id.inode == 0) continue;
        out += fmt::format("{:<5} {:<9} {:<20} {:<20} {:<22} {:<21} {:<11} {:<10} {}/{}\n",
                           v.protocol, id.path == Path::offloaded ? "Yes" : "No", v.receive_queue,
                           v.send_queue, endpoint_text(v.local), endpoint_text(v.remote),
                           v.tcp_state, id.inode, process.pid, process.page.program);
    }
    return out;
}

std::string explain(const Process& process) {
    std::string out =
        fmt::format("{} (pid {}), libvma {}\n", process.page.program, process.pid,
                    printable(process.page.header.library, sizeof process.page.header.library));
    if (process.sockets.empty()) out += "  no TCP or UDP socket\n";
    for (const SocketView& v : process.sockets) {
        const std::string peer = v.remote.port ? endpoint_text(v.remote) : "*";
        out += fmt::format("  fd {:<4} {:<4} {:<21} -> {:<21} {}\n", v.row.id.fd, v.protocol,
                           endpoint_text(v.local), peer, served_by(process, v));
    }
    return out;
}

}  // namespace vma::stats
