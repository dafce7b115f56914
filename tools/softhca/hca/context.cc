#include "softhca/hca/context.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "softhca/mlx5/engine.h"

namespace softhca {
namespace {

void add_gid(Station& s, const ibv_gid& gid) {
    for (uint8_t type : {uint8_t(IBV_GID_TYPE_ROCE_V1), uint8_t(IBV_GID_TYPE_ROCE_V2)}) {
        const uint16_t n = s.gid_count;
        if (n == kMaxGids) return;
        s.gids[n] = gid;
        s.gid_types[n] = type;
        s.gid_count.store(uint16_t(n + 1), std::memory_order_release);
    }
}

// RoCE: the link-local address made of the MAC, then the interface's IPv4 addresses, each for both versions.
void fill_gids(Station& s, const DeviceConfig& config) {
    ibv_gid gid{};
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
    const uint8_t* m = config.mac;
    const uint8_t eui[8] = {uint8_t(m[0] ^ 2), m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]};
    std::memcpy(gid.raw + 8, eui, 8);
    add_gid(s, gid);
    ifaddrs* list = nullptr;
    if (config.netdev.empty() || getifaddrs(&list) < 0) return;
    for (ifaddrs* a = list; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || config.netdev != a->ifa_name)
            continue;
        gid = {};
        gid.raw[10] = gid.raw[11] = 0xff;
        std::memcpy(gid.raw + 12, &reinterpret_cast<sockaddr_in*>(a->ifa_addr)->sin_addr, 4);
        add_gid(s, gid);
    }
    freeifaddrs(list);
}

ibv_mtu active_mtu(uint32_t bytes) {
    uint32_t m = IBV_MTU_4096;
    while (m > IBV_MTU_256 && (128u << m) > bytes) m--;
    return ibv_mtu(m);
}

void fill_station(Context& c) {
    Station& s = c.station();
    const DeviceConfig& config = c.device->config;
    s.version = kLayoutVersion;
    s.pid = own_pid();
    s.started = process_started(s.pid);
    s.index = c.index;
    s.mtu = active_mtu(config.mtu);
    s.ifindex = config.ifindex;
    std::snprintf(s.device, sizeof(s.device), "%s", config.name.c_str());
    std::memcpy(s.mac, config.mac, 6);
    fill_gids(s, config);
    s.port_up = true;
    c.heap.reset((sizeof(Station) + 4095) & ~uint64_t(4095), kStationBytes);
    StationSlot& slot = c.wire->directory().slots[c.index];
    std::memcpy(slot.mac, s.mac, 6);
    slot.ready.store(true, std::memory_order_release);
}

}  // namespace

Context::Context() = default;
Context::~Context() = default;

Wire* process_wire() {
    static std::mutex mutex;
    static Wire* wire = nullptr;
    std::lock_guard locked(mutex);
    if (!wire) wire = Wire::open(wire_path()).release();
    return wire;
}

Context* open_context(Device& device) {
    auto c = std::make_unique<Context>();
    c->device = &device;
    c->wire = process_wire();
    if (!c->wire) return nullptr;
    c->own = c->wire->claim(&c->index);
    if (!c->own) return nullptr;
    c->async_path = Notifier::async_path(*c->wire, c->index, c->own->generation);
    ibv_context& v = *c->ibv();
    v.device = &device.ibv;
    v.async_fd = Notifier::make(c->async_path);
    if (v.async_fd < 0) {
        c->wire->leave(c->index);
        return nullptr;
    }
    v.cmd_fd = -1;  // there is no kernel part
    v.num_comp_vectors = 1;
    v.abi_compat = __VERBS_ABI_IS_EXTENDED;
    pthread_mutex_init(&v.mutex, nullptr);
    c->verbs.sz = sizeof(verbs_context);
    set_operations(*c);
    fill_station(*c);
    if (device.config.mlx5) c->engine = std::make_unique<mlx5::Engine>(*c);
    return c.release();
}

void close_context(Context* c) {
    c->engine.reset();
    c->wire->leave(c->index);
    Notifier::drop(c->async_path, c->ibv()->async_fd);
    delete c;
}

}  // namespace softhca
