#include "base/arena.h"

#include <sys/resource.h>

#include "base/own_fd.h"
#include "base/sys.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1U
#endif

namespace vma {
namespace {

size_t page_up(size_t n) { return (n + Arena::kPage - 1) & ~(Arena::kPage - 1); }

// ftruncate beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the program: ask first.
Status set_file_size(int fd, size_t bytes) {
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::ptr(&limit)) == 0 &&
        limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return Errno{EFBIG};
    const long r = sys::raw(SYS_ftruncate, fd, long(bytes));
    if (r < 0) return Errno{int(-r)};
    return {};
}

Status make_accessible(void* at, size_t bytes) {
    const long r = sys::raw(SYS_mprotect, sys::ptr(at), long(bytes), PROT_READ | PROT_WRITE);
    if (r < 0) return Errno{int(-r)};
    return {};
}

// Maps without populating even when the program called mlockall(MCL_FUTURE): PROT_NONE pages cannot be faulted in, and
// munlock takes the flag off before they become accessible.
void* map_sparse(int fd, size_t bytes) {
    void* at = sys::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (sys::failed(at)) return at;
    sys::raw(SYS_munlock, sys::ptr(at), long(bytes));
    sys::raw(SYS_madvise, sys::ptr(at), long(bytes), MADV_DONTDUMP);
    return at;
}

}  // namespace

Arena::Arena(size_t reserve, size_t file_size, OwnFd* memfd)
    : reserve_(reserve), file_size_(file_size), top_(page_up(sizeof(Arena))), memfd_(memfd) {}

Result<Arena*> Arena::create(size_t reserve, OwnFd* memfd) {
    reserve = page_up(reserve < page_up(sizeof(Arena)) + kPage ? page_up(sizeof(Arena)) + kPage
                                                               : reserve);
    const size_t least = reserve < kMinReserve ? reserve : kMinReserve;
    const int fd = int(sys::raw(SYS_memfd_create, sys::ptr("vma-arena"), MFD_CLOEXEC));
    if (fd < 0) return Errno{-fd};

    void* at = nullptr;
    for (;;) {
        at = map_sparse(fd, reserve);
        if (!sys::failed(at)) break;
        const int err = int(-reinterpret_cast<intptr_t>(at));
        if ((err != ENOMEM && err != EAGAIN) || reserve <= least) {
            sys::close(fd);
            return Errno{err};
        }
        reserve = page_up(reserve / 2);
        if (reserve < least) reserve = least;
    }
    const size_t file_size = memfd == nullptr || reserve < kGrowStep ? reserve : kGrowStep;
    Status sized = set_file_size(fd, file_size);
    if (sized) sized = make_accessible(at, file_size);
    if (!sized) {
        sys::close(fd);
        sys::munmap(at, reserve);
        return Errno{sized.error()};
    }
    if (memfd == nullptr) {
        sys::close(fd);
    } else if (Status adopted = memfd->adopt(fd); !adopted) {
        sys::munmap(at, reserve);
        return Errno{adopted.error()};
    }
    return new (at) Arena(reserve, file_size, memfd);
}

void Arena::prefer_huge_pages(bool huge) {
    sys::raw(SYS_madvise, sys::ptr(this), long(reserve_), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

void Arena::unmap(Arena* arena) {
    if (arena) sys::munmap(arena, arena->reserve_);
}

int Arena::memfd() const { return memfd_ ? memfd_->fd() : -1; }

Status Arena::grow_to_full() {
    if (file_size_ == reserve_) return {};
    const int fd = memfd();
    if (fd < 0) return Errno{EBADF};
    Status s = set_file_size(fd, reserve_);
    if (s) s = make_accessible(this, reserve_);
    if (s) file_size_ = reserve_;
    return s;
}

Status Arena::follow_growth() { return make_accessible(this, file_size_); }

bool Arena::grow(size_t new_top) {
    if (new_top <= file_size_) return true;
    if (new_top > reserve_) return false;
    const int fd = memfd();
    if (fd < 0) return false;
    size_t size = (new_top + kGrowStep - 1) / kGrowStep * kGrowStep;
    if (size > reserve_) size = reserve_;
    if (!set_file_size(fd, size) || !make_accessible(base() + file_size_, size - file_size_))
        return false;
    file_size_ = size;
    return true;
}

size_t Arena::rounded(size_t n, size_t align) {
    assert(align != 0 && (align & (align - 1)) == 0 && align <= kPage);
    if (align < kMinAlign) align = kMinAlign;
    if (n == 0) n = 1;
    return round_up(n, align);
}

void* Arena::allocate(size_t n, size_t align) {
    if (n > reserve_) return nullptr;
    n = rounded(n, align);
    void* p;
    if (n <= kMaxSmall) {
        const unsigned c = class_of(n);
        n = class_size(c);
        p = allocate_small(c);
    } else {
        n = page_up(n);
        p = allocate_pages(n);
    }
    if (p == nullptr) return nullptr;
    in_use_ += n;
    if (in_use_ > high_water_) high_water_ = in_use_;
    return p;
}

void Arena::free(void* p, size_t n, size_t align) {
    if (p == nullptr) return;
    assert(contains(p));
    n = rounded(n, align);
    if (n <= kMaxSmall) {
        const unsigned c = class_of(n);
        classes_[c].free = new (p) FreeBlock{classes_[c].free};
        in_use_ -= class_size(c);
    } else {
        n = page_up(n);
        free_pages(p, n);
        in_use_ -= n;
    }
}

void* Arena::allocate_small(unsigned c) {
    SizeClass& k = classes_[c];
    if (FreeBlock* block = k.free) {
        k.free = block->next;
        return block;
    }
    const size_t size = class_size(c);
    if (size_t(k.fresh_end - k.fresh) < size) {
        // Few blocks per chunk for the large classes: the file grows, not the resident memory.
        size_t chunk = page_up(size * 8 < 64 * 1024 ? 64 * 1024 : size * 8);
        auto* pages = static_cast<uint8_t*>(allocate_pages(chunk));
        if (pages == nullptr) {  // nearly full: a chunk of one block
            chunk = page_up(size);
            pages = static_cast<uint8_t*>(allocate_pages(chunk));
        }
        if (pages == nullptr) return nullptr;
        k.fresh = pages;
        k.fresh_end = pages + chunk;
    }
    uint8_t* block = k.fresh;
    k.fresh += size;
    return block;
}

void* Arena::allocate_pages(size_t bytes) {
    for (FreeRun** link = &runs_; *link; link = &(*link)->next) {
        FreeRun* run = *link;
        if (run->bytes < bytes) continue;
        if (run->bytes == bytes) {
            *link = run->next;
        } else {
            *link = new (reinterpret_cast<uint8_t*>(run) + bytes)
                FreeRun{run->next, run->bytes - bytes};
        }
        return run;
    }
    if (bytes > reserve_ - top_ || !grow(top_ + bytes)) return nullptr;
    void* p = base() + top_;
    top_ += bytes;
    return p;
}

void Arena::free_pages(void* p, size_t bytes) {
    FreeRun* before = nullptr;
    FreeRun** link = &runs_;
    while (*link && reinterpret_cast<void*>(*link) < p) {
        before = *link;
        link = &before->next;
    }
    auto* run = new (p) FreeRun{*link, bytes};
    *link = run;
    // Drop the pages behind the node, and the nodes that merging makes superfluous.
    if (bytes > kPage) {
        sys::raw(SYS_madvise, sys::ptr(p) + long(kPage), long(bytes - kPage), MADV_REMOVE);
    }
    FreeRun* after = run->next;
    if (after &&
        reinterpret_cast<uint8_t*>(run) + run->bytes == reinterpret_cast<uint8_t*>(after)) {
        run->bytes += after->bytes;
        run->next = after->next;
        sys::raw(SYS_madvise, sys::ptr(after), long(kPage), MADV_REMOVE);
    }
    if (before &&
        reinterpret_cast<uint8_t*>(before) + before->bytes == reinterpret_cast<uint8_t*>(run)) {
        before->bytes += run->bytes;
        before->next = run->next;
        sys::raw(SYS_madvise, sys::ptr(run), long(kPage), MADV_REMOVE);
    }
}

}  // namespace vma
