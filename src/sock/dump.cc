// State of one descriptor as text in the log: for `vma_stats --fd_dump` and the extra API. The lines are for people; programs
// read the statistics page.
#include <fmt/format.h>

#include <cstring>

#include "base/clock.h"
#include "sock/epoll.h"
#include "sock/stats_requests.h"
#include "sock/tcp_info.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"
#include "sock/walk.h"

namespace vma::sock {
namespace {

// One line of the dump.
template <class... Args>
void line(LogLevel at, fmt::format_string<Args...> format, Args&&... args) {
    char text[512];
    const auto out = fmt::format_to_n(text, sizeof text, format, std::forward<Args>(args)...);
    log_text(at, {text, size_t(out.out - text)});
}

struct EndpointText {
    char text[64];
    explicit EndpointText(const Endpoint& e) {
        const uint8_t* b = e.addr.bytes.data() + (e.addr.is_v4() ? 12 : 0);
        char* out = text;
        if (e.addr.is_v4())
            out = fmt::format_to(out, "{}.{}.{}.{}", b[0], b[1], b[2], b[3]);
        else
            for (int i = 0; i < 16; i += 2)
                out = fmt::format_to(out, "{}{:x}", i ? ":" : "", b[i] << 8 | b[i + 1]);
        *fmt::format_to(out, ":{}", e.port) = 0;
    }
};

void dump_identity(LogLevel at, const Socket& socket, const Endpoint& local, const Endpoint& remote,
                   const char* kind) {
    line(at, "  local {} peer {}", EndpointText(local).text,
         remote.port ? EndpointText(remote).text : "none");
    line(at, "  offloaded: {}{}{}, reason: {} ({})",
         socket.state() == SocketState::offloaded   ? "yes"
         : socket.state() == SocketState::undecided ? "not yet"
                                                    : "no",
         *kind ? ", ring: " : "", kind, reason_name(socket.reason()),
         reason_meaning(socket.reason()));
    line(at, "  {}, receive timeout {} ms", socket.nonblocking() ? "non-blocking" : "blocking",
         socket.receive_timeout().ns / 1000000);
    const stats::SocketNumbers n = socket.counters.snapshot();
    line(at, "  rx: {} packets {} bytes {} eagain {} errors, by the kernel {} packets {} bytes",
         n.rx_packets, n.rx_bytes, n.rx_eagain, n.rx_errors, n.rx_os_packets, n.rx_os_bytes);
    line(at, "  tx: {} packets {} bytes {} eagain {} errors, by the kernel {} packets {} bytes",
         n.tx_packets, n.tx_bytes, n.tx_eagain, n.tx_errors, n.tx_os_packets, n.tx_os_bytes);
    if (n.rx_zcopy || n.rx_callback || n.tx_dummy)
        line(at,
             "  extra API: {} given out uncopied, {} of them kept now, {} shown to a callback, {} "
             "dummy sends",
             n.rx_zcopy, n.rx_kept, n.rx_callback, n.tx_dummy);
    if (n.rx_migrations || n.tx_migrations || n.migrations_refused)
        line(at, "  ring migrations: rx {}, tx {}, not possible {}", n.rx_migrations,
             n.tx_migrations, n.migrations_refused);
}

// What the lease protects, taken under it and written without it.
struct TcpState {
    tcp::Numbers n;
    uint32_t una, nxt, rcv_nxt, unread, unacked, out_limit;
    const char* state;
    const char* congestion_control;
    tcp::Counters count;
    bool nodelay, cork;
};

}  // namespace

void TcpSocket::dump(LogLevel at) {
    std::lock_guard guard(control_);
    dump_identity(at, *this, local_, remote_, ring_kind());
    line(at, "  TCP state {}, backlog {}", state_text(), backlog_);
    if (shard_ == nullptr || connection_ == nullptr) return;
    TcpState s;
    {
        const ConnectionLease lease(shard_);
        const tcp::Tcb& t = connection_->tcb;
        s.n = tcp::numbers(t, monotonic_now());
        s.una = t.snd.una.v;
        s.nxt = t.snd.nxt.v;
        s.rcv_nxt = t.rcv.nxt.v;
        s.unread = tcp::unread_bytes(t);
        s.unacked = tcp::unacked_bytes(t);
        s.out_limit = t.out.limit;
        s.state = tcp::state_name(t.state);
        s.congestion_control = congestion_control_name(t.cfg.cc);
        s.count = t.count;
        s.nodelay = t.cfg.nodelay;
        s.cork = t.cfg.cork;
    }
    const tcp::Numbers& n = s.n;
    line(at, "  {}: una {} nxt {} (flight {}), rcv.nxt {}, unread {} unacked {} unsent {} of {}",
         s.state, s.una, s.nxt, s.nxt - s.una, s.rcv_nxt, s.unread, s.unacked, n.notsent_bytes,
         s.out_limit);
    line(at,
         "  mss {} (peer's texts {}), path MTU {}, windows: send {} (scale {}) receive {} (scale "
         "{})",
         n.snd_mss, n.rcv_mss, n.pmtu, n.snd_wnd, n.snd_wscale, n.rcv_wnd, n.rcv_wscale);
    line(at,
         "  {}: cwnd {} ssthresh {}, rtt {}/{} us (least {}), rto {} us, backoff {}, {}{}{}{}{}{}",
         s.congestion_control, n.snd_cwnd, n.snd_ssthresh, n.rtt_us, n.rttvar_us, n.min_rtt_us,
         n.rto_us, n.backoff, n.timestamps ? "ts " : "", n.sack ? "sack " : "",
         n.scaling ? "wscale " : "", n.ecn ? "ecn " : "", s.nodelay ? "nodelay " : "",
         s.cork ? "cork " : "");
    line(at,
         "  segments in {} out {}, repeated {} ({} bytes), timeouts {}, lost {} sacked {}, "
         "duplicates in {}",
         n.segs_in, n.segs_out, n.total_retrans, n.bytes_retrans, s.count.timeouts, n.lost,
         n.sacked, s.count.duplicates_in);
}

void UdpSocket::dump(LogLevel at) {
    std::lock_guard guard(control_);
    dump_identity(at, *this, local_, remote_, ring_kind());
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        uint32_t queued, charged, limit;
        UdpCounters c;
        {
            LeaseGuard lease(presences_[i].shard->lease());
            const UdpEndpoint& e = *presences_[i].endpoint;
            queued = e.queued();
            charged = e.charged();
            limit = e.receive_limit();
            c = e.counters;
        }
        line(at,
             "  ring {} on interface {}: {} datagrams wait, {} of {} bytes, most {}, dropped {}", i,
             presences_[i].shard->ifindex(), queued, charged, limit, c.queued_max, c.dropped_full);
    }
}

void Epoll::dump(LogLevel at) {
    const stats::WaitNumbers n = wait_numbers(governor_, ready_counts_);
    line(at, "  epoll set: {} members served here, {} in all",
         member_count_.load(std::memory_order_relaxed),
         item_count_.load(std::memory_order_relaxed));
    line(at, "  polls: {} hit {} missed, timeouts {} errors {}, ready: {} ours {} the kernel's",
         n.poll_hit, n.poll_miss, n.timeouts, n.errors, n.ready, n.os_ready);
    for_each_member([&](Pollable& member) {
        if (member.is_socket())
            line(at, "  member: descriptor {}", static_cast<Socket&>(member).fd());
        else
            line(at, "  member: epoll set {}", static_cast<Epoll&>(member).fd());
    });
}

bool dump_descriptor(int fd, LogLevel level) {
    bool any = false;
    for_each_object([&](Object& object, int number) {
        if (fd != 0 && number != fd) return;
        any = true;
        line(level, "==================== descriptor {} ====================", number);
        if (object.inherited.load(std::memory_order_acquire))
            line(level, "  inherited across fork, not used here yet");
        else if (object.is_socket())
            static_cast<Socket&>(static_cast<Pollable&>(object)).dump(level);
        else
            static_cast<Epoll&>(static_cast<Pollable&>(object)).dump(level);
    });
    if (!any) line(level, "descriptor {}: no socket or epoll set of the library", fd);
    line(level, "{:=<60}", "");
    return any;
}

}  // namespace vma::sock
