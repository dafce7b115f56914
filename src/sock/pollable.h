// Pollable: an object with readiness: sockets and epoll sets (an epoll set can be a member of another one).
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "sock/object.h"
#include "sock/watch.h"

namespace vma::sock {

class Pollable : public Object {
  public:
    using Object::Object;
    // The EPOLL* bits that hold now (level). Takes no lock: called from under an epoll set's ready lock. The values equal
    // the POLL* bits of poll(2).
    virtual uint32_t poll_events() = 0;
    // Bit i: rings of lane i (engine/lanes.h) bring it news. Takes no lock.
    virtual uint64_t lanes() const = 0;
    // First act of a forked child: a thread that does not exist here may have held any of them.
    virtual void forget_locks_in_child() { watch.forget_lock_in_child(); }
    Watch watch;

  protected:
    ~Pollable() = default;
};

}  // namespace vma::sock
