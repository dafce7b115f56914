// Doorbell: a completion channel whose descriptor is out of the program's way and never blocks; and how often it rings.
// Threads: the caller's.
#pragma once

#include "base/result.h"
#include "dev/verbs/library.h"
#include "dev/verbs/moderation.h"
#include "dev/verbs/port.h"

namespace vma {

class Doorbell {
  public:
    Status open(const VerbsPort& port);
    void close();  // its queues are destroyed
    // Takes back what it has told; how often that was. A queue is destroyed only when all of it has been taken.
    unsigned take();
    int fd() const { return fd_.fd(); }
    ibv_comp_channel* channel() const { return channel_; }

  private:
    const VerbsLibrary* library_ = nullptr;
    ibv_comp_channel* channel_ = nullptr;
    MovedFd fd_;
};

bool can_moderate(const VerbsPort& port);
// Bounded by what the device can; EOPNOTSUPP: it cannot at all.
Status moderate_queue(const VerbsPort& port, ibv_cq* queue, Moderation to);

}  // namespace vma
