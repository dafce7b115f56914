#include "repair/repair.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {
namespace {

enum Queue : int { kNoQueue = 0, kReceiveQueue = 1, kSendQueue = 2 };

struct Option {
    uint32_t code, value;
};
struct Window {
    uint32_t snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup;
};

int set(int fd, int level, int name, int value) {
    return sys::setsockopt(fd, level, name, &value, sizeof value);
}
int set_seq(int fd, int queue, uint32_t seq) {
    const int r = set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);
    return r < 0 ? r : sys::setsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, sizeof seq);
}

// Writes into the queue that is selected; in repair mode nothing is sent.
int fill(int fd, int queue, ByteView bytes) {
    int r = set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);
    if (r < 0) return r;
    while (!bytes.empty()) {
        // Large pieces: the kernel packs them into full buffers.
        const ssize_t n = sys::sendto(fd, bytes.data(), std::min<size_t>(bytes.size(), 65536),
                                      MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) return n == 0 ? -EIO : int(n);
        bytes = bytes.subspan(size_t(n));
    }
    return 0;
}

Errno undo(int fd, int error) {
    set(fd, IPPROTO_TCP, TCP_REPAIR, -1);  // off without a window probe
    return Errno{-error};
}

// The peer's FIN, given to the kernel as a frame of the wire would be: to our own address through a raw socket.
void inject_fin(const tcp::Snapshot& s) {
    uint8_t packet[kIpv4Size + kTcpSize + 12] = {};
    const uint32_t options = s.timestamps ? 12 : 0;
    Ipv4Header ip;
    ip.src = s.remote.addr.v4_host();
    ip.dst = s.local.addr.v4_host();
    ip.total_len = uint16_t(kIpv4Size + kTcpSize + options);
    ip.ttl = 64;
    ip.protocol = IPPROTO_TCP;
    ip.dont_fragment = true;
    emit_ipv4(ip, ByteSpan(packet, kIpv4Size));
    TcpHeader h;
    h.src_port = s.remote.port;
    h.dst_port = s.local.port;
    h.seq = s.rcv_nxt;
    h.ack = s.snd_una;
    h.flags = tcp_flag::fin | tcp_flag::ack;
    h.header_len = uint8_t(kTcpSize + options);
    h.window = uint16_t(std::min<uint32_t>(s.snd_wnd >> s.snd_wscale, 65535));
    emit_tcp(h, ByteSpan(packet + kIpv4Size, kTcpSize));
    if (s.timestamps) {
        TcpOptions o;
        o.has_timestamps = true;
        o.ts_val = s.ts_recent;
        o.ts_ecr = s.ts_value;
        if (!emit_tcp_options(o, ByteSpan(packet + kIpv4Size + kTcpSize, 12))) return;
    }
    Checksum sum;
    sum.add_pseudo_v4(ip.src, ip.dst, IPPROTO_TCP, uint16_t(kTcpSize + options));
    sum.add(ByteView(packet + kIpv4Size, kTcpSize + options));
    store_be16(packet + kIpv4Size + kTcpChecksumOffset, sum.finish());
    const int raw = sys::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    if (raw < 0) return;
    const sockaddr_in to = Endpoint{s.local.addr, 0}.to_sockaddr_in();
    sys::sendto(raw, packet, ip.total_len, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
                sizeof to);
    sys::close(raw);
}

}  // namespace

Status repair_restore(int fd, const tcp::Snapshot& s, const RepairQueues& q, bool bound) {
    int r = set(fd, IPPROTO_TCP, TCP_REPAIR, 1);
    if (r < 0) return Errno{-r};
    if (!bound) {
        // Beside a listener on the port a bind works only in repair mode (and not if SO_REUSEADDR is set now: that would
        // take the force away which repair mode gives).
        const sockaddr_in local = s.local.to_sockaddr_in();
        r = sys::bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local);
        if (r < 0) return undo(fd, r);
    }
    // Room first: refilling stops at the buffer sizes.
    int sndbuf = 0, rcvbuf = 0;
    socklen_t len = sizeof sndbuf;
    sys::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, &len);
    sys::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, &len);
    const auto need_send =
        int(std::min<size_t>((q.unacked.size() + q.unsent.size()) * 2 + 65536, 1 << 29));
    const auto need_read = int(std::min<size_t>(q.unread.size() * 2 + 65536, 1 << 29));
    if (need_send * 2 > sndbuf) set(fd, SOL_SOCKET, SO_SNDBUFFORCE, need_send);
    if (need_read * 2 > rcvbuf) set(fd, SOL_SOCKET, SO_RCVBUFFORCE, need_read);

    // Our FIN, if the peer has acknowledged it, is sent once more and acknowledged again.
    r = set_seq(fd, kSendQueue, Seq::min(s.snd_una, s.snd_end).v);
    if (r == 0) r = set_seq(fd, kReceiveQueue, s.rcv_nxt.v - uint32_t(q.unread.size()));
    if (r < 0) return undo(fd, r);
    const sockaddr_in remote = s.remote.to_sockaddr_in();
    r = sys::connect(fd, reinterpret_cast<const sockaddr*>(&remote), sizeof remote);
    if (r < 0) return undo(fd, r);

    Option options[4];
    unsigned n = 0;
    options[n++] = {2 /* MSS */, s.peer_mss};
    if (s.scaling)
        options[n++] = {3 /* window scale */, uint32_t(s.snd_wscale) | uint32_t(s.rcv_wscale)
                                                                           << 16};
    if (s.sack) options[n++] = {4 /* SACK permitted */, 0};
    if (s.timestamps) options[n++] = {8 /* timestamps */, 0};
    r = sys::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options,
                        socklen_t(n * sizeof(Option)));
    if (r == 0 && s.timestamps) {
        // Odd would mean a microsecond clock; never behind what was sent.
        const uint32_t value = (s.ts_value + 2) & ~1u;
        r = sys::setsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &value, sizeof value);
    }
    // The options came after connect(): this makes the kernel compute the segment size again.
    sys::setsockopt(fd, IPPROTO_IP, IP_OPTIONS, nullptr, 0);
    if (r == 0) r = fill(fd, kReceiveQueue, q.unread);
    if (r == 0) r = fill(fd, kSendQueue, q.unacked);
    if (r == 0) {
        Window w{s.snd_wl1.v, s.snd_wnd, std::max(s.max_window, s.snd_wnd), s.rcv_wnd, s.rcv_wup.v};
        r = sys::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &w, sizeof w);
    }
    if (r < 0) {
        // Connected in repair mode: AF_UNSPEC takes that back without a segment.
        const sockaddr unspec{AF_UNSPEC, {}};
        sys::connect(fd, &unspec, sizeof unspec);
        return undo(fd, r);
    }
    return {};
}

void repair_finish(int fd, const tcp::Snapshot& s, const RepairQueues& q) {
    set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, kNoQueue);
    set(fd, IPPROTO_TCP, TCP_REPAIR, 0);
    // Leaving repair mode clears it, and a listener could not be bound again beside this connection.
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    ByteView rest = q.unsent;
    while (!rest.empty()) {
        const ssize_t n = sys::sendto(fd, rest.data(), std::min<size_t>(rest.size(), 65536),
                                      MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) break;
        rest = rest.subspan(size_t(n));
    }
    if (s.fin_queued) sys::raw(SYS_shutdown, fd, SHUT_WR);
    if (s.peer_fin) inject_fin(s);
}

}  // namespace vma
