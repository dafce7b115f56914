// UDP_SEGMENT and UDP_GRO: many datagrams in one call, on the way out and in; UDP_CORK: one datagram of many calls.
#include "differential/control_words.h"

namespace {
void reads(int s, int n) {
    for (int i = 0; i < n; i++) SEE(got(s, 2000));
}
long put_cut(int s, size_t size, uint16_t segment) {
    return sent_with(s, SOL_UDP, UDP_SEGMENT, segment, pattern(size).c_str());
}
}  // namespace

BEHAVIOUR(udp_segment_sizes, "UDP_SEGMENT: sizes around the segment, up to the most in one call");
void udp_segment_sizes::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 100));
    for (const size_t size : {0, 1, 99, 100, 101, 200, 250, 6400}) {
        SEE(put(s, pattern(size)));
        step("read");
    }
    SEE(option(s, SOL_UDP, UDP_SEGMENT));
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 1472));
    SEE(put(s, pattern(14000)));
    step("read");
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 0));
    SEE(put(s, pattern(300)));
    step("read");
    by_ring(s, 0, 4 + 2 + 2 + 3 + 64 + 10 + 1);
}
void udp_segment_sizes::b() {
    const int s = udp_pair();
    step("ready");
    for (const int n : {1, 1, 1, 1, 2, 2, 3, 64, 10, 1}) {
        reads(s, n);
        SEE(got(s, 10, MSG_DONTWAIT));
        step("read");
    }
    by_ring(s, 86);
}

BEHAVIOUR(udp_segment_control,
          "UDP_SEGMENT as a control message, alone and beside others, over the option");
void udp_segment_control::a() {
    const int s = udp_pair();
    step("ready");
    SEE(put_cut(s, 1000, 300));
    step("read");
    SEE(put_cut(s, 200, 300));
    step("read");
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 500));
    SEE(put_cut(s, 1000, 250));
    step("read");
    SEE(put_cut(s, 1200, 0));
    step("read");
    by_ring(s, 0, 4 + 1 + 4 + 1);
    // Not the size of a segment's: refused, as is what is no segment size.
    SEE(sent_with(s, SOL_UDP, UDP_SEGMENT, uint32_t(100), "four bytes"));
    // Others are for the kernel.
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, 9, pattern(700).c_str()));
    step("read");
}
void udp_segment_control::b() {
    const int s = udp_pair();
    step("ready");
    for (const int n : {4, 1, 4, 1, 2}) {
        reads(s, n);
        SEE(got(s, 10, MSG_DONTWAIT));
        step("read");
    }
}

BEHAVIOUR(udp_segment_refused, "what the kernel refuses with UDP_SEGMENT");
void udp_segment_refused::a() {
    const int s = udp_pair();
    step("ready");
    for (const int value : {-1, 65536, 70000}) SEE(set(s, SOL_UDP, UDP_SEGMENT, value));
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 1473));
    SEE(put(s, pattern(3000)));  // a segment above the MTU
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 10));
    SEE(put(s, pattern(5000)));  // too many of them
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 1400));
    SEE(put(s, pattern(65508)));
    SEE(set(s, SOL_SOCKET, SO_NO_CHECK));
    SEE(put(s, pattern(3000)));
    SEE(set(s, SOL_SOCKET, SO_NO_CHECK, 0));
    SEE(put(s, pattern(2000)));
    step("read");
    by_ring(s, 0, 2);
}
void udp_segment_refused::b() {
    const int s = udp_pair();
    step("ready");
    reads(s, 2);
    SEE(got(s, 10, MSG_DONTWAIT));
    step("read");
}

BEHAVIOUR(udp_segment_named, "UDP_SEGMENT by a socket that is not connected, of several pieces");
void udp_segment_named::a() {
    const int s = udp_bound();
    step("ready");
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 700));
    std::string text = pattern(3000);
    sockaddr_in to = at("b", port());
    iovec parts[] = {{text.data(), 1}, {text.data() + 1, 1399}, {text.data() + 1400, 1600}};
    msghdr m{};
    m.msg_name = &to;
    m.msg_namelen = sizeof to;
    m.msg_iov = parts;
    m.msg_iovlen = 3;
    SEE(sendmsg(s, &m, 0));
    step("read");
    by_ring(s, 0, 5);
}
void udp_segment_named::b() {
    const int s = udp_bound();
    step("ready");
    reads(s, 5);
    SEE(got(s, 10, MSG_DONTWAIT));
    step("read");
}

BEHAVIOUR(udp_gro_read, "UDP_GRO: what was sent in one call is read in one");
void udp_gro_read::a() {
    const int s = udp_pair();
    SEE(set(s, SOL_UDP, UDP_GRO));
    SEE(option(s, SOL_UDP, UDP_GRO));
    step("ready");
    step("sent");
    SEE(received(s, MSG_PEEK, 512, 5000));
    SEE(received(s, 0, 512, 5000));
    SEE(received(s, 0, 512, 150));          // cut off
    SEE(received(s, MSG_TRUNC, 512, 150));  // and told of
    SEE(received(s, 0, 0, 5000));           // no room for the control message
    int next = 0;
    SEE(ioctl(s, FIONREAD, &next));
    SEE(long(next));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    SEE(received(s, 0, 512, 5000));
    SEE(received(s, 0, 512, 5000));  // a single one
    step("read");
    SEE(set(s, SOL_UDP, UDP_GRO, 0));
    step("ready");
    step("sent");
    for (int i = 0; i < 3; i++) SEE(received(s, 0, 512, 5000));
    SEE(received(s, MSG_DONTWAIT));
    on_ring(s);
    step("read");
}
void udp_gro_read::b() {
    const int s = udp_pair();
    step("ready");
    for (int i = 0; i < 5; i++) SEE(put_cut(s, 350, 100));
    SEE(put_cut(s, 100, 100));
    step("sent");
    step("read");
    step("ready");
    SEE(put_cut(s, 250, 100));
    step("sent");
    step("read");
}

BEHAVIOUR(udp_gro_later,
          "UDP_GRO set and taken back while datagrams wait: what waits is as it came");
void udp_gro_later::a() {
    const int s = udp_pair();
    step("ready");
    step("sent");
    SEE(set(s, SOL_UDP, UDP_GRO));
    for (int i = 0; i < 3; i++) SEE(received(s, 0, 512, 5000));
    SEE(received(s, MSG_DONTWAIT));
    step("read");
    step("sent");
    SEE(set(s, SOL_UDP, UDP_GRO, 0));
    SEE(received(s, 0, 512, 5000));
    SEE(received(s, MSG_DONTWAIT));
    step("read");
    on_ring(s);
}
void udp_gro_later::b() {
    const int s = udp_pair();
    step("ready");
    for (int i = 0; i < 2; i++) {
        SEE(put_cut(s, 250, 100));
        step("sent");
        step("read");
    }
}

BEHAVIOUR(udp_cork_and_more,
          "UDP_CORK and MSG_MORE together; what is sent in pieces and what is not stay in order");
void udp_cork_and_more::a() {
    const int s = udp_pair();
    step("ready");
    SEE(put(s, "by itself"));
    SEE(set(s, SOL_UDP, UDP_CORK));
    SEE(put(s, "one "));
    SEE(put(s, "two ", MSG_NOSIGNAL | MSG_MORE));
    SEE(put(s, "three"));
    SEE(option(s, SOL_UDP, UDP_CORK));
    SEE(set(s, SOL_UDP, UDP_CORK, 0));
    SEE(put(s, "again by itself"));
    SEE(put(s, "more ", MSG_NOSIGNAL | MSG_MORE));
    SEE(set(s, SOL_UDP, UDP_CORK));
    SEE(set(s, SOL_UDP, UDP_CORK, 0));
    SEE(put(s, "the last"));
    step("read");
    by_ring(s, 0, 3);
}
void udp_cork_and_more::b() {
    const int s = udp_pair();
    step("ready");
    for (int i = 0; i < 5; i++) SEE(got(s));
    SEE(got(s, 10, MSG_DONTWAIT));
    step("read");
}
