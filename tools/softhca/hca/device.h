// The devices of this process: what SOFTHCA describes (docs/SOFTHCA.md), or one device without a network interface.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

namespace softhca {

struct DeviceConfig {
    std::string name = "softhca0";
    std::string netdev;  // the kernel's interface that the port belongs to; empty: none
    uint8_t mac[6] = {0x02, 0x50, 0x53, 0x48, 0x00, 0x01};
    bool mac_given = false;
    uint32_t mtu = 1500;   // of the interface when there is one
    uint32_t ifindex = 0;  // of the interface; or the number to show, when there is none
    bool rx_checksum = true, tx_checksum = true, timestamps = true, flow_tag = true;
    uint32_t max_tso = 65536;  // 0: none
    uint32_t max_inline = 1024;
    uint32_t max_qp_wr = 32768, max_sge = 32;
    uint64_t dm_bytes = 256 << 10;
    bool mlx5 = false;              // its queues can be seen (mlx5/engine.h)
    bool kicked = false;            // these are worked on by softhca_kick() alone
    bool strict = true;             // what they hold is compared with all that an entry must be
    uint32_t frame_ring = 4 << 20;  // bytes per raw QP, a power of two
};

// Devices are separated by ';' or newlines, each `key=value ...`; '#' starts a comment. False and *error (a sentence) when
// something is not understood; what came before it is in *out.
bool parse_devices(const std::string& text, std::vector<DeviceConfig>* out, std::string* error);

// An ibv_device as callers see it. The pointer behind it is where rdma-core's own providers look for their operations:
// libmlx5 and others compare it and find a stranger.
struct Device {
    ibv_device ibv{};
    const void* ops = nullptr;
    DeviceConfig config;
    uint32_t index = 0;
};

// All devices, read once from SOFTHCA (the description itself, or @FILE). A description that is not understood leaves no
// device and one line on stderr. Live as long as the process.
const std::vector<Device*>& devices();

// Directory of the wire: SOFTHCA_WIRE, or /dev/shm/softhca.
std::string wire_path();

}  // namespace softhca
