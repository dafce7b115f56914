// Warnings at start-up and while rings are set up, which users search the manual for. Each is a function of observed
// facts, so that a test can provoke it. Every text names what to change; docs/TROUBLESHOOTING.md explains each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/banner.h"
#include "config/options.h"

namespace vma {

struct StartupFacts {
    LogLevel level = LogLevel::info;
    uint64_t memlock_hard_limit = UINT64_MAX;  // bytes, RLIM_INFINITY = UINT64_MAX
    bool needs_locked_memory = true;           // a ring that registers memory is in use
    std::vector<std::string> argv;
};
// In this order: log level box, locked-memory box, netserver without -D and -f.
void warn_startup(const StartupFacts&, const LineSink&);

struct HugePageFacts {
    bool wanted = false;  // VMA_MEM_ALLOC_TYPE=2 was set
    bool allocated = false;
    uint64_t needed_bytes = 0;
    uint64_t page_bytes = 2 << 20;
    uint64_t free_pages = 0, total_pages = 0;
    const char* fallback = "ordinary pages";
};
void warn_huge_pages(const HugePageFacts&, const LineSink&);

struct IgmpFacts {
    std::string interface;
    int version = 0;          // in use: /proc/net/igmp, 0 unknown
    bool suppressed = false;  // VMA_SUPPRESS_IGMP_WARNING
};
void warn_igmp(const IgmpFacts&, const LineSink&);

struct ArpFluxFacts {
    std::string interface, other;  // two interfaces with addresses in one subnet
    int arp_ignore = 0, arp_announce = 0;
};
void warn_arp_flux(const ArpFluxFacts&, const LineSink&);

struct CapabilityFacts {
    const char* capability = "CAP_NET_RAW";
    std::string interface;
    std::string program;  // path for setcap
    bool daemon_reachable = false;
};
void warn_missing_capability(const CapabilityFacts&, const LineSink&);

// set-user-id, set-group-id, file capabilities or a static binary: LD_PRELOAD does nothing there.
struct PreloadFacts {
    std::string program;
    enum class Obstacle : uint8_t {
        none,
        secure_execution,
        statically_linked,
        other_machine
    } obstacle = Obstacle::none;
};
void warn_cannot_preload(const PreloadFacts&, const LineSink&);

struct PacingFacts {
    std::string interface;
    uint64_t wanted_bytes_per_sec = 0;
    bool device_paces = false;
    bool ring_is_per_socket = false;  // VMA_RING_ALLOCATION_LOGIC_TX 10
};
void warn_pacing(const PacingFacts&, const LineSink&);

struct DaemonFacts {
    std::string directory;  // VMA_VMAD_NOTIFY_DIR
    bool reachable = false;
    bool needed = false;  // something asked for needs it
    const char* needed_for = "";
};
void warn_no_daemon(const DaemonFacts&, const LineSink&);

}  // namespace vma
