// The order of datagrams that come to one socket on several paths: small ones by the ring; in fragments, and from this host
// itself, by the kernel. What is queued when the program reads comes in the order in which it was received.
#include <vector>

#include "differential/behaviour.h"

namespace {
constexpr size_t kFragmented = 4000;  // above the MTU

// The number that begins a datagram, and its size.
std::string numbered(int number, size_t size) {
    std::string text = std::to_string(number) + " ";
    text.resize(size, 'x');
    return text;
}
std::string shown(const char* data, ssize_t n) {
    return n < 0 ? strerrorname_np(errno)
                 : std::to_string(atoi(data)) + ", " + std::to_string(n) + " bytes";
}
std::string taken(int fd, int flags = 0) {
    char buffer[8192] = {};
    const ssize_t n = recv(fd, buffer, sizeof buffer - 1, flags);
    return shown(buffer, n);
}
std::string size_of_next(int fd) {
    int n = -1;
    return ioctl(fd, FIONREAD, &n) < 0 ? strerrorname_np(errno) : std::to_string(n);
}

// How many of `mixed` are by the ring.
constexpr int kMixed = 12;
constexpr bool fragmented(int i) { return i == 1 || i == 4 || i == 5 || i == 9 || i == 11; }
constexpr unsigned kByRing = 7;
// b: twelve datagrams to a, some of them in fragments.
void mixed() {
    const int s = udp_bound(1);  // with both roles on one host the port is a's
    step("bound");
    const sockaddr_in to = at("a", port());
    for (int i = 0; i < kMixed; i++) {
        const std::string text = numbered(i, fragmented(i) ? kFragmented : 10);
        see("sent", sendto(s, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                           sizeof to));
    }
    step("sent");
    step("read");
}
// a: its socket, with all that b sends in it.
int with_mixed(const char* who) {
    const int s = udp_bound(0, who);
    step("bound");
    step("sent");
    return s;
}
}  // namespace

BEHAVIOUR(udp_order_of_fragments, "datagrams whole and in fragments, read one by one");
void udp_order_of_fragments::a() {
    const int s = with_mixed("a");
    for (int i = 0; i < kMixed; i++) SEE(taken(s));
    SEE(taken(s, MSG_DONTWAIT));
    by_ring(s, kByRing);
    step("read");
}
void udp_order_of_fragments::b() { mixed(); }

BEHAVIOUR(udp_order_without_waiting,
          "the same by a socket that is bound to any address, and does not wait");
void udp_order_without_waiting::a() {
    const int s = with_mixed("any");
    nonblocking(s);
    for (int i = 0; i < kMixed; i++) SEE(taken(s));
    SEE(taken(s));
    by_ring(s, kByRing);
    step("read");
}
void udp_order_without_waiting::b() { mixed(); }

BEHAVIOUR(udp_order_looked_at, "FIONREAD and MSG_PEEK tell of the datagram that is read next");
void udp_order_looked_at::a() {
    const int s = with_mixed("a");
    for (int i = 0; i < kMixed; i++) {
        SEE(size_of_next(s));
        SEE(taken(s, MSG_PEEK));
        SEE(taken(s));
    }
    SEE(size_of_next(s));
    by_ring(s, kByRing);
    step("read");
}
void udp_order_looked_at::b() { mixed(); }

BEHAVIOUR(udp_order_mmsg, "recvmmsg() of everything");
void udp_order_mmsg::a() {
    const int s = with_mixed("a");
    static char buffers[kMixed][8192];
    iovec parts[kMixed];
    mmsghdr all[kMixed]{};
    for (int i = 0; i < kMixed; i++) {
        parts[i] = {buffers[i], sizeof buffers[i]};
        all[i].msg_hdr.msg_iov = &parts[i];
        all[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(recvmmsg(s, all, kMixed, 0, nullptr));
    for (int i = 0; i < kMixed; i++) note(shown(buffers[i], ssize_t(all[i].msg_len)));
    by_ring(s, kByRing);
    step("read");
}
void udp_order_mmsg::b() { mixed(); }

BEHAVIOUR(udp_order_ready, "the same after epoll, edge-triggered: all of it at one edge");
void udp_order_ready::a() {
    const int s = udp_bound(0, "a");
    const int ep = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    SEE(epoll_ctl(ep, EPOLL_CTL_ADD, s, &event));
    step("bound");
    step("sent");
    epoll_event out{};
    SEE(epoll_wait(ep, &out, 1, 5000));
    for (int i = 0; i < kMixed; i++) SEE(taken(s, MSG_DONTWAIT));
    SEE(taken(s, MSG_DONTWAIT));
    SEE(epoll_wait(ep, &out, 1, 0));
    by_ring(s, kByRing);
    step("read");
}
void udp_order_ready::b() { mixed(); }

BEHAVIOUR(udp_order_stamps,
          "the stamps of SO_TIMESTAMPNS grow from datagram to datagram, whatever the path");
void udp_order_stamps::a() {
    const int s = udp_bound(0, "a");
    SEE(set(s, SOL_SOCKET, SO_TIMESTAMPNS));
    step("bound");
    step("sent");
    int64_t before = 0;
    for (int i = 0; i < kMixed; i++) {
        char buffer[8192] = {};
        iovec part{buffer, sizeof buffer - 1};
        alignas(cmsghdr) char control[256];
        msghdr m = message_of(part, control, sizeof control);
        const ssize_t n = recvmsg(s, &m, 0);
        note(shown(buffer, n));
        const cmsghdr* const c = CMSG_FIRSTHDR(&m);
        if (c == nullptr || c->cmsg_type != SO_TIMESTAMPNS) {
            note("no stamp");
            continue;
        }
        timespec at;
        memcpy(&at, CMSG_DATA(c), sizeof at);
        const int64_t stamp = int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
        note(stamp > before ? "later" : "not later");
        before = stamp;
    }
    by_ring(s, kByRing);
    step("read");
}
void udp_order_stamps::b() { mixed(); }

BEHAVIOUR(udp_order_from_here,
          "what this host sends itself, between what comes from the other one");
void udp_order_from_here::a() {
    const int s = udp_bound(0, "any"), own = udp();
    sockaddr_in here = at("lo", port());
    step("bound");
    for (int i = 0; i < 8; i += 2) {
        step("from there");
        const std::string text = numbered(i + 1, 10);
        SEE(sendto(own, text.data(), text.size(), 0, raw(here), sizeof here));
        step("from here");
    }
    for (int i = 0; i < 8; i++) SEE(taken(s));
    SEE(taken(s, MSG_DONTWAIT));
    by_ring(s, 4);
    step("read");
}
void udp_order_from_here::b() {
    const int s = udp_bound(1);
    const sockaddr_in to = at("a", port());
    step("bound");
    for (int i = 0; i < 8; i += 2) {
        const std::string text = numbered(i, 10);
        see("sent", sendto(s, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                           sizeof to));
        step("from there");
        step("from here");
    }
    step("read");
}

BEHAVIOUR(udp_order_handed_back,
          "an option that is only the kernel's is set while datagrams of both paths wait");
void udp_order_handed_back::a() {
    const int s = with_mixed("a");
    SEE(taken(s));
    SEE(set(s, SOL_SOCKET, SO_DONTROUTE));
    for (int i = 1; i < kMixed; i++) SEE(taken(s));
    SEE(taken(s, MSG_DONTWAIT));
    on_kernel(s);
    step("read");
}
void udp_order_handed_back::b() { mixed(); }
