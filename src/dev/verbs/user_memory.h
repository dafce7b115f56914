// UserMemory: memory of the program that is registered with a protection domain, counted by its bounds. Threads: none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "dev/verbs/library.h"

namespace vma {

class UserMemory {
  public:
    Status add(const VerbsLibrary& verbs, ibv_pd* pd, void* at, size_t bytes, uint32_t* key);
    Status remove(const VerbsLibrary& verbs, void* at, size_t bytes);
    void clear(const VerbsLibrary& verbs);

  private:
    struct Region {
        ibv_mr* mr;
        uint32_t count;
    };
    std::vector<Region>::iterator find(const void* at, size_t bytes);
    std::vector<Region> regions_;
};

}  // namespace vma
