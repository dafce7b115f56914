#include "base/own_fd.h"

#include <fcntl.h>

#include "base/high_fd.h"
#include "base/sys.h"

namespace vma {
namespace {

constexpr int kFree = -1;
constexpr int kClaimed = -2;  // adopt() or relocate is at work on the slot

struct Slot {
    std::atomic<int> fd{kFree};
    std::atomic<OwnFd*> owner{nullptr};
};
Slot g_slots[kMaxOwnFds];
// No descriptor of ours is below this: the program's own numbers are told apart by one comparison.
std::atomic<int> g_lowest{INT32_MAX};
// Slots at and above this were never used.
std::atomic<int> g_slots_end{0};

// Serialises relocation against adopt and reset, none of which blocks for long. Reset in a forked child.
std::atomic<bool> g_busy{false};
class BusyGuard {
  public:
    BusyGuard() {
        while (g_busy.exchange(true, std::memory_order_acquire)) sys::raw(SYS_sched_yield);
    }
    ~BusyGuard() { g_busy.store(false, std::memory_order_release); }
    BusyGuard(const BusyGuard&) = delete;
    BusyGuard& operator=(const BusyGuard&) = delete;
};

void publish(Slot& slot, int fd) {
    slot.fd.store(fd, std::memory_order_release);
    int lowest = g_lowest.load(std::memory_order_relaxed);
    while (fd < lowest && !g_lowest.compare_exchange_weak(lowest, fd)) {
    }
}

int claim_slot() {
    for (int i = 0; i < kMaxOwnFds; ++i) {
        int expected = kFree;
        if (!g_slots[i].fd.compare_exchange_strong(expected, kClaimed)) continue;
        int end = g_slots_end.load(std::memory_order_relaxed);
        while (end < i + 1 && !g_slots_end.compare_exchange_weak(end, i + 1)) {
        }
        return i;
    }
    return -1;
}

int slot_of(int fd) {
    if (fd < 0 || fd < g_lowest.load(std::memory_order_acquire)) return -1;
    const int end = g_slots_end.load(std::memory_order_acquire);
    for (int i = 0; i < end; ++i)
        if (g_slots[i].fd.load(std::memory_order_acquire) == fd) return i;
    return -1;
}

}  // namespace

Status OwnFd::adopt(int fd) {
    if (fd < 0) return Errno{EBADF};
    reset();
    BusyGuard busy;
    const int i = claim_slot();
    if (i < 0) {
        sys::close(fd);
        return Errno{EMFILE};
    }
    int high = duplicate_high(fd);
    if (high >= 0) {
        sys::close(fd);
    } else if (high == -EMFILE && fd > 2 && sys::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
        high = fd;  // the program's table is full: better a low number than no descriptor
    } else {
        g_slots[i].fd.store(kFree, std::memory_order_release);
        sys::close(fd);
        return Errno{-high};
    }
    slot_ = i;
    g_slots[i].owner.store(this, std::memory_order_relaxed);
    fd_.store(high, std::memory_order_relaxed);
    publish(g_slots[i], high);
    return {};
}

void OwnFd::reset() {
    if (!valid()) return;
    BusyGuard busy;
    const int fd = fd_.exchange(-1, std::memory_order_relaxed);
    if (fd < 0) return;
    Slot& slot = g_slots[slot_];
    // Closed before it is unregistered: a number that is not ours any more must not be closed by us.
    slot.owner.store(nullptr, std::memory_order_relaxed);
    sys::close(fd);
    slot.fd.store(kFree, std::memory_order_release);
    slot_ = -1;
}

bool is_own_fd(int fd) { return slot_of(fd) >= 0; }

int own_fd_at_or_above(int fd) {
    const int end = g_slots_end.load(std::memory_order_acquire);
    int lowest = -1;
    for (int i = 0; i < end; ++i) {
        const int own = g_slots[i].fd.load(std::memory_order_acquire);
        if (own >= 0 && own >= fd && (lowest < 0 || own < lowest)) lowest = own;
    }
    return lowest;
}

bool own_fd_relocate(int fd) {
    if (slot_of(fd) < 0) return false;
    BusyGuard busy;
    const int i = slot_of(fd);
    if (i < 0) return false;
    OwnFd* owner = g_slots[i].owner.load(std::memory_order_relaxed);
    if (owner == nullptr) return false;
    const int moved = duplicate_high(fd);
    if (moved < 0) return false;
    owner->fd_.store(moved, std::memory_order_relaxed);
    sys::close(fd);  // before the slot forgets the number, as in reset
    publish(g_slots[i], moved);
    return true;
}

void own_fds_close_in_child() {
    // Only this thread exists here; another thread of the parent may have held the guard at the fork.
    const int end = g_slots_end.load(std::memory_order_relaxed);
    for (int i = 0; i < end; ++i) {
        const int fd = g_slots[i].fd.load(std::memory_order_relaxed);
        OwnFd* owner = g_slots[i].owner.load(std::memory_order_relaxed);
        if (fd >= 0) sys::close(fd);
        if (owner) {
            owner->fd_.store(-1, std::memory_order_relaxed);
            owner->slot_ = -1;
        }
        g_slots[i].owner.store(nullptr, std::memory_order_relaxed);
        g_slots[i].fd.store(kFree, std::memory_order_relaxed);
    }
    g_lowest.store(INT32_MAX, std::memory_order_relaxed);
    g_busy.store(false, std::memory_order_release);
}

}  // namespace vma
