// What of the machine around the process gets in the way, said once at the moment it matters (texts: config/warnings.h).
// Each reads /proc with raw system calls; control plane only.
#pragma once

#include <cstddef>
#include <string>

#include "base/ip_addr.h"
#include "config/warnings.h"
#include "engine/netlink.h"
#include "engine/network_monitor.h"

namespace vma {

// At most `most` bytes of a file; empty when it cannot be read.
std::string read_proc(const char* path, size_t most);

// Log level, locked memory, netserver, huge pages, daemon: with the banner.
void warn_at_start(const Options&, const LineSink&);
// When a ring opens on `interface`: another interface has an address in the same subnet and answers ARP for it.
void warn_of_arp_flux(const NetworkView&, const Interface& interface);
// After IPv4 `group` was joined: an interface that follows it does not speak IGMPv2. Once per interface and process.
void warn_of_igmp(const IpAddr& group, const Options&);

}  // namespace vma
