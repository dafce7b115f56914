// Multicast. In most of these a is in groups and b sends to them.
#include <sys/utsname.h>

#include "differential/datagram_words.h"

namespace {
const char* own() { return role_a() ? "a" : "b"; }

in_addr ip(const char* who) { return at(who, 0).sin_addr; }

int join(int fd, const char* group, int name = IP_ADD_MEMBERSHIP) {
    const ip_mreq request{ip(group), ip(own())};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}
int leave(int fd, const char* group) { return join(fd, group, IP_DROP_MEMBERSHIP); }

int with_source(int fd, int name, const char* group, const char* source) {
    ip_mreq_source request{};
    request.imr_multiaddr = ip(group);
    request.imr_interface = ip(own());
    request.imr_sourceaddr = ip(source);
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

// The protocol-independent forms.
int generic(int fd, int name, const char* group, const char* source = nullptr) {
    group_source_req request{};
    const sockaddr_in g = at(group, 0), s = at(source ? source : "any", 0);
    memcpy(&request.gsr_group, &g, sizeof g);
    memcpy(&request.gsr_source, &s, sizeof s);
    return setsockopt(fd, IPPROTO_IP, name, &request, source ? sizeof request : sizeof(group_req));
}

int filter(int fd, const char* group, uint32_t mode, std::vector<const char*> sources) {
    uint8_t room[IP_MSFILTER_SIZE(8)] = {};
    auto* f = reinterpret_cast<ip_msfilter*>(room);
    f->imsf_multiaddr = ip(group);
    f->imsf_interface = ip(own());
    f->imsf_fmode = mode;
    f->imsf_numsrc = uint32_t(sources.size());
    for (size_t i = 0; i < sources.size(); i++) f->imsf_slist[i] = ip(sources[i]);
    return setsockopt(fd, IPPROTO_IP, IP_MSFILTER, f, IP_MSFILTER_SIZE(f->imsf_numsrc));
}
// "exclude 1: b2", or the error.
std::string filter_of(int fd, const char* group) {
    uint8_t room[IP_MSFILTER_SIZE(8)] = {};
    auto* f = reinterpret_cast<ip_msfilter*>(room);
    f->imsf_multiaddr = ip(group);
    f->imsf_interface = ip(own());
    f->imsf_numsrc = 8;
    socklen_t size = sizeof room;
    if (getsockopt(fd, IPPROTO_IP, IP_MSFILTER, f, &size) < 0)
        return std::string("-1 ") + strerrorname_np(errno);
    std::string text = f->imsf_fmode == MCAST_EXCLUDE ? "exclude" : "include";
    for (uint32_t i = 0; i < f->imsf_numsrc; i++) {
        sockaddr_in source = at("any", 0);
        source.sin_addr = f->imsf_slist[i];
        text += " " + shown(source);
    }
    return text;
}

int bound(const char* who, int offset = 0, int share = SO_REUSEADDR) {
    const int s = udp();
    if (share) set(s, SOL_SOCKET, share);
    bind_to(s, who, offset);
    return s;
}
// In the group and served by the ring.
int member(const char* group, const char* who = "any", int offset = 0) {
    const int s = bound(who, offset);
    join(s, group);
    on_ring(s);
    return s;
}
// b in most of these: sends what the peer asks for. "b g1 hello" sends from b's socket, "b2 ..." from its second address.
void feed() {
    const int first = udp_bound(0, "b"), second = udp_bound(0, "b2");
    for (;;) {
        const std::string word = hear();
        if (word == "end") return;
        const size_t one = word.find(' '), two = word.find(' ', one + 1);
        const int from = word.substr(0, one) == "b2" ? second : first;
        const std::string to = word.substr(one + 1, two - one - 1), what = word.substr(two + 1);
        SEE(sent(from, what == "big" ? pattern(4000) : what, to.c_str()));
        tell("sent");
    }
}
// The feed sends and has done so when this returns.
void ask(const std::string& what) {
    tell(what);
    hear();
}
}  // namespace

BEHAVIOUR(mc_any_bound,
          "a socket bound to any address gets what comes to its group, and what comes to itself");
void mc_any_bound::a() {
    const int s = member("g1");
    ask("b g1 one");
    SEE(taken(s));
    ask("b a two");
    SEE(taken(s));
    ask("b g2 other group");
    ask("b2 g1 three");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 3);
    tell("end");
}
void mc_any_bound::b() { feed(); }

BEHAVIOUR(mc_group_bound, "a socket bound to the group gets that group's only");
void mc_group_bound::a() {
    const int s = member("g1", "g1");
    SEE(join(s, "g2"));
    SEE(name_of(s));
    ask("b g2 other group");
    ask("b a unicast");
    ask("b g1 one");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 1);
    tell("end");
}
void mc_group_bound::b() { feed(); }

BEHAVIOUR(
    mc_every_socket,
    "every socket of a group gets a copy, also with SO_REUSEPORT; a socket alone is not disturbed");
void mc_every_socket::a() {
    const int one = member("g1"), two = member("g1"), three = member("g1", "g1");
    const int far = member("g1", "any", 1);
    ask("b g1 one");
    for (int s : {one, two, three}) SEE(taken(s));
    SEE(taken(far, 100, MSG_DONTWAIT));
    SEE(close(two));
    ask("b2 g1 two");
    for (int s : {one, three}) {
        SEE(taken(s));
        SEE(taken(s, 100, MSG_DONTWAIT));
        by_ring(s, 2);
    }
    tell("end");
}
void mc_every_socket::b() { feed(); }

BEHAVIOUR(mc_reuseport, "SO_REUSEPORT: multicast goes to every socket of the port");
void mc_reuseport::a() {
    const int one = bound("any", 0, SO_REUSEPORT), two = bound("any", 0, SO_REUSEPORT);
    SEE(join(one, "g1"));
    SEE(join(two, "g1"));
    on_ring(one);
    ask("b g1 one");
    ask("b g1 two");
    for (int s : {one, two}) {
        SEE(taken(s));
        SEE(taken(s));
        SEE(taken(s, 100, MSG_DONTWAIT));
        by_ring(s, 2);
    }
    tell("end");
}
void mc_reuseport::b() { feed(); }

BEHAVIOUR(mc_other_process, "members in another process and in this one each get a copy");
void mc_other_process::a() {
    int up[2], down[2];
    SEE(pipe(up));
    SEE(pipe(down));
    const int child = fork();
    char c;
    if (child == 0) {
        const int s = member("g1");
        if (write(up[1], "j", 1) != 1 || read(down[0], &c, 1) != 1) _exit(1);
        set_time(s, SO_RCVTIMEO, 5000);
        const bool first = taken(s) == "3 \"one\" from b:+0";
        const bool second = taken(s) == "3 \"two\" from b2:+0";
        const bool none = taken(s, 100, MSG_DONTWAIT) == "-1 EAGAIN";
        by_ring(s, 2);
        _exit(first && second && none ? 42 : 43);
    }
    const int s = member("g1");
    SEE(read(up[0], &c, 1));
    ask("b g1 one");
    ask("b2 g1 two");
    SEE(write(down[1], "g", 1));
    SEE(outcome(child));
    SEE(taken(s));
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 2);
    ask("b g1 three");
    SEE(taken(s));
    tell("end");
}
void mc_other_process::b() { feed(); }

BEHAVIOUR(mc_all,
          "IP_MULTICAST_ALL: a socket that joined nothing gets what others of its port joined, or "
          "does not");
void mc_all::a() {
    const int s = member("g1"), idle = bound("any");
    SEE(option(idle, IPPROTO_IP, IP_MULTICAST_ALL));
    ask("b g1 one");
    SEE(taken(s));
    SEE(taken(idle));
    SEE(set(idle, IPPROTO_IP, IP_MULTICAST_ALL, 0));
    ask("b g1 two");
    SEE(taken(s));
    SEE(taken(idle, 100, MSG_DONTWAIT));
    SEE(join(idle, "g2"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_ALL, 0));
    ask("b g2 three");
    SEE(taken(idle));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 2);
    tell("end");
}
void mc_all::b() { feed(); }

BEHAVIOUR(mc_leave,
          "what comes after a leave is not received; what was queued is; joining again works");
void mc_leave::a() {
    const int s = member("g1");
    ask("b g1 one");
    SEE(until(s, POLLIN));
    SEE(leave(s, "g1"));
    ask("b g1 two");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(leave(s, "g1"));
    SEE(join(s, "g1"));
    SEE(join(s, "g1"));
    ask("b g1 three");
    SEE(taken(s));
    SEE(join(s, "g2"));
    ask("b g2 four");
    SEE(taken(s));
    SEE(leave(s, "g1"));
    ask("b g1 five");
    ask("b g2 six");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 4);
    tell("end");
}
void mc_leave::b() { feed(); }

BEHAVIOUR(mc_join_first, "a membership taken before bind(), and sockets that bind again");
void mc_join_first::a() {
    const int s = udp();
    SEE(join(s, "g1"));
    SEE(bind_to(s, "any"));
    on_ring(s);
    ask("b g1 one");
    SEE(taken(s));
    const int t = udp();
    SEE(set(t, SOL_SOCKET, SO_REUSEADDR));
    SEE(join(t, "g1"));
    SEE(bind_to(t, "g1", 1));
    SEE(taken(t, 100, MSG_DONTWAIT));
    by_ring(s, 1);
    tell("end");
}
void mc_join_first::b() { feed(); }

BEHAVIOUR(mc_include, "source memberships: only the sources named are heard");
void mc_include::a() {
    const int s = bound("any");
    SEE(with_source(s, IP_ADD_SOURCE_MEMBERSHIP, "g1", "b2"));
    on_ring(s);
    SEE(filter_of(s, "g1"));
    ask("b g1 no");
    ask("b2 g1 yes");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(with_source(s, IP_ADD_SOURCE_MEMBERSHIP, "g1", "b2"));
    SEE(with_source(s, IP_ADD_SOURCE_MEMBERSHIP, "g1", "b"));
    ask("b g1 now");
    SEE(taken(s));
    SEE(with_source(s, IP_DROP_SOURCE_MEMBERSHIP, "g1", "b2"));
    ask("b2 g1 gone");
    ask("b g1 still");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(join(s, "g1"));
    SEE(with_source(s, IP_BLOCK_SOURCE, "g1", "b"));
    SEE(with_source(s, IP_DROP_SOURCE_MEMBERSHIP, "g1", "b"));
    SEE(filter_of(s, "g1"));
    SEE(with_source(s, IP_DROP_SOURCE_MEMBERSHIP, "g1", "b"));
    by_ring(s, 3);
    tell("end");
}
void mc_include::b() { feed(); }

BEHAVIOUR(mc_block, "IP_BLOCK_SOURCE and IP_UNBLOCK_SOURCE");
void mc_block::a() {
    const int s = member("g1");
    SEE(with_source(s, IP_BLOCK_SOURCE, "g1", "b"));
    SEE(with_source(s, IP_BLOCK_SOURCE, "g1", "b"));
    SEE(filter_of(s, "g1"));
    ask("b g1 no");
    ask("b2 g1 yes");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(with_source(s, IP_UNBLOCK_SOURCE, "g1", "b"));
    SEE(with_source(s, IP_UNBLOCK_SOURCE, "g1", "b"));
    SEE(with_source(s, IP_BLOCK_SOURCE, "g2", "b"));
    ask("b g1 again");
    SEE(taken(s));
    by_ring(s, 2);
    tell("end");
}
void mc_block::b() { feed(); }

BEHAVIOUR(mc_msfilter, "IP_MSFILTER replaces the filter as a whole");
void mc_msfilter::a() {
    const int s = bound("any");
    SEE(filter(s, "g1", MCAST_INCLUDE, {"b"}));
    SEE(filter_of(s, "g1"));
    SEE(join(s, "g1"));
    on_ring(s);
    SEE(filter_of(s, "g1"));
    SEE(filter(s, "g1", MCAST_INCLUDE, {"b2", "silent"}));
    SEE(filter_of(s, "g1"));
    ask("b g1 no");
    ask("b2 g1 yes");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(filter(s, "g1", MCAST_EXCLUDE, {"b2"}));
    ask("b2 g1 no");
    ask("b g1 yes");
    SEE(taken(s));
    SEE(filter(s, "g1", MCAST_EXCLUDE, {}));
    ask("b2 g1 all");
    SEE(taken(s));
    SEE(filter(s, "g1", MCAST_INCLUDE, {}));
    SEE(filter_of(s, "g1"));
    ask("b g1 none");
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(filter(s, "g1", 7, {}));
    by_ring(s, 3);
    tell("end");
}
void mc_msfilter::b() { feed(); }

BEHAVIOUR(mc_generic, "MCAST_JOIN_GROUP and its relatives");
void mc_generic::a() {
    const int s = bound("any");
    SEE(generic(s, MCAST_JOIN_GROUP, "g1"));
    on_ring(s);
    ask("b g1 one");
    SEE(taken(s));
    SEE(generic(s, MCAST_BLOCK_SOURCE, "g1", "b"));
    ask("b g1 no");
    ask("b2 g1 two");
    SEE(taken(s));
    SEE(generic(s, MCAST_UNBLOCK_SOURCE, "g1", "b"));
    ask("b g1 three");
    SEE(taken(s));
    SEE(generic(s, MCAST_LEAVE_GROUP, "g1"));
    SEE(generic(s, MCAST_LEAVE_GROUP, "g1"));
    ask("b g1 no");
    SEE(generic(s, MCAST_JOIN_SOURCE_GROUP, "g1", "b2"));
    ask("b g1 no");
    ask("b2 g1 four");
    SEE(taken(s));
    SEE(generic(s, MCAST_LEAVE_SOURCE_GROUP, "g1", "b2"));
    ask("b2 g1 no");
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(generic(s, MCAST_JOIN_GROUP, "b"));
    by_ring(s, 4);
    tell("end");
}
void mc_generic::b() { feed(); }

BEHAVIOUR(mc_generic_filter, "MCAST_MSFILTER replaces the filter as a whole, and tells it");
void mc_generic_filter::a() {
    const int s = member("g1");
    uint8_t room[GROUP_FILTER_SIZE(4)] = {};
    auto* f = reinterpret_cast<group_filter*>(room);
    const sockaddr_in group = at("g1", 0), source = at("b2", 0);
    memcpy(&f->gf_group, &group, sizeof group);
    memcpy(&f->gf_slist[0], &source, sizeof source);
    for (const uint32_t mode : {MCAST_INCLUDE, MCAST_EXCLUDE}) {
        f->gf_fmode = mode;
        f->gf_numsrc = 1;
        SEE(setsockopt(s, IPPROTO_IP, MCAST_MSFILTER, f, GROUP_FILTER_SIZE(1)));
        SEE(filter_of(s, "g1"));
        ask("b g1 one");
        ask("b2 g1 two");
        SEE(taken(s));
        SEE(taken(s, 100, MSG_DONTWAIT));
    }
    f->gf_numsrc = 4;
    socklen_t size = sizeof room;
    SEE(getsockopt(s, IPPROTO_IP, MCAST_MSFILTER, f, &size));
    SEE(long(size));
    SEE(long(f->gf_numsrc));
    SEE(setsockopt(s, IPPROTO_IP, MCAST_MSFILTER, f, GROUP_FILTER_SIZE(1)));
    by_ring(s, 2);
    tell("end");
}
void mc_generic_filter::b() { feed(); }

BEHAVIOUR(mc_two_interfaces,
          "one socket in one group on two interfaces; it leaves one of them, and closes");
void mc_two_interfaces::a() {
    const int s = member("g1"), idle = bound("any"), out = udp_bound(1, "a");
    const ip_mreqn by_lo{ip("g1"), {}, 1};
    SEE(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &by_lo, sizeof by_lo));
    SEE(setsockopt(out, IPPROTO_IP, IP_MULTICAST_IF, &by_lo, sizeof by_lo));
    ask("b g1 one");
    SEE(taken(s));
    SEE(taken(idle));
    SEE(sent(out, "two", "g1"));
    SEE(taken(s));
    SEE(taken(idle));
    SEE(setsockopt(s, IPPROTO_IP, IP_DROP_MEMBERSHIP, &by_lo, sizeof by_lo));
    SEE(sent(out, "three", "g1"));
    ask("b2 g1 four");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 2);
    SEE(taken(idle));
    // Nobody is in it any more.
    SEE(close(s));
    ask("b g1 five");
    SEE(taken(idle, 100, MSG_DONTWAIT));
    tell("end");
}
void mc_two_interfaces::b() { feed(); }

BEHAVIOUR(mc_control, "control messages of multicast datagrams");
void mc_control::a() {
    const int s = member("g1");
    for (int name : {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR})
        SEE(set(s, IPPROTO_IP, name));
    ask("b2 g1 one");
    char text[10], control[256];
    iovec part{text, sizeof text};
    msghdr m = message_of(part, control, sizeof control);
    SEE(recvmsg(s, &m, 0));
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        sockaddr_in name = at("any", 0);
        if (c->cmsg_type == IP_PKTINFO) {
            in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            name.sin_addr = info.ipi_spec_dst;
            note("IP_PKTINFO answer from " + shown(name));
            name.sin_addr = info.ipi_addr;
            note(" to " + shown(name) + (info.ipi_ifindex > 1 ? " on an interface" : " on none"));
        } else if (c->cmsg_type == IP_ORIGDSTADDR) {
            memcpy(&name, CMSG_DATA(c), sizeof name);
            note("IP_ORIGDSTADDR " + shown(name));
        } else {
            note("type " + std::to_string(c->cmsg_type) + " value " +
                 std::to_string(*CMSG_DATA(c)));
        }
    }
    by_ring(s, 1);
    tell("end");
}
void mc_control::b() { feed(); }

BEHAVIOUR(mc_send,
          "what is sent to a group: TTL 1 unless said otherwise, IP_MULTICAST_LOOP off, "
          "IP_MULTICAST_IF in its forms");
void mc_send::a() {
    const int s = udp_bound();
    SEE(option(s, IPPROTO_IP, IP_MULTICAST_TTL));
    SEE(option(s, IPPROTO_IP, IP_MULTICAST_LOOP));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    step("joined");
    SEE(sent(s, "one", "g1"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, 7));
    SEE(sent(s, "two", "g1"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, -1));
    SEE(sent(s, "three", "g1"));
    const in_addr second = ip("a2");
    const int t = udp();
    SEE(set(t, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    SEE(bind_to(t, "any", 1));
    SEE(setsockopt(t, IPPROTO_IP, IP_MULTICAST_IF, &second, sizeof second));
    SEE(sent(t, "four", "g1"));
    in_addr is{};
    socklen_t size = sizeof is;
    SEE(getsockopt(t, IPPROTO_IP, IP_MULTICAST_IF, &is, &size));
    SEE(int(is.s_addr == second.s_addr));
    const ip_mreqn none{};
    SEE(setsockopt(t, IPPROTO_IP, IP_MULTICAST_IF, &none, sizeof none));
    SEE(sent(t, "five", "g1"));
    const ip_mreqn absent{{}, {}, 12345};
    SEE(setsockopt(t, IPPROTO_IP, IP_MULTICAST_IF, &absent, sizeof absent));
    SEE(sent(t, "six", "g1"));
    step("six are there");
    SEE(sent(t, pattern(4000), "g1"));
    step("the large one is");
    SEE(connect_to(s, "g1"));
    SEE(put(s, "seven"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, 0));
    SEE(put(s, "stays here"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, 3));
    SEE(put(s, "end"));
    by_ring(s, 0, 5);
    by_ring(t, 0, 4);
}
void mc_send::b() {
    const int s = member("g1");
    set(s, IPPROTO_IP, IP_RECVTTL);
    step("joined");
    for (std::string text; text != "end";) {
        char buffer[5000], control[64];
        sockaddr_in from{};
        iovec part{buffer, sizeof buffer};
        msghdr m = message_of(part, control, sizeof control);
        m.msg_name = &from;
        m.msg_namelen = sizeof from;
        const ssize_t n = recvmsg(s, &m, 0);
        text = n > 0 && n < 20 ? std::string(buffer, size_t(n)) : std::to_string(n);
        const cmsghdr* c = CMSG_FIRSTHDR(&m);
        note(text + " from " + shown(from) + " TTL " + (c ? std::to_string(*CMSG_DATA(c)) : "?"));
        // What comes in fragments comes another way.
        if (text == "six") step("six are there");
        if (text == "4000") step("the large one is");
    }
}

// Linux 6.15: who on this host is in which group is told, and what needs no copy for them goes by the ring.
bool members_are_told() {
    utsname system{};
    int major = 0, minor = 0;
    uname(&system);
    return sscanf(system.release, "%d.%d", &major, &minor) == 2 && major * 1000 + minor >= 6015;
}
unsigned by_who_loops(unsigned sent_alone) { return members_are_told() ? sent_alone : 0; }

BEHAVIOUR(mc_loop_or_not,
          "a sender with loop on: members on its host come and go, and get what is sent while they "
          "are there");
void mc_loop_or_not::a() {
    const int out = udp_bound(1), s = bound("any");
    on_ring(out);
    step("joined");
    SEE(sent(out, "one", "g1"));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(out, 0, by_who_loops(1));
    SEE(join(s, "g1"));
    SEE(sent(out, "two", "g1"));
    SEE(taken(s));
    by_ring(out, 0, by_who_loops(1));
    SEE(leave(s, "g1"));
    SEE(sent(out, "three", "g1"));
    SEE(taken(s, 100, MSG_DONTWAIT));
    const int child = fork();
    if (child == 0) {
        const int t = member("g1");
        tell("a is in it");
        set_time(t, SO_RCVTIMEO, 5000);
        _exit(taken(t) == "3 \"end\" from a:+1" ? 42 : 43);
    }
    hear();
    SEE(sent(out, "end", "g1"));
    SEE(outcome(child));
}
void mc_loop_or_not::b() {
    const int s = member("g1");
    step("joined");
    for (int i = 0; i < 3; i++) SEE(taken(s));
    tell(hear());
    SEE(taken(s));
}

BEHAVIOUR(mc_loop, "this host's own members get what it sends, unless IP_MULTICAST_LOOP is off");
void mc_loop::a() {
    const int out = udp_bound(1), s = member("g1"), same = udp_bound(2);
    SEE(join(same, "g1"));
    step("joined");
    SEE(sent(out, "one", "g1"));
    SEE(taken(s));
    SEE(sent(s, "two", "g1"));
    SEE(taken(s));
    SEE(set(out, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    SEE(sent(out, "three", "g1"));
    SEE(taken(s, 100, MSG_DONTWAIT));
    SEE(set(out, IPPROTO_IP, IP_MULTICAST_LOOP, 1));
    SEE(set(out, IPPROTO_IP, IP_MULTICAST_TTL, 0));
    SEE(sent(out, "four", "g1"));
    SEE(taken(s));
    SEE(set(out, IPPROTO_IP, IP_MULTICAST_TTL, 1));
    SEE(sent(out, "end", "g1"));
    SEE(taken(s));
}
void mc_loop::b() {
    const int s = member("g1");
    step("joined");
    for (std::string seen; seen.substr(0, 4) != "3 \"e";) SEE(seen = taken(s));
}

BEHAVIOUR(mc_fragments, "a datagram in fragments arrives whole, once, among others");
void mc_fragments::a() {
    const int s = member("g1");
    ask("b g1 big");
    SEE(taken(s));
    ask("b g1 one");
    SEE(taken(s));
    ask("b g1 big");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    by_ring(s, 1);
    tell("end");
}
void mc_fragments::b() { feed(); }

BEHAVIOUR(mc_connected, "a connected socket that is bound to the group hears its peer only");
void mc_connected::a() {
    const int s = member("g1", "g1");
    SEE(connect_to(s, "b"));
    SEE(name_of(s));
    on_ring(s);
    ask("b2 g1 no");
    ask("b g1 yes");
    SEE(taken(s));
    SEE(taken(s, 100, MSG_DONTWAIT));
    const int t = member("g1");
    SEE(connect_to(t, "b"));
    ask("b g1 again");
    SEE(taken(s));
    SEE(taken(t, 100, MSG_DONTWAIT));
    by_ring(s, 2);
    tell("end");
}
void mc_connected::b() { feed(); }

BEHAVIOUR(mc_waits,
          "poll, epoll, select and a blocking call wake for multicast; MSG_PEEK leaves it there");
void mc_waits::a() {
    const int s = member("g1");
    const int e = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {}};
    SEE(epoll_ctl(e, EPOLL_CTL_ADD, s, &event));
    {
        Asleep waits([&] { return std::to_string(epoll_wait(e, &event, 1, 5000)); });
        ask("b g1 one");
        SEE(waits.wakes());
    }
    SEE(ready(s));
    SEE(taken(s, 100, MSG_PEEK));
    SEE(taken(s));
    {
        Asleep waits([&] { return taken(s); });
        ask("b g1 two");
        SEE(waits.wakes());
    }
    {
        Asleep waits([&] { return polled(s, POLLIN, 5000); });
        ask("b2 g1 three");
        SEE(waits.wakes());
    }
    int n = 0;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(n);
    SEE(taken(s));
    SEE(ready(s));
    by_ring(s, 3);
    tell("end");
}
void mc_waits::b() { feed(); }

BEHAVIOUR(mc_handed_back,
          "a socket that goes back to the kernel goes on with its groups, each datagram once");
void mc_handed_back::a() {
    const int s = member("g1"), other = member("g1");
    ask("b g1 one");
    SEE(taken(other));
    SEE(taken(s));
    // An option that only the kernel has.
    SEE(set(s, IPPROTO_IP, IP_RECVOPTS));
    ask("b g1 two");
    for (int fd : {s, other}) {
        SEE(taken(fd));
        SEE(taken(fd, 100, MSG_DONTWAIT));
    }
    SEE(leave(s, "g1"));
    SEE(join(s, "g1"));
    ask("b2 g1 three");
    SEE(taken(s));
    by_ring(other, 2);
    tell("end");
}
void mc_handed_back::b() { feed(); }

BEHAVIOUR(mc_drops_told,
          "SO_RXQ_OVFL: what came by the ring was not dropped, before and after the hand-back");
void mc_drops_told::a() {
    const int s = member("g1");
    for (int i = 0; i < 3; i++) {
        ask("b g1 one");
        SEE(taken(s));
    }
    SEE(set(s, SOL_SOCKET, SO_RXQ_OVFL));
    ask("b g1 two");
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    // By the twin, whose drops are those of its filter.
    SEE(sent(s, "own", "g1"));
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    by_ring(s, 4);
    SEE(set(s, IPPROTO_IP, IP_RECVOPTS));
    ask("b g1 three");
    SEE(until(s, POLLIN));
    SEE(drops_told(s));
    SEE(set(s, SOL_SOCKET, SO_RCVBUF, 2304));
    long read = 0, told = 0;
    for (int i = 0; i < 20; i++) ask("b g1 four");
    while ((told = drops_told(s)) >= 0) read++;
    ask("b g1 five");
    SEE(until(s, POLLIN));
    const long lost = drops_told(s);
    SEE(lost > 0);
    SEE(read + lost);
    tell("end");
}
void mc_drops_told::b() { feed(); }

BEHAVIOUR(mc_fork, "a child that inherits a member and reads from it");
void mc_fork::a() {
    const int s = member("g1", "g1");
    ask("b g1 one");
    SEE(taken(s));
    const int child = fork();
    if (child == 0) {
        set_time(s, SO_RCVTIMEO, 5000);
        const bool none = taken(s, 100, MSG_DONTWAIT) == "-1 EAGAIN";
        tell("b g1 two");
        hear();
        _exit(none && taken(s) == "3 \"two\" from b:+0" ? 42 : 43);
    }
    SEE(outcome(child));
    SEE(taken(s, 100, MSG_DONTWAIT));
    ask("b g1 three");
    SEE(taken(s));
    tell("end");
}
void mc_fork::b() { feed(); }

SOLO(mc_errors, "what is refused", a_kernel) {
    const int s = udp();
    SEE(join(s, "a"));
    SEE(leave(s, "g1"));
    SEE(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, "abc", 3));
    const ip_mreqn absent{ip("g1"), {}, 12345};
    SEE(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &absent, sizeof absent));
    const ip_mreq foreign{ip("g1"), ip("nowhere")};
    SEE(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &foreign, sizeof foreign));
    SEE(with_source(s, IP_DROP_SOURCE_MEMBERSHIP, "g1", "b"));
    SEE(with_source(s, IP_UNBLOCK_SOURCE, "g1", "b"));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, 256));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_TTL, -2));
    SEE(set(s, IPPROTO_IP, IP_MULTICAST_ALL, 2));
    for (int i = 1; i < 25; i++) {
        ip_mreq many{{htonl(0xef4d0200u + unsigned(i))}, ip("a")};
        if (setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &many, sizeof many) < 0) {
            SEE(i);
            SEE(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &many, sizeof many));
            break;
        }
    }
}
