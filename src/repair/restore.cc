// Into the kernel: a connection into a socket, in repair mode.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "repair/repair.h"
#include "repair/repair_socket.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {
namespace {

using namespace repair;

int set_seq(int fd, Queue queue, uint32_t seq) {
    const int r = select_queue(fd, queue);
    return r < 0 ? r : sys::setsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, sizeof seq);
}

// Large pieces: the kernel packs them into full buffers.
int write_all(int fd, ByteView bytes, size_t* done) {
    for (*done = 0; *done < bytes.size();) {
        const ssize_t n =
            sys::sendto(fd, bytes.data() + *done, std::min<size_t>(bytes.size() - *done, 65536),
                        MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) return n == 0 ? -EIO : int(n);
        *done += size_t(n);
    }
    return 0;
}
// Writes into a queue; in repair mode nothing is sent.
int fill(int fd, Queue queue, ByteView bytes) {
    size_t done;
    const int r = select_queue(fd, queue);
    return r < 0 ? r : write_all(fd, bytes, &done);
}

// The port that the socket is bound to, 0: none.
uint16_t bound_port(int fd) {
    sockaddr_in name{};
    socklen_t len = sizeof name;
    return sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len) == 0
               ? __builtin_bswap16(name.sin_port)
               : uint16_t(0);
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
    (void)repair_inject(ByteView(packet, ip.total_len));
}

// Sequence numbers, addresses, options, queues, window, in the order that the kernel wants. 0 or -errno; *connected: undoing
// it takes a disconnect.
int put_connection(int fd, const tcp::Snapshot& s, const RepairQueues& q, bool* connected) {
    *connected = false;
    // Beside a listener on the port a bind works only in repair mode (and not if SO_REUSEADDR is set now: that would take the
    // force away which repair mode gives). Tried first and always: a socket that lost its port by a disconnect still names
    // it in getsockname(), and the kernel would connect it from a random one. EINVAL: it has a port, the one it names.
    const sockaddr_in local = s.local.to_sockaddr_in();
    int r = sys::bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local);
    if (r == -EINVAL && bound_port(fd) == s.local.port) r = 0;
    if (r < 0) return r;
    // Room first: refilling stops at the buffer sizes.
    int sndbuf, rcvbuf;
    get(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf);
    get(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf);
    const auto need_send =
        int(std::min<size_t>((q.unacked.size() + q.unsent.size()) * 2 + 65536, 1 << 29));
    const auto need_read = int(std::min<size_t>(q.unread.size() * 2 + 65536, 1 << 29));
    if (need_send * 2 > sndbuf) set(fd, SOL_SOCKET, SO_SNDBUFFORCE, need_send);
    if (need_read * 2 > rcvbuf) set(fd, SOL_SOCKET, SO_RCVBUFFORCE, need_read);

    // Our FIN, if the peer has acknowledged it, is sent once more and acknowledged again.
    r = set_seq(fd, kSendQueue, Seq::min(s.snd_una, s.snd_end).v);
    if (r == 0) r = set_seq(fd, kReceiveQueue, s.rcv_nxt.v - uint32_t(q.unread.size()));
    if (r < 0) return r;
    const sockaddr_in remote = s.remote.to_sockaddr_in();
    r = sys::connect(fd, reinterpret_cast<const sockaddr*>(&remote), sizeof remote);
    if (r < 0) return r;
    *connected = true;

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
    if (r < 0) return r;
    Window w{s.snd_wl1.v, s.snd_wnd, std::max(s.max_window, s.snd_wnd), s.rcv_wnd, s.rcv_wup.v};
    return sys::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &w, sizeof w);
}

}  // namespace

Status repair_restore(int fd, const tcp::Snapshot& s, const RepairQueues& q, RepairOptions& saved) {
    if (move_method(s.state).back != MoveMethod::restore) return Errno{EINVAL};
    save_options(fd, saved);
    int r = enter(fd);
    if (r < 0) return Errno{-r};
    bool connected;
    r = put_connection(fd, s, q, &connected);
    if (r == 0) return {};
    if (connected) disconnect(fd);
    leave(fd, false);
    put_options(fd, saved, true);
    return Errno{-r};
}

void repair_cancel(int fd, const RepairOptions& saved) {
    disconnect(fd);
    leave(fd, false);
    put_options(fd, saved, true);
}

Status repair_finish(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                     const RepairOptions& saved) {
    leave(fd, true);
    put_options(fd, saved, false);
    Status result;
    ByteView rest = q.unsent;
    for (int room = int(std::min<size_t>(rest.size(), 1 << 26)) * 2 + (1 << 17); !rest.empty();
         room *= 2) {
        size_t done;
        const int r = write_all(fd, rest, &done);
        rest = rest.subspan(done);
        if (r == 0 || (r != -EAGAIN && r != -ENOBUFS) || room > 1 << 29) {
            if (r < 0) result = Errno{-r};
            break;
        }
        set(fd, SOL_SOCKET, SO_SNDBUFFORCE, room);
    }
    put_options(fd, saved, true);
    for (const auto step : move_method(s.state).after) {
        if (step == MoveMethod::shut) sys::raw(SYS_shutdown, fd, SHUT_WR);
        if (step == MoveMethod::peer_fin) inject_fin(s);
    }
    return result;
}

Status repair_inject(ByteView packet) {
    const auto ip = parse_ipv4(packet);
    if (!ip.ok() || ip->header.protocol != IPPROTO_TCP || ip->payload.size() < kTcpSize)
        return Errno{EINVAL};
    // The head is copied for its checksum; the rest stays where it is, in memory that may be a device's.
    uint8_t head[kIpv4MaxHeader + kTcpSize];
    const size_t head_size = ip->header.header_len + kTcpSize;
    std::memcpy(head, packet.data(), head_size);
    uint8_t* const tcp = head + ip->header.header_len;
    const ByteView rest = ip->payload.subspan(kTcpSize);
    store_be16(tcp + kTcpChecksumOffset, 0);
    Checksum sum;
    sum.add_pseudo_v4(ip->header.src, ip->header.dst, IPPROTO_TCP, uint16_t(ip->payload.size()));
    sum.add(ByteView(tcp, kTcpSize));
    sum.add(rest);
    store_be16(tcp + kTcpChecksumOffset, sum.finish());
    const int raw = sys::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    if (raw < 0) return Errno{-raw};
    sockaddr_in to = Endpoint{IpAddr::v4(ip->header.dst), 0}.to_sockaddr_in();
    iovec parts[2] = {{head, head_size}, {const_cast<uint8_t*>(rest.data()), rest.size()}};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = parts;
    message.msg_iovlen = rest.empty() ? 1 : 2;
    const ssize_t sent = sys::sendmsg(raw, &message, MSG_DONTWAIT);
    sys::close(raw);
    if (sent < 0) return Errno{int(-sent)};
    return {};
}

}  // namespace vma
