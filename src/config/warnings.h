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
    bool needs_locked_memory = false;  // VMA_RING_KIND asks for a ring that registers memory
    std::vector<std::string> argv;
};
// In this order: log level box, locked-memory box, netserver without -D and -f.
void warn_startup(const StartupFacts&, const LineSink&);

struct HugePageFacts {
    int asked = 0;  // VMA_MEM_ALLOC_TYPE as the environment sets it; below 2: not asked for
    std::string
        shmem;  // what the kernel has chosen in .../transparent_hugepage/shmem_enabled; "": it has no such file
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

// One line: what the ring says is missing, and how a program gets it.
struct CapabilityFacts {
    std::string interface;
    std::string missing;  // sentence of the ring
};
std::string missing_capability_line(const CapabilityFacts&);

}  // namespace vma
