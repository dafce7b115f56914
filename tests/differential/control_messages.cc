// Control messages of recvmsg() and sendmsg(), the error queue, flags of datagram calls.
#include <sys/uio.h>
#include <time.h>

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>

#include "differential/control_words.h"

namespace {
// The role that sends datagrams as they are asked for.
void sends(int count, int tos = 0, int ttl = 0) {
    const int s = udp_pair();
    if (tos) set(s, IPPROTO_IP, IP_TOS, tos);
    if (ttl) set(s, IPPROTO_IP, IP_TTL, ttl);
    for (int i = 0; i < count; i++) {
        step("next");
        put(s, "datagram");
    }
    step("over");
}
// The role that shows what comes.
void shows(int count) {
    const int s = udp_pair();
    for (const int name : {IP_RECVTOS, IP_RECVTTL, IP_PKTINFO}) set(s, IPPROTO_IP, name);
    step("ready");
    for (int i = 0; i < count; i++) SEE(received(s));
    step("over");
}
}  // namespace

BEHAVIOUR(cmsg_each_alone, "each control message that a datagram can have, alone");
void cmsg_each_alone::a() {
    const int s = udp_pair();
    const int names[] = {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR};
    for (const int name : names) {
        SEE(set(s, IPPROTO_IP, name));
        step("next");
        SEE(received(s));
        SEE(set(s, IPPROTO_IP, name, 0));
    }
    step("next");
    SEE(received(s));
    step("over");
}
void cmsg_each_alone::b() { sends(5, 0x48, 33); }

BEHAVIOUR(cmsg_rare,
          "IP_RECVOPTS, IP_RETOPTS, IP_CHECKSUM, IP_RECVFRAGSIZE, SO_RXQ_OVFL: by datagram");
void cmsg_rare::a() {
    const int s = udp_pair();
    for (const int name : {IP_RECVOPTS, IP_RETOPTS, IP_RECVFRAGSIZE}) {
        SEE(set(s, IPPROTO_IP, name));
        step("next");
        SEE(received(s));
        SEE(set(s, IPPROTO_IP, name, 0));
    }
    SEE(set(s, SOL_SOCKET, SO_RXQ_OVFL));
    step("next");
    SEE(received(s));
    step("over");
}
void cmsg_rare::b() { sends(4); }

BEHAVIOUR(cmsg_all, "all of them at once, in their order");
void cmsg_all::a() {
    const int s = udp_pair();
    for (const int name : {IP_RECVORIGDSTADDR, IP_RECVTOS, IP_RECVTTL, IP_PKTINFO})
        SEE(set(s, IPPROTO_IP, name));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMP));
    step("next");
    SEE(received(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS));
    step("next");
    SEE(received(s));
    step("over");
}
void cmsg_all::b() { sends(2, 0x10, 99); }

BEHAVIOUR(cmsg_room, "every size of room for control messages: what is cut and how it is told");
void cmsg_room::a() {
    const int s = udp_pair();
    SEE(set(s, IPPROTO_IP, IP_PKTINFO));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    step("next");
    SEE(until(s, POLLIN));
    for (const size_t room : {0, 8, 15, 16, 17, 20, 27, 28, 31, 32, 40, 47, 48, 52, 56})
        SEE(received(s, MSG_PEEK, room));
    SEE(received(s));
    step("over");
}
void cmsg_room::b() { sends(1); }

BEHAVIOUR(cmsg_by_recvmmsg, "recvmmsg(): control messages and names of each datagram");
void cmsg_by_recvmmsg::a() {
    const int s = udp_pair();
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    step("next");
    step("next");
    step("next");
    step("over");
    char data[3][16], control[3][64];
    sockaddr_in from[3];
    iovec iov[3];
    mmsghdr m[3]{};
    for (int i = 0; i < 3; i++) {
        iov[i] = {data[i], i == 1 ? 4u : 16u};
        m[i].msg_hdr = {&from[i], sizeof from[i], &iov[i], 1, control[i], sizeof control[i], 0};
    }
    m[2].msg_hdr.msg_name = nullptr;
    m[2].msg_hdr.msg_controllen = 4;
    SEE(recvmmsg(s, m, 3, 0, nullptr));
    for (const mmsghdr& each : m) {
        SEE(long(each.msg_len));
        SEE(long(each.msg_hdr.msg_flags));
        SEE(long(each.msg_hdr.msg_namelen));
        SEE(long(each.msg_hdr.msg_controllen));
    }
    SEE(shown(from[0]));
}
void cmsg_by_recvmmsg::b() { sends(3); }

BEHAVIOUR(stamp_kinds,
          "SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, and their NEW forms: one at a time");
void stamp_kinds::a() {
    const int s = udp_pair();
    for (const int name : {SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW}) {
        SEE(set(s, SOL_SOCKET, name));
        step("next");
        SEE(stamp(s));
        SEE(set(s, SOL_SOCKET, name, 0));
        step("next");
        SEE(stamp(s));
    }
    step("over");
}
void stamp_kinds::b() { sends(8); }

BEHAVIOUR(stamping_software, "SO_TIMESTAMPING: software stamps of what comes");
void stamping_software::a() {
    const int s = udp_pair();
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE));
    step("next");
    SEE(stamp(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING,
            SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE));
    SEE(first_stamp(s));
    step("over");
}
void stamping_software::b() {
    const int s = udp_pair();
    step("next");
    put(s, "datagram");
    until_stamped(s);
    step("over");
}

BEHAVIOUR(stamp_by_ioctl, "SIOCGSTAMP, SIOCGSTAMPNS: the last datagram's time");
void stamp_by_ioctl::a() {
    const int s = udp_pair();
    timeval tv{};
    timespec ts{};
    SEE(ioctl(s, 0x8906, &tv));
    SEE(ioctl(s, 0x8907, &ts));
    step("next");
    SEE(got(s));
    SEE(ioctl(s, 0x8906, &tv));
    SEE(std::abs(int64_t(tv.tv_sec) - int64_t(time(nullptr))) < 20);
    SEE(ioctl(s, 0x8907, &ts));
    SEE(std::abs(int64_t(ts.tv_sec) - int64_t(time(nullptr))) < 20);
    step("next");
    SEE(got(s));
    timespec second{};
    SEE(ioctl(s, 0x8907, &second));
    SEE(second.tv_sec > ts.tv_sec || (second.tv_sec == ts.tv_sec && second.tv_nsec >= ts.tv_nsec));
    step("over");
}
void stamp_by_ioctl::b() { sends(2); }

BEHAVIOUR(stamp_by_ioctl_late,
          "SIOCGSTAMPNS for the first time after a datagram, and beside SO_TIMESTAMPNS");
void stamp_by_ioctl_late::a() {
    const int s = udp_pair();
    timespec ts[4]{};
    const auto later = [](const timespec& a, const timespec& b) {
        return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
    };
    step("next");
    SEE(got(s));
    SEE(ioctl(s, SIOCGSTAMPNS, &ts[0]));
    SEE(std::abs(int64_t(ts[0].tv_sec) - int64_t(time(nullptr))) < 20);
    step("next");
    SEE(got(s));
    SEE(ioctl(s, SIOCGSTAMPNS, &ts[1]));
    SEE(later(ts[1], ts[0]));
    timeval tv{};
    SEE(ioctl(s, SIOCGSTAMP, &tv));
    SEE(tv.tv_sec == ts[1].tv_sec && tv.tv_usec == ts[1].tv_nsec / 1000);
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS));
    step("next");
    SEE(got(s));
    SEE(ioctl(s, SIOCGSTAMPNS, &ts[2]));
    SEE(later(ts[2], ts[1]));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    step("next");
    SEE(got(s));
    SEE(ioctl(s, SIOCGSTAMPNS, &ts[3]));
    SEE(later(ts[3], ts[2]));
    by_ring(s, 4);
    step("over");
}
void stamp_by_ioctl_late::b() { sends(4); }

BEHAVIOUR(send_tos, "IP_TOS with sendmsg(), as int and as byte; only this datagram has it");
void send_tos::a() {
    const int s = udp_pair();
    step("ready");
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, int(0x28)));
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, uint8_t(0x50)));
    SEE(put(s, "plain"));
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, int(300)));
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, int(-1)));
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, int16_t(1)));
    step("over");
}
void send_tos::b() { shows(3); }

BEHAVIOUR(send_ttl, "IP_TTL with sendmsg(); 0, 256 and short ones are refused");
void send_ttl::a() {
    const int s = udp_pair();
    step("ready");
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(17)));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(0)));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(256)));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, uint8_t(9)));
    SEE(put(s, "plain"));
    step("over");
}
void send_ttl::b() { shows(2); }

BEHAVIOUR(send_pktinfo, "IP_PKTINFO with sendmsg(): the source address of one's choice");
void send_pktinfo::a() {
    const int s = udp_bound(0, "any");
    step("bound");
    in_pktinfo from{};
    from.ipi_spec_dst = at("a2", 0).sin_addr;
    SEE(sent_with(s, IPPROTO_IP, IP_PKTINFO, from, "from the second", "b"));
    SEE(sent_with(s, IPPROTO_IP, IP_PKTINFO, in_pktinfo{}, "from any", "b"));
    from.ipi_spec_dst = at("b2", 0).sin_addr;
    SEE(sent_with(s, IPPROTO_IP, IP_PKTINFO, from, "from another host", "b"));
    from.ipi_spec_dst = {};
    from.ipi_ifindex = 12345;
    SEE(sent_with(s, IPPROTO_IP, IP_PKTINFO, from, "by no interface", "b"));
    SEE(sent_with(s, IPPROTO_IP, IP_PKTINFO, int(0), "short", "b"));
    step("over");
}
void send_pktinfo::b() {
    const int s = udp_bound();
    step("bound");
    for (int i = 0; i < 2; i++) {
        sockaddr_in from{};
        socklen_t len = sizeof from;
        char data[100];
        SEE(recvfrom(s, data, sizeof data, 0, raw(from), &len));
        SEE(shown(from));
    }
    step("over");
}

BEHAVIOUR(send_unknown_control, "control messages that sendmsg() does not know, and broken ones");
void send_unknown_control::a() {
    const int s = udp_pair();
    step("ready");
    SEE(sent_with(s, IPPROTO_IP, 99, int(1)));
    SEE(sent_with(s, 77, 1, int(1)));
    SEE(sent_with(s, SOL_SOCKET, 999, int(1)));
    SEE(sent_with(s, SOL_SOCKET, SCM_RIGHTS, int(0)));
    SEE(sent_with(s, SOL_SOCKET, SCM_CREDENTIALS, int(0)));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(5), "x", nullptr, 1000));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(5), "x", nullptr, size_t(-8)));
    SEE(sent_with(s, SOL_SOCKET, SO_MARK, uint32_t(0), "marked"));
    SEE(sent_with(s, IPPROTO_IP, IP_ORIGDSTADDR, at("a2", port()), "received only"));
    SEE(put(s, "plain"));
    step("over");
}
void send_unknown_control::b() { shows(2); }

BEHAVIOUR(send_segments, "UDP_SEGMENT as option and as control message");
void send_segments::a() {
    const int s = udp_pair();
    step("ready");
    SEE(sent_with(s, IPPROTO_UDP, UDP_SEGMENT, uint16_t(4), "0123456789"));
    SEE(set(s, IPPROTO_UDP, UDP_SEGMENT, 3));
    SEE(put(s, "abcdef"));
    SEE(sent_with(s, IPPROTO_UDP, UDP_SEGMENT, uint16_t(0), "whole"));
    step("over");
}
void send_segments::b() { shows(6); }

BEHAVIOUR(cork_datagrams, "MSG_MORE and UDP_CORK make one datagram of several sends");
void cork_datagrams::a() {
    const int s = udp_pair();
    step("ready");
    SEE(put(s, "one ", MSG_MORE));
    SEE(put(s, "two ", MSG_MORE));
    SEE(put(s, "three"));
    SEE(set(s, IPPROTO_UDP, UDP_CORK));
    SEE(put(s, "cor"));
    SEE(put(s, "ked"));
    SEE(set(s, IPPROTO_UDP, UDP_CORK, 0));
    SEE(put(s, "plain"));
    step("over");
}
void cork_datagrams::b() { shows(3); }

BEHAVIOUR(tcp_control, "recvmsg() of a stream: no name, no control messages; sendmsg() with some");
void tcp_control::a() {
    const int s = connected();
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(5), "with a ttl"));
    SEE(sent_with(s, IPPROTO_IP, IP_TOS, int(8), "with a tos"));
    SEE(sent_with(s, SOL_SOCKET, 999, int(1), "unknown"));
    SEE(sent_with(s, SOL_SOCKET, SO_MARK, uint32_t(0), "marked"));
    SEE(sent_with(s, SOL_SOCKET, SCM_RIGHTS, int(0), "rights"));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(5), "x", nullptr, 1000));
    SEE(put(s, "end"));
    SEE(shutdown(s, SHUT_WR));
}
void tcp_control::b() {
    const int s = connected();
    SEE(set(s, IPPROTO_IP, IP_PKTINFO));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    SEE(until(s, POLLRDHUP));
    SEE(received(s, 0, 512, 3));
    SEE(received(s, 0, 0, 3));
    SEE(received(s, MSG_PEEK, 7, 3));
    SEE(rest(s));
}

BEHAVIOUR(tcp_inq_control, "TCP_INQ: how much is left, with every recvmsg()");
void tcp_inq_control::a() {
    const int s = connected();
    SEE(put(s, "0123456789"));
    step("sent");
    step("over");
}
void tcp_inq_control::b() {
    const int s = connected();
    SEE(set(s, IPPROTO_TCP, TCP_INQ));
    step("sent");
    SEE(until_bytes(s, 10));
    for (int i = 0; i < 2; i++) {
        char data[4], control[64] = {};
        iovec iov{data, sizeof data};
        msghdr m = message_of(iov, control, sizeof control);
        SEE(recvmsg(s, &m, 0));
        const cmsghdr* c = CMSG_FIRSTHDR(&m);
        SEE(c != nullptr && c->cmsg_level == SOL_TCP && c->cmsg_type == TCP_CM_INQ);
        SEE(c ? *reinterpret_cast<const int*>(CMSG_DATA(c)) : -1);
    }
    step("over");
}

BEHAVIOUR(tcp_stamp_control, "SO_TIMESTAMPNS on a stream");
void tcp_stamp_control::a() {
    until_stamped(connected());
    step("over");
}
void tcp_stamp_control::b() {
    const int s = connected();
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS));
    SEE(first_stamp(s));
    step("over");
}

BEHAVIOUR(error_queue, "IP_RECVERR: the refused datagram comes back by MSG_ERRQUEUE");
void error_queue::a() {
    const int s = udp_bound();
    SEE(set(s, IPPROTO_IP, IP_RECVERR));
    SEE(received(s, MSG_ERRQUEUE | MSG_DONTWAIT));
    SEE(connect_to(s, "b", 9));
    SEE(put(s, "refused"));
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(received(s, MSG_ERRQUEUE));
    SEE(received(s, MSG_ERRQUEUE));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    SEE(ready(s));
    step("over");
}
void error_queue::b() {
    udp_bound();
    step("over");
}

BEHAVIOUR(error_queue_unconnected, "IP_RECVERR without connect(): errors of every destination");
void error_queue_unconnected::a() {
    const int s = udp_bound();
    const sockaddr_in deaf = at("b", port(9)), other = at("b", port(8));
    SEE(sendto(s, "unseen", 6, 0, raw(deaf), sizeof deaf));
    SEE(set(s, IPPROTO_IP, IP_RECVERR));
    SEE(sendto(s, "one", 3, 0, raw(deaf), sizeof deaf));
    SEE(until(s, POLLERR));
    SEE(got(s, 10, MSG_DONTWAIT));
    SEE(received(s, MSG_ERRQUEUE));
    SEE(sendto(s, "two", 3, 0, raw(other), sizeof other));
    SEE(until(s, POLLERR));
    SEE(received(s, MSG_ERRQUEUE));
    SEE(set(s, IPPROTO_IP, IP_RECVERR, 0));
    SEE(polled(s));
    step("over");
}
void error_queue_unconnected::b() {
    udp_bound();
    step("over");
}

BEHAVIOUR(error_queue_local, "IP_RECVERR: a datagram that is too large leaves a local error");
void error_queue_local::a() {
    const int s = udp_pair();
    SEE(set(s, IPPROTO_IP, IP_RECVERR));
    SEE(set(s, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO));
    SEE(put(s, pattern(2000)));
    SEE(polled(s));
    SEE(received(s, MSG_ERRQUEUE));
    SEE(option(s, IPPROTO_IP, IP_MTU));
    step("over");
}
void error_queue_local::b() {
    udp_pair();
    step("over");
}

BEHAVIOUR(error_queue_tcp, "MSG_ERRQUEUE of a stream: nothing there");
void error_queue_tcp::a() {
    const int s = connected();
    SEE(received(s, MSG_ERRQUEUE));
    SEE(set(s, IPPROTO_IP, IP_RECVERR));
    SEE(received(s, MSG_ERRQUEUE | MSG_DONTWAIT));
    SEE(received(s, MSG_ERRQUEUE | MSG_PEEK));
    SEE(put(s, "data"));
    step("over");
}
void error_queue_tcp::b() {
    const int s = connected();
    SEE(got(s));
    step("over");
}

BEHAVIOUR(udp_flags,
          "MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_DONTWAIT, MSG_OOB of datagrams, together");
void udp_flags::a() {
    const int s = udp_pair();
    step("next");
    SEE(until(s, POLLIN));
    SEE(received(s, MSG_PEEK, 0, 3));
    SEE(received(s, MSG_PEEK | MSG_TRUNC, 0, 3));
    SEE(received(s, MSG_PEEK | MSG_WAITALL, 0, 100));
    SEE(received(s, MSG_OOB, 0, 3));
    SEE(received(s, MSG_TRUNC | MSG_DONTWAIT, 0, 3));
    SEE(received(s, MSG_DONTWAIT, 0, 3));
    SEE(received(s, MSG_PEEK | MSG_DONTWAIT, 0, 3));
    SEE(received(s, MSG_TRUNC | MSG_DONTWAIT | MSG_ERRQUEUE, 0, 3));
    SEE(put(s, "x", MSG_OOB));
    SEE(put(s, "x", MSG_EOR));
    SEE(put(s, "y", MSG_CONFIRM));
    SEE(put(s, "z", MSG_DONTROUTE));
    step("over");
}
void udp_flags::b() { sends(1); }

BEHAVIOUR(udp_vectors,
          "datagrams gathered from and scattered to many pieces, empty ones among them");
void udp_vectors::a() {
    const int s = udp_pair();
    char text[] = "abcdefghij";
    std::vector<iovec> iov;
    for (int i = 0; i < 10; i++) {
        iov.push_back({text + i, 1});
        iov.push_back({nullptr, 0});
    }
    msghdr m{};
    m.msg_iov = iov.data();
    m.msg_iovlen = iov.size();
    SEE(sendmsg(s, &m, 0));
    m.msg_iovlen = 0;
    SEE(sendmsg(s, &m, 0));
    m.msg_iovlen = 1025;
    SEE(sendmsg(s, &m, 0));
    iov.assign(1024, iovec{text, 1});
    m.msg_iov = iov.data();
    m.msg_iovlen = 1024;
    SEE(sendmsg(s, &m, 0));
    step("over");
}
void udp_vectors::b() {
    const int s = udp_pair();
    char a[3] = {}, b[3] = {}, c[10] = {};
    iovec iov[] = {{a, 2}, {nullptr, 0}, {b, 2}, {c, 9}};
    msghdr m{};
    m.msg_iov = iov;
    m.msg_iovlen = 4;
    SEE(recvmsg(s, &m, 0));
    SEE(std::string(a) + "," + b + "," + c);
    SEE(recvmsg(s, &m, 0));
    SEE(recvmsg(s, &m, 0));
    SEE(long(m.msg_flags));
    step("over");
}

BEHAVIOUR(udp_read_write, "read(), write(), readv(), writev() of datagrams; lengths of nothing");
void udp_read_write::a() {
    const int s = udp_pair();
    SEE(write(s, "written", 7));
    char one[] = "gath", two[] = "ered";
    iovec iov[] = {{one, 4}, {two, 4}};
    SEE(writev(s, iov, 2));
    SEE(write(s, nullptr, 0));
    SEE(writev(s, iov, 0));
    SEE(put(s, "last"));
    step("over");
}
void udp_read_write::b() {
    const int s = udp_pair();
    char data[16] = {};
    SEE(read(s, data, sizeof data));
    SEE(std::string(data));
    iovec iov[] = {{data, 2}, {data + 2, 14}};
    SEE(readv(s, iov, 2));
    SEE(until(s, POLLIN));
    SEE(read(s, data, 0));
    SEE(recv(s, data, sizeof data, 0));
    step("over");
}

BEHAVIOUR(mmsg_partial, "sendmmsg() that fails in the middle; recvmmsg() that has a part");
void mmsg_partial::a() {
    const int s = udp_pair();
    char text[] = "text";
    std::string much = pattern(70000);
    iovec iov{text, 4}, big{much.data(), much.size()};
    mmsghdr m[4]{};
    for (int i = 0; i < 4; i++) {
        m[i].msg_hdr.msg_iov = i == 2 ? &big : &iov;
        m[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(sendmmsg(s, m, 4, 0));
    SEE(long(m[1].msg_len));
    SEE(sendmmsg(s, m + 2, 2, 0));
    SEE(sendmmsg(s, m + 3, 1, MSG_DONTWAIT));
    SEE(sendmmsg(s, nullptr, 0, 0));
    step("sent");
    step("over");
}
void mmsg_partial::b() {
    const int s = udp_pair();
    step("sent");
    char text[5][8];
    iovec iov[5];
    mmsghdr m[5]{};
    for (int i = 0; i < 5; i++) {
        iov[i] = {text[i], 8};
        m[i].msg_hdr.msg_iov = &iov[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(recvmmsg(s, m, 1, 0, nullptr));
    SEE(recvmmsg(s, m, 1, 0, nullptr));
    SEE(recvmmsg(s, m, 1, 0, nullptr));
    nonblocking(s);
    SEE(recvmmsg(s, m, 5, 0, nullptr));
    SEE(recvmmsg(s, m, 5, MSG_WAITFORONE, nullptr));
    step("over");
}

BEHAVIOUR(mmsg_timeout, "recvmmsg()'s timeout is looked at after a datagram only");
void mmsg_timeout::a() {
    const int s = udp_pair();
    step("next");
    char text[8];
    iovec iov{text, 8};
    mmsghdr m[2]{};
    m[0].msg_hdr.msg_iov = m[1].msg_hdr.msg_iov = &iov;
    m[0].msg_hdr.msg_iovlen = m[1].msg_hdr.msg_iovlen = 1;
    timespec none{0, 0};
    SEE(recvmmsg(s, m, 2, 0, &none));
    SEE(long(none.tv_sec));
    timespec bad{-1, 0};
    SEE(recvmmsg(s, m, 2, MSG_DONTWAIT, &bad));
    timespec enough{5, 0};
    step("next");
    SEE(recvmmsg(s, m, 1, 0, &enough));
    SEE(enough.tv_sec <= 5 && enough.tv_sec >= 3);
    step("over");
}
void mmsg_timeout::b() { sends(2); }
