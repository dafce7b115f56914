// Memory for a ring from somebody else than its shard's arena: from the program (the extra API's user allocator).
#pragma once

#include <cstddef>

namespace vma {

struct RingMemory {
    void* (*take)(size_t bytes) = nullptr;  // null: the arena's
    void (*give)(void* memory) = nullptr;
};

}  // namespace vma
