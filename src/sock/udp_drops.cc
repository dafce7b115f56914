// SO_RXQ_OVFL: how many datagrams the socket has lost for want of room, told with each that was queued after that. The kernel
// counts among the twin's drops what a filter keeps from it because a ring has it (docs/decisions/0011-multicast.md); those are
// taken off again.
#include <errno.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

cmsghdr* drops_among(msghdr& msg) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL &&
            c->cmsg_len >= CMSG_LEN(sizeof(uint32_t)))
            return c;
    return nullptr;
}

void remove(cmsghdr* which, msghdr& msg) {
    auto* const begin = reinterpret_cast<uint8_t*>(which);
    auto* const end = static_cast<uint8_t*>(msg.msg_control) + msg.msg_controllen;
    const size_t length = std::min<size_t>(CMSG_ALIGN(which->cmsg_len), size_t(end - begin));
    std::memmove(begin, begin + length, size_t(end - begin) - length);
    msg.msg_controllen -= length;
}

// All drops of a kernel socket; 0 when it does not tell.
uint32_t drops_of(int fd) {
    uint32_t words[SK_MEMINFO_VARS] = {};
    socklen_t size = sizeof words;
    return sys::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, words, &size) == 0 ? words[SK_MEMINFO_DROPS]
                                                                          : 0;
}

}  // namespace

void UdpSocket::leave_group(Shard& shard, const Endpoint& at) {
    kept_before_.fetch_add(shard.leave(at, fd()), std::memory_order_relaxed);
}

uint32_t UdpSocket::kept_from_twin() {
    uint32_t kept = kept_before_.load(std::memory_order_relaxed);
    const auto add = [&](Shard* shard, const Endpoint& at) {
        if (shard == nullptr) return;
        LeaseGuard guard(shard->lease());
        kept += shard->kept_from(at, fd());
    };
    for (const Membership& m : memberships_) add(m.shard, m.at);
    for (const Fragments& f : fragments_) add(f.shard, {f.addr, 0});
    return kept;
}

uint32_t UdpSocket::ring_drops(const Presence* but) {
    uint32_t drops = 0;
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        if (&presences_[i] == but) continue;
        LeaseGuard guard(presences_[i].shard->lease());
        drops += uint32_t(presences_[i].endpoint->counters.dropped_full);
    }
    return drops;
}

uint32_t UdpSocket::other_drops(const Presence& presence) {
    return ring_drops(&presence) + twin_drops_.load(std::memory_order_relaxed);
}

void UdpSocket::correct_drops(msghdr& msg) {
    cmsghdr* const said = msg.msg_controllen ? drops_among(msg) : nullptr;
    if (said == nullptr) return;
    uint32_t all;
    std::memcpy(&all, CMSG_DATA(said), sizeof all);
    uint32_t kept;
    {
        std::lock_guard guard(control_);
        // While the filter is at work only counts of one moment say what was lost; the drops first, which follow the other.
        if (state() != SocketState::kernel) all = drops_of(fd());
        kept = kept_from_twin();
    }
    // One step of the filter's may be counted here and not there yet.
    const uint32_t lost = int32_t(all - kept) > 0 ? all - kept : 0;
    twin_drops_.store(lost, std::memory_order_relaxed);
    if (const uint32_t drops = lost + ring_drops(nullptr))
        std::memcpy(CMSG_DATA(said), &drops, sizeof drops);
    else
        remove(said, msg);
}

}  // namespace vma::sock
