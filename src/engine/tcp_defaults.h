// What the kernel's sysctls and the options say a new TCP connection starts with.
#pragma once

#include "config/options.h"
#include "dev/ring.h"
#include "stack/isn.h"
#include "stack/tcp/tcp.h"

namespace vma {

// The largest IP packet that VMA_MTU lets out.
uint32_t sent_mtu(const Options& options);
// net.ipv4.tcp_* of the calling thread's namespace, read once per process, and the VMA_* variables that are set.
// `mtu`: of the route.
tcp::TcpConfig tcp_defaults(const Options& options, const RingCaps& caps, uint32_t mtu);
// What all connections of the process may hold: net.ipv4.tcp_mem, or VMA_TCP_MEM_LIMIT.
tcp::TcpBudget& tcp_budget(const Options& options);
// net.core.somaxconn
uint32_t listen_backlog_limit();
// net.ipv4.tcp_fastopen (bits: tcp::fast_open); tcp_fastopen_key as it is now, or a key of this process.
uint32_t fast_open_bits();
tcp::FastOpenKeys fast_open_keys();
// For timestamp_offset(): of this boot, the same in all processes, so that the stamps of one go on where those of one that
// ended stopped. A server that holds the port of the ended one in TIME-WAIT refuses a SYN with an older stamp (PAWS). Known on
// this host only, which is all that the offset hides its clock from.
IsnSecret timestamp_secret();
// net.ipv4.tcp_max_syn_backlog
uint32_t half_open_limit();
// net.ipv4.ip_local_port_range. Empty (count 0) when some ports are reserved: then the kernel has to choose.
struct PortRange {
    uint16_t first = 0;
    uint32_t count = 0;
};
PortRange automatic_ports();

}  // namespace vma
