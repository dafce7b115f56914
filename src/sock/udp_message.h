// A received datagram -> the program's msghdr: address, bytes, control messages, flags, as recvmsg(2) and udp(7) say.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "stack/udp_endpoint.h"

namespace vma::sock {

// The address it came from; sets msg_namelen, and msg_flags to 0.
void copy_source_out(const UdpRxInfo& info, msghdr& msg);
// What the control messages of a datagram tell besides what is known of itself.
struct Told {
    uint32_t wanted = 0;    // UdpControl bits
    uint32_t local_v4 = 0;  // where an answer would come from
    uint32_t drops = 0;     // SO_RXQ_OVFL; 0: nothing is said
};
// Copies `datagram` out. Returns what recvmsg returns (with MSG_TRUNC in `flags` the real size). msg_namelen, msg_controllen
// and msg_flags are set.
long copy_datagram_out(const UdpDatagram& datagram, msghdr& msg, int flags, const Told& told);

// A stamp of what was sent (UdpEndpoint::first_stamp), as MSG_ERRQUEUE gives it. `ifindex`: of the interface it was sent by, if
// the headers are told as control messages; 0: they are not. Returns what recvmsg returns.
long copy_stamp_out(PacketBuf& stamp, msghdr& msg, uint32_t wanted, int ifindex);

}  // namespace vma::sock
