#include "engine/local_members.h"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>

namespace vma {
namespace {

// Newer than the build machine's headers, perhaps.
constexpr unsigned kGroupOfChanges = 37;                 // RTNLGRP_IPV4_MCADDR
constexpr uint16_t kJoined = 56, kLeft = 57, kAsk = 58;  // RTM_NEW, DEL, GETMULTICAST

}  // namespace

// A membership more or less.
void LocalMembers::take(const netlink::Message& message) {
    const auto head = message.head<ifaddrmsg>();
    if (head.ifa_family != AF_INET) return;
    netlink::for_each(message.attributes(sizeof head), [&](uint16_t type, ByteView payload) {
        if (type != IFA_MULTICAST) return;
        const uint64_t key = uint64_t(head.ifa_index) << 32 | netlink::be32_or(payload, 0);
        const auto place = std::lower_bound(members_.begin(), members_.end(), key);
        const bool there = place != members_.end() && *place == key;
        if (message.type == kLeft) {
            if (there) members_.erase(place);
        } else if (!there) {
            members_.insert(place, key);
        }
    });
}

// False: the kernel does not tell. Every interface that is up is in 224.0.0.1, so an empty answer is none.
bool LocalMembers::read_all() {
    members_.clear();
    netlink::Request request(kAsk, NLM_F_REQUEST | NLM_F_DUMP);
    ifaddrmsg head{};
    head.ifa_family = AF_INET;
    request.head(&head, sizeof head);
    const auto one = [this](const netlink::Message& m) { take(m); };
    return socket_.dump(request, one, one).ok() && !members_.empty();
}

bool LocalMembers::possible(int ifindex, uint32_t group) {
    std::lock_guard guard(mutex_);
    if (state_ == State::silent) return true;
    if (state_ == State::closed) {
        const bool told = socket_.open(NETLINK_ROUTE, {&kGroupOfChanges, 1}).ok() && read_all();
        state_ = told ? State::open : State::silent;
        if (!told) socket_.close();
        if (!told) return true;
    }
    const Status received = socket_.receive([this](const netlink::Message& m) {
        if (m.type == kJoined || m.type == kLeft) take(m);
    });
    if (!received || (socket_.take_overrun() && !read_all())) {
        socket_.close();
        state_ = State::silent;
        return true;
    }
    return std::binary_search(members_.begin(), members_.end(), uint64_t(ifindex) << 32 | group);
}

}  // namespace vma
