#include "stats/socket_text.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace vma::stats {
namespace {

// Appends to a buffer; what does not fit is cut.
class Text {
  public:
    Text(char* out, size_t room) : begin_(out), at_(out), end_(out + room) {}
    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        const auto room = size_t(end_ - at_);
        const auto done = fmt::format_to_n(at_, room, format, std::forward<Args>(args)...);
        at_ += std::min(room, done.size);
    }
    size_t size() const { return size_t(at_ - begin_); }

  private:
    char *begin_, *at_, *end_;
};

void calls(Text& text, const char* label, uint64_t bytes, uint64_t packets, uint64_t eagain,
           uint64_t errors) {
    if (bytes || packets || eagain || errors)
        text.add("{} {} / {} / {} / {} [kilobytes/packets/eagains/errors]\n", label, bytes / 1024,
                 packets, eagain, errors);
}

void tcp_lines(Text& text, const TcpNumbers& t) {
    text.add(
        "TCP: {}{}{}{}{} wscale:{},{} rto:{:.3f} rtt:{:.3f}/{:.3f} minrtt:{:.3f} mss:{} pmtu:{} "
        "rcvmss:{} cwnd:{}",
        t.options & 1 ? "ts " : "", t.options & 2 ? "sack " : "", t.options & 8 ? "ecn " : "",
        t.congestion_control, t.backoff ? " backoff" : "", t.snd_wscale, t.rcv_wscale,
        t.rto / 1000.0, t.rtt / 1000.0, t.rttvar / 1000.0, t.min_rtt / 1000.0, t.snd_mss, t.pmtu,
        t.rcv_mss, t.snd_cwnd);
    if (t.snd_ssthresh < 0x7fffffff / std::max(1u, t.snd_mss))
        text.add(" ssthresh:{}", t.snd_ssthresh);
    if (t.pacing_rate != UINT64_MAX) text.add(" pacing_rate:{}bps", t.pacing_rate * 8);
    if (t.delivery_rate) text.add(" delivery_rate:{}bps", t.delivery_rate * 8);
    text.add(
        "\nTCP: bytes_sent:{} bytes_acked:{} bytes_received:{} segs_out:{} segs_in:{} "
        "unacked:{} retrans:{} bytes_retrans:{} lost:{} sacked:{} notsent:{} snd_wnd:{} "
        "rcv_wnd:{} busy:{}ms rwnd_limited:{}ms sndbuf_limited:{}ms",
        t.bytes_sent, t.bytes_acked, t.bytes_received, t.segs_out, t.segs_in, t.unacked, t.retrans,
        t.bytes_retrans, t.lost, t.sacked, t.notsent_bytes, t.snd_wnd, t.rcv_wnd, t.busy / 1000,
        t.rwnd_limited / 1000, t.sndbuf_limited / 1000);
    if (t.waiting != Waiting::none) text.add(" waiting:{}", waiting_name(t.waiting));
    text.add("\n");
}

}  // namespace

const char* tcp_state_text(unsigned state) {
    static constexpr const char* names[] = {"CLOSED",      "LISTEN",     "SYN_SENT",   "SYN_RCVD",
                                            "ESTABLISHED", "FIN_WAIT_1", "FIN_WAIT_2", "CLOSE_WAIT",
                                            "CLOSING",     "LAST_ACK",   "TIME_WAIT"};
    return state < std::size(names) ? names[state] : "";
}

char* endpoint_text(char* out, const Endpoint& e) {
    char address[INET6_ADDRSTRLEN];
    char* end;
    if (e.addr.is_v4()) {
        inet_ntop(AF_INET, e.addr.bytes.data() + 12, address, sizeof address);
        end = fmt::format_to(out, "{}:", address);
    } else {
        inet_ntop(AF_INET6, e.addr.bytes.data(), address, sizeof address);
        end = e.addr.scope ? fmt::format_to(out, "[{}%{}]:", address, e.addr.scope)
                           : fmt::format_to(out, "[{}]:", address);
    }
    *(e.port ? fmt::format_to(end, "{}", e.port) : fmt::format_to(end, "*")) = 0;
    return out;
}

size_t socket_text(char* out, size_t room, const SocketIdentity& id, const SocketNumbers& n,
                   const TcpNumbers& tcp) {
    Text text(out, room);
    char endpoint[72];
    const bool is_tcp = id.protocol == IPPROTO_TCP;
    text.add("\tFd=[{}]\n- {}, {}, {}", id.fd, is_tcp ? "TCP" : "UDP",
             id.nonblocking ? "Non-blocked" : "Blocked",
             id.path == Path::offloaded ? "Offloaded" : reason_name(id.reason));
    if (!is_tcp && id.domain == AF_INET) {
        text.add(", MC Loop {}", id.multicast_loop ? "Enabled" : "Disabled");
        if (id.multicast_interface) {
            char from[INET_ADDRSTRLEN];
            inet_ntop(AF_INET, &id.multicast_interface, from, sizeof from);
            text.add(" , MC IF = [{}]", static_cast<const char*>(from));
        }
    }
    text.add("\n");
    text.add("- Local Address   = [{}]\n", endpoint_text(endpoint, to_endpoint(id.local)));
    if (id.remote.port)
        text.add("- Foreign Address = [{}]\n", endpoint_text(endpoint, to_endpoint(id.remote)));
    if (is_tcp) text.add("- State           = [{}]\n", tcp_state_text(id.tcp_state));
    if (id.rx_thread || id.tx_thread)
        text.add("- Thread Id Rx: {:>5}, Tx: {:>5}\n", id.rx_thread, id.tx_thread);
    const size_t before = text.size();
    calls(text, "Tx Offload:", n.tx_bytes, n.tx_packets, n.tx_eagain, n.tx_errors);
    calls(text, "Tx OS info:", n.tx_os_bytes, n.tx_os_packets, 0, 0);
    calls(text, "Rx Offload:", n.rx_bytes, n.rx_packets, n.rx_eagain, n.rx_errors);
    calls(text, "Rx OS info:", n.rx_os_bytes, n.rx_os_packets, 0, 0);
    if (n.rx_queue_bytes || n.rx_queue_packets_max)
        text.add("Rx byte: cur {} / max {} / dropped {} / limit {}\n", n.rx_queue_bytes,
                 n.rx_queue_bytes_max, n.rx_dropped_bytes, n.rx_queue_limit);
    if (n.rx_queue_packets || n.rx_queue_packets_max || n.rx_dropped_full)
        text.add("Rx pkt : cur {} / max {} / dropped {}\n", n.rx_queue_packets,
                 n.rx_queue_packets_max, n.rx_dropped_full);
    if (const uint64_t waits = n.poll_hit + n.poll_miss)
        text.add("Rx poll: {} / {} ({:.2f}%) [miss/hit]\n", n.poll_miss, n.poll_hit,
                 100.0 * double(n.poll_hit) / double(waits));
    if (n.rx_zcopy || n.rx_callback)
        text.add("Rx zcopy: {} / kept {} / callback {}\n", n.rx_zcopy, n.rx_kept, n.rx_callback);
    if (n.tx_dummy) text.add("Tx dummy messages: {}\n", n.tx_dummy);
    if (n.rx_migrations || n.tx_migrations || n.migrations_refused)
        text.add("Ring migrations Rx: {}, Tx: {}\n", n.rx_migrations, n.tx_migrations);
    if (n.migrations_refused) text.add("Ring migrations not possible: {}\n", n.migrations_refused);
    if (n.tx_retransmits) text.add("Retransmissions: {}\n", n.tx_retransmits);
    if (text.size() == before) text.add("Rx and Tx not active\n");
    if (tcp.here) tcp_lines(text, tcp);
    return text.size();
}

}  // namespace vma::stats
