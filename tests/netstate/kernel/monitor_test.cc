// NetworkMonitor: live changes, a namespace with nothing in it, lost notifications, neighbours.
#include <linux/capability.h>

#include "namespace.h"

namespace vma::test {
namespace {

Result<Route> to(const NetworkMonitor& m, const char* dotted) {
    in_addr a{};
    inet_pton(AF_INET, dotted, &a);
    RouteQuery q;
    q.dst = IpAddr::v4_bytes(&a);
    return m.view()->route(q);
}

TEST(Monitor, FollowsLinksAddressesRoutesAndRules) {
    IN_NAMESPACE([] {
        auto m = open_monitor();
        ASSERT_TRUE(m);
        EXPECT_EQ(m->view()->interfaces().size(), 1u);  // lo, down
        EXPECT_FALSE(m->view()->is_local(IpAddr::v4(127, 0, 0, 1)));
        EXPECT_EQ(to(*m, "10.0.0.2").error(), ENETUNREACH);
        uint64_t before = m->generation();
        const auto changes = [&](const char* command, const std::function<bool()>& until) {
            ASSERT_TRUE(shell(command)) << command;
            EXPECT_TRUE(settle(*m, until)) << command;
            EXPECT_GT(m->generation(), before) << command;
            before = m->generation();
        };
        const auto link = [&](const char* name) {
            return m->view()->interface(std::string_view(name));
        };
        changes("ip link set lo up", [&] { return m->view()->is_local(IpAddr::v4(127, 0, 0, 1)); });
        changes("ip link add v0 type veth peer name v1", [&] { return link("v0") && link("v1"); });
        EXPECT_EQ(link("v0")->kind, "veth");
        EXPECT_EQ(link("v0")->link, link("v1")->index);
        changes("ip addr add 10.0.0.1/24 dev v0; ip link set v0 up; ip link set v1 up",
                [&] { return to(*m, "10.0.0.2").ok() && link("v0")->running; });
        EXPECT_EQ(m->view()->interface_of_local(IpAddr::v4(10, 0, 0, 1)), link("v0"));
        EXPECT_TRUE(m->view()->is_broadcast(IpAddr::v4(10, 0, 0, 255)));
        EXPECT_EQ(to(*m, "10.0.0.1")->type, RouteType::local);
        EXPECT_EQ(to(*m, "10.0.0.1")->fib_oif, link("v0")->index);
        changes("ip route add default via 10.0.0.9", [&] { return to(*m, "8.8.8.8").ok(); });
        EXPECT_EQ(to(*m, "8.8.8.8")->next_hop, IpAddr::v4(10, 0, 0, 9));
        changes("ip route replace default via 10.0.0.8 mtu 1000",
                [&] { return to(*m, "8.8.8.8")->mtu == 1000; });
        EXPECT_EQ(to(*m, "8.8.8.8")->next_hop, IpAddr::v4(10, 0, 0, 8));
        changes("ip rule add priority 5 to 8.8.8.8 prohibit",
                [&] { return to(*m, "8.8.8.8").error() == EACCES; });
        changes("ip rule del priority 5", [&] { return to(*m, "8.8.8.8").ok(); });
        changes("ip nexthop add id 3 via 10.0.0.7 dev v0; ip route add 9.0.0.0/8 nhid 3", [&] {
            const auto r = to(*m, "9.1.1.1");
            return r.ok() && r->next_hop == IpAddr::v4(10, 0, 0, 7);
        });
        changes("ip link set v0 mtu 1300", [&] { return link("v0")->mtu == 1300; });
        // The kernel takes the routes away without a word.
        changes("ip link set v0 down", [&] { return !to(*m, "9.1.1.1").ok(); });
        EXPECT_EQ(to(*m, "8.8.8.8").error(), ENETUNREACH);
        changes("ip link del v0", [&] { return !link("v0") && !link("v1"); });
        EXPECT_EQ(m->overruns(), 0u);
    });
}

TEST(Monitor, OnePerNamespaceAndFoundByKey) {
    IN_NAMESPACE([] {
        auto a = open_monitor(), b = open_monitor();
        ASSERT_TRUE(a);
        EXPECT_EQ(a, b);
        EXPECT_EQ(NetworkMonitor::find(a->key()), a);
        const uint64_t key = a->key();
        ASSERT_EQ(unshare(CLONE_NEWNET), 0);
        auto other = open_monitor();
        ASSERT_TRUE(other);
        EXPECT_NE(other->key(), key);
        a.reset();
        b.reset();
        EXPECT_EQ(NetworkMonitor::find(key), nullptr);
    });
}

TEST(Monitor, LostNotificationsLeadToAFullDump) {
    IN_NAMESPACE([] {
        ASSERT_TRUE(shell("ip link set lo up"));
        auto m = open_monitor();
        ASSERT_TRUE(m);
        std::string batch;  // more notifications than the socket holds
        for (int i = 0; i < 30000; i++)
            batch += "route add 10." + std::to_string(i >> 8) + "." + std::to_string(i & 255) +
                     ".0/24 dev lo\n";
        ASSERT_TRUE(shell("ip -batch -", batch));
        ASSERT_TRUE(settle(*m, [&] { return to(*m, "10.117.47.1").ok(); }));
        EXPECT_GE(m->overruns(), 1u);
        EXPECT_GE(m->view()->data().routes.size(), 30000u);
    });
}

// A second namespace that holds the other end of a veth, until `stop` is closed.
pid_t neighbor_host(int* ready, int* stop) {
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(kChildSeconds);
        close(down[1]);
        const bool moved = unshare(CLONE_NEWNET) == 0;
        char c = moved ? 'y' : 'n';
        if (write(up[1], &c, 1) != 1) _exit(1);
        if (read(down[0], &c, 1) != 1) _exit(1);  // the veth is here now
        const bool ok = shell("ip addr add 10.0.0.2/24 dev v1; ip link set v1 up");
        c = ok ? 'y' : 'n';
        if (write(up[1], &c, 1) != 1) _exit(1);
        while (read(down[0], &c, 1) > 0) {
        }
        _exit(0);
    }
    close(up[1]);
    close(down[0]);
    *ready = up[0];
    *stop = down[1];
    return child;
}

// The same, as 10.0.0.2 behind our v0 (10.0.0.1). -1: something failed.
pid_t joined_host(int* ready, int* stop) {
    const pid_t peer = neighbor_host(ready, stop);
    char c = 0;
    const bool joined =
        peer > 0 && read(*ready, &c, 1) == 1 && c == 'y' &&
        shell(
            "ip link add v0 type veth peer name v1; ip addr add 10.0.0.1/24 dev v0; "
            "ip link set v0 up; ip link set v1 netns " +
            std::to_string(peer)) &&
        write(*stop, "g", 1) == 1 && read(*ready, &c, 1) == 1 && c == 'y';
    return joined ? peer : -1;
}

TEST(Monitor, NeighborsResolveThroughTheKernel) {
    IN_NAMESPACE([] {
        int ready = -1, stop = -1;
        const pid_t peer = joined_host(&ready, &stop);
        ASSERT_GT(peer, 0);
        auto m = open_monitor();
        ASSERT_TRUE(m);
        ASSERT_TRUE(
            settle(*m, [&] { return m->view()->interface(std::string_view("v0"))->running; }));
        const int v0 = m->view()->interface(std::string_view("v0"))->index;
        const IpAddr there = IpAddr::v4(10, 0, 0, 2), nobody = IpAddr::v4(10, 0, 0, 77);
        EXPECT_EQ(m->neighbor(v0, there).state, NeighborState::absent);
        const uint64_t links = m->generation(), before = m->neighbor_generation();
        m->resolve(v0, there);
        m->resolve(v0, nobody);
        ASSERT_TRUE(settle(*m, [&] { return m->neighbor(v0, there).sendable(); }));
        EXPECT_FALSE(m->neighbor(v0, there).mac.is_zero());
        EXPECT_GT(m->neighbor_generation(), before);
        EXPECT_EQ(m->generation(), links);  // neighbours alter no route
        ASSERT_TRUE(
            settle(*m, [&] { return m->neighbor(v0, nobody).state == NeighborState::failed; }));
        const MacAddr real = m->neighbor(v0, there).mac;
        ASSERT_TRUE(
            shell("ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:09 dev v0 nud permanent"));
        ASSERT_TRUE(settle(*m, [&] { return m->neighbor(v0, there).mac.bytes[5] == 9; }));
        char text[18];
        snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", real.bytes[0], real.bytes[1],
                 real.bytes[2], real.bytes[3], real.bytes[4], real.bytes[5]);
        ASSERT_TRUE(shell("echo 1 > /proc/sys/net/ipv4/neigh/v0/delay_first_probe_time"));
        ASSERT_TRUE(
            shell("ip neigh replace 10.0.0.2 lladdr " + std::string(text) + " dev v0 nud stale"));
        ASSERT_TRUE(
            settle(*m, [&] { return m->neighbor(v0, there).state == NeighborState::stale; }));
        EXPECT_TRUE(m->neighbor(v0, there).sendable());
        ASSERT_TRUE(settle(*m, [&] {
            m->keep_fresh(v0, there);
            return m->neighbor(v0, there).state == NeighborState::usable;
        }));
        EXPECT_EQ(m->neighbor(v0, there).mac, real);
        ASSERT_TRUE(shell("ip neigh flush dev v0; ip neigh del 10.0.0.2 dev v0 2>/dev/null; true"));
        close(stop);
        int status = 0;
        EXPECT_EQ(waitpid(peer, &status, 0), peer);
        close(ready);
    });
}

// A server that dropped its privileges goes on resolving: the kernel refuses the request, a datagram does it.
TEST(Monitor, NeighborsResolveWithoutPrivileges) {
    IN_NAMESPACE([] {
        int ready = -1, stop = -1;
        const pid_t peer = joined_host(&ready, &stop);
        ASSERT_GT(peer, 0);
        auto m = open_monitor();
        ASSERT_TRUE(m);
        ASSERT_TRUE(
            settle(*m, [&] { return m->view()->interface(std::string_view("v0"))->running; }));
        const int v0 = m->view()->interface(std::string_view("v0"))->index;
        const IpAddr there = IpAddr::v4(10, 0, 0, 2), nobody = IpAddr::v4(10, 0, 0, 77);
        __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
        const __user_cap_data_struct none[2] = {};
        ASSERT_EQ(syscall(SYS_capset, &head, none), 0);
        EXPECT_EQ(m->neighbor(v0, there).state, NeighborState::absent);
        m->resolve(v0, there);
        m->resolve(v0, nobody);
        ASSERT_TRUE(settle(*m, [&] { return m->neighbor(v0, there).sendable(); }));
        ASSERT_TRUE(
            settle(*m, [&] { return m->neighbor(v0, nobody).state == NeighborState::failed; }));
        close(stop);
        int status = 0;
        EXPECT_EQ(waitpid(peer, &status, 0), peer);
        close(ready);
    });
}

}  // namespace
}  // namespace vma::test
