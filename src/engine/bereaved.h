// The other ends of TCP connections whose process is dead and which nobody carries on. The kernel resets such a peer when it sends,
// but one that only waits would wait for ever.
#pragma once

#include <span>

#include "dev/ring.h"

namespace vma {

// Sends each peer a SYN from the dead connection's address. A peer in a synchronized state answers with where it is (RFC 9293, 3.10.7.4;
// RFC 5961, 4.2), and the kernel, which knows nothing of the connection, resets what it is told of, with the sequence number that it
// names. So this harms nobody if the connection lives after all. Sent once, in the calling thread's namespace; without CAP_NET_RAW
// nothing is.
void tell_of_death(std::span<const FlowKey> connections);

}  // namespace vma
