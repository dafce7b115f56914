// What a UDP socket's program receives: from rings and twin, in the order of udp_order.cc.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>

#include "sock/context.h"
#include "sock/looker.h"
#include "sock/udp_message.h"
#include "sock/udp_socket.h"

namespace vma::sock {

class UdpReceive final : public WaitTarget {
  public:
    UdpReceive(UdpSocket& socket, int fd, msghdr& msg, int flags, Taker* taker)
        : socket_(socket),
          fd_(fd),
          msg_(msg),
          flags_(flags),
          looker_(dynamic_cast<Looker*>(taker)),
          taker_((flags & MSG_PEEK) || looker_ ? nullptr : taker),
          name_room_(msg.msg_namelen),
          control_room_(msg.msg_controllen) {}

    // True: `outcome` is the answer.
    bool ready(bool) override {
        if (socket_.state() == SocketState::kernel) {
            msg_.msg_namelen = name_room_;
            msg_.msg_controllen = control_room_;
            outcome = Outcome::kernel();
            return true;
        }
        // As in Linux, an error is told before the datagrams that wait.
        if (socket_.kernel_news_.load(std::memory_order_acquire) &&
            socket_.twin_error_.exchange(false, std::memory_order_acq_rel))
            if (const int error = socket_.take_twin_error(fd_)) {
                outcome = Outcome::error(error);
                return true;
            }
        UdpSocket::Presence* const oldest = socket_.oldest_presence();
        for (;;) {
            if (oldest && from_ring(*oldest)) return true;
            if (socket_.handed_back_.load(std::memory_order_acquire)) {
                {
                    std::lock_guard guard(socket_.control_);
                    socket_.finish_hand_back_if_drained();
                }
                if (socket_.state() == SocketState::kernel) return ready(false);
            }
            if (!socket_.kernel_news_.load(std::memory_order_acquire)) return false;
            if (from_twin()) return true;
            // Another thread was quicker, and the news are gone.
        }
    }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override {
        // Another thread's bind, connect or first send may bring the socket into shards while this one waits, and a move takes it
        // elsewhere.
        size_t n = 0;
        uint32_t left = socket_.present_.load(std::memory_order_acquire);
        for (; left != 0; left &= left - 1)
            shards_[n++] = socket_.presences_[size_t(std::countr_zero(left))].shard;
        return {shards_, n};
    }
    void progress() override {
    }  // ready() looks at the rings under the same lease that it reads the queue under

    Outcome outcome;

  private:
    bool from_ring(UdpSocket::Presence& presence) {
        const uint32_t wanted = socket_.wanted_.load(std::memory_order_relaxed);
        const uint32_t other_drops = wanted & kWantDrops ? socket_.other_drops(presence) : 0;
        LeaseGuard guard(presence.shard->lease());
        if (const Duration spacing = Context::drain_spacing(); spacing.ns) [[unlikely]]
            presence.shard->poll_each(spacing);
        UdpDatagram datagram;
        if (!UdpSocket::first_of_ring(presence, datagram)) return false;
        if (socket_.twin_is_older(fd_, *datagram.info)) return false;
        if (taker_ && take(presence)) return true;
        if (looker_) looker_->look(datagram);
        Told told{wanted};
        if (wanted & kWantPktinfo) told.local_v4 = socket_.local_for(datagram);
        if (wanted & kWantDrops) told.drops = datagram.info->drops + other_drops;
        const long n = copy_datagram_out(datagram, msg_, flags_, told);
        if (!(flags_ & MSG_PEEK)) {
            socket_.note_received(datagram.payload.size(), *datagram.info);
            presence.endpoint->consume();
            socket_.note_drained(presence);
        }
        outcome = Outcome::value(n);
        return true;
    }
    // The same without a copy. False: not possible now.
    bool take(UdpSocket::Presence& presence) {
        if (!taker_->room()) {
            outcome = Outcome::error(ENOBUFS);
            return true;
        }
        UdpRxInfo info;
        Packet packet = presence.endpoint->keep_front(presence.shard->pool(), info);
        if (!packet) {
            outcome = Outcome::error(EIO);
            return taker_->must();
        }
        const iovec text{packet->data + info.next, info.end - info.next};
        copy_source_out(info, msg_);
        msg_.msg_controllen = 0;
        taker_->put(socket_.keep(*presence.shard, std::move(packet), info.charge), text);
        socket_.note_received(text.iov_len, info);
        socket_.note_drained(presence);
        outcome = Outcome::value(long(text.iov_len));
        return true;
    }

    bool from_twin() {
        // Cleared first: news that arrive from here on set it again.
        socket_.kernel_news_.store(false, std::memory_order_release);
        msg_.msg_namelen = name_room_;
        msg_.msg_controllen = control_room_;
        const bool refuse = taker_ && taker_->must();
        const int look = refuse ? MSG_PEEK : 0;
        const ssize_t n = sys::recvmsg(fd_, &msg_, (flags_ & ~MSG_WAITALL) | MSG_DONTWAIT | look);
        if (n == -EAGAIN || !((flags_ | look) & MSG_PEEK))
            socket_.twin_first_.store(0, std::memory_order_release);
        if (n == -EAGAIN) return false;
        socket_.kernel_news_.store(true, std::memory_order_release);  // there may be more
        if (n >= 0) socket_.correct_drops(msg_);
        if (n >= 0 && refuse) {
            outcome = Outcome::error(EIO);
            return true;
        }
        if (n >= 0 && !(flags_ & MSG_PEEK)) {
            SocketCounters::add(socket_.counters.rx_os_packets, 1);
            SocketCounters::add(socket_.counters.rx_os_bytes, uint64_t(n));
            socket_.last_stamp_.store(0, std::memory_order_relaxed);
        }
        outcome = n < 0 ? Outcome::error(int(-n)) : Outcome::value(n);
        return true;
    }

    UdpSocket& socket_;
    const int fd_;
    msghdr& msg_;
    const int flags_;
    Looker* const looker_;
    Taker* const taker_;
    const socklen_t name_room_;
    const size_t control_room_;
    Shard* shards_[UdpSocket::kMaxPresence];
};

void UdpSocket::note_received(size_t bytes, const UdpRxInfo& info) {
    SocketCounters::add(counters.rx_packets, 1);
    SocketCounters::add(counters.rx_bytes, bytes);
    if (LatencyProbe* probe = latency.probe()) [[unlikely]]
        probe->received(info.arrival);
    // As Linux, which keeps no stamp for the ioctl when it tells it with the datagram.
    if (!(wanted_.load(std::memory_order_relaxed) &
          (kWantTimestamp | kWantTimestampNs | kWantStamping | kUntoldStamps)))
        last_stamp_.store(info.realtime_ns, std::memory_order_relaxed);
}

void UdpSocket::note_drained(const Presence& presence) {
    if (presence.endpoint->readable()) return;
    const auto bit = uint32_t(1) << (&presence - presences_.data());
    ring_ready_.fetch_and(~bit, std::memory_order_release);
}

void UdpSocket::kept_returned(Shard& shard, const Kept& kept) {
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (presences_[i].shard == &shard) presences_[i].endpoint->kept_returned(kept.charge);
}

Outcome UdpSocket::receive(int fd, msghdr* msg, int flags, Taker* taker) {
    if (state() == SocketState::kernel) return Outcome::kernel();
    if (flags & MSG_ERRQUEUE) return receive_error(fd, *msg, flags);
    if (rings.follows(SocketRings::kReceive)) [[unlikely]]
        follow_user(SocketRings::kReceive);
    flags &= ~MSG_OOB;  // means nothing to a datagram
    const bool may_wait = !nonblocking() && !(flags & MSG_DONTWAIT);
    // Not bound yet: nothing can come, but who waits must see it when another thread's send binds it.
    if (state() == SocketState::undecided && !settle(fd, false) &&
        (!may_wait || state() == SocketState::kernel))
        return Outcome::kernel();
    UdpReceive target(*this, fd, *msg, flags, taker);
    if (target.ready(false)) return target.outcome;
    if (Screens::run() && target.ready(false)) return target.outcome;
    if (!may_wait) {
        if (is_empty_look_due() && TwinEvents::drain() && target.ready(false))
            return target.outcome;
        SocketCounters::add(counters.rx_eagain, 1);
        return Outcome::error(EAGAIN);
    }
    const Duration timeout = receive_timeout();
    switch (wait_until(target, governor_, Context::receive_limits(timeout))) {
        case WaitEnd::ready:
            return target.outcome;
        case WaitEnd::timeout:
            return Outcome::error(EAGAIN);
        case WaitEnd::interrupted:
            break;
    }
    return interrupted_call(timeout);
}

// Which address a program would answer from (in_pktinfo.ipi_spec_dst): of a multicast datagram, that of the route back.
uint32_t UdpSocket::local_for(const UdpDatagram& datagram) const {
    const UdpRxInfo& info = *datagram.info;
    if (!info.destination.addr.is_multicast()) return info.destination.addr.v4_host();
    RouteQuery back;
    back.dst = info.source.addr;
    back.oif = int(datagram.meta->ifindex);
    back.protocol = IPPROTO_UDP;
    const auto route = space_->monitor().view()->route(back);
    return route ? route->source.v4_host() : 0;
}

Outcome UdpSocket::next_datagram_size(int fd) {
    if (state() != SocketState::offloaded) return Outcome::kernel();
    Presence* const p = oldest_presence();
    if (p == nullptr) return Outcome::kernel();
    LeaseGuard guard(p->shard->lease());
    UdpDatagram first;
    if (!first_of_ring(*p, first) || twin_is_older(fd, *first.info)) return Outcome::kernel();
    return Outcome::value(p->endpoint->next_size());
}

void UdpSocket::ring_ready(const UdpEndpoint& endpoint) {
    const unsigned n = presence_count_.load(std::memory_order_relaxed);
    if (endpoint.screened) [[unlikely]]
        Screens::add(*this);
    for (unsigned i = 0; i < n; i++)
        if (presences_[i].endpoint == &endpoint && endpoint.readable())
            ring_ready_.fetch_or(1u << i, std::memory_order_release);
    watch.notify(EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND);
}

uint64_t UdpSocket::lanes() const {
    uint64_t lanes = 0;
    for (uint32_t left = present_.load(std::memory_order_acquire); left != 0; left &= left - 1)
        lanes |= presences_[size_t(std::countr_zero(left))].shard->lane_bit();
    return lanes;
}

uint32_t UdpSocket::poll_events() {
    constexpr uint32_t kWritable = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
    const uint32_t writable = is_writable() ? kWritable : 0;
    uint32_t events = 0;
    if (ring_ready_.load(std::memory_order_acquire)) events |= EPOLLIN | EPOLLRDNORM;
    if (stamps_ready_.load(std::memory_order_acquire)) events |= error_events();
    const bool offloaded = state() == SocketState::offloaded;
    if (offloaded && !kernel_news_.load(std::memory_order_acquire)) return events | writable;
    // News of the twin are a hint: it may have been read meanwhile.
    pollfd twin{fd(), POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLWRBAND | POLLPRI | POLLRDHUP,
                0};
    const timespec zero{};
    if (sys::ppoll(&twin, 1, &zero) > 0) events |= uint32_t(uint16_t(twin.revents));
    if (offloaded) {
        if (!(twin.revents & (POLLIN | POLLERR | POLLHUP | POLLRDHUP)))
            kernel_news_.store(false, std::memory_order_release);
        events = (events & ~kWritable) | writable;
    }
    return events;
}

}  // namespace vma::sock
