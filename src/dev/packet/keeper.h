// RingKeeper: who does for a packet ring what this process may not, because it has given its privileges up or never had them:
// opens the ring, and writes its flows into the hook's tables. The layer above provides one that asks a broker.
//
// A ring that is kept has an owner page (layout.h): each of its flows has a gate there, and the owner shuts it by one store. So
// taking a flow back needs nobody, and works when the keeper is gone.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "dev/ring.h"

namespace vma {

struct FlowGate {
    uint32_t number = 0;
    uint32_t value = 0;  // that it has while the flow counts
};

// A ring that another process has opened. Descriptors are the holder's.
struct LentRing {
    int data = -1, bell = -1;  // BPF ring buffers
    int owner = -1;            // map of the owner page
    int token = -1;            // the life token, a map: the ring lives while it is mapped (hook.h)
    int transmit = -1;         // packet socket
    int ingress = -1,
        egress = -1;  // links: the programs stay on the interface when the lender is gone
    uint32_t slot = 0;
    uint32_t token_id = 0;
    uint32_t bytes = 0;  // of the data ring
    void close_all();
};

// Threads: any. Every call may wait for another process, for a bounded time. ENOLINK: it is gone.
class RingKeeper {
  public:
    // Errors besides: EPERM (nobody to ask), those of open_packet_ring().
    virtual Status open(int ifindex, uint32_t bytes, LentRing& out) = 0;
    // The ring in `slot`, opened by this process, is to be kept from now on; its doorbell's descriptor shows that it is ours.
    virtual Status show(int ifindex, uint32_t slot, uint32_t token, int doorbell) = 0;
    // As Ring::steer. EACCES: `twin` does not show that the tuple is ours. EKEYREJECTED: the kernel's own policy (a
    // firewall, say) has something to do with such packets. EDQUOT, also from open(): the keeper's policy gives it to others.
    virtual Status steer(uint32_t slot, const FlowKey& key, FlowGate gate, int twin) = 0;
    // The gate is shut: the entry can go.
    virtual void unsteer(uint32_t slot, const FlowKey& key, FlowGate gate) = 0;

  protected:
    ~RingKeeper() = default;
};

// Once, early. Null, as from the start: there is none.
void set_ring_keeper(RingKeeper* keeper);
RingKeeper* ring_keeper();

}  // namespace vma
