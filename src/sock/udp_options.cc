#include <errno.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "config/warnings.h"
#include "engine/surroundings.h"
#include "sock/option_rows.h"
#include "sock/udp_socket.h"
#include "sock/unserved.h"

namespace vma::sock {
namespace {

enum class Effect : uint8_t {
    to_kernel,
    mirror,
    transmit,
    multicast_if,
    membership,
    receive,
    rcvbuf,
    rcvtimeo,
    pktinfo,
    ttl,
    tos,
    timestamp,
    timestampns,
    stamping,
    error_queue,
    origdst,
    segment,
    gro,
    drops,
    cork,
    pacing,
};

struct Row {
    int level, name;
    Effect effect;
};
constexpr Row kRows[] = {
#define UDP_OPTION(level, name, effect) {level, name, Effect::effect},
#include "sock/udp_options.def"
#undef UDP_OPTION
};

// Software stamps of what is received: made, and told.
constexpr uint32_t kReceivedStamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

bool joins(int level, int name) {
    return level == IPPROTO_IP && (name == IP_ADD_MEMBERSHIP || name == IP_ADD_SOURCE_MEMBERSHIP ||
                                   name == MCAST_JOIN_GROUP || name == MCAST_JOIN_SOURCE_GROUP);
}

// The group of a membership option that the kernel has accepted, or an address that is none.
IpAddr group_of(int name, const void* value, socklen_t len) {
    if (name >= MCAST_JOIN_GROUP && name <= MCAST_MSFILTER) {
        // group_req, group_source_req and group_filter begin alike.
        group_req request{};
        if (len < sizeof request) return IpAddr::any_v4();
        std::memcpy(&request, value, sizeof request);
        sockaddr_in in{};
        std::memcpy(&in, &request.gr_group, sizeof in);
        return in.sin_family == AF_INET ? IpAddr::v4_bytes(&in.sin_addr) : IpAddr::any_v4();
    }
    // ip_mreq, ip_mreqn, ip_mreq_source and ip_msfilter all begin with the group.
    return len >= 4 ? IpAddr::v4_bytes(value) : IpAddr::any_v4();
}

}  // namespace

Outcome UdpSocket::set_option(int fd, int level, int name, const void* value, socklen_t len) {
    if (state() == SocketState::kernel) return Outcome::kernel();
    const Effect effect = effect_in(kRows, level, name);
    const auto what = [&] { return fmt::format("socket option level {} name {}", level, name); };
    if (effect == Effect::to_kernel && unserved() == Unserved::refuse) {
        tell_unserved(fd, what());
        return Outcome::error(EINVAL);
    }
    const int result = sys::setsockopt(fd, level, name, value, len);
    if (result < 0) return Outcome::error(-result);
    auto want_if = [&](bool wanted, uint32_t bit) {
        if (wanted)
            wanted_.fetch_or(bit, std::memory_order_relaxed);
        else
            wanted_.fetch_and(~bit, std::memory_order_relaxed);
    };
    auto want = [&](uint32_t bit) { want_if(option_number(value, len) != 0, bit); };
    switch (effect) {
        case Effect::mirror:
            break;
        case Effect::membership: {
            const IpAddr group = group_of(name, value, len);
            if (joins(level, name)) warn_of_igmp(group, Runtime::options());
            std::lock_guard guard(control_);
            follow_membership(fd, group);
            break;
        }
        case Effect::multicast_if: {
            std::lock_guard guard(control_);
            multicast_if_.store(named_interface(fd, value, len), std::memory_order_relaxed);
            options_generation_.fetch_add(1, std::memory_order_release);
            show_multicast(fd);
            break;
        }
        case Effect::transmit:
        case Effect::receive:
            options_generation_.fetch_add(1, std::memory_order_release);
            if (level == SOL_SOCKET &&
                (name == SO_BINDTODEVICE || name == SO_BINDTOIFINDEX || name == SO_REUSEPORT)) {
                std::lock_guard guard(control_);
                if (state() == SocketState::offloaded) decide_receive(fd);
            } else if (level == IPPROTO_IP && name == IP_MULTICAST_LOOP) {
                std::lock_guard guard(control_);
                show_multicast(fd);
            }
            break;
        case Effect::rcvbuf: {
            int bytes = 0;
            socklen_t size = sizeof bytes;
            if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) < 0) break;
            std::lock_guard guard(control_);
            const uint32_t limit = queue_limit(bytes);
            receive_buffer_.store(limit, std::memory_order_relaxed);
            for (unsigned i = 0, n = presence_count_.load(std::memory_order_relaxed); i < n; i++) {
                LeaseGuard lease(presences_[i].shard->lease());
                presences_[i].endpoint->set_receive_limit(limit);
            }
            break;
        }
        case Effect::rcvtimeo: {
            timeval tv{};
            if (len >= sizeof tv) std::memcpy(&tv, value, sizeof tv);
            rcvtimeo_ns_.store(int64_t(tv.tv_sec) * 1000000000 + int64_t(tv.tv_usec) * 1000,
                               std::memory_order_relaxed);
            break;
        }
        case Effect::pktinfo:
            want(kWantPktinfo);
            break;
        case Effect::ttl:
            want(kWantTtl);
            break;
        case Effect::tos:
            want(kWantTos);
            break;
        case Effect::timestamp:
        case Effect::timestampns:
            // One switch with two positions, as in Linux: the last one set counts, and either turns both off.
            wanted_.fetch_and(~(kWantTimestamp | kWantTimestampNs), std::memory_order_relaxed);
            want(effect == Effect::timestamp ? kWantTimestamp : kWantTimestampNs);
            want_if(name == SO_TIMESTAMP_NEW || name == SO_TIMESTAMPNS_NEW, kNewStamps);
            break;
        case Effect::stamping: {
            const auto asked = uint32_t(option_number(value, len));  // also of a so_timestamping
            want_if((asked & kReceivedStamps) == kReceivedStamps, kWantStamping);
            want_if((asked & kReceivedStamps) == SOF_TIMESTAMPING_RX_SOFTWARE, kUntoldStamps);
            want_if(asked & SOF_TIMESTAMPING_RAW_HARDWARE, kWantHwStamps);
            want_if(name == SO_TIMESTAMPING_NEW, kNewStamps);
            if (!follow_stamping(asked) || !rings_can_stamp(asked))
                hand_back(Reason::unsupported_option);
            break;
        }
        case Effect::error_queue:
            want(kErrorsArePri);
            break;
        case Effect::origdst:
            want(kWantOrigDst);
            break;
        case Effect::segment:
            segment_.store(uint16_t(option_number(value, len)), std::memory_order_relaxed);
            break;
        case Effect::gro: {
            std::lock_guard guard(control_);
            want(kWantGro);
            const bool on = wanted_.load(std::memory_order_relaxed) & kWantGro;
            for (unsigned i = 0, n = presence_count_.load(std::memory_order_relaxed); i < n; i++) {
                LeaseGuard lease(presences_[i].shard->lease());
                presences_[i].shard->drain();  // what has come is as it was before
                presences_[i].endpoint->set_whole_trains(on);
            }
            break;
        }
        case Effect::drops: {
            std::lock_guard guard(control_);
            want(kWantDrops);
            const bool on = wanted_.load(std::memory_order_relaxed) & kWantDrops;
            for (unsigned i = 0, n = presence_count_.load(std::memory_order_relaxed); i < n; i++) {
                LeaseGuard lease(presences_[i].shard->lease());
                presences_[i].shard->drain();
                presences_[i].endpoint->set_tells_drops(on);
            }
            break;
        }
        case Effect::cork:
            cork_.store(option_number(value, len) != 0, std::memory_order_relaxed);
            if (option_number(value, len) == 0) corked_ = false;  // the twin has sent what waited
            break;
        case Effect::pacing:
            follow_pacing(fd);
            break;
        case Effect::to_kernel:
            (void)refuse_unserved(*this, fd, what());
            break;
    }
    return Outcome::value(0);
}

}  // namespace vma::sock
