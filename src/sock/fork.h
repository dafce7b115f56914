// fork: nothing happens to sockets at fork itself. A child's first use of an inherited offloaded socket asks the owner, over
// words in shared arena memory, to hand it back to the kernel; then both use the twin, as POSIX says (process-model.md
// section 6).
#pragma once

#include <atomic>
#include <cstdint>

#include "sock/object.h"

namespace vma {
class Shard;
}

namespace vma::sock {

// In the shard arena, so that owner and children see the same words. A socket has one from its first fork (TCP) or flow (UDP)
// until it is gone; the next one gets it then under another serial number, while children may still look at it.
struct ShareRecord {
    // `done`, which is a futex. Refused: the connection could not move just then; whoever asks next takes it back.
    enum : uint32_t { kOpen, kDone, kRefused };
    std::atomic<uint32_t> request{0};   // serial + 1: a child wants the socket handed back
    std::atomic<uint32_t> done{kOpen};  // the owner's answer
    std::atomic<uint32_t> owner_pid{0};
    std::atomic<uint32_t> serial{0};  // counts the sockets that have had it
    uint32_t forks = 0;               // of the owner when the socket got it
    Shard* shard = nullptr;           // whose arena it is in
    ShareRecord* next = nullptr;      // while nobody has it
};

// First act of the child. No lock of the parent's other threads is taken.
void fork_in_child();
// Before the fork, on the forking thread: what the child will need.
void fork_in_parent_before(bool only_exec);
uint32_t forks_so_far();  // of this process
// The object was inherited across a fork and is used now: afterwards it is the kernel's. Bounded wait.
void inherit(Object& object);
// Serves requests of children; the internal thread calls it in every turn.
void serve_children();

}  // namespace vma::sock
