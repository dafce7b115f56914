// Multicast of a UDP socket. The twin is the member: its joins make the kernel speak IGMP, and the kernel's own word about them
// is what the ring follows. What a ring has a copy of the twin does not queue; the rest comes by the twin: fragments, what this
// host sends itself, groups that only others have joined (IP_MULTICAST_ALL), interfaces without a ring.
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "sock/option_rows.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// The twin's source filter for a group on an interface; false: it is no member there.
bool read_filter(int fd, const IpAddr& group, int ifindex, bool* exclude,
                 std::vector<uint32_t>* sources) {
    std::vector<uint8_t> room;
    for (uint32_t count = 16;; count = reinterpret_cast<group_filter*>(room.data())->gf_numsrc) {
        room.assign(GROUP_FILTER_SIZE(count), 0);
        auto* filter = reinterpret_cast<group_filter*>(room.data());
        filter->gf_interface = uint32_t(ifindex);
        const sockaddr_in name = Endpoint{group, 0}.to_sockaddr_in();
        std::memcpy(&filter->gf_group, &name, sizeof name);
        filter->gf_numsrc = count;
        auto size = socklen_t(room.size());
        if (sys::getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, &size) < 0) return false;
        if (filter->gf_numsrc > count) continue;  // more than there was room for
        *exclude = filter->gf_fmode == MCAST_EXCLUDE;
        sources->clear();
        for (uint32_t i = 0; i < filter->gf_numsrc; i++) {
            sockaddr_in source;
            std::memcpy(&source, &filter->gf_slist[i], sizeof source);
            sources->push_back(ntohl(source.sin_addr.s_addr));
        }
        return true;
    }
}

}  // namespace

// control_ held. What the kernel says about the twin's memberships in `group` replaces what was known of them.
void UdpSocket::follow_membership(int fd, const IpAddr& group) {
    if (state() == SocketState::kernel || handed_back_.load(std::memory_order_relaxed)) return;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr || !group.is_v4() || !group.is_multicast()) return;
    const auto view = space_->monitor().view();
    for (const Interface& interface : view->interfaces()) {
        bool exclude = true;
        std::vector<uint32_t> sources;
        const bool member = read_filter(fd, group, interface.index, &exclude, &sources);
        const auto known = std::find_if(
            memberships_.begin(), memberships_.end(),
            [&](const Membership& m) { return m.group == group && m.ifindex == interface.index; });
        if (known == memberships_.end()) {
            if (!member) continue;
            Membership& joined = memberships_.emplace_back();
            joined.group = group;
            joined.ifindex = interface.index;
            joined.exclude = exclude;
            joined.sources = std::move(sources);
            continue;
        }
        known->member = member;
        known->exclude = exclude;
        known->sources = std::move(sources);
    }
    if (local_.port == 0) return;
    // The first presence in a shard comes with more than the groups.
    if (state() == SocketState::undecided || share_.load(std::memory_order_relaxed) == nullptr)
        decide_receive(fd);
    else
        steer_groups(fd);
    publish_state();
}

// Should the ring of its interface have this membership? Null: no.
Shard* UdpSocket::shard_of(const Membership& m, int fd) {
    if (!m.member || local_.port == 0 || sends_only_ ||
        handed_back_.load(std::memory_order_relaxed))
        return nullptr;
    if (!local_.addr.is_any() && !(local_.addr == m.group)) return nullptr;
    if (!decided_by().decide(Role::udp_receiver, {m.group, local_.port}).offload) return nullptr;
    const int bound_device = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
    if (bound_device != 0 && bound_device != m.ifindex) return nullptr;
    const auto view = space_->monitor().view();
    const auto interfaces = view->interfaces();
    const auto on = std::find_if(interfaces.begin(), interfaces.end(),
                                 [&](const Interface& i) { return i.index == m.ifindex; });
    if (on == interfaces.end() || !NetSpace::can_carry_ring(*on)) return nullptr;
    if (space_->policy()) {
        FlowQuery flow;
        flow.protocol = IPPROTO_UDP;
        flow.local = {m.group, local_.port};
        flow.remote = remote_;
        flow.ifindex = m.ifindex;
        std::string culprit;
        const Reason failed = space_->policy()->check(flow, *view, &culprit);
        if (failed != Reason::none) {
            vma_log(info, "sock", "group {:#010x}, port {}, on {} stays with the kernel ({}): {}",
                    m.group.v4_host(), local_.port, on->name, reason_name(failed), culprit);
            return nullptr;
        }
    }
    Reason failed = Reason::none;
    return space_->shard(m.ifindex, rings.receive(fd, local_.addr), &failed);
}

// control_ held. Rings get the groups that they should have; how many memberships are on rings.
unsigned UdpSocket::steer_groups(int fd) {
    std::vector<Shard*> touched;
    const auto touch = [&](Shard* shard) {
        if (std::find(touched.begin(), touched.end(), shard) == touched.end())
            touched.push_back(shard);
    };
    for (Membership& m : memberships_) {
        Shard* const wanted = shard_of(m, fd);
        const Endpoint at{m.group, local_.port};
        if (m.shard != nullptr && (m.shard != wanted || !(m.at == at))) {
            LeaseGuard guard(m.shard->lease());
            leave_group(*m.shard, m.at);
            touch(m.shard);
            m.shard = nullptr;
        }
        if (wanted == nullptr) continue;
        touch(wanted);
        m.wanted = wanted;
        m.at = at;
    }
    for (Shard* shard : touched) {
        LeaseGuard guard(shard->lease());
        // Joined and admitted under one lease: nothing of the group is taken from the ring between the two.
        Presence* const presence = presence_in(*shard);
        for (Membership& m : memberships_) {
            if (m.wanted != shard) continue;
            m.wanted = nullptr;
            if (m.shard == nullptr && presence && shard->join(m.at, fd)) m.shard = shard;
        }
        if (presence) admit_groups(*presence);
    }
    std::erase_if(memberships_, [](const Membership& m) { return !m.member && !m.shard; });
    return unsigned(std::count_if(memberships_.begin(), memberships_.end(),
                                  [](const Membership& m) { return m.shard != nullptr; }));
}

// Under the lease of its shard: the endpoint takes what the memberships on its ring admit.
void UdpSocket::admit_groups(Presence& presence) {
    std::vector<GroupFilter::Membership> admitted;
    for (const Membership& m : memberships_)
        if (m.shard == presence.shard)
            admitted.push_back({m.group.v4_host(), m.exclude, m.sources});
    presence.endpoint->local = local_;
    presence.endpoint->remote = remote_;
    if (presence.shard->set_groups(*presence.endpoint, admitted)) return;
    // No memory for that: the twin gets them.
    for (Membership& m : memberships_)
        if (m.shard == presence.shard) leave_group(*std::exchange(m.shard, nullptr), m.at);
}

// Under the lease of its shard: no ring has anything of the socket's groups there, what came before is queued.
void UdpSocket::leave_groups(Presence& presence) {
    for (Membership& m : memberships_)
        if (m.shard == presence.shard) leave_group(*std::exchange(m.shard, nullptr), m.at);
}

// What IP_MULTICAST_IF, which the kernel has accepted, names; 0: nothing.
int UdpSocket::named_interface(int fd, const void* value, socklen_t len) {
    ip_mreqn request{};
    if (len >= sizeof request)
        std::memcpy(&request, value, sizeof request);
    else if (len >= sizeof(ip_mreq))
        std::memcpy(&request.imr_address,
                    static_cast<const uint8_t*>(value) + offsetof(ip_mreq, imr_interface), 4);
    else if (len >= 4)
        std::memcpy(&request.imr_address, value, 4);
    if (request.imr_ifindex != 0 || request.imr_address.s_addr == 0) return request.imr_ifindex;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) return 0;
    const IpAddr address = IpAddr::v4_bytes(&request.imr_address);
    const auto view = space_->monitor().view();
    for (const Interface& interface : view->interfaces())
        for (const InterfaceAddress& a : interface.addresses)
            if (a.addr == address) return interface.index;
    return 0;
}

}  // namespace vma::sock
