// Datagrams above the MTU: they leave in fragments, unless the program forbids it.
#include <sys/uio.h>

#include "differential/behaviour.h"

namespace {
// b: says how long each datagram was and what was in it, until a short one.
void judge() {
    const int s = udp_bound();
    step("bound");
    for (;;) {
        static char buffer[70000];
        sockaddr_in from{};
        socklen_t len = sizeof from;
        const ssize_t n = recvfrom(s, buffer, sizeof buffer, 0, raw(from), &len);
        if (n >= 0 && n < 10) return;
        tell(std::to_string(n) + " bytes, hash " +
             std::to_string(n < 0 ? 0 : hash(std::string(buffer, size_t(n)))));
    }
}
// What arrived at b of what was sent, or why nothing was.
std::string judged(int fd, const std::string& text) {
    const sockaddr_in to = at("b", port());
    const ssize_t n = sendto(fd, text.data(), text.size(), 0, raw(to), sizeof to);
    if (n < 0) return std::string("-1 ") + strerrorname_np(errno);
    return std::to_string(n) + ": " + hear();
}
void end(int fd) {
    const sockaddr_in to = at("b", port());
    sendto(fd, "end", 3, 0, raw(to), sizeof to);
}
}  // namespace

BEHAVIOUR(udp_above_mtu, "sizes around the MTU and its multiples, up to the largest datagram");
void udp_above_mtu::a() {
    const int s = udp_bound();
    step("bound");
    for (size_t size : {1472, 1473, 1480, 2952, 2953, 8000, 65507}) SEE(judged(s, pattern(size)));
    SEE(judged(s, pattern(65508)));
    by_ring(s, 0, 7);
    SEE(set(s, SOL_SOCKET, SO_NO_CHECK));
    SEE(judged(s, pattern(5000)));
    by_ring(s, 0, 8);
    end(s);
}
void udp_above_mtu::b() { judge(); }

BEHAVIOUR(udp_mtu_discover, "IP_MTU_DISCOVER: which of its values let a large datagram out");
void udp_mtu_discover::a() {
    const int s = udp_bound();
    step("bound");
    for (int mode : {IP_PMTUDISC_DONT, IP_PMTUDISC_WANT, IP_PMTUDISC_DO, IP_PMTUDISC_PROBE,
                     IP_PMTUDISC_INTERFACE, IP_PMTUDISC_OMIT}) {
        SEE(set(s, IPPROTO_IP, IP_MTU_DISCOVER, mode));
        SEE(judged(s, pattern(4000)));
        SEE(judged(s, pattern(1472)));
    }
    by_ring(s, 0, 9);
    end(s);
}
void udp_mtu_discover::b() { judge(); }

BEHAVIOUR(udp_fragments_vectors, "a large datagram of several pieces, connected");
void udp_fragments_vectors::a() {
    const int s = udp_bound();
    step("bound");
    SEE(connect_to(s, "b"));
    std::string text = pattern(6001);
    iovec parts[] = {{text.data(), 1},
                     {text.data() + 1, 0},
                     {text.data() + 1, 3000},
                     {text.data() + 3001, 3000}};
    SEE(writev(s, parts, 4));
    note(hear());
    std::vector<iovec> many;
    for (size_t i = 0; i < text.size(); i += 60)
        many.push_back({text.data() + i, std::min<size_t>(60, text.size() - i)});
    SEE(writev(s, many.data(), int(many.size())));
    note(hear());
    end(s);
}
void udp_fragments_vectors::b() { judge(); }
