#include "support/veth.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace vma::test {
namespace {

int current_namespace() { return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); }

}  // namespace

int Veth::run(const Side& side, const std::string& command) {
    const std::string all = "nsenter --net=/proc/" + std::to_string(getpid()) + "/fd/" +
                            std::to_string(side.ns) + " sh -c '" + command + "'";
    const int status = std::system(all.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Veth::Veth() {
    home_ = current_namespace();
    for (int i : {1, 0}) {
        if (unshare(CLONE_NEWNET) != 0) {
            error_ = "unshare(CLONE_NEWNET) failed";
            return;
        }
        Side& s = sides_[i];
        s.ns = current_namespace();
        s.name = i ? "vtb" : "vta";
        s.mac = {2, 0, 0, 0, 0, uint8_t(0x0a + i)};
        s.addr = IpAddr::v4(10, 99, 0, uint8_t(1 + i));
    }
    int failed =
        run(b(), "ip link add vtb type veth peer name vta netns " + std::to_string(getpid()));
    for (int i : {0, 1}) {
        const Side& s = sides_[i];
        const Side& peer = sides_[1 - i];
        auto text = [](const Side& of) {
            char mac[24];
            std::snprintf(mac, sizeof(mac), "02:00:00:00:00:%02x", of.mac[5]);
            return std::string(mac);
        };
        const std::string number = std::to_string(1 + i), other = std::to_string(2 - i);
        failed |= run(
            s, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1; ip link set lo up && ip link set " +
                   s.name + " address " + text(s) + " && ip addr add 10.99.0." + number +
                   "/24 dev " + s.name + " && ip link set " + s.name +
                   " up && ip neigh replace 10.99.0." + other + " lladdr " + text(peer) + " dev " +
                   s.name + " nud permanent");
    }
    for (Side& s : sides_) {
        Inside here(s);
        s.ifindex = int(if_nametoindex(s.name.c_str()));
        if (s.ifindex == 0) failed = 1;
    }
    if (failed) error_ = "setting up the veth pair failed";
}

Veth::~Veth() {
    if (home_ >= 0) {
        (void)!setns(home_, CLONE_NEWNET);
        close(home_);
    }
    for (Side& s : sides_)
        if (s.ns >= 0) close(s.ns);
}

Inside::Inside(const Veth::Side& side) : before_(current_namespace()) {
    (void)!setns(side.ns, CLONE_NEWNET);
}

Inside::~Inside() {
    (void)!setns(before_, CLONE_NEWNET);
    close(before_);
}

}  // namespace vma::test
