// Views 1 to 4, in the form that VMA's users know, and the listings.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "stats/pool_text.h"
#include "stats/socket_text.h"
#include "stats/views.h"

namespace vma::stats {
namespace {

std::string rx_line(const SocketView& v, bool queues) {
    const SocketNumbers& n = v.row.numbers;
    std::string out = fmt::format(" {:<3} {:<3} {:>10} {:>7} {:>8} {:>7} {:>6.1f}", v.row.id.fd,
                                  "Rx:", n.rx_packets, n.rx_bytes / 1024, n.rx_eagain, n.rx_errors,
                                  polling_percent(n.poll_hit, n.poll_miss));
    if (queues)
        out += fmt::format(" {:>6} {:>7} {:>7}", n.rx_queue_packets, n.rx_queue_packets_max,
                           n.rx_dropped_full);
    return out +
           fmt::format(" {:>7} {:>7} {:>7} {:>7}\n", n.rx_os_packets, n.rx_os_bytes / 1024, 0, 0);
}

std::string tx_line(const SocketView& v, bool queues) {
    const SocketNumbers& n = v.row.numbers;
    std::string out =
        fmt::format(" {:<3} {:<3} {:>10} {:>7} {:>8} {:>7} {:>6}", "", "Tx:", n.tx_packets,
                    n.tx_bytes / 1024, n.tx_eagain, n.tx_errors, "");
    if (queues) out += fmt::format(" {:>6} {:>7} {:>7}", "", "", "");
    return out +
           fmt::format(" {:>7} {:>7} {:>7} {:>7}\n", n.tx_os_packets, n.tx_os_bytes / 1024, 0, 0);
}

bool idle(const WaitNumbers& n) {
    return !(n.poll_hit || n.poll_miss || n.timeouts || n.errors || n.ready || n.os_ready);
}

// "63": of the time between two looks, spent polling.
std::string polling_cpu(const WaitNumbers& n, double seconds) {
    if (seconds <= 0) return "";
    return fmt::format("Polling CPU:{:.0f}%",
                       std::min(100.0, double(n.polling_ns) / seconds / 1e7));
}

std::string wait_line(const WaitRow& w, double seconds) {
    const WaitNumbers& n = w.numbers;
    const std::string cpu = polling_cpu(n, seconds);
    return fmt::format(
        "{:<10} Rx Ready:{}/{} [os/offload] Timeouts:{:<5} Errors:{:<5}Poll:{:.2f}%{}{}\n",
        wait_name(w.id), n.os_ready, n.ready, n.timeouts, n.errors,
        polling_percent(n.poll_hit, n.poll_miss), cpu.empty() ? "" : "   ", cpu);
}

std::string wait_block(const WaitRow& w, double seconds) {
    const WaitNumbers& n = w.numbers;
    std::string out = fmt::format("\t{}\n", wait_name(w.id));
    if (const std::string cpu = polling_cpu(n, seconds); !cpu.empty()) out += cpu + "\n";
    out += fmt::format("Rx fds ready: {} / {} [os/offload]\n", n.os_ready, n.ready);
    out += fmt::format("Polls [miss/hit]: {} / {} ({:.2f}%)\n", n.poll_miss, n.poll_hit,
                       polling_percent(n.poll_hit, n.poll_miss));
    if (n.timeouts) out += fmt::format("Timeouts: {}\n", n.timeouts);
    if (n.errors) out += fmt::format("Errors: {}\n", n.errors);
    return out;
}

std::string row_of(const char* label, const std::string& value) {
    return fmt::format("{:<20} {}\n", label, value);
}
std::string row_of(const char* label, uint64_t value) {
    return row_of(label, std::to_string(value));
}

std::string ring_blocks(const RingRow& ring, size_t i, uint32_t drop_reasons) {
    const RingNumbers& n = ring.numbers;
    std::string out = fmt::format("\tCQ=[{}]\n", i);
    out += row_of("Packets dropped:", n.rx_dropped);
    out += row_of("Packets queue len:", n.backlog);
    out += row_of("Drained max:", n.drained_max);
    out += row_of("Polls:", fmt::format("{} / {} [frames/none]", n.polls, n.empty_polls));
    out += kSocketSeparator;
    std::string kind = printable(ring.id.kind, sizeof ring.id.kind);
    std::transform(kind.begin(), kind.end(), kind.begin(), [](char c) { return char(toupper(c)); });
    out += fmt::format("\tRING_{}=[{}]\n", kind, i);
    out += row_of("Interface:",
                  fmt::format("{}{}", printable(ring.id.interface, sizeof ring.id.interface),
                              ring.id.open ? "" : " (closed)"));
    out += row_of("Tx Offload:",
                  fmt::format("{} / {} [kilobytes/packets] ", n.tx_bytes / 1024, n.tx_frames));
    out += row_of("Rx Offload:",
                  fmt::format("{} / {} [kilobytes/packets] ", n.rx_bytes / 1024, n.rx_frames));
    if (n.tx_refused) out += row_of("Tx refused:", n.tx_refused);
    out += row_of("Wake-ups:", n.wakeups);
    if (n.tcp_segments_in || n.tcp_segments_out || n.tcp_listeners) {
        out += row_of("TCP segments:",
                      fmt::format("{} / {} [in/out]", n.tcp_segments_in, n.tcp_segments_out));
        out += row_of(
            "TCP connections:",
            fmt::format("{} / {} / {} / {} [open/half-open/time-wait/listeners]", n.tcp_connections,
                        n.tcp_half_open, n.tcp_time_wait, n.tcp_listeners));
    }
    for (unsigned k = 1; k < std::min<uint32_t>(drop_reasons, unsigned(DropReason::count)); k++)
        if (ring.drops[k])
            out +=
                row_of("Dropped:", fmt::format("{} {}: {}", ring.drops[k], drop_name(DropReason(k)),
                                               drop_help(DropReason(k))));
    out += kSocketSeparator;
    char pool[kPoolTextRoom];
    out.append(pool, pool_text(pool, sizeof pool, i, n));
    return out + kSocketSeparator;
}

std::string latency_line(const char* label, const Histogram& h) {
    if (h.count() == 0) return "";
    return fmt::format("{} latency: {} times, p50 {} p90 {} p99 {} p99.9 {} max {} [nsec]\n", label,
                       h.count(), h.percentile(0.5), h.percentile(0.9), h.percentile(0.99),
                       h.percentile(0.999), h.max);
}

std::string address_text(const Address& a) {
    const Endpoint e = to_endpoint(a);
    char text[INET6_ADDRSTRLEN];
    if (e.addr.is_v4())
        inet_ntop(AF_INET, e.addr.bytes.data() + 12, text, sizeof text);
    else
        inet_ntop(AF_INET6, e.addr.bytes.data(), text, sizeof text);
    return text;
}

template <size_t N>
std::string name_of(const char (&text)[N], uint32_t ifindex) {
    return text[0] ? printable(text, N) : fmt::format("if{}", ifindex);
}

std::string routes(const Process& p) {
    static constexpr const char* kTypes[] = {"unspec",   "unicast",   "local",     "broadcast",
                                             "anycast",  "multicast", "blackhole", "unreachable",
                                             "prohibit", "throw"};
    std::string out =
        fmt::format("{:<20} {:<16} {:<16} {:<12} {:>7} {:>7} {:>10} {}\n", "Destination", "Gateway",
                    "Source", "Interface", "Metric", "MTU", "Table", "Type");
    for (const RouteRow& r : p.page.routes)
        out += fmt::format("{:<20} {:<16} {:<16} {:<12} {:>7} {:>7} {:>10} {}\n",
                           fmt::format("{}/{}", address_text(r.destination), r.prefix),
                           address_text(r.gateway), address_text(r.source),
                           name_of(r.interface, r.ifindex), r.metric, r.mtu, r.table,
                           r.type < std::size(kTypes) ? kTypes[r.type] : "?");
    return out;
}

std::string neighbors(const Process& p) {
    std::string out =
        fmt::format("{:<40} {:<12} {:<18} {}\n", "Address", "Interface", "Hardware", "State");
    for (const NeighborRow& r : p.page.neighbors)
        out += fmt::format("{:<40} {:<12} {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}  {}\n",
                           address_text(r.address), name_of(r.interface, r.ifindex), r.mac[0],
                           r.mac[1], r.mac[2], r.mac[3], r.mac[4], r.mac[5],
                           printable(r.state, sizeof r.state));
    return out;
}

std::string flows(const Process& p) {
    static constexpr const char* kKinds[] = {"?",         "connection", "listener",
                                             "half-open", "time-wait",  "udp"};
    std::string out = fmt::format("{:<5} {:<11} {:<22} {:<22} {:<12} {}\n", "Ring", "Kind", "Local",
                                  "Remote", "State", "Owner");
    for (const FlowRow& r : p.page.flows) {
        const unsigned kind = unsigned(r.kind);
        out += fmt::format("{:<5} {:<11} {:<22} {:<22} {:<12} {}\n", r.ring,
                           kind < std::size(kKinds) ? kKinds[kind] : "?",
                           endpoint_text(to_endpoint(r.local)),
                           r.remote.port ? endpoint_text(to_endpoint(r.remote)) : "*",
                           r.kind == FlowKind::udp ? "" : tcp_state_text(r.tcp_state),
                           r.orphan ? "none (closed, still sending)" : "");
    }
    return out;
}

std::string options(const Process& p) {
    std::string out;
    for (const OptionRow& r : p.page.options)
        out += fmt::format("{:<44} {:<24} {}\n", printable(r.name, sizeof r.name),
                           printable(r.value, sizeof r.value), origin_name(r.origin));
    return out;
}

std::string rules(const Process& p) {
    std::string out = fmt::format("{:>5} {:>10}  {:<48} {}\n", "Line", "Matches", "Rule", "");
    for (const RuleRow& r : p.page.rules)
        out += fmt::format("{:>5} {:>10}  {:<48} {}\n", rule_line(r.line), r.matches,
                           printable(r.text, sizeof r.text), rule_note(r));
    return out;
}

}  // namespace

std::string rule_line(uint32_t line) { return line ? std::to_string(line) : "-"; }

const char* origin_name(uint32_t origin) {
    static constexpr const char* kNames[] = {"default", "socketxtreme", "profile", "file",
                                             "environment"};
    return origin < std::size(kNames) ? kNames[origin] : "?";
}

std::string rule_note(const RuleRow& r) {
    switch (r.use) {
        case RuleUse::deciding:
            return "";
        case RuleUse::other_program:
            return "for another program";
        case RuleUse::other_transport:
            return "never matches: sdp and sa are read and not served";
        case RuleUse::covered:
            return fmt::format("never matches: the rule in line {} takes it before",
                               rule_line(r.covered_by));
    }
    return "?";
}

double polling_percent(uint64_t hit, uint64_t miss) {
    return hit + miss ? 100.0 * double(hit) / double(hit + miss) : 0.0;
}

std::string wait_name(const WaitIdentity& id) {
    switch (id.kind) {
        case WaitKind::poll:
            return "poll";
        case WaitKind::select:
            return "select";
        case WaitKind::epoll:
            break;
    }
    return fmt::format("epoll[{}]", id.fd);
}

std::string basic_header(bool rates, bool queues) {
    const std::string s = rates ? "/s" : "";
    const std::string offload = rates ? "offloaded" : "total offloaded",
                      os = rates ? "os" : "total os";
    const size_t wide = queues ? 23 : 12, right = queues ? 25 : 13;
    std::string out =
        fmt::format(" fd      {} {} {}   {} {} {}\n", std::string(wide, '-'), offload,
                    std::string(right, '-'), std::string(9, '-'), os, std::string(10, '-'));
    out += fmt::format("      {:>13} {:>7} {:>8} {:>7}  poll%", "pkt" + s, "Kbyte" + s,
                       "eagain" + s, "error" + s);
    if (queues) out += "   ---- queue pkt -----";
    out += fmt::format(" {:>7} {:>7} {:>7} {:>7}\n", "pkt" + s, "Kbyte" + s, "eagain" + s,
                       "error" + s);
    if (queues) out += std::string(55, ' ') + "cur     max    drop \n";
    return out;
}

std::string basic_rows(const Process& process, bool queues, double seconds) {
    std::string out;
    for (const SocketView& v : process.sockets)
        if (v.in_page) out += rx_line(v, queues) + tx_line(v, queues);
    for (const WaitRow& w : process.page.waits)
        if (!idle(w.numbers)) out += wait_line(w, seconds);
    return out + std::string(79, '-') + "\n";
}

std::string full_blocks(const Process& process, double seconds) {
    std::string out = kSocketSeparator;
    std::map<int, std::string> groups;
    for (const MembershipRow& m : process.page.memberships)
        groups[m.fd] += fmt::format(" [{}]", address_text(m.group));
    const LatencyByFd times = latency_by_fd(process);
    for (const SocketView& v : process.sockets) {
        if (!v.in_page) continue;
        SocketIdentity id = v.row.id;
        id.local = to_address(v.local);
        id.remote = to_address(v.remote);
        char text[kSocketTextRoom];
        out.append(text, socket_text(text, sizeof text, id, v.row.numbers, v.row.tcp));
        if (const auto in = groups.find(id.fd); in != groups.end())
            out += "- Member of =" + in->second + "\n";
        if (const auto of = times.find(id.fd); of != times.end())
            out += latency_line("Rx", of->second->receive) + latency_line("Tx", of->second->send);
        out += kSocketSeparator;
    }
    for (const WaitRow& w : process.page.waits)
        if (!idle(w.numbers)) out += wait_block(w, seconds) + kSocketSeparator;
    for (size_t i = 0; i < process.page.rings.size(); i++)
        if (process.page.rings[i].in_use)
            out += ring_blocks(process.page.rings[i], i, process.page.header.drop_reasons);
    return out;
}

std::string memberships(const Process& process) {
    std::map<std::string, std::string> fds;
    for (const MembershipRow& m : process.page.memberships)
        fds[address_text(m.group)] += fmt::format("{} ", m.fd);
    std::string out = "VMA Group Memberships Information\nGroup                fd number\n" +
                      std::string(30, '-') + "\n";
    for (const auto& [group, list] : fds)
        out += fmt::format("{:<21} {}\n", fmt::format("[{}]", group), list);
    return out;
}

std::string listing(const Process& process, SegmentKind kind) {
    std::string out;
    switch (kind) {
        case SegmentKind::routes:
            out = routes(process);
            break;
        case SegmentKind::neighbors:
            out = neighbors(process);
            break;
        case SegmentKind::flows:
            out = flows(process);
            break;
        case SegmentKind::options:
            out = options(process);
            break;
        case SegmentKind::rules:
            out = rules(process);
            break;
        default:
            return "";
    }
    if (process.page.header.listing_cut & list_bit(kind)) out += "... and more\n";
    return out;
}

}  // namespace vma::stats
