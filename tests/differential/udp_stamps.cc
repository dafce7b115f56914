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
