// What the socket layer asks the broker for (src/broker): repairs that this process may not make, custody of what it would
// leave behind, and twins that a forked child shares. All of it is control plane, and all of it may fail: then things are
// as they are without a broker.
#pragma once

#include "base/result.h"
#include "broker/protocol.h"
#include "engine/shard.h"
#include "repair/repair.h"

namespace vma::sock {

// From the options; once.
void broker_configure();

// Moving a connection into a socket, by this process if it may, else by the broker. finish() as restore() was.
class KernelRepair {
  public:
    Status restore(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                   RepairOptions& saved);
    Status finish(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                  const RepairOptions& saved);

  private:
    bool by_broker_ = false;
};

// The shard is about to have TCP: from now on its connections are rescued if this process is killed. Starts the broker.
// Cheap when it is done already.
void broker_watch(Shard& shard);
// The process has a listener, on whose port connections will be its own. Starts the broker.
void broker_listener(int fd);

// This process is about to give privileges up: what needs them later is arranged now.
void broker_before_drop();
void broker_forget_in_child(int kept_door);

}  // namespace vma::sock
