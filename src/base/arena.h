// Arena: the memory of one shard (process-model.md section 1). A memfd mapped MAP_SHARED with an allocator of its own, so
// that a forked child has everything at the same address and whoever holds the memfd can read it after the owner died.
//
// The Arena object lives at the start of its own mapping and never moves. Nothing here uses malloc, locks or std
// containers. Thread rules: none of the calls is locked; the shard lease that protects the contents protects the arena.
// Memory: address space is reserved at once, inaccessible; the file and what can be touched grow in steps of kGrowStep, pages
// are sparse. The file is not set to its full size at the start because a program's mlockall(2) would then populate all of
// it; address space without a file behind it stays inaccessible so that leak checkers and core dumps pass over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/result.h"

namespace vma {

class OwnFd;

class Arena {
  public:
    static constexpr size_t kPage = 4096;
    static constexpr size_t kDefaultReserve = size_t(8) << 30;
    static constexpr size_t kMinReserve = size_t(64) << 20;
    static constexpr size_t kGrowStep = size_t(4) << 20;
    static constexpr size_t kMaxSmall = 128 * 1024;  // larger blocks are whole pages
    static constexpr size_t kMinAlign = 16;          // every block has at least this alignment

    // Reserves `reserve` bytes (rounded to pages), or half, quarter ... down to kMinReserve (or `reserve` if that is less)
    // when address space is short. Errors: of memfd_create(2), ftruncate(2), mmap(2); EFBIG when RLIMIT_FSIZE is too low.
    // `memfd`, if given, is a process-private object (not in any arena) that keeps the descriptor and outlives the
    // arena; the file grows while it is open. Without it the file gets its full size at once and no descriptor stays.
    static Result<Arena*> create(size_t reserve = kDefaultReserve, OwnFd* memfd = nullptr);
    // Unmaps in this process only; the memory goes when the last mapping and descriptor are gone.
    static void unmap(Arena* arena);

    // Asks the kernel for huge pages, or for none, in this process's mapping; otherwise it does as it is configured.
    void prefer_huge_pages(bool huge);

    // A block of at least n bytes (contents undefined), aligned to `align` (a power of two, at most kPage); null when the
    // arena is full or cannot grow.
    void* allocate(size_t n, size_t align = kMinAlign);
    // Gives a block back; n and align as they were given to allocate. Null is ignored. Blocks above kMaxSmall return their
    // pages to the system, smaller ones stay with their size class.
    void free(void* p, size_t n, size_t align = kMinAlign);

    // The same for blocks of one small size that come and go with every segment: a few instructions while one is free.
    template <size_t n>
    void* allocate_fixed() {
        static_assert(n <= kMaxSmall);
        constexpr unsigned c = class_of(round_up(n, kMinAlign));
        FreeBlock* const block = classes_[c].free;
        if (block == nullptr) [[unlikely]]
            return allocate(n);
        classes_[c].free = block->next;
        in_use_ += class_size(c);
        if (in_use_ > high_water_) high_water_ = in_use_;
        return block;
    }
    template <size_t n>
    void free_fixed(void* p) {
        constexpr unsigned c = class_of(round_up(n, kMinAlign));
        classes_[c].free = new (p) FreeBlock{classes_[c].free};
        in_use_ -= class_size(c);
    }

    // An object of T in the arena, null when full. T must not own memory outside the arena.
    template <class T, class... Args>
    T* make(Args&&... args) {
        void* p = allocate(sizeof(T), alignof(T));
        return p ? new (p) T(std::forward<Args>(args)...) : nullptr;
    }
    template <class T>
    void destroy(T* object) {
        if (object == nullptr) return;
        object->~T();
        free(object, sizeof(T), alignof(T));
    }

    // The descriptor of the memory as this process has it now, -1 when closed (or in a forked child that closed it).
    // Closing it is allowed at any time: allocation then ends at the size that the file has.
    int memfd() const;
    // Extends the file to the whole reservation, so that nothing is lost by closing the descriptor.
    Status grow_to_full();
    // In a forked child, before it touches blocks that the parent may have made since: access follows the file's size.
    Status follow_growth();

    bool contains(const void* p) const {
        const auto a = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(this);
        return a >= base && a - base < reserve_;
    }
    size_t reserved() const { return reserve_; }     // bytes of address space
    size_t file_size() const { return file_size_; }  // bytes that can be touched
    size_t in_use() const {
        return in_use_;
    }  // bytes of blocks handed out, rounded up to their class
    size_t high_water() const { return high_water_; }  // largest in_use() so far

  private:
    static constexpr unsigned kClasses = 25;  // 32, 48, 64, 96 ... 96 Ki, 128 Ki
    struct FreeBlock {
        FreeBlock* next;
    };
    // Free pages, address ordered and merged; the node is the first bytes of the first page, the only one kept resident.
    struct FreeRun {
        FreeRun* next;
        size_t bytes;
    };
    struct SizeClass {
        FreeBlock* free = nullptr;
        uint8_t* fresh = nullptr;  // rest of the newest chunk, not touched yet
        uint8_t* fresh_end = nullptr;
    };

    Arena(size_t reserve, size_t file_size, OwnFd* memfd);
    // Classes alternate 2^k and 1.5 * 2^k. A block size that is a multiple of a power of two never lands in a class with a
    // smaller alignment, so rounding n up to its alignment is all that alignment needs.
    static constexpr unsigned class_of(size_t n) {
        if (n <= 32) return 0;
        const unsigned k = 63 - unsigned(__builtin_clzl(n - 1));  // 2^k < n <= 2^(k+1), k >= 5
        const bool half = n <= (size_t(3) << (k - 1));
        return (k - 5) * 2 + (half ? 1 : 2);
    }
    static constexpr size_t round_up(size_t n, size_t align) {
        return (n + align - 1) & ~(align - 1);
    }
    static constexpr size_t class_size(unsigned c) {
        return c % 2 ? size_t(48) << (c / 2) : size_t(32) << (c / 2);
    }
    static size_t rounded(size_t n, size_t align);
    void* allocate_small(unsigned c);
    void* allocate_pages(size_t bytes);
    void free_pages(void* p, size_t bytes);
    bool grow(size_t new_top);
    uint8_t* base() { return reinterpret_cast<uint8_t*>(this); }

    size_t reserve_;
    size_t file_size_;
    size_t top_;  // offset of the first page never handed out
    size_t in_use_ = 0;
    size_t high_water_ = 0;
    OwnFd* memfd_;  // valid in a forked child too: private memory has the same address there
    FreeRun* runs_ = nullptr;
    SizeClass classes_[kClasses];
};

}  // namespace vma
