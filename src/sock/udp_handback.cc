// Hand-back of UDP: what is queued in shards moves into the twin's queue, so that whoever reads it next (another process,
// stdio, the next program after exec) finds it there.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>

#include "sock/fork.h"
#include "sock/udp_socket.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma::sock {
namespace {

// Gives datagrams to the kernel as the wire would: to our own address, with their source, through a raw socket. They pass
// over lo in the same system call and are in the twin's queue when it returns.
class Reinjection {
  public:
    Reinjection() : raw_(sys::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)) {}
    ~Reinjection() {
        if (raw_ >= 0) sys::close(raw_);
    }
    Reinjection(const Reinjection&) = delete;
    Reinjection& operator=(const Reinjection&) = delete;

    bool possible() const { return raw_ >= 0; }

    bool give(const UdpDatagram& d) {
        const UdpRxInfo& info = *d.info;
        const size_t length = kUdpSize + d.payload.size();
        // A group's other members would get it again.
        if (info.destination.addr.is_multicast()) return false;
        if (!info.source.addr.is_v4() || length > 65535 - kIpv4Size) return false;
        uint8_t head[kIpv4Size + kUdpSize] = {};
        Ipv4Header ip;
        ip.src = info.source.addr.v4_host();
        ip.dst = info.destination.addr.v4_host();
        ip.total_len = uint16_t(kIpv4Size + length);
        ip.ttl = info.ttl;
        ip.tos = info.tos;
        ip.protocol = IPPROTO_UDP;
        ip.dont_fragment = true;
        emit_ipv4(ip, ByteSpan(head, kIpv4Size));
        uint8_t* udp = head + kIpv4Size;
        emit_udp({info.source.port, info.destination.port, uint16_t(length), 0},
                 ByteSpan(udp, kUdpSize));
        Checksum sum;
        sum.add_pseudo_v4(ip.src, ip.dst, IPPROTO_UDP, uint16_t(length));
        sum.add(ByteView(udp, kUdpSize));
        sum.add(d.payload);
        const uint16_t checksum = sum.finish();
        store_be16(udp + kUdpChecksumOffset, checksum ? checksum : 0xffff);
        iovec parts[2] = {{head, sizeof head},
                          {const_cast<uint8_t*>(d.payload.data()), d.payload.size()}};
        sockaddr_in to = Endpoint{info.destination.addr, 0}.to_sockaddr_in();
        msghdr msg{};
        msg.msg_name = &to;
        msg.msg_namelen = sizeof to;
        msg.msg_iov = parts;
        msg.msg_iovlen = 2;
        return sys::sendmsg(raw_, &msg, MSG_DONTWAIT) >= 0;
    }

  private:
    int raw_;
};

}  // namespace

// Does somebody read from the twin next who does not see what is queued here? After an option or call that is only the kernel's
// this process goes on reading by its calls, and gets what is queued in both places in order.
bool UdpSocket::is_read_elsewhere(Reason why) const {
    const ShareRecord* const record = share();
    return why != Reason::unsupported_option || (record && record->forks != forks_so_far());
}

bool UdpSocket::hand_back(Reason why) {
    // What its callback has not seen is the kernel's like the rest.
    if (screening.on()) set_screen({});
    std::lock_guard guard(control_);
    if (state() == SocketState::undecided) become_kernel(why);
    if (state() == SocketState::kernel) return true;
    if (handed_back_.exchange(true)) {
        if (is_read_elsewhere(why)) move_queue_to_twin();
        finish_hand_back_if_drained();
        return true;
    }
    VMA_PROBE2(hand_back, fd(), unsigned(why));
    kernel_send_.store(true, std::memory_order_release);
    reason_.store(why, std::memory_order_relaxed);
    leave_shards();
    flush_paced();
    publish_state();
    // Behind what waits in the twin already it would be out of order.
    pollfd twin{fd(), POLLIN, 0};
    const timespec zero{};
    if (is_read_elsewhere(why) || sys::ppoll(&twin, 1, &zero) == 0) move_queue_to_twin();
    finish_hand_back_if_drained();
    // A forked child may be waiting for just this.
    answer_share(true);
    return true;
}

// control_ held. Without CAP_NET_RAW, or when the twin would not take what comes over lo, the queue stays and this process
// reads it.
void UdpSocket::move_queue_to_twin() {
    int device = 0;
    socklen_t size = sizeof device;
    if (sys::getsockopt(fd(), SOL_SOCKET, SO_BINDTOIFINDEX, &device, &size) == 0 && device) return;
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    const uint32_t live = live_.load(std::memory_order_relaxed);
    for (unsigned n = 0; n < 2 * count; n++) {
        const unsigned i = n % count;
        // What waits since before a move goes first.
        if (((live >> i & 1) != 0) != (n >= count)) continue;
        Presence& p = presences_[i];
        LeaseGuard guard(p.shard->lease());
        UdpDatagram datagram;
        if (!p.endpoint->peek(datagram)) continue;
        Reinjection kernel;
        if (!kernel.possible()) return;
        do {
            if (!kernel.give(datagram)) return;
            p.endpoint->consume();
        } while (p.endpoint->peek(datagram));
        ring_ready_.fetch_and(~(1u << i), std::memory_order_release);
    }
}

// control_ held. The socket leaves the library's hands once nothing is queued in it: no datagram and no stamp.
void UdpSocket::finish_hand_back_if_drained() {
    if (shown_) return;  // its callback may still let one through
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard guard(presences_[i].shard->lease());
        if (presences_[i].endpoint->queued() != 0 || presences_[i].endpoint->first_stamp()) return;
    }
    become_kernel(reason());
}

}  // namespace vma::sock
