// TCP_REPAIR: puts a live connection into a kernel socket (hand-back). The table of traps in the packet-ring measurements and
// process-model.md section 5 are the specification. Needs CAP_NET_ADMIN in the calling process, which need not be the one
// whose socket it is: everything goes by descriptor, plain records and byte spans.
#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "stack/tcp/snapshot.h"

namespace vma {

struct RepairQueues {
    ByteView unacked;  // [snd_una, snd_nxt): sent, not acknowledged
    ByteView unsent;   // [snd_nxt, snd_end)
    ByteView unread;   // before rcv_nxt
};

// Restores the connection into `fd`, a fresh or bound and never connected TCP socket, and leaves repair mode still on: the
// caller takes the flow off the ring and calls repair_finish(). `bound`: the twin has its port already. On an error the
// socket is as before, out of repair mode. EPERM: no capability.
Status repair_restore(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                      bool bound);
// Leaves repair mode (the kernel probes the peer), writes what was not sent yet, delivers the peer's FIN and ours.
void repair_finish(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues);

}  // namespace vma
