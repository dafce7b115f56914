// Where the program wants the frames of rings to be: its own functions for memory (ioctl() of the extra API).
#pragma once

#include "dev/ring_memory.h"

namespace vma {

struct UserMemoryWish {
    RingMemory receive, send;  // of frames that devices write, and read
};
// For rings that are opened from now on. Any thread.
void wish_ring_memory(const UserMemoryWish& wish);
UserMemoryWish ring_memory_wish();

}  // namespace vma
