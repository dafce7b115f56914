// Intrusive doubly linked list. No allocation; a hook is in at most one list; unlinking is O(1) without the list.
#pragma once

#include <cstddef>

namespace vma {

struct ListHook {
    ListHook* prev = nullptr;
    ListHook* next = nullptr;
    bool linked() const { return next != nullptr; }
    void unlink() {
        if (next == nullptr) return;
        prev->next = next;
        next->prev = prev;
        prev = next = nullptr;
    }
};

// List<T, &T::hook>. Not thread safe; the owner of the list provides the lock. Plain pointers: valid in every process
// that maps the arena at the same address.
template <class T, ListHook T::*Hook>
class List {
  public:
    constexpr List() { head_.prev = head_.next = &head_; }
    List(const List&) = delete;
    List& operator=(const List&) = delete;

    bool empty() const { return head_.next == &head_; }
    void push_back(T& item) { link(head_.prev, &(item.*Hook), &head_); }
    void push_front(T& item) { link(&head_, &(item.*Hook), head_.next); }
    T* front() { return empty() ? nullptr : owner(head_.next); }
    T* back() { return empty() ? nullptr : owner(head_.prev); }
    T* pop_front() {
        T* item = front();
        if (item) (item->*Hook).unlink();
        return item;
    }
    // The first item becomes the last.
    void rotate() {
        if (T* item = pop_front()) push_back(*item);
    }
    // The item after `item`, or null at the end.
    T* next(T& item) {
        ListHook* n = (item.*Hook).next;
        return n == &head_ ? nullptr : owner(n);
    }
    // The item before `item`, or null at the front.
    T* prev(T& item) {
        ListHook* p = (item.*Hook).prev;
        return p == &head_ ? nullptr : owner(p);
    }
    void insert_after(T& place, T& item) {
        ListHook* p = &(place.*Hook);
        link(p, &(item.*Hook), p->next);
    }
    void splice_back(List& other) {
        if (other.empty()) return;
        other.head_.next->prev = head_.prev;
        head_.prev->next = other.head_.next;
        other.head_.prev->next = &head_;
        head_.prev = other.head_.prev;
        other.head_.prev = other.head_.next = &other.head_;
    }

    // What marks the end of a walk over raw hooks, for readers that check every pointer themselves.
    const ListHook* end_hook() const { return &head_; }

  private:
    static void link(ListHook* before, ListHook* item, ListHook* after) {
        item->prev = before;
        item->next = after;
        before->next = item;
        after->prev = item;
    }
    static T* owner(ListHook* hook) {
        const auto offset = reinterpret_cast<ptrdiff_t>(&(static_cast<T*>(nullptr)->*Hook));
        return reinterpret_cast<T*>(reinterpret_cast<char*>(hook) - offset);
    }
    ListHook head_;
};

}  // namespace vma
