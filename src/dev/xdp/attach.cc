#include "dev/xdp/attach.h"

#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/signals_blocked.h"
#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/interfaces.h"
#include "dev/xdp/programs.h"

namespace vma {
namespace {

constexpr char kGeneric[] = "vma_xdp_generic", kNative[] = "vma_xdp_native";
constexpr unsigned kLinkTries = 100;  // a millisecond each
constexpr const char* kInsideDrivers[] = {"veth", "tun", "bridge", "virtio_net"};

Status fail(std::string* why, int error, std::string text) {
    *why = std::move(text);
    return Errno{error};
}

// A descriptor that is closed unless somebody takes it.
struct Held {
    int fd = -1;
    Held() = default;
    explicit Held(int descriptor) : fd(descriptor) {}
    ~Held() {
        if (fd >= 0) sys::close(fd);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    int take() { return std::exchange(fd, -1); }
};

int load_program(vma_xdp_program& fds) {
    SignalsBlocked blocked;  // as of the hook's programs
    return vma_xdp_load(&fds);
}

}  // namespace

XdpDriver xdp_driver_of(int ifindex) {
    XdpDriver driver;
    const Held socket(sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    request.ifr_ifindex = ifindex;
    if (socket.fd < 0 || sys::ioctl(socket.fd, SIOCGIFNAME, &request) != 0) return driver;
    const auto ask = [&](void* question) {
        request.ifr_data = static_cast<char*>(question);
        return sys::ioctl(socket.fd, SIOCETHTOOL, &request) == 0;
    };
    ethtool_drvinfo info{};
    info.cmd = ETHTOOL_GDRVINFO;
    if (!ask(&info)) return driver;
    info.driver[sizeof info.driver - 1] = 0;
    driver.name = info.driver;
    for (const char* name : kInsideDrivers)
        if (driver.name == name) driver.has_hardware = false;
    ethtool_value flags{};
    flags.cmd = ETHTOOL_GFLAGS;
    if (ask(&flags)) driver.strips_vlan_tags = (flags.data & ETH_FLAG_RXVLAN) != 0;
    ethtool_channels channels{};
    channels.cmd = ETHTOOL_GCHANNELS;
    if (ask(&channels) && channels.rx_count + channels.combined_count != 0)
        driver.queues = channels.rx_count + channels.combined_count;
    return driver;
}

Status XdpProgram::open(const Hook& hook, int ifindex, XdpMode mode, std::string* why) {
    NamespaceLock lock;
    if (const Status s = lock.take(); !s)
        return fail(why, s.error(), "another process keeps the interface's XDP program locked");
    Hook::FlowTables tables;
    if (const Status s = hook.borrow_tables(tables); !s)
        return fail(why, s.error(),
                    "sharing the flow tables is not permitted: CAP_SYS_ADMIN is needed");
    const Status s = share(tables, ifindex) ? Status() : load(tables, ifindex, mode, why);
    tables.close_all();
    return s;
}

Status XdpProgram::load(const Hook::FlowTables& tables, int ifindex, XdpMode mode,
                        std::string* why) {
    vma_xdp_program fds;
    const int r = load_program(fds);
    if (r == -EPERM || r == -EACCES)
        return fail(why, EPERM,
                    "loading the XDP program is not permitted: CAP_SYS_ADMIN is needed");
    if (r < 0) return fail(why, -r, fmt::format("loading the XDP program failed: errno {}", -r));
    const Held generic(fds.generic), native(fds.native), flows(fds.flows), slots(fds.slots),
        ports(fds.ports);
    Status s = sockets_.adopt(fds.sockets);
    const uint32_t zero = 0;
    const std::pair<int, int> inner[] = {
        {flows.fd, tables.flows}, {slots.fd, tables.slots}, {ports.fd, tables.ports}};
    for (const auto& [outer, table] : inner) {
        const int put = s ? bpf::update(outer, &zero, &table, BPF_ANY) : 0;
        if (put < 0) s = Errno{-put};
    }
    if (!s)
        return fail(why, s.error(),
                    fmt::format("setting the XDP program up failed: errno {}", s.error()));
    const auto attach = [&](bool as_generic) {
        generic_ = as_generic;
        return as_generic ? bpf::attach_xdp(generic.fd, ifindex, XDP_FLAGS_SKB_MODE)
                          : bpf::attach_xdp(native.fd, ifindex, XDP_FLAGS_DRV_MODE);
    };
    int link = -EBUSY;
    // One whose last holder has just gone is in the way until the kernel has put it away.
    for (unsigned i = 0; link == -EBUSY && i < kLinkTries; ++i) {
        if (i) {
            const timespec pause{0, 1'000'000};
            sys::raw(SYS_nanosleep, sys::ptr(&pause), 0);
        }
        link = attach(mode == XdpMode::generic);
        if (link < 0 && link != -EBUSY && mode == XdpMode::automatic) link = attach(true);
    }
    if (link == -EBUSY)
        return fail(
            why, EBUSY,
            fmt::format(
                "another XDP program is attached to interface {} (ip link show tells which)",
                ifindex));
    if (link < 0)
        return fail(why, -link,
                    fmt::format("attaching the XDP program to interface {} failed: errno {}",
                                ifindex, -link));
    return link_.adopt(link);
}

// The link and sockets of another ring of this hook on the interface. False: there is none.
bool XdpProgram::share(const Hook::FlowTables& tables, int ifindex) {
    uint32_t after = 0, program = 0;
    for (;;) {
        Held link(bpf::next_xdp_link(ifindex, &after, &program));
        if (link.fd < 0) return false;
        if (take_sockets(tables, program)) return link_.adopt(link.take()).ok();
    }
}

bool XdpProgram::take_sockets(const Hook::FlowTables& tables, uint32_t program) {
    const Held found(bpf::program_by_id(program));
    bpf::ProgramInfo info;
    if (found.fd < 0 || bpf::program_info(found.fd, info) != 0) return false;
    generic_ = std::strcmp(info.name, kGeneric) == 0;
    if (!generic_ && std::strcmp(info.name, kNative) != 0) return false;
    bool ours = false;
    Held sockets;
    for (uint32_t i = 0; i < info.map_count; ++i) {
        Held map(bpf::map_by_id(info.maps[i]));
        bpf::MapInfo m;
        if (map.fd < 0 || bpf::map_info(map.fd, m) != 0) continue;
        const uint32_t zero = 0;
        uint32_t entry = 0;
        if (!std::strcmp(m.name, "xdp_slots") && bpf::lookup(map.fd, &zero, &entry) == 0)
            ours = entry == tables.slots_id;
        if (!std::strcmp(m.name, "xdp_sockets")) std::swap(sockets.fd, map.fd);
    }
    return ours && sockets.fd >= 0 && sockets_.adopt(sockets.take()).ok();
}

Status XdpProgram::give(uint32_t slot, int socket) {
    const int r = bpf::update(sockets_.fd(), &slot, &socket, BPF_ANY);
    return r < 0 ? Status(Errno{-r}) : Status();
}

}  // namespace vma
