// Who gets a datagram: ports that several sockets share, a program that chooses among them, sockets that are bound to an
// interface, broadcast; and a full buffer.
#include <ifaddrs.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <sys/syscall.h>

#include <array>
#include <map>
#include <set>

#include "differential/datagram_words.h"

namespace {
int sharing(int option, const char* who, int offset = 0) {
    const int s = udp();
    SEE(set(s, SOL_SOCKET, option));
    SEE(bind_to(s, who, offset));
    return s;
}
// b in most of these: sends the words of a, each to the port of a with the offset that it begins with.
void feed() {
    const int s = udp_bound();
    for (;;) {
        const std::string word = hear();
        if (word == "end") return;
        SEE(sent(s, word, "a", word[0] - '0'));
        tell("sent");
    }
}
// The word of b is there when this returns: it has left, and one end of a veth pair is the other.
void ask(const std::string& word) {
    tell(word);
    hear();
}
// Who of them has a datagram, and takes it: "1 of 3", or "nobody".
std::string taker(const std::vector<int>& sockets) {
    std::vector<pollfd> all;
    for (const int s : sockets) all.push_back({s, POLLIN, 0});
    if (poll(all.data(), all.size(), 5000) < 1) return "nobody";
    std::string text;
    for (size_t i = 0; i < all.size(); i++) {
        if (!(all[i].revents & POLLIN)) continue;
        got(sockets[i], 100, MSG_DONTWAIT);
        text += std::to_string(i + 1) + " of " + std::to_string(all.size());
    }
    return text;
}
// Chooses by the second byte of the datagram, a digit.
int attach_choice(int s) {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 1),
                             BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, '0'),
                             BPF_STMT(BPF_RET | BPF_A, 0)};
    const sock_fprog choice{3, program};
    return setsockopt(s, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &choice, sizeof choice);
}
// The interface that has the role's address.
std::string own_interface() {
    const in_addr own = at(role_a() ? "a" : "b", 0).sin_addr;
    std::string name;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) return name;
    for (const ifaddrs* i = all; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
            reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr == own.s_addr)
            name = i->ifa_name;
    freeifaddrs(all);
    return name;
}
int bind_device(int s, const std::string& name) {
    return setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(), socklen_t(name.size()));
}
}  // namespace

BEHAVIOUR(udp_reuseport_spread,
          "SO_REUSEPORT: every source has one of the sockets, and all sockets have sources",
          a_kernel);
void udp_reuseport_spread::a() {
    constexpr size_t kSources = 48, kRounds = 2;
    std::vector<pollfd> sockets;
    for (int i = 0; i < 4; i++) sockets.push_back({sharing(SO_REUSEPORT, "a"), POLLIN, 0});
    step("bound");
    std::map<std::string, std::set<size_t>> served;
    std::set<size_t> used;
    size_t count = 0;
    while (count < kSources * kRounds && poll(sockets.data(), sockets.size(), 5000) > 0) {
        for (size_t i = 0; i < sockets.size(); i++) {
            if (!(sockets[i].revents & POLLIN)) continue;
            served[got(sockets[i].fd, 100, MSG_DONTWAIT)].insert(i);
            used.insert(i);
            count++;
        }
    }
    SEE(long(count));
    SEE(long(served.size()));
    size_t wandering = 0;
    for (const auto& [source, by] : served) wandering += by.size() != 1;
    SEE(long(wandering));
    SEE(long(used.size()));
    on_kernel(sockets[0].fd);
}
void udp_reuseport_spread::b() {
    std::array<int, 48> sources;
    for (int& s : sources) bind_any(s = udp(), "b");
    on_ring(sources[0]);
    step("bound");
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sources.size(); i++) sent(sources[i], std::to_string(i), "a");
}

BEHAVIOUR(udp_reuseport_chosen,
          "SO_ATTACH_REUSEPORT_CBPF: the program chooses the socket; without it the hash does",
          a_kernel);
void udp_reuseport_chosen::a() {
    const std::vector<int> s{sharing(SO_REUSEPORT, "a"), sharing(SO_REUSEPORT, "a"),
                             sharing(SO_REUSEPORT, "a")};
    SEE(attach_choice(s[1]));
    for (const char* word : {"00", "01", "02", "01", "00"}) {
        ask(word);
        SEE(taker(s));
    }
    SEE(close(s[0]));  // the last one takes its place
    ask("00");
    SEE(taker({s[1], s[2]}));
    SEE(set(s[1], SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0));
    SEE(set(s[1], SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0));
    ask("02");
    SEE(taker({s[1], s[2]}) != "nobody");
    tell("end");
    on_kernel(s[1]);
}
void udp_reuseport_chosen::b() { feed(); }

BEHAVIOUR(udp_reuseport_ebpf, "SO_ATTACH_REUSEPORT_EBPF, attached before the socket is bound",
          a_kernel);
void udp_reuseport_ebpf::a() {
    // r0 = 1; exit
    const bpf_insn program[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1},
                                {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    bpf_attr load{};
    load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    load.insns = reinterpret_cast<uintptr_t>(program);
    load.insn_cnt = 2;
    load.license = reinterpret_cast<uintptr_t>("GPL");
    const int choice = int(syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load));
    SEE(choice >= 0);
    const int first = udp();
    SEE(set(first, SOL_SOCKET, SO_REUSEPORT));
    SEE(setsockopt(first, SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &choice, sizeof choice));
    SEE(bind_to(first, "a"));
    const std::vector<int> s{first, sharing(SO_REUSEPORT, "a"), sharing(SO_REUSEPORT, "a")};
    for (const char* word : {"00", "01", "02"}) {
        ask(word);
        SEE(taker(s));
    }
    tell("end");
    on_kernel(first);
}
void udp_reuseport_ebpf::b() { feed(); }

BEHAVIOUR(udp_choice_without_sharing,
          "a program that would choose is refused where there is nothing to choose from");
void udp_choice_without_sharing::a() {
    const int s = udp_bound();
    SEE(attach_choice(s));
    SEE(set(s, SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0));
    ask("01");
    SEE(taken(s));
    tell("end");
}
void udp_choice_without_sharing::b() { feed(); }

BEHAVIOUR(udp_reuseaddr_newest,
          "SO_REUSEADDR: unicast is for the socket that bound last, until it closes");
void udp_reuseaddr_newest::a() {
    const int first = sharing(SO_REUSEADDR, "a");
    on_ring(first);
    ask("0 one");
    SEE(taken(first));
    const int second = sharing(SO_REUSEADDR, "a");
    ask("0 two");
    SEE(taker({first, second}));
    SEE(sent(second, "from the second", "b"));
    SEE(sent(first, "from the first", "b"));
    ask("0 three");
    SEE(taker({first, second}));
    SEE(close(second));
    ask("0 four");
    SEE(taken(first));
    tell("end");
}
void udp_reuseaddr_newest::b() { feed(); }

BEHAVIOUR(udp_reuseaddr_nearest,
          "SO_REUSEADDR: unicast is for the socket with the address, not the one with any");
void udp_reuseaddr_nearest::a() {
    const int any = sharing(SO_REUSEADDR, "any");
    on_ring(any);
    ask("0 one");
    SEE(taken(any));
    const int own = sharing(SO_REUSEADDR, "a"), other = sharing(SO_REUSEADDR, "a2");
    ask("0 two");
    SEE(taker({any, own, other}));
    SEE(connect_to(other, "b"));
    ask("0 three");
    SEE(taker({any, own, other}));
    SEE(close(own));
    ask("0 four");
    SEE(taker({any, other}));
    tell("end");
}
void udp_reuseaddr_nearest::b() { feed(); }

BEHAVIOUR(udp_bound_to_interface, "SO_BINDTODEVICE: what comes by another interface is not heard");
void udp_bound_to_interface::a() {
    const int s = udp_bound(0, "any"), own = udp();
    sockaddr_in here = at("lo", port());
    SEE(bind_device(s, own_interface()));
    on_ring(s);
    ask("0 one");
    SEE(taken(s));
    SEE(sendto(own, "x", 1, 0, raw(here), sizeof here));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(sent(s, "by it", "b"));
    SEE(bind_device(s, "lo"));
    ask("0 unheard");
    SEE(sendto(own, "here", 4, 0, raw(here), sizeof here));
    SEE(got(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(bind_device(s, ""));
    ask("0 two");
    SEE(taken(s));
    SEE(sendto(own, "there", 5, 0, raw(here), sizeof here));
    SEE(got(s));
    SEE(bind_device(s, "nonesuch"));
    tell("end");
}
void udp_bound_to_interface::b() { feed(); }

BEHAVIOUR(udp_broadcast, "broadcast: allowed by SO_BROADCAST, heard by who has any address");
void udp_broadcast::a() {
    const int any = udp_bound(0, "any"), own = udp_bound(1, "a");
    step("bound");
    SEE(taken(any));
    SEE(taken(any));
    SEE(taken(own));
    SEE(taken(own, 100, MSG_DONTWAIT));
    by_ring(any, 0);
    step("over");
}
void udp_broadcast::b() {
    const int s = udp_bound(2);
    sockaddr_in every = at("a", port());
    every.sin_addr.s_addr |= htonl(0xff);
    sockaddr_in near = every;
    near.sin_addr.s_addr = INADDR_BROADCAST;
    step("bound");
    SEE(sendto(s, "x", 1, 0, raw(every), sizeof every));
    SEE(connect(s, raw(every), sizeof every));
    SEE(set(s, SOL_SOCKET, SO_BROADCAST));
    SEE(sendto(s, "one", 3, 0, raw(every), sizeof every));
    SEE(bind_device(s, own_interface()));
    SEE(sendto(s, "two", 3, 0, raw(near), sizeof near));
    every.sin_port = htons(port(1));
    SEE(sendto(s, "unheard", 7, 0, raw(every), sizeof every));
    SEE(sent(s, "heard", "a", 1));
    SEE(connect(s, raw(every), sizeof every));
    step("over");
}

// Two hundred datagrams for "many", one for anything else.
static void sends_many() {
    const int s = udp_bound();
    for (std::string word; (word = hear()) != "end"; tell("sent"))
        for (int i = 0; i < (word == "many" ? 200 : 1); i++)
            sent(s, std::to_string(1000 + i).substr(1), "a");
}

BEHAVIOUR(udp_full_buffer,
          "SO_RCVBUF: the first datagrams stay, others may be dropped, and then there is room");
void udp_full_buffer::a() {
    const int s = udp_bound();
    SEE(set(s, SOL_SOCKET, SO_RCVBUF, 20000));
    ask("many");
    SEE(until(s, POLLIN));
    // Of a ring, which has room of its own, more may come than there is room for in the socket.
    char text[10] = {};
    int last = -1, without_gap = 0;
    bool in_order = true;
    while (recv(s, text, sizeof text - 1, MSG_DONTWAIT) > 0) {
        const int number = atoi(text);
        in_order = in_order && number > last;
        if (number == without_gap) without_gap++;
        last = number;
    }
    SEE(in_order);
    SEE(without_gap >= 20);
    ask("one");
    SEE(got(s));
    tell("end");
}
void udp_full_buffer::b() { sends_many(); }

BEHAVIOUR(udp_full_buffer_told, "SO_RXQ_OVFL: each datagram tells how many were dropped before it");
void udp_full_buffer_told::a() {
    const int s = udp_bound();
    SEE(set(s, SOL_SOCKET, SO_RCVBUF, 20000));
    SEE(set(s, SOL_SOCKET, SO_RXQ_OVFL));
    on_ring(s);
    ask("one");
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    ask("many");
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    long read = 1, told = 0, last = 0;
    bool grows = true;
    while ((told = drops_told(s)) >= 0) {
        grows = grows && told >= last;
        last = told;
        read++;
    }
    SEE(grows);
    ask("one");
    SEE(until(s, POLLIN));
    // A ring has room of its own: how many are lost differs, not that each is told.
    const long lost = drops_told(s);
    SEE(read + lost);
    SEE(set(s, SOL_SOCKET, SO_RXQ_OVFL, 0));
    ask("one");
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    tell("end");
}
void udp_full_buffer_told::b() { sends_many(); }