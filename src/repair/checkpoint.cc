// Out of the kernel: a live connection read in repair mode.
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/sys.h"
#include "repair/repair.h"
#include "repair/repair_socket.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

namespace vma {
namespace {

using namespace repair;
using tcp::State;

// The kernel's TCP_* state numbers (include/net/tcp_states.h), 1..11.
State state_of(uint8_t number) {
    constexpr State kStates[] = {State::CLOSED,       State::ESTABLISHED, State::SYN_SENT,
                                 State::SYN_RECEIVED, State::FIN_WAIT_1,  State::FIN_WAIT_2,
                                 State::TIME_WAIT,    State::CLOSED,      State::CLOSE_WAIT,
                                 State::LAST_ACK,     State::LISTEN,      State::CLOSING};
    return number < sizeof kStates / sizeof *kStates ? kStates[number] : State::CLOSED;
}

int raw_option(int fd, int level, int name, void* value, socklen_t size) {
    return sys::getsockopt(fd, level, name, value, &size);
}

// Everything that moves while the connection lives.
struct Numbers {
    State state = State::CLOSED;
    uint32_t write_seq = 0, rcv_nxt = 0;
    int outq = 0, unsent = 0, unread = 0;
    Window window{};
    bool operator==(const Numbers&) const = default;
};

int read_numbers(int fd, Numbers& n, tcp_info& info) {
    info = {};
    int r = raw_option(fd, IPPROTO_TCP, TCP_INFO, &info, sizeof info);
    if (r < 0) return r;
    n.state = state_of(info.tcpi_state);
    if (!move_method(n.state).adopt) return -ENOTCONN;
    r = select_queue(fd, kSendQueue);
    if (r == 0) r = raw_option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &n.write_seq, 4);
    if (r == 0) r = select_queue(fd, kReceiveQueue);
    if (r == 0) r = raw_option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &n.rcv_nxt, 4);
    if (r == 0) r = sys::ioctl(fd, SIOCOUTQ, &n.outq);
    if (r == 0) r = sys::ioctl(fd, SIOCOUTQNSD, &n.unsent);
    if (r == 0) r = sys::ioctl(fd, SIOCINQ, &n.unread);
    if (r == 0) r = raw_option(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &n.window, sizeof n.window);
    return r;
}

// Copies a queue without taking anything from it.
int peek(int fd, Queue queue, ByteSpan room) {
    if (room.empty()) return 0;
    const int r = select_queue(fd, queue);
    if (r < 0) return r;
    const ssize_t n = sys::recvfrom(fd, room.data(), room.size(), MSG_PEEK | MSG_DONTWAIT);
    return n == ssize_t(room.size()) ? 0 : n < 0 ? int(n) : -EAGAIN;
}

bool fin_queued(State s) {
    return s == State::FIN_WAIT_1 || s == State::FIN_WAIT_2 || s == State::CLOSING ||
           s == State::LAST_ACK;
}
bool fin_received(State s) {
    return s == State::CLOSE_WAIT || s == State::CLOSING || s == State::LAST_ACK;
}

// What this layer's caller cannot go on with. 0 or -EOPNOTSUPP.
int check_features(int fd, const tcp_info& info) {
    constexpr int kNo = -EOPNOTSUPP;
    if (info.tcpi_options & (TCPI_OPT_ECN | TCPI_OPT_SYN_DATA)) return kNo;
    int value;
    if (get(fd, SOL_SOCKET, SO_PROTOCOL, &value) == 0 && value != IPPROTO_TCP) return kNo;
    char ulp[16] = {};
    if (raw_option(fd, IPPROTO_TCP, TCP_ULP, ulp, sizeof ulp) == 0 && ulp[0]) return kNo;
    if (get(fd, SOL_SOCKET, SO_ZEROCOPY, &value) == 0 && value) return kNo;
    if (get(fd, SOL_SOCKET, SO_TIMESTAMPING, &value) == 0 && value) return kNo;
    if (get(fd, SOL_SOCKET, SO_PEEK_OFF, &value) == 0 && value > 0) return kNo;
    // Urgent data not read yet, or shut down for reading by the program.
    pollfd look{fd, POLLPRI | POLLRDHUP, 0};
    const timespec zero{};
    if (sys::ppoll(&look, 1, &zero) > 0 &&
        ((look.revents & POLLPRI) ||
         ((look.revents & POLLRDHUP) && !fin_received(state_of(info.tcpi_state)))))
        return kNo;
    return 0;
}

int read_names(int fd, tcp::Snapshot& s) {
    sockaddr_storage name{};
    auto* const sa = reinterpret_cast<sockaddr*>(&name);
    socklen_t len = sizeof name;
    int r = sys::getsockname(fd, sa, &len);
    if (r < 0) return r;
    if (!Endpoint::from_sockaddr(sa, len, s.local)) return -EAFNOSUPPORT;
    len = sizeof name;
    r = int(sys::raw(SYS_getpeername, fd, sys::ptr(sa), sys::ptr(&len)));
    if (r < 0) return r;
    if (!Endpoint::from_sockaddr(sa, len, s.remote)) return -EAFNOSUPPORT;
    return s.local.addr.is_v4() && s.remote.addr.is_v4() ? 0 : -EAFNOSUPPORT;
}

// 0 or -errno; -EAGAIN: it changed meanwhile.
int read_once(int fd, RepairImage& image, ByteSpan room) {
    Numbers n, again;
    tcp_info info;
    int r = read_numbers(fd, n, info);
    if (r == 0) r = check_features(fd, info);
    if (r < 0) return r;
    tcp::Snapshot& s = image.snapshot;
    s.state = n.state;
    s.fin_queued = fin_queued(n.state);
    s.peer_fin = fin_received(n.state);
    s.snd_end = Seq{n.write_seq} - (s.fin_queued ? 1u : 0u);
    s.snd_una = Seq{n.write_seq} - uint32_t(n.outq);
    s.snd_nxt = Seq{n.write_seq} - uint32_t(n.unsent);
    s.fin_sent = s.fin_queued && n.unsent == 0;
    s.rcv_nxt = Seq{n.rcv_nxt} - (s.peer_fin ? 1u : 0u);
    s.unread = uint32_t(n.unread);
    const Seq first = Seq::min(s.snd_una, s.snd_end);
    image.to_send = uint32_t(s.snd_end - first);
    image.sent = uint32_t(Seq::max(Seq::min(s.snd_nxt, s.snd_end), first) - first);
    if (size_t(image.to_send) + s.unread > room.size()) return -ENOBUFS;
    r = peek(fd, kSendQueue, room.subspan(0, image.to_send));
    if (r == 0) r = peek(fd, kReceiveQueue, room.subspan(image.to_send, s.unread));
    if (r == 0) r = read_numbers(fd, again, info);
    if (r < 0) return r;
    if (!(n == again)) return -EAGAIN;

    s.snd_wl1 = Seq{n.window.snd_wl1};
    s.snd_wnd = n.window.snd_wnd;
    s.max_window = n.window.max_window;
    // The right edge stays where the peer knows it, also if it counts the FIN.
    const Seq edge = Seq{n.window.rcv_wup} + n.window.rcv_wnd;
    s.rcv_wup = Seq::min(Seq{n.window.rcv_wup}, s.rcv_nxt);
    s.rcv_wnd = edge > s.rcv_wup ? uint32_t(edge - s.rcv_wup) : 0;
    int mss;
    if (get(fd, IPPROTO_TCP, TCP_MAXSEG, &mss) == 0)
        s.peer_mss = uint16_t(mss);  // in repair mode: the peer's option
    s.scaling = info.tcpi_options & TCPI_OPT_WSCALE;
    s.snd_wscale = info.tcpi_snd_wscale;
    s.rcv_wscale = info.tcpi_rcv_wscale;
    s.sack = info.tcpi_options & TCPI_OPT_SACK;
    s.timestamps = info.tcpi_options & TCPI_OPT_TIMESTAMPS;
    if (s.timestamps) {
        r = raw_option(fd, IPPROTO_TCP, TCP_TIMESTAMP, &s.ts_value, sizeof s.ts_value);
        if (r < 0) return r;
        if (s.ts_value & 1) return -EOPNOTSUPP;  // a microsecond clock
    }
    s.ts_recent = 0;  // the kernel does not tell
    s.srtt = Duration::micros(info.tcpi_rtt);
    s.rttvar = Duration::micros(info.tcpi_rttvar);
    const uint32_t segment = std::max<uint32_t>(info.tcpi_snd_mss, 1);
    s.cwnd = info.tcpi_snd_cwnd * segment;
    // In segments; the kernel's "none yet" is 2^31-1.
    s.ssthresh = info.tcpi_snd_ssthresh < 1u << 20 ? info.tcpi_snd_ssthresh * segment : 0;
    image.path_mtu = uint16_t(std::min<uint32_t>(info.tcpi_pmtu, 65535));
    return 0;
}

constexpr unsigned kTries = 16;

}  // namespace

size_t repair_room(int fd) {
    int out = 0, in = 0;
    sys::ioctl(fd, SIOCOUTQ, &out);
    sys::ioctl(fd, SIOCINQ, &in);
    int rcvbuf;
    get(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf);
    // More may arrive until it is read: as much as the receive buffer takes.
    return size_t(std::max(out, 0)) + size_t(std::max(in, 0)) + size_t(std::max(rcvbuf, 0));
}

Status repair_checkpoint(int fd, RepairImage& image, ByteSpan room) {
    image = {};
    save_options(fd, image.options);
    int r = read_names(fd, image.snapshot);
    if (r < 0) return Errno{-r};
    r = enter(fd);
    if (r < 0) return Errno{-r};
    for (unsigned i = 0; i < kTries; i++) {
        r = read_once(fd, image, room);
        if (r != -EAGAIN) break;
    }
    select_queue(fd, kNoQueue);
    if (r == 0) return {};
    repair_resume(fd, image);
    return Errno{-r};
}

void repair_resume(int fd, const RepairImage& image) {
    leave(fd, true);
    put_options(fd, image.options, false);
}

Status repair_release(int fd, const RepairImage& image) {
    const int r = disconnect(fd);
    if (r < 0) return Errno{-r};
    leave(fd, false);
    put_options(fd, image.options, true);
    return {};
}

}  // namespace vma
