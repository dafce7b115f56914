#include "extra/group_memory.h"

#include <array>
#include <atomic>

#include "base/spin_lock.h"
#include "base/sys.h"
#include "engine/runtime.h"
#include "extra/boundary.h"
#include "sock/xtreme.h"

namespace vma::extra::group {
namespace {

constexpr size_t kCopies = 256;
constexpr unsigned kMostShards = 256;  // as many as Runtime has

constinit SpinLock g_lock;
xlio_init_attr g_attr;  // never changed once g_set
std::atomic<bool> g_set{false};
std::atomic<ReceiveCopy*> g_copies{nullptr};
ReceiveCopy* g_free = nullptr;  // given back; under g_lock, as the next
size_t g_used = 0;              // of the copies, ever
bool g_none = false;            // there was no memory for them
bool g_copies_told = false;
std::array<size_t, kMostShards> g_told;  // bytes of each shard's arena

// Under g_lock, outside the library: the allocator is the program's.
bool make_copies() {
    if (g_copies.load(std::memory_order_relaxed) != nullptr) return true;
    if (g_none) return false;
    constexpr size_t bytes = kCopies * ReceiveCopy::kBytes;
    void* const memory = g_attr.memory_alloc
                             ? g_attr.memory_alloc(bytes)
                             : sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_none = memory == nullptr || sys::failed(memory);
    if (!g_none) g_copies.store(static_cast<ReceiveCopy*>(memory), std::memory_order_release);
    return !g_none;
}

bool is_copy(const xlio_buf* buf) {
    const auto at = reinterpret_cast<uintptr_t>(buf),
               begin = reinterpret_cast<uintptr_t>(g_copies.load(std::memory_order_acquire));
    return begin != 0 && at - begin < kCopies * ReceiveCopy::kBytes;
}

}  // namespace

bool ReceiveMemory::set(const xlio_init_attr& attr) {
    SpinGuard guard(g_lock);
    if (g_set.load(std::memory_order_relaxed)) return false;
    g_attr = attr;
    g_set.store(true, std::memory_order_release);
    return true;
}

void ReceiveMemory::announce() {
    if (!g_set.load(std::memory_order_acquire) || g_attr.memory_cb == nullptr) return;
    struct Region {
        void* address;
        size_t length;
    };
    for (unsigned i = 0;; i++) {
        Region region{};
        bool more = false;
        (void)ask_library([&] {
            const auto shards = Runtime::shards();
            more = i < shards.size() && i < kMostShards;
            if (!more) return 0;
            LeaseGuard lease(shards[i]->lease());
            const Arena& arena = shards[i]->arena();
            SpinGuard guard(g_lock);
            auto* const begin = reinterpret_cast<char*>(const_cast<Arena*>(&arena));
            region = {begin + g_told[i], arena.file_size() - g_told[i]};
            g_told[i] = arena.file_size();
            return 0;
        });
        if (!more) break;
        if (region.length != 0) g_attr.memory_cb(region.address, region.length, 0);
    }
    bool copies = false;
    {
        SpinGuard guard(g_lock);
        copies = !g_copies_told && g_copies.load(std::memory_order_relaxed) != nullptr;
        g_copies_told |= copies;
    }
    if (copies)
        g_attr.memory_cb(g_copies.load(std::memory_order_relaxed), kCopies * ReceiveCopy::kBytes,
                         0);
}

ReceiveCopy* ReceiveMemory::take_copy() {
    SpinGuard guard(g_lock);
    if (ReceiveCopy* const copy = g_free) {
        g_free = copy->next_free;
        return copy;
    }
    if (!make_copies() || g_used == kCopies) return nullptr;
    return &g_copies.load(std::memory_order_relaxed)[g_used++];
}

void ReceiveMemory::give_back(xlio_buf* buf) {
    if (buf == nullptr) return;
    if (!is_copy(buf)) {
        (void)ask_library(
            [=] { return sock::give_piece_back(reinterpret_cast<PacketPiece*>(buf)); });
        return;
    }
    auto* const copy = reinterpret_cast<ReceiveCopy*>(buf);
    SpinGuard guard(g_lock);
    copy->next_free = g_free;
    g_free = copy;
}

}  // namespace vma::extra::group
