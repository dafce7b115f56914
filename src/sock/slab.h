// Slab<T>: type-stable storage for the library's records: memory comes from mmap in blocks, is recycled through a free
// list and never returned, so that a stale pointer always points to some T. No malloc. Any thread.
#pragma once

#include <new>

#include "base/spin_lock.h"
#include "base/sys.h"

namespace vma::sock {

template <class T>
class Slab {
  public:
    // Raw memory for one T, or null. A recycled slot still holds the bytes of its former T: placement-new over it.
    // `recycled` tells which, for records that keep a generation.
    void* take(bool* recycled) {
        SpinGuard guard(lock_);
        if (free_ == nullptr && !grow()) return nullptr;
        Node* node = free_;
        free_ = node->next;
        *recycled = node->used;
        return node->storage;
    }
    void give(void* storage) {
        SpinGuard guard(lock_);
        auto* node = reinterpret_cast<Node*>(static_cast<char*>(storage) - offsetof(Node, storage));
        node->used = true;
        node->next = free_;
        free_ = node;
    }
    void forget_lock_in_child() { new (&lock_) SpinLock; }

  private:
    struct Node {
        Node* next = nullptr;
        bool used = false;
        alignas(T) unsigned char storage[sizeof(T)];
    };
    static constexpr size_t kBlock = sizeof(Node) * 64 > 65536 ? sizeof(Node) * 16 : 65536;

    bool grow() {
        void* memory =
            sys::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sys::failed(memory)) return false;
        for (size_t i = 0; i < kBlock / sizeof(Node); i++) {
            auto* node = new (static_cast<char*>(memory) + i * sizeof(Node)) Node;
            node->next = free_;
            free_ = node;
        }
        return true;
    }

    SpinLock lock_;
    Node* free_ = nullptr;
};

}  // namespace vma::sock
