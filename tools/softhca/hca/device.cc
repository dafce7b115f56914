#include "softhca/hca/device.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace softhca {
namespace {

bool parse_number(const std::string& text, uint64_t most, uint64_t* out) {
    char* end = nullptr;
    errno = 0;
    const unsigned long long v = std::strtoull(text.c_str(), &end, 0);
    if (text.empty() || *end || errno || v > most || text[0] == '-') return false;
    *out = v;
    return true;
}

bool parse_mac(const std::string& text, uint8_t* out) {
    unsigned b[6];
    char rest;
    if (std::sscanf(text.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%c", b, b + 1, b + 2, b + 3, b + 4, b + 5,
                    &rest) != 6)
        return false;
    for (int i = 0; i < 6; i++) out[i] = uint8_t(b[i]);
    return true;
}

// Keys with a number: where it goes and the largest value.
struct NumberKey {
    const char* name;
    uint64_t most;
    void (*set)(DeviceConfig&, uint64_t);
};
const NumberKey kNumbers[] = {
    {"mtu", 9978, [](DeviceConfig& c, uint64_t v) { c.mtu = uint32_t(v); }},
    {"ifindex", INT32_MAX, [](DeviceConfig& c, uint64_t v) { c.ifindex = uint32_t(v); }},
    {"rx_checksum", 1, [](DeviceConfig& c, uint64_t v) { c.rx_checksum = v; }},
    {"tx_checksum", 1, [](DeviceConfig& c, uint64_t v) { c.tx_checksum = v; }},
    {"timestamps", 1, [](DeviceConfig& c, uint64_t v) { c.timestamps = v; }},
    {"flow_tag", 1, [](DeviceConfig& c, uint64_t v) { c.flow_tag = v; }},
    {"max_tso", 262144, [](DeviceConfig& c, uint64_t v) { c.max_tso = uint32_t(v); }},
    {"max_inline", 4096, [](DeviceConfig& c, uint64_t v) { c.max_inline = uint32_t(v); }},
    {"max_qp_wr", 65536, [](DeviceConfig& c, uint64_t v) { c.max_qp_wr = uint32_t(v); }},
    {"max_sge", 32, [](DeviceConfig& c, uint64_t v) { c.max_sge = uint32_t(v); }},
    {"dm_bytes", 16 << 20, [](DeviceConfig& c, uint64_t v) { c.dm_bytes = v; }},
    {"strict", 1, [](DeviceConfig& c, uint64_t v) { c.strict = v; }},
    {"frame_ring", 64 << 20, [](DeviceConfig& c, uint64_t v) { c.frame_ring = uint32_t(v); }},
};

bool set_key(DeviceConfig& c, const std::string& key, const std::string& value) {
    if (key == "name") {
        c.name = value;
        return !value.empty() && value.size() < IBV_SYSFS_NAME_MAX;
    }
    if (key == "netdev") {
        c.netdev = value;
        return !value.empty() && value.size() < IFNAMSIZ;
    }
    if (key == "kind") {
        c.mlx5 = value == "mlx5";
        return c.mlx5 || value == "plain";
    }
    if (key == "engine") {
        c.kicked = value == "kick";
        return c.kicked || value == "thread";
    }
    if (key == "mac") return c.mac_given = parse_mac(value, c.mac);
    for (const NumberKey& n : kNumbers) {
        uint64_t number;
        if (key != n.name) continue;
        if (!parse_number(value, n.most, &number)) return false;
        n.set(c, number);
        return true;
    }
    return false;
}

// What the kernel says of the interface; a device whose interface is gone (or in another namespace) has no port. By the system
// calls themselves: the process may have a library preloaded that takes socket() for the program's, and uses this one.
bool ask_interface(DeviceConfig& c) {
    const int fd = int(syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq r{};
    std::snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", c.netdev.c_str());
    const bool found = fd >= 0 && syscall(SYS_ioctl, fd, SIOCGIFHWADDR, &r) == 0;
    if (found && !c.mac_given) std::memcpy(c.mac, r.ifr_hwaddr.sa_data, 6);
    if (found && syscall(SYS_ioctl, fd, SIOCGIFMTU, &r) == 0) c.mtu = uint32_t(r.ifr_mtu);
    if (found && syscall(SYS_ioctl, fd, SIOCGIFINDEX, &r) == 0) c.ifindex = uint32_t(r.ifr_ifindex);
    if (fd >= 0) syscall(SYS_close, fd);
    return found;
}

std::unique_ptr<Device> make_device(DeviceConfig config, uint32_t index) {
    static const char kStranger = 0;
    auto d = std::make_unique<Device>();
    d->ops = &kStranger;
    d->index = index;
    d->ibv.node_type = IBV_NODE_CA;
    d->ibv.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(d->ibv.name, sizeof(d->ibv.name), "%s", config.name.c_str());
    std::snprintf(d->ibv.dev_name, sizeof(d->ibv.dev_name), "softhca%u", index);
    std::snprintf(d->ibv.dev_path, sizeof(d->ibv.dev_path), "/softhca/verbs/%s",
                  config.name.c_str());
    std::snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "/softhca/%s", config.name.c_str());
    d->config = std::move(config);
    return d;
}

const std::vector<Device*>& read_devices() {
    std::vector<DeviceConfig> configs;
    const char* text = std::getenv("SOFTHCA");
    std::string description = text ? text : "name=softhca0", error;
    if (description.starts_with("@")) {
        std::ifstream file(description.substr(1));
        std::stringstream all;
        if (!file || !(all << file.rdbuf())) error = "cannot read " + description.substr(1);
        description = all.str();
    }
    if (!error.empty() || !parse_devices(description, &configs, &error)) {
        std::fprintf(stderr, "softhca: SOFTHCA: %s; there is no device\n", error.c_str());
        configs.clear();
    }
    // Never destroyed: a library that is unloaded after this one may still have to close its device.
    static auto& owned = *new std::vector<std::unique_ptr<Device>>;
    auto& list = *new std::vector<Device*>;
    for (DeviceConfig& c : configs) {
        if (!c.netdev.empty() && !ask_interface(c)) continue;
        owned.push_back(make_device(std::move(c), uint32_t(owned.size())));
        list.push_back(owned.back().get());
    }
    return list;
}

}  // namespace

bool parse_devices(const std::string& text, std::vector<DeviceConfig>* out, std::string* error) {
    std::string plain;
    bool comment = false;
    for (char ch : text) {
        comment = ch == '\n' ? false : comment || ch == '#';
        if (!comment) plain += ch == '\n' ? ';' : ch;
    }
    std::stringstream lines(plain);
    for (std::string line; std::getline(lines, line, ';');) {
        std::stringstream words(line);
        DeviceConfig config;
        bool any = false;
        for (std::string word; words >> word; any = true) {
            const size_t equals = word.find('=');
            if (equals == std::string::npos ||
                !set_key(config, word.substr(0, equals), word.substr(equals + 1))) {
                *error = "\"" + word + "\" is not a key=value of a device";
                return false;
            }
        }
        if (!any) continue;
        if (config.frame_ring < (256 << 10) || (config.frame_ring & (config.frame_ring - 1))) {
            *error = "frame_ring is a power of two from 262144";
            return false;
        }
        for (const DeviceConfig& other : *out) {
            if (other.name != config.name) continue;
            *error = "two devices are called " + config.name;
            return false;
        }
        out->push_back(std::move(config));
    }
    return true;
}

const std::vector<Device*>& devices() {
    static const std::vector<Device*>& list = read_devices();
    return list;
}

std::string wire_path() {
    const char* path = std::getenv("SOFTHCA_WIRE");
    return path && *path ? path : "/dev/shm/softhca";
}

}  // namespace softhca
