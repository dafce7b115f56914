// Fragments that arrive in any order and shape, from a raw socket: which datagrams come of them. The group is run with
// VMA_UDP_FRAGS=1, too; then they come by the ring.
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <cstdlib>

#include "differential/behaviour.h"

namespace {
// Sends pieces of datagrams to b's port.
class Pieces {
  public:
    // Ids of this run alone, as its ports are: the kernel keeps what is unfinished for 30 s. `skipped` of them are another's.
    explicit Pieces(unsigned skipped = 0)
        : raw_(socket(AF_INET, SOCK_RAW, IPPROTO_RAW)), id_(uint16_t(4 * port() + skipped)) {}
    ~Pieces() { close(raw_); }
    // A datagram whose payload is `size` bytes of pattern(). No checksum.
    void begin(size_t size) {
        id_++;
        datagram_.assign(sizeof(udphdr), 0);
        udphdr head{};
        head.source = htons(port());
        head.dest = htons(port());
        head.len = htons(uint16_t(sizeof head + size));
        memcpy(datagram_.data(), &head, sizeof head);
        datagram_ += pattern(size);
    }
    // Bytes [from, to) of it, headers included; `more` follow. `from` is a multiple of 8.
    void send(size_t from, size_t to, bool more, uint8_t tos = 0) {
        send_text(from, datagram_.substr(from, to - from), more, tos);
    }
    void send_text(size_t from, const std::string& text, bool more, uint8_t tos = 0) {
        const sockaddr_in name = at("b", 0);
        ip head{};
        head.ip_v = 4;
        head.ip_hl = 5;
        head.ip_tos = tos;
        head.ip_id = htons(id_);
        head.ip_off = htons(uint16_t(from / 8 | (more ? IP_MF : 0)));
        head.ip_ttl = 64;
        head.ip_p = IPPROTO_UDP;
        head.ip_src = at("a", 0).sin_addr;
        head.ip_dst = name.sin_addr;
        std::string packet(reinterpret_cast<const char*>(&head), sizeof head);
        packet += text;
        if (sendto(raw_, packet.data(), packet.size(), 0, ::raw(name), sizeof name) < 0)
            note("a fragment was not sent");
    }
    size_t size() const { return datagram_.size(); }
    // What b reads up to: a datagram that comes on the same path as the others.
    void mark() {
        begin(3);
        send(0, 8, true);
        send(8, size(), false);
        hear();
    }

  private:
    const int raw_;
    uint16_t id_;
    std::string datagram_;
};
bool ring_reassembles() {
    const char* const set = getenv("VMA_UDP_FRAGS");
    return set && strcmp(set, "0") != 0;
}
// What has come up to each of `marks`; `whole`: how many datagrams in all are made of fragments.
void shows(int marks, unsigned whole) {
    const int s = udp_bound();
    set_time(s, SO_RCVTIMEO, 5000);
    step("bound");
    for (int i = 0; i < marks; i++) {
        static char buffer[70000];
        for (;;) {
            const ssize_t n = recv(s, buffer, sizeof buffer, 0);
            if (n == 3 || n < 0) break;
            note(
                std::to_string(n) + " bytes" +
                (std::string(buffer, size_t(n)) == pattern(size_t(n)) ? "" : ", not as they were"));
        }
        note("mark");
        tell("marked");
    }
    by_ring(s, ring_reassembles() ? unsigned(marks) + whole : 0);
    step("over");
}
}  // namespace

BEHAVIOUR(fragments_in_any_order, "in order, backwards, mixed, two datagrams at once", a_kernel);
void fragments_in_any_order::a() {
    udp_bound();
    Pieces p;
    step("bound");
    p.begin(4000);
    for (size_t at = 0; at < p.size(); at += 1000)
        p.send(at, std::min(at + 1000, p.size()), at + 1000 < p.size());
    p.mark();
    p.begin(4000);
    for (size_t at = 4000; at < 5000; at -= 1000)
        p.send(at, std::min(at + 1000, p.size()), at + 1000 < p.size());
    p.mark();
    p.begin(4000);
    for (const size_t at : {2000, 0, 4000, 1000, 3000})
        p.send(at, std::min(at + 1000, p.size()), at != 4000);
    p.mark();
    Pieces q(32);
    q.begin(2000);
    p.begin(3000);
    p.send(0, 1000, true);
    q.send(0, 1000, true);
    p.send(1000, 2000, true);
    q.send(1000, q.size(), false);
    p.send(2000, p.size(), false);
    p.mark();
    step("over");
}
void fragments_in_any_order::b() { shows(4, 5); }

BEHAVIOUR(fragments_twice, "a fragment again, before and after its datagram is whole", a_kernel);
void fragments_twice::a() {
    udp_bound();
    Pieces p;
    step("bound");
    p.begin(2000);
    p.send(0, 1000, true);
    p.send(0, 1000, true);
    p.send(1000, p.size(), false);
    p.mark();
    p.begin(2000);
    p.send(1000, p.size(), false);
    p.send(1000, p.size(), false);
    p.send(0, 1000, true);
    p.mark();
    // All of it again under the same id: another datagram.
    p.begin(2000);
    for (int i = 0; i < 2; i++) {
        p.send(0, 1000, true);
        p.send(1000, p.size(), false);
    }
    p.mark();
    step("over");
}
void fragments_twice::b() { shows(3, 4); }

BEHAVIOUR(fragments_overlap, "what overlaps, or is not of one length, is dropped as a whole",
          a_kernel);
void fragments_overlap::a() {
    udp_bound();
    Pieces p;
    step("bound");
    p.begin(2000);
    p.send(0, 1000, true);
    p.send(992, p.size(), false);
    p.mark();
    p.begin(2000);
    p.send(1000, p.size(), false);
    p.send(0, 1008, true);
    p.mark();
    // All of it known, but by two that came in the wrong order.
    p.begin(2000);
    p.send(1000, 1400, true);
    p.send(0, 1000, true);
    p.send(0, 1400, true);
    p.send(1400, p.size(), false);
    p.mark();
    // Known, and the last: now the length is, too, and all has come.
    p.begin(1392);
    p.send(0, p.size(), true);
    p.send(1000, p.size(), false);
    p.mark();
    // Two ends.
    p.begin(2000);
    p.send(1000, p.size(), false);
    p.send(1000, 1504, false);
    p.send(0, 1000, true);
    p.mark();
    // Beyond the end.
    p.begin(2000);
    p.send(1000, 1504, false);
    p.send(1504, p.size(), true);
    p.send(0, 1000, true);
    p.mark();
    // The next one of the same kind is fine.
    p.begin(2000);
    p.send(0, 1000, true);
    p.send(1000, p.size(), false);
    p.mark();
    step("over");
}
void fragments_overlap::b() { shows(7, 1); }

BEHAVIOUR(fragments_of_odd_shape,
          "tiny ones; one that is empty or beyond 64 KiB, with which all goes; a hole", a_kernel);
void fragments_of_odd_shape::a() {
    udp_bound();
    Pieces p;
    step("bound");
    p.begin(40);
    for (size_t at = 0; at < p.size(); at += 8) p.send(at, at + 8, at + 8 < p.size());
    p.mark();
    p.begin(2000);
    p.send(0, 1000, true);
    p.send(1000, 1000, true);
    p.send(1000, p.size(), false);
    p.mark();
    p.begin(2000);
    p.send(0, 1000, true);
    p.send_text(65528, std::string(100, 'x'), false);
    p.send(1000, p.size(), false);
    p.mark();
    p.begin(3000);
    p.send(0, 1000, true);
    p.send(2000, p.size(), false);
    p.mark();
    p.begin(60000);
    for (size_t at = 0; at < p.size(); at += 1400)
        p.send(at, std::min(at + 1400, p.size()), at + 1400 < p.size());
    p.mark();
    step("over");
}
void fragments_of_odd_shape::b() { shows(5, 2); }

BEHAVIOUR(fragments_marked,
          "ECN: congestion in any fragment counts, a mixture with Not-ECT is dropped", a_kernel);
void fragments_marked::a() {
    udp_bound();
    Pieces p;
    step("bound");
    const uint8_t tos[][2] = {{2, 3}, {3, 2}, {1, 2}, {0, 3}, {0, 2}, {0, 0}};
    for (const auto& each : tos) {
        p.begin(1500);
        p.send(0, 800, true, each[0]);
        p.send(800, p.size(), false, each[1]);
        p.mark();
    }
    step("over");
}
void fragments_marked::b() {
    const int s = udp_bound();
    set(s, IPPROTO_IP, IP_RECVTOS);
    step("bound");
    for (int marks = 0; marks < 6;) {
        char data[2000];
        alignas(8) char control[64];
        iovec iov{data, sizeof data};
        msghdr m = message_of(iov, control, sizeof control);
        const ssize_t n = recvmsg(s, &m, 0);
        const cmsghdr* const c = CMSG_FIRSTHDR(&m);
        if (n != 3)
            note(std::to_string(n) + " bytes, tos " + std::to_string(c ? *CMSG_DATA(c) : -1));
        if (n != 3 && n >= 0) continue;
        note("mark");
        marks++;
        tell("marked");
    }
    by_ring(s, ring_reassembles() ? 6 + 4 : 0);
    step("over");
}
