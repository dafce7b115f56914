#include "engine/user_memory.h"

#include <mutex>

namespace vma {
namespace {

constinit std::mutex g_lock;
constinit UserMemoryWish g_wish;

}  // namespace

void wish_ring_memory(const UserMemoryWish& wish) {
    std::lock_guard guard(g_lock);
    g_wish = wish;
}

UserMemoryWish ring_memory_wish() {
    std::lock_guard guard(g_lock);
    return g_wish;
}

}  // namespace vma
