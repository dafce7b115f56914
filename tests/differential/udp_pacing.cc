// SO_MAX_PACING_RATE: whatever the rate, everything arrives, in order. (The kernel keeps it only on interfaces with the fq qdisc.)
#include <netinet/udp.h>

#include "differential/behaviour.h"

namespace {
constexpr int kSlow = 20000;  // bytes/s: twenty datagrams of 500 bytes take half a second
void reads(int s, int n) {
    for (int i = 0; i < n; i++) SEE(got(s, 8000));
}
// b: twenty of them.
void reads_twenty() {
    const int s = udp_pair();
    step("ready");
    reads(s, 20);
    SEE(got(s, 10, MSG_DONTWAIT));
    step("read");
}
void sends_twenty(int s) {
    for (size_t i = 0; i < 20; i++) SEE(put(s, pattern(500 + i)));
}
}  // namespace

BEHAVIOUR(udp_paced_shapes, "whole, cut into segments, in fragments, of no bytes at all");
void udp_paced_shapes::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, 2000000));
    SEE(put(s, pattern(100)));
    SEE(put(s, pattern(4000)));
    step("the large one is read");  // another path: what follows within 10 us may be read before it
    SEE(put(s, ""));
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 700));
    SEE(put(s, pattern(3000)));
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 0));
    SEE(put(s, pattern(1472)));
    step("read");
    by_ring(s, 0, 4 + 5);
}
void udp_paced_shapes::b() {
    const int s = udp_pair();
    step("ready");
    reads(s, 2);
    step("the large one is read");
    reads(s, 7);
    SEE(got(s, 10, MSG_DONTWAIT));
    step("read");
}

BEHAVIOUR(
    udp_paced_trains,
    "segments at a rate at which many of them are no burst, at one at which two are, and one");
void udp_paced_trains::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_UDP, UDP_SEGMENT, 700));
    for (const int rate : {125000000, 4000000, 1000000}) {
        SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, rate));
        for (int i = 0; i < 3; i++) SEE(put(s, pattern(size_t(13900 + i))));
        step("read");
    }
    by_ring(s, 0, 3 * 3 * 20);
}
void udp_paced_trains::b() {
    const int s = udp_pair();
    step("ready");
    for (int i = 0; i < 3; i++) {
        reads(s, 3 * 20);
        SEE(got(s, 10, MSG_DONTWAIT));
        step("read");
    }
}

BEHAVIOUR(udp_paced_then_not, "the rate is taken back while datagrams wait");
void udp_paced_then_not::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, kSlow));
    sends_twenty(s);
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, -1));
    step("read");
    by_ring(s, 0, 20);
}
void udp_paced_then_not::b() { reads_twenty(); }

BEHAVIOUR(udp_paced_handed_back, "an option that is only the kernel's is set while datagrams wait");
void udp_paced_handed_back::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, kSlow));
    sends_twenty(s);
    SEE(set(s, SOL_SOCKET, SO_DONTROUTE));
    on_kernel(s);
    step("read");
}
void udp_paced_handed_back::b() { reads_twenty(); }

BEHAVIOUR(udp_paced_exit, "the process ends while datagrams wait");
void udp_paced_exit::a() {
    const int s = udp_pair();
    step("ready");
    SEE(set(s, SOL_SOCKET, SO_MAX_PACING_RATE, kSlow));
    sends_twenty(s);
    step("sent");
}
void udp_paced_exit::b() {
    const int s = udp_pair();
    step("ready");
    step("sent");
    reads(s, 20);
}
