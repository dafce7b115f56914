#include "sock/fd_table.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/sys.h"
#include "engine/internal_thread.h"

namespace vma::sock {

FdSlots fd_slots;

namespace {
using Slot = std::atomic<void*>;
SpinLock g_lock;
std::atomic<unsigned> g_high{0};
std::atomic<bool> g_retired{false};
constexpr unsigned kMinimum = 1024;
constexpr unsigned kMaximum = 1u << 20;

Slot* slot_of(int fd) {
    if (unsigned(fd) >= fd_slots.size.load(std::memory_order_acquire)) return nullptr;
    return &fd_slots.slot.load(std::memory_order_relaxed)[fd];
}
}  // namespace

bool FdTable::start() {
    SpinGuard guard(g_lock);
    if (retired()) return false;
    if (fd_slots.size.load(std::memory_order_relaxed) != 0) return true;
    rlimit limit{};
    sys::raw(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::ptr(&limit));
    const auto count = unsigned(std::clamp<unsigned long>(limit.rlim_max, kMinimum, kMaximum));
    // Zero pages on demand: a program with a limit of a million pays for the numbers that it uses.
    void* memory = sys::mmap(nullptr, count * sizeof(Slot), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sys::failed(memory)) return false;
    fd_slots.slot.store(static_cast<Slot*>(memory), std::memory_order_relaxed);
    fd_slots.size.store(count, std::memory_order_release);
    return true;
}

void FdTable::retire() {
    SpinGuard guard(g_lock);
    g_retired.store(true, std::memory_order_relaxed);
    fd_slots.size.store(0, std::memory_order_release);
}

bool FdTable::retired() { return g_retired.load(std::memory_order_relaxed); }

Object* FdTable::acquire(int fd) {
    Slot* slot = slot_of(fd);
    if (slot == nullptr) return nullptr;
    while (auto* object = static_cast<Object*>(slot->load(std::memory_order_acquire))) {
        object->refs.fetch_add(1, std::memory_order_acq_rel);
        if (slot->load(std::memory_order_acquire) == object) return object;
        release_object(object);
    }
    return nullptr;
}

bool FdTable::install(int fd, Object* object) {
    Slot* slot = slot_of(fd);
    if (slot == nullptr) return false;
    Object* before;
    {
        SpinGuard guard(g_lock);
        before = static_cast<Object*>(slot->exchange(object, std::memory_order_acq_rel));
        if (unsigned(fd) >= g_high.load(std::memory_order_relaxed))
            g_high.store(unsigned(fd) + 1, std::memory_order_release);
    }
    if (before) release_object(before);
    return true;
}

Object* FdTable::remove(int fd) {
    Slot* slot = slot_of(fd);
    if (slot == nullptr || slot->load(std::memory_order_relaxed) == nullptr) return nullptr;
    SpinGuard guard(g_lock);
    return static_cast<Object*>(slot->exchange(nullptr, std::memory_order_acq_rel));
}

unsigned FdTable::high_water() { return g_high.load(std::memory_order_acquire); }
void FdTable::lock() { g_lock.lock(); }
void FdTable::unlock() { g_lock.unlock(); }
void FdTable::forget_lock_in_child() { new (&g_lock) SpinLock; }

namespace {
std::atomic<uint32_t> g_visits{0};  // odd while there is one
}

Visit::Visit() {
    if (InternalThread::is_current()) g_visits.fetch_add(1, std::memory_order_seq_cst);
}
Visit::~Visit() {
    if (InternalThread::is_current()) g_visits.fetch_add(1, std::memory_order_seq_cst);
}

void Visit::wait() {
    const uint32_t seen = g_visits.load(std::memory_order_seq_cst);
    if ((seen & 1) == 0 || InternalThread::is_current()) return;
    constexpr Duration kBound = Duration::seconds(1);
    const Instant end = monotonic_now() + kBound;
    while (g_visits.load(std::memory_order_acquire) == seen && monotonic_now() < end)
        sys::raw(SYS_sched_yield);
}

void Visit::forget_in_child() { g_visits.store(0, std::memory_order_relaxed); }

}  // namespace vma::sock
