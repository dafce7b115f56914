// Object: what a descriptor number of the program can stand for in the library: a socket or an epoll set. One per open
// description; every descriptor number that refers to it holds one reference, every call in flight another.
//
// Memory is type-stable (ObjectSlab): a record is recycled, never returned, so that a reader that lost a race with close
// touches a valid record and finds out by re-reading the table (FdTable::acquire).
#pragma once

#include <atomic>
#include <cstdint>

namespace vma::sock {

enum class ObjectKind : uint8_t { udp, tcp, epoll };

struct Object {
    explicit Object(ObjectKind k) : kind(k) {}
    const ObjectKind kind;
    // Number of references; kDead set once the last one went and the record is free.
    std::atomic<uint32_t> refs{1};
    static constexpr uint32_t kDead = 0x80000000u;

    // Set in a forked child: what it stands for in shards is the parent's (fork.h) until inherit() has settled it.
    std::atomic<bool> inherited{false};

    bool is_socket() const { return kind != ObjectKind::epoll; }
};

// Called when the last reference is gone; implemented by api.cc: returns the record to its slab.
void destroy_object(Object* object);

// A reference for who has only found it. False: the last one is gone.
inline bool try_reference(Object& object) {
    uint32_t refs = object.refs.load(std::memory_order_relaxed);
    while (refs != 0 && !(refs & Object::kDead))
        if (object.refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel))
            return true;
    return false;
}

inline void release_object(Object* object) {
    uint32_t expected = object->refs.fetch_sub(1, std::memory_order_acq_rel) - 1;
    // A reader that lost the race may take and drop a reference on a dead record: only one thread wins the CAS.
    if (expected == 0 &&
        object->refs.compare_exchange_strong(expected, Object::kDead, std::memory_order_acq_rel))
        destroy_object(object);
}

}  // namespace vma::sock
