// Mover: who makes the privileged calls that move a connection between the ring and its twin (repair/repair.h): this
// process while CAP_NET_ADMIN is effective, else a broker that kept it. Everything that moves a connection goes through
// mover(): hand-back, orphans at exit, requests of forked children, adoption.
#pragma once

#include "engine/shard.h"
#include "repair/repair.h"

namespace vma::sock {

// As the functions of repair/repair.h. Called under a shard lease: the broker's implementation bounds its waits.
class Mover {
  public:
    virtual Status restore(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                           RepairOptions& saved) = 0;
    virtual void cancel(int fd, const RepairOptions& saved) = 0;
    virtual Status finish(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                          const RepairOptions& saved) = 0;
    virtual Status inject(ByteView packet) = 0;
    virtual Status checkpoint(int fd, RepairImage& image, ByteSpan room) = 0;
    virtual void resume(int fd, const RepairImage& image) = 0;
    virtual Status release(int fd, const RepairImage& image) = 0;

  protected:
    ~Mover() = default;
};

// One for a whole move. Looks at the capability each time: programs drop root.
Mover& mover();
// This process's own, whatever its capabilities.
Mover& own_mover();
// Used from now on when this process has not the capability itself; null: none.
void set_broker_mover(Mover* broker);
// [lease] Segments that the ring caught for a connection that has just become, or remained, the kernel's follow it. How many
// did.
unsigned inject_strays(Shard& shard, Mover& by);
// For tests that make steps fail: used for everything until null is set.
void use_mover_only(Mover* only);

}  // namespace vma::sock
