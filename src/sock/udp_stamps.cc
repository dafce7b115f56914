// SO_TIMESTAMPING of what a UDP socket sends: stamps wait in the endpoints of its shards and in the twin's error queue, and
// MSG_ERRQUEUE reads both in the order of the datagrams. docs/decisions/0019-transmit-stamps.md.
#include <errno.h>
#include <time.h>
// after the timespec that it uses
#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cstring>
#include <new>

#include "base/clock.h"
#include "sock/tx_stamping.h"
#include "sock/udp_message.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// Of what the program sends along with a datagram: more than all messages there are.
constexpr size_t kMostControl = 1024;

// Which stamp did the twin's error queue give? 0: something else.
uint8_t told_stamp(msghdr& msg) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        sock_extended_err error;
        if (c->cmsg_level != SOL_IP || c->cmsg_type != IP_RECVERR ||
            c->cmsg_len < CMSG_LEN(sizeof error))
            continue;
        std::memcpy(&error, CMSG_DATA(c), sizeof error);
        if (error.ee_origin != SO_EE_ORIGIN_TIMESTAMPING) return 0;
        return error.ee_info == SCM_TSTAMP_SND     ? kStampSent
               : error.ee_info == SCM_TSTAMP_SCHED ? kStampScheduled
                                                   : 0;
    }
    return 0;
}

}  // namespace

bool UdpSocket::follow_stamping(uint32_t flags) {
    TxStamping* stamping = stamping_.load(std::memory_order_acquire);
    if (stamping == nullptr && flags == 0) return true;
    if (stamping == nullptr) {
        stamping = new (std::nothrow) TxStamping;
        if (stamping == nullptr) return false;
        stamping_.store(stamping, std::memory_order_release);
    }
    stamping->set(flags);
    return !stamping->counts() || kernel_takes_stamp_ids();
}

bool UdpSocket::can_stamp(const SendControls& controls) const {
    const TxStamping* const stamping = stamping_.load(std::memory_order_acquire);
    return (!controls.stamping || stamping) &&
           (!controls.stamp_id || (stamping && stamping->counts()));
}

// The kernel is told the number of a datagram, of which it does not know those that went by the ring. That changes the call, so
// it is made here; where it has to wait for room, which the stamps that wait (POLLERR) would keep a poll from, room is looked
// for every millisecond.
Outcome UdpSocket::send_stamped_by_twin(TxStamping& stamping, int fd, const msghdr& msg,
                                        int flags) {
    const SendControls controls = read_send_controls(msg);
    const TxStampRequest stamps = stamping.take(controls);
    if (stamps.kinds == 0) return Outcome::kernel();
    msghdr out = msg;
    alignas(cmsghdr) uint8_t control[kMostControl + CMSG_SPACE(sizeof stamps.id)] = {};
    if (stamping.counts() && !controls.stamp_id && msg.msg_controllen <= kMostControl) {
        const size_t at = CMSG_ALIGN(msg.msg_controllen);
        if (msg.msg_controllen) std::memcpy(control, msg.msg_control, msg.msg_controllen);
        const cmsghdr header{CMSG_LEN(sizeof stamps.id), SOL_SOCKET, SCM_TS_OPT_ID};
        std::memcpy(control + at, &header, sizeof header);
        std::memcpy(control + at + CMSG_LEN(0), &stamps.id, sizeof stamps.id);
        out.msg_control = control;
        out.msg_controllen = at + CMSG_SPACE(sizeof stamps.id);
    }
    const bool may_wait = !nonblocking() && !(flags & MSG_DONTWAIT);
    const Duration timeout = may_wait ? send_timeout(fd) : Duration{};
    const Instant deadline = timeout.ns ? monotonic_now() + timeout : Instant::never();
    ssize_t n;
    while ((n = sys::sendmsg(fd, &out, flags | MSG_DONTWAIT)) == -EAGAIN && may_wait) {
        const timespec millisecond{0, 1000000};
        if (sys::blocking_ppoll(nullptr, 0, &millisecond, nullptr) == -EINTR) {
            stamping.give_back(stamps, controls);
            return interrupted_call(timeout);
        }
        if (monotonic_now() >= deadline) break;
    }
    if (n < 0) {
        stamping.give_back(stamps, controls);
        return Outcome::error(int(-n));
    }
    stamping.sent_by_twin(stamps);
    return Outcome::value(n);
}

void UdpSocket::ring_stamped(const UdpEndpoint& endpoint) {
    const unsigned n = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < n; i++)
        if (presences_[i].endpoint == &endpoint)
            stamps_ready_.fetch_or(1u << i, std::memory_order_release);
    watch.notify(error_events());
}

UdpSocket::Presence* UdpSocket::first_stamped(uint64_t* order) {
    Presence* first = nullptr;
    const uint32_t ready = stamps_ready_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < kMaxPresence && ready >> i; i++) {
        if (!(ready >> i & 1)) continue;
        LeaseGuard lease(presences_[i].shard->lease());
        PacketBuf* const stamp = presences_[i].endpoint->first_stamp();
        if (stamp == nullptr || (first && stamp->as<TxStamp>().order >= *order)) continue;
        first = &presences_[i];
        *order = stamp->as<TxStamp>().order;
    }
    return first;
}

// False: another thread was quicker.
bool UdpSocket::read_stamp(Presence& presence, const TxStamping& stamping, msghdr& msg,
                           Outcome* out) {
    LeaseGuard lease(presence.shard->lease());
    PacketBuf* const stamp = presence.endpoint->first_stamp();
    if (stamp == nullptr) return false;
    uint32_t wanted = wanted_.load(std::memory_order_relaxed) & ~kWantStamping;
    if (stamping.tells_stamps()) wanted |= kWantStamping;
    const int ifindex = stamping.tells_headers() ? presence.shard->ifindex() : 0;
    *out = Outcome::value(copy_stamp_out(*stamp, msg, wanted, ifindex));
    presence.endpoint->consume_stamp();
    if (presence.endpoint->first_stamp())
        watch.notify(error_events());  // as Linux: an edge for each
    else
        stamps_ready_.fetch_and(~(1u << (&presence - presences_.data())),
                                std::memory_order_release);
    return true;
}

// MSG_ERRQUEUE, which never waits.
Outcome UdpSocket::receive_error(int fd, msghdr& msg, int flags) {
    TxStamping* const stamping = stamping_.load(std::memory_order_acquire);
    if (stamping == nullptr) return Outcome::kernel();
    const socklen_t name_room = msg.msg_namelen;
    const size_t control_room = msg.msg_controllen;
    for (bool twin_is_empty = false;;) {
        uint64_t order = 0;
        Presence* const first = first_stamped(&order);
        Outcome out;
        if (first && (twin_is_empty || !stamping->is_twin_first(order))) {
            if (read_stamp(*first, *stamping, msg, &out)) return out;
            continue;
        }
        if (twin_is_empty) return Outcome::error(EAGAIN);
        const ssize_t n = sys::recvmsg(fd, &msg, flags | MSG_DONTWAIT);
        if (n >= 0) {
            if (const uint8_t moment = told_stamp(msg)) stamping->twin_told(TxStampKind(moment));
            return Outcome::value(n);
        }
        if (n != -EAGAIN) return Outcome::error(int(-n));
        twin_is_empty = true;
        msg.msg_namelen = name_room;
        msg.msg_controllen = control_room;
    }
}

}  // namespace vma::sock
