// The rescues under way (rescue.h): each runs in a child, and the broker gives the flows of the dead to the kernel when that has
// restored their connections.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vmad/rescue.h"

namespace vmad {

class Rescues {
  public:
    Rescues();
    // Readable when serve() has something to do.
    int fd() const { return poll_.get(); }
    void serve();
    bool empty() const { return children_.empty(); }
    // What process `of` left. `in_child` runs in the child before anything else: what the broker has there, it must not keep.
    void start(Estate estate, pid_t of, const std::function<void()>& in_child);
    // Connections that could not be restored, whose flows the kernel has: those that were found since the last call.
    std::vector<vma::FlowKey> take_lost() { return std::exchange(lost_, {}); }
    // Whoever restores something goes on with it by himself.
    void forget();

  private:
    struct Child {
        Estate estate;
        pid_t pid = -1;
        pid_t of = 0;
        Fd pipe;  // the child says "restored", we answer "go", it names what is lost
    };
    bool hears(Child& child);

    Fd poll_;
    std::unordered_map<uint32_t, Child> children_;
    uint32_t next_ = 1;
    std::vector<vma::FlowKey> lost_;
};

}  // namespace vmad
