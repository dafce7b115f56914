// FdTable: descriptor number -> Object (the slots that api.h's maybe_ours() looks at). Readers take no lock; writers
// (socket, close, dup) are serialised by its lock (order: ARCHITECTURE.md).
//
// Size: the hard RLIMIT_NOFILE at start, at least 1024, at most 2^20; higher numbers are never ours (Reason::fd_limit).
// The table is private memory: a forked child has its own copy.
#pragma once

#include <atomic>
#include <cstddef>

#include "sock/api.h"
#include "sock/object.h"

namespace vma::sock {

class FdTable {
  public:
    static bool start();  // maps the table; false if memory is not to be had, or retired
    // Nothing is ours any more, now and for good: every hook goes straight to libc. For system call filters.
    static void retire();
    static bool retired();

    // The object of `fd` with a reference taken, or null. Release with release_object.
    static Object* acquire(int fd);
    // Puts `object` (whose reference passes to the table) at `fd`; what was there is dropped. False: fd out of range.
    static bool install(int fd, Object* object);
    // Takes the object away from `fd`; the table's reference passes to the caller. Null if none.
    static Object* remove(int fd);
    // Visits every installed object under the writers' lock: fn(fd, object). fn must not install or remove.
    template <class Fn>
    static void for_each(Fn&& fn) {
        lock();
        auto* slots = fd_slots.slot.load(std::memory_order_acquire);
        const unsigned high = slots ? high_water() : 0;
        for (unsigned fd = 0; fd < high; fd++)
            if (void* object = slots[fd].load(std::memory_order_acquire))
                fn(int(fd), static_cast<Object*>(object));
        unlock();
    }
    static unsigned high_water();  // one above the highest number ever installed
    static void lock();
    static void unlock();
    static void
    forget_lock_in_child();  // the holder may be a thread that does not exist in the child
};

// Reference to an Object for the time of one call.
class ObjectRef {
  public:
    explicit ObjectRef(int fd) : object_(FdTable::acquire(fd)) {}
    ~ObjectRef() {
        if (object_) release_object(object_);
    }
    ObjectRef(const ObjectRef&) = delete;
    ObjectRef& operator=(const ObjectRef&) = delete;
    explicit operator bool() const { return object_ != nullptr; }
    Object* get() const { return object_; }

  private:
    Object* object_;
};

// Marks that the internal thread looks at an object which it holds a reference of. A close of the last descriptor waits for
// that: what close() promises (the port is free, epoll sets have forgotten the socket) must not hang on a look of ours.
// Counts on the internal thread only; not nested; made before the reference and gone after it; never around anything that
// waits for the program.
class Visit {
  public:
    Visit();
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    static void wait();  // until a look that is under way has ended; a second at most
    static void forget_in_child();
};

}  // namespace vma::sock
