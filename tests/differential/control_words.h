// Behaviours with control messages: what came with a datagram, and a datagram with one.
#pragma once

#include <time.h>
// after the timespec that it uses
#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>

#include "differential/behaviour.h"

// The control messages of a call, without what differs from run to run.
inline std::string controls_of(msghdr& m) {
    std::string text;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        text += "; " + std::to_string(c->cmsg_level) + "/" + std::to_string(c->cmsg_type) +
                " len " + std::to_string(c->cmsg_len);
        const auto* bytes = CMSG_DATA(c);
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS && c->cmsg_len >= CMSG_LEN(1))
            text += " tos " + std::to_string(*bytes);
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TTL && c->cmsg_len >= CMSG_LEN(4))
            text += " ttl " + std::to_string(*reinterpret_cast<const int*>(bytes));
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO && c->cmsg_len == CMSG_LEN(4))
            text += " segments of " + std::to_string(*reinterpret_cast<const int*>(bytes));
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVORIGDSTADDR)
            text += " to " + shown(*reinterpret_cast<const sockaddr_in*>(bytes));
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_PKTINFO &&
            c->cmsg_len == CMSG_LEN(sizeof(in_pktinfo))) {
            sockaddr_in to = at("any", 0);
            to.sin_addr = reinterpret_cast<const in_pktinfo*>(bytes)->ipi_addr;
            text += " to " + shown(to);
            to.sin_addr = reinterpret_cast<const in_pktinfo*>(bytes)->ipi_spec_dst;
            text += " at " + shown(to);
        }
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR &&
            c->cmsg_len >= CMSG_LEN(sizeof(sock_extended_err))) {
            const auto* e = reinterpret_cast<const sock_extended_err*>(bytes);
            text += std::string(" error ") + strerrorname_np(int(e->ee_errno)) + " origin " +
                    std::to_string(e->ee_origin) + " type " + std::to_string(e->ee_type) +
                    " code " + std::to_string(e->ee_code) + " info " + std::to_string(e->ee_info) +
                    " data " + std::to_string(e->ee_data);
            const auto* by = reinterpret_cast<const sockaddr_in*>(SO_EE_OFFENDER(e));
            if (c->cmsg_len >= CMSG_LEN(sizeof *e + sizeof *by))
                text += by->sin_family == AF_INET ? " by " + shown(*by) : " by nobody";
        }
    }
    return text;
}
// What recvmsg() gave: length, text, flags and the control messages, without what differs from run to run.
inline std::string received(int s, int flags = 0, size_t room = 512, size_t size = 100) {
    std::string data(size, '?'), control(512, 0);
    sockaddr_in from{};
    iovec iov{data.data(), size};
    msghdr m = message_of(iov, room ? control.data() : nullptr, room);
    m.msg_name = &from;
    m.msg_namelen = sizeof from;
    const ssize_t n = recvmsg(s, &m, flags);
    if (n < 0) return std::string("-1 ") + strerrorname_np(errno);
    return std::to_string(n) + " \"" + data.substr(0, std::min(size, size_t(n))) + "\" flags " +
           std::to_string(m.msg_flags) + " name " + std::to_string(m.msg_namelen) + " control " +
           std::to_string(m.msg_controllen) + controls_of(m);
}
// sendmsg() with one control message.
template <class T>
long sent_with(int s, int level, int type, const T& value, const char* text = "controlled",
               const char* to = nullptr, size_t length = sizeof(T), int flags = 0) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(T))] = {};
    std::string data(text);
    iovec iov{data.data(), data.size()};
    sockaddr_in name{};
    msghdr m{};
    if (to) {
        name = at(to, port());
        m.msg_name = &name;
        m.msg_namelen = sizeof name;
    }
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(c), &value, sizeof value);
    return sendmsg(s, &m, flags);
}
// A stamp of the kind is there and is about now.
inline std::string stamp(int s) {
    char data[100];
    alignas(8) char control[512];
    iovec iov{data, sizeof data};
    msghdr m = message_of(iov, control, sizeof control);
    if (recvmsg(s, &m, 0) < 0) return strerrorname_np(errno);
    std::string text;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int64_t seconds = 0;
        memcpy(&seconds, CMSG_DATA(c), sizeof seconds);
        const bool now = std::abs(seconds - int64_t(time(nullptr))) < 20;
        text += std::to_string(c->cmsg_level) + "/" + std::to_string(c->cmsg_type) + " len " +
                std::to_string(c->cmsg_len) + (now ? " now;" : " another time;");
        timespec at[3];
        if (c->cmsg_len != CMSG_LEN(sizeof at)) continue;
        memcpy(at, CMSG_DATA(c), sizeof at);
        if (at[2].tv_sec || at[2].tv_nsec) text += " of a device, too;";
    }
    return text.empty() ? "none" : text;
}
// The kernel begins to stamp a while after it was asked to: the peer sends until_stamped().
inline std::string first_stamp(int s) {
    std::string stamped = "none";
    for (int i = 0; stamped == "none" && i < 100; i++) {
        step("next");
        until(s, POLLIN);
        stamped = stamp(s);
        tell(stamped == "none" && i < 99 ? "again" : "enough");
    }
    return stamped;
}
inline void until_stamped(int s) {
    do {
        step("next");
        put(s, "datagram");
    } while (hear() == "again");
}
