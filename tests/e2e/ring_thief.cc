// ring_thief VMAD ADDRESS PORT [SOCKET]: a process without privileges that speaks the broker's protocol and asks for what is not its
// own: the port of somebody else (who is listening there), rings of others, the tables. Starts a broker as root, then becomes
// www-data. With SOCKET, the number of a TCP listener of ADDRESS and PORT + 7 in another network namespace, it has no privileges to
// begin with, and the broker is the host's, whose policy is to give a process two rings. Prints what was granted wrongly, and "all
// refused" if nothing was.
#include <arpa/inet.h>
#include <grp.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "broker/channel.h"
#include "broker/client.h"
#include "broker/spawn.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/interfaces.h"
#include "dev/packet/layout.h"
#include "engine/salvage.h"

namespace {

using namespace vma;
using namespace vma::broker;

int g_wrong = 0;

void expect(const char* what, int error, int wanted) {
    printf("%s: %d (%s)\n", what, error, strerror(error));
    if (error == wanted) return;
    printf("WRONG: %s: %d wanted\n", what, wanted);
    g_wrong++;
}

int bound(int type, const Endpoint& name) {
    const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const sockaddr_in in = name.to_sockaddr_in();
    if (bind(fd, reinterpret_cast<const sockaddr*>(&in), sizeof in) != 0) {
        perror("bind");
        exit(2);
    }
    return fd;
}

Steer flow(uint32_t slot, const Endpoint& local, const Endpoint& remote, int protocol,
           uint32_t gate) {
    Steer s;
    s.local = to_wire(local);
    if (remote.port) s.remote = to_wire(remote);
    s.slot = slot;
    s.gate = gate;
    s.protocol = uint8_t(protocol);
    return s;
}

int ethernet() {
    const auto all = list_interfaces();
    if (all)
        for (const InterfaceBrief& i : *all)
            if (i.type == 1 && i.up()) return i.ifindex;
    return 0;
}

// Is any of the descriptors a way to the tables that rings share?
void look_at(const OpenedRing& ring, int ifindex, const IpAddr& neighbour) {
    for (unsigned i = 0; i < kRingFds; i++) {
        if (i >= kTransmitter) continue;
        bpf::MapInfo map;
        const bool known = bpf::map_info(ring.fds[i], map) == 0;
        const bool fine = known && (i == kDataRing || i == kDoorbell
                                        ? map.type == BPF_MAP_TYPE_RINGBUF
                                        : map.type == BPF_MAP_TYPE_ARRAY && map.entries == 1);
        printf("descriptor %u: map %s type %u\n", i, map.name, map.type);
        if (!fine) g_wrong++;
    }
    // Bound to receive everything, the sender hears nothing.
    sockaddr_ll all{};
    all.sll_family = AF_PACKET;
    all.sll_protocol = htons(ETH_P_ALL);
    all.sll_ifindex = ifindex;
    const int sender = ring.fds[kTransmitter];
    (void)bind(sender, reinterpret_cast<sockaddr*>(&all), sizeof all);
    const int noise = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = Endpoint{neighbour, 9}.to_sockaddr_in();
    for (int i = 0; i < 5; i++)
        (void)sendto(noise, "x", 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof to);
    pollfd p{sender, POLLIN, 0};
    expect("frames heard", poll(&p, 1, 300), 0);
    int off = 0;
    expect("deafness taken away",
           setsockopt(sender, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof off) == 0 ? 0 : errno,
           EPERM);
    close(noise);
}

}  // namespace

int main(int argc, char** argv) {
    in_addr address;
    if (argc < 4 || argc > 5 || inet_pton(AF_INET, argv[2], &address) != 1) return 2;
    const IpAddr own = IpAddr::v4(ntohl(address.s_addr));
    const IpAddr neighbour = IpAddr::v4(ntohl(address.s_addr) ^ 3);
    const Endpoint victim{own, uint16_t(atoi(argv[3]))};
    const Endpoint mine{own, uint16_t(victim.port + 7)};
    const Endpoint peer{neighbour, 40000};
    const int ifindex = ethernet();

    ClientConfig config;
    config.path = argv[1];
    config.layout = layout_identity();
    configure(config);
    if (!start()) return 2;
    // Trust is looked up when the session begins: this one has none.
    const int foreign = argc == 5 ? atoi(argv[4]) : -1;
    if (foreign < 0 && (setgroups(0, nullptr) || setresgid(33, 33, 33) || setresuid(33, 33, 33)))
        return 2;

    OpenedRing ring;
    expect("open a ring on loopback", open_ring({1, kLeastLentBytes}, ring).error(), EINVAL);
    expect("open a ring", open_ring({ifindex, kLeastLentBytes}, ring).error(), 0);
    if (g_wrong) return 1;
    look_at(ring, ifindex, neighbour);

    const int tcp = bound(SOCK_STREAM, mine), udp = bound(SOCK_DGRAM, mine);
    const int fresh = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    expect("own tuple", steer(flow(ring.slot, mine, peer, IPPROTO_TCP, 0), tcp).error(), 0);
    expect("own tuple again, by another gate",
           steer(flow(ring.slot, mine, peer, IPPROTO_TCP, 1), tcp).error(), 0);
    expect("own UDP port", steer(flow(ring.slot, mine, {}, IPPROTO_UDP, 2), udp).error(), 0);
    constexpr int kTimes = 200;
    const int64_t begin = monotonic_now().ns;
    for (int i = 0; i < kTimes; i++)
        if (!steer(flow(ring.slot, mine, peer, IPPROTO_TCP, 0), tcp)) g_wrong++;
    printf("steering takes %lld ns\n",
           static_cast<long long>((monotonic_now().ns - begin) / kTimes));
    // None of these are.
    const auto refused = [&](const char* what, const Steer& s, int twin, int wanted) {
        expect(what, steer(s, twin).error(), wanted);
    };
    refused("the victim's listener", flow(ring.slot, victim, {}, IPPROTO_TCP, 3), tcp, EACCES);
    refused("a connection of the victim's", flow(ring.slot, victim, peer, IPPROTO_TCP, 3), tcp,
            EACCES);
    refused("the same with an unbound socket", flow(ring.slot, victim, peer, IPPROTO_TCP, 3), fresh,
            EACCES);
    refused("the victim's port by UDP", flow(ring.slot, victim, {}, IPPROTO_UDP, 3), udp, EACCES);
    refused("no listener", flow(ring.slot, mine, {}, IPPROTO_TCP, 3), tcp, EACCES);
    refused("another protocol", flow(ring.slot, mine, peer, IPPROTO_TCP, 3), udp, EINVAL);
    const int any = bound(SOCK_DGRAM, {IpAddr::any_v4(), uint16_t(mine.port + 1)});
    refused("another host's address",
            flow(ring.slot, {neighbour, uint16_t(mine.port + 1)}, {}, IPPROTO_UDP, 3), any,
            EADDRNOTAVAIL);
    for (uint32_t slot = 1; slot < 4; slot++)
        if (slot != ring.slot)
            refused("another ring", flow(slot, mine, peer, IPPROTO_TCP, 3), tcp, EACCES);
    if (foreign >= 0) {
        refused("a listener of another namespace", flow(ring.slot, mine, {}, IPPROTO_TCP, 3),
                foreign, EXDEV);
        prove(foreign);
        refused("what it shows", flow(ring.slot, mine, peer, IPPROTO_TCP, 3), fresh, EACCES);
    }
    // Another ring is shown by its doorbell alone.
    for (uint32_t slot = 1; slot < 4; slot++)
        if (slot != ring.slot)
            expect("show another's ring",
                   show_ring({slot, 1, ifindex, 0}, ring.fds[kDoorbell]).error(), EACCES);
    if (foreign >= 0) {
        // The policy gives a process two; another session is the same process's.
        OpenedRing more;
        expect("a second ring", open_ring({ifindex, kLeastLentBytes}, more).error(), 0);
        expect("a third ring", open_ring({ifindex, kLeastLentBytes}, more).error(), EDQUOT);
        forget_in_child(keep_door_in_child());
        expect("a third ring by another session",
               open_ring({ifindex, kLeastLentBytes}, more).error(), EDQUOT);
    }
    for (const int fd : ring.fds) close(fd);
    printf("%s\n", g_wrong ? "something was granted" : "all refused");
    return g_wrong != 0;
}
