// Rescue: the connections of a process that is dead go on in the kernel, as those of a dead process of the kernel's do: what
// was written still goes out, then FIN. A connection that a forked child shares goes into the child's own twin instead.
//
// It runs in a child process of the broker, because what it reads may be hostile and a short file raises SIGBUS. In two
// steps: every connection is restored and left in repair mode while the dead ring still has the flows, so that the kernel
// meets no segment without its connection; then the broker gives the flows to the kernel, and the child lets them all go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "broker/protocol.h"
#include "dev/ring.h"
#include "vmad/fd.h"

namespace vmad {

struct WatchedArena {
    vma::broker::Watch facts;
    Fd memfd, token, data_ring;
    vma::Duration clock_ahead;  // its process's clock, of ours
};

struct HeldTwin {
    vma::broker::Held facts;
    Fd twin;
};

// Everything that is left of a client.
struct Estate {
    std::vector<WatchedArena> arenas;
    std::vector<HeldTwin> held;
    bool trusted = false;
    std::vector<vma::Endpoint> proven;
    bool owns_port(const vma::Endpoint& local) const;
};

struct RescueCounters {
    uint32_t delivered = 0;  // orphans that the kernel sees through
    uint32_t shared = 0;     // went into a child's twin
    uint32_t reset = 0;      // not accepted yet, or half changed when the process died
    uint32_t lost = 0;       // not restored: the kernel answers the peer with a reset
    uint32_t nonsense = 0;   // records that contradict themselves
};

// The child's work. `pause` is called between the two steps: then the flows of the dead rings go to the kernel. False: who does that
// has ended, and it is done here. `lost`: those that nobody carries on; their peers may be told (engine/bereaved.h).
RescueCounters rescue(const Estate& estate, bool (*pause)(void*), void* context,
                      std::vector<vma::FlowKey>& lost);

}  // namespace vmad
