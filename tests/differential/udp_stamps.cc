// SO_TIMESTAMPING of datagrams: software stamps of what comes and, by the error queue, of what is sent.
#include <linux/net_tstamp.h>

#include "differential/control_words.h"

namespace {
constexpr int kReceived = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
}  // namespace

BEHAVIOUR(stamps_of_received,
          "SO_TIMESTAMPING on reception: old and new form, beside the other options");
void stamps_of_received::a() {
    const int s = udp_pair();
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kReceived));
    SEE(first_stamp(s));
    // Each of the two options has its own message; the names of both follow the last one set.
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS_OLD));
    for (const int name : {SO_TIMESTAMPING_NEW, SO_TIMESTAMPING_OLD}) {
        SEE(set(s, SOL_SOCKET, name, kReceived));
        step("next");
        SEE(stamp(s));
    }
    for (const int name : {SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMP_OLD}) {
        SEE(set(s, SOL_SOCKET, name));
        step("next");
        SEE(stamp(s));
    }
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS_OLD, 0));
    step("next");
    SEE(stamp(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, SOF_TIMESTAMPING_RX_SOFTWARE));
    step("next");
    SEE(stamp(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kReceived));
    SEE(set(s, IPPROTO_IP, IP_RECVTTL));
    step("next");
    SEE(received(s, 0, 512));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, 0));
    step("next");
    SEE(stamp(s));
    step("over");
    on_ring(s);
}
void stamps_of_received::b() {
    const int s = udp_pair();
    until_stamped(s);
    for (int i = 0; i < 9; i++) {
        step("next");
        put(s, "datagram");
    }
    step("over");
}

BEHAVIOUR(stamps_of_a_device,
          "SO_TIMESTAMPING that asks for the stamps of a device, which may have none");
void stamps_of_a_device::a() {
    constexpr int kOfDevice = SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
    const int s = udp_pair();
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kReceived | kOfDevice));
    SEE(first_stamp(s));
    SEE(option(s, SOL_SOCKET, SO_TIMESTAMPING_OLD));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kOfDevice | SOF_TIMESTAMPING_SYS_HARDWARE));
    step("next");
    SEE(stamp(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kReceived | SOF_TIMESTAMPING_RX_HARDWARE));
    step("next");
    SEE(stamp(s));
    on_ring(s);
    step("over");
}
void stamps_of_a_device::b() {
    const int s = udp_pair();
    until_stamped(s);
    for (int i = 0; i < 2; i++) {
        step("next");
        put(s, "datagram");
    }
    step("over");
}

namespace {
constexpr int kSent = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
constexpr int kBare = kSent | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;

int64_t nanoseconds_now() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}
// What the error queue gives: of a frame its length and the text behind its headers; of stamps whether they were made between
// `since` and now.
std::string told(int s, int64_t since = 0, size_t room = 512, size_t size = 70000) {
    std::string data(size, '?');
    alignas(8) char control[512];
    iovec iov{data.data(), size};
    msghdr m = message_of(iov, room ? control : nullptr, room);
    sockaddr_in name{};
    m.msg_name = &name;
    m.msg_namelen = sizeof name;
    const ssize_t n = recvmsg(s, &m, MSG_ERRQUEUE);
    if (n < 0) return strerrorname_np(errno);
    constexpr size_t kHeaders = 14 + 20 + 8;
    std::string text = std::to_string(n);
    if (size_t(n) > kHeaders)
        text += " \"" + data.substr(kHeaders, std::min<size_t>(size_t(n) - kHeaders, 20)) + "\"";
    text += " flags " + std::to_string(m.msg_flags) + " name " + std::to_string(m.msg_namelen) +
            " control " + std::to_string(m.msg_controllen);
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        timespec at[3];
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_len != CMSG_LEN(sizeof at)) continue;
        memcpy(at, CMSG_DATA(c), sizeof at);
        const int64_t ns = int64_t(at[0].tv_sec) * 1000000000 + at[0].tv_nsec;
        text += ns >= since && ns <= nanoseconds_now() ? " in time" : " another time";
        if (at[1].tv_sec || at[1].tv_nsec || at[2].tv_sec || at[2].tv_nsec) text += " of a device";
    }
    return text + controls_of(m);
}
// The same, of a stamp that is awaited.
std::string awaited(int s, int64_t since = 0) {
    until(s, POLLERR);
    return told(s, since);
}
// The peer of a role that sends.
void takes(int n) {
    const int s = udp_pair();
    step("ready");
    for (int i = 0; i < n; i++) SEE(got(s, 9000));
    SEE(got(s, 10, MSG_DONTWAIT));
    step("over");
}
// sendmsg() with stamps of its own choice, and a number if there is one.
long put_stamped(int s, const char* text, uint32_t records, const uint32_t* id = nullptr) {
    alignas(8) char control[2 * CMSG_SPACE(4)] = {};
    std::string data(text);
    iovec iov{data.data(), data.size()};
    msghdr m = message_of(iov, control, id ? sizeof control : CMSG_SPACE(4));
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    *c = {CMSG_LEN(4), SOL_SOCKET, SO_TIMESTAMPING_OLD};
    memcpy(CMSG_DATA(c), &records, 4);
    if (id) {
        c = CMSG_NXTHDR(&m, c);
        *c = {CMSG_LEN(4), SOL_SOCKET, 81};  // SCM_TS_OPT_ID
        memcpy(CMSG_DATA(c), id, 4);
    }
    return sendmsg(s, &m, 0);
}
}  // namespace

BEHAVIOUR(stamps_of_sent, "the frame comes back with the time at which it left");
void stamps_of_sent::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent));
    SEE(told(s));
    for (const char* text : {"one", "", "three"}) {
        const int64_t before = nanoseconds_now();
        SEE(put(s, text));
        SEE(awaited(s, before));
    }
    SEE(told(s));
    SEE(option(s, SOL_SOCKET, SO_ERROR));
    // The message of the stamp only where it is asked to be told.
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, SOF_TIMESTAMPING_TX_SOFTWARE));
    SEE(put(s, "four"));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_NEW, kSent));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS_NEW));
    SEE(put(s, "five"));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, 0));
    SEE(put(s, "six"));
    SEE(polled(s));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 6);
}
void stamps_of_sent::b() { takes(6); }

BEHAVIOUR(stamp_ids,
          "SOF_TIMESTAMPING_OPT_ID: datagrams are counted from 0, again after it was off");
void stamp_ids::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    for (int i = 0; i < 3; i++) SEE(put(s, "counted"));
    for (int i = 0; i < 3; i++) SEE(awaited(s));
    // Still on: goes on; not counted: what is not stamped.
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD,
            SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_SOFTWARE));
    SEE(put(s, "not stamped"));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare & ~SOF_TIMESTAMPING_OPT_TSONLY));
    SEE(put(s, "three"));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare & ~SOF_TIMESTAMPING_OPT_ID));
    SEE(put(s, "no number"));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    SEE(put(s, "zero"));
    SEE(awaited(s));
    step("over");
    by_ring(s, 0, 7);
}
void stamp_ids::b() { takes(7); }

BEHAVIOUR(stamp_ids_of_refused, "a datagram that was refused is not counted");
void stamp_ids_of_refused::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    SEE(put(s, "zero"));
    SEE(put(s, pattern(65508)));
    SEE(sent_with(s, IPPROTO_IP, IP_TTL, int(256)));
    SEE(sent_with(s, SOL_SOCKET, 999, int(1)));
    SEE(put(s, "one"));
    SEE(awaited(s));
    SEE(awaited(s));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 2);
}
void stamp_ids_of_refused::b() { takes(2); }

BEHAVIOUR(stamp_headers, "SOF_TIMESTAMPING_OPT_CMSG: control messages as of a received datagram");
void stamp_headers::a() {
    const int s = udp_pair();
    step("ready");
    for (const int name : {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR})
        SEE(set(s, IPPROTO_IP, name));
    SEE(set(s, IPPROTO_IP, IP_TOS, 0x48));
    SEE(set(s, IPPROTO_IP, IP_TTL, 33));
    for (const int more : {0, int(SOF_TIMESTAMPING_OPT_CMSG),
                           SOF_TIMESTAMPING_OPT_CMSG | SOF_TIMESTAMPING_OPT_TSONLY}) {
        SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent | more));
        SEE(put(s, "datagram"));
        SEE(awaited(s));
    }
    for (const int name : {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR})
        SEE(set(s, IPPROTO_IP, name, 0));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent | SOF_TIMESTAMPING_OPT_CMSG));
    SEE(put(s, "datagram"));
    SEE(awaited(s));
    step("over");
    by_ring(s, 0, 4);
}
void stamp_headers::b() { takes(4); }

BEHAVIOUR(stamp_moments, "SOF_TIMESTAMPING_TX_SCHED: a stamp more, and before");
void stamp_moments::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare | SOF_TIMESTAMPING_TX_SCHED));
    const int64_t before = nanoseconds_now();
    for (int i = 0; i < 2; i++) SEE(put(s, "both"));
    for (int i = 0; i < 4; i++) SEE(awaited(s, before));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD,
            SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED));
    SEE(put(s, "scheduled"));
    SEE(awaited(s, before));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 3);
}
void stamp_moments::b() { takes(3); }

BEHAVIOUR(stamp_paced, "a datagram that waits for its time has its stamps, too");
void stamp_paced::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent | SOF_TIMESTAMPING_OPT_ID));
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, 50000));
    const int64_t before = nanoseconds_now();
    for (int i = 0; i < 6; i++) SEE(put(s, pattern(1400)));
    for (int i = 0; i < 6; i++) SEE(awaited(s, before));
    step("over");
    by_ring(s, 0, 6);
}
void stamp_paced::b() { takes(6); }

BEHAVIOUR(stamp_controls, "SO_TIMESTAMPING and SCM_TS_OPT_ID with sendmsg(): for one datagram");
void stamp_controls::a() {
    const int s = udp_pair();
    step("ready");
    SEE(put_stamped(s, "no option", SOF_TIMESTAMPING_TX_SOFTWARE));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD,
            SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID));
    SEE(put_stamped(s, "zero", SOF_TIMESTAMPING_TX_SOFTWARE));
    SEE(awaited(s));
    SEE(put_stamped(s, "one", SOF_TIMESTAMPING_TX_SCHED));
    SEE(awaited(s));
    const uint32_t number = 4000000000;
    SEE(put_stamped(s, "its own", SOF_TIMESTAMPING_TX_SOFTWARE, &number));
    SEE(awaited(s));
    SEE(put(s, "not stamped"));
    SEE(put_stamped(s, "nor this", 0));
    SEE(put_stamped(s, "refused", SOF_TIMESTAMPING_OPT_ID));
    SEE(put_stamped(s, "two", SOF_TIMESTAMPING_TX_SOFTWARE));
    SEE(awaited(s));
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent));
    SEE(put_stamped(s, "a number that is not asked for", 0, &number));
    SEE(put_stamped(s, "nothing", 0));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 7);
}
void stamp_controls::b() { takes(8); }

BEHAVIOUR(stamp_shapes,
          "one stamp of a call: of its fragments the first's, of its segments all in one");
void stamp_shapes::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent | SOF_TIMESTAMPING_OPT_ID));
    SEE(put(s, pattern(4000)));
    SEE(awaited(s));
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 700));
    SEE(put(s, pattern(3000)));
    SEE(awaited(s));
    SEE(put(s, pattern(100)));
    SEE(awaited(s));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 7);
}
void stamp_shapes::b() { takes(7); }

BEHAVIOUR(stamp_readiness, "POLLERR while a stamp waits; SO_SELECT_ERR_QUEUE; an edge for each");
void stamp_readiness::a() {
    const int s = udp_pair(), ep = epoll_create1(0);
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    epoll_event edge{};
    edge.events = EPOLLIN | EPOLLET;
    SEE(epoll_ctl(ep, EPOLL_CTL_ADD, s, &edge));
    const auto edges = [&] {
        epoll_event e{};
        return epoll_wait(ep, &e, 1, 0) == 1 ? events_text(e.events) : std::string("none");
    };
    SEE(ready(s));
    SEE(put(s, "one"));
    SEE(until(s, POLLERR));
    SEE(ready(s));
    SEE(edges());
    SEE(edges());
    SEE(put(s, "two"));
    SEE(until(s, POLLERR));
    SEE(edges());
    SEE(told(s));
    SEE(edges());
    SEE(set(s, SOL_SOCKET, SO_SELECT_ERR_QUEUE));
    SEE(ready(s));
    SEE(told(s));
    SEE(ready(s));
    SEE(got(s, 10, MSG_DONTWAIT));  // no error to a call that is not for the queue
    step("over");
    by_ring(s, 0, 2);
}
void stamp_readiness::b() { takes(2); }

BEHAVIOUR(stamp_mixed, "datagrams by ring and by kernel in turn: their numbers are in order");
void stamp_mixed::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    for (int i = 0; i < 2; i++) {
        SEE(put(s, "ring"));
        SEE(sent_with(s, IPPROTO_IP, IP_TTL, 9));
        SEE(put(s, "corked ", MSG_MORE));
        SEE(put(s, "one"));
    }
    SEE(put(s, "ring"));
    for (int i = 0; i < 7; i++) SEE(awaited(s));
    SEE(told(s));
    step("over");
    by_ring(s, 0, 3);
}
void stamp_mixed::b() { takes(7); }

BEHAVIOUR(stamp_room, "too little room for frame or control messages; several in one call");
void stamp_room::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kSent));
    for (int i = 0; i < 8; i++) SEE(put(s, "0123456789"));
    SEE(until(s, POLLERR));
    for (const size_t room : {0, 8, 30, 64, 80, 100}) SEE(told(s, 0, room, 45));
    char data[2][20];
    iovec iov[2] = {{data[0], 20}, {data[1], 20}};
    mmsghdr m[2]{};
    for (int i = 0; i < 2; i++) m[i].msg_hdr = message_of(iov[i]);
    SEE(recvmmsg(s, m, 2, MSG_ERRQUEUE, nullptr));
    for (const mmsghdr& each : m) {
        SEE(long(each.msg_len));
        SEE(long(each.msg_hdr.msg_flags));
    }
    SEE(recv(s, data, 20, MSG_ERRQUEUE));
    step("over");
    by_ring(s, 0, 8);
}
void stamp_room::b() { takes(8); }

BEHAVIOUR(stamp_handed_back, "an option that is only the kernel's is set while stamps wait");
void stamp_handed_back::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPING_OLD, kBare));
    for (int i = 0; i < 2; i++) SEE(put(s, "by the ring"));
    SEE(set(s, SOL_SOCKET, SO_DONTROUTE));
    SEE(put(s, "by the kernel"));
    SEE(until(s, POLLERR));
    for (int i = 0; i < 3; i++) SEE(awaited(s));
    SEE(told(s));
    SEE(ready(s));
    step("over");
}
void stamp_handed_back::b() { takes(3); }
