// Demux: which endpoint of this shard takes a received segment. One table per protocol (T = UdpEndpoint, a TCP listener
// or control block ...). Lookup order as in Linux: 4-tuple, then local address and port, then any address and the port.
//
// Open addressing in one block of memory that comes from the caller's allocator (the shard arena); nothing here calls
// malloc and lookups allocate nothing. Used under the shard lease. Values are borrowed: the table never frees them.
// One value per key. Several receivers of one multicast group are a list behind one key, kept by the type T.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include "base/ip_addr.h"
#include "base/result.h"

namespace vma {

// What an endpoint claims. remote.port 0: any remote (and remote.addr is not looked at).
struct FlowTuple {
    Endpoint local, remote;
    bool connected() const { return remote.port != 0; }
    bool operator==(const FlowTuple&) const = default;
};

// take: `bytes` of memory aligned to 16, or null. give: the same pointer and size back. `owner` is passed through.
struct DemuxMemory {
    void* owner = nullptr;
    void* (*take)(void* owner, size_t bytes) = nullptr;
    void (*give)(void* owner, void* block, size_t bytes) = nullptr;
};

template <class T>
class Demux {
  public:
    // `secret`: random per process, so that a peer cannot choose addresses and ports that collide.
    Demux(DemuxMemory memory, uint64_t secret) : memory_(memory), secret_(secret) {}
    Demux(const Demux&) = delete;
    Demux& operator=(const Demux&) = delete;
    ~Demux() {
        if (slots_ != nullptr) memory_.give(memory_.owner, slots_, capacity_ * sizeof(Slot));
    }

    // EEXIST: the key has a value already. ENOMEM: no memory to grow; the table is as before.
    Status insert(const FlowTuple& tuple, T& value) {
        const Key key = key_of(tuple);
        const uint32_t hash = hash_of(key);
        if (find_slot(key, hash) != nullptr) return Errno{EEXIST};
        if ((size_ + 1) * 4 > capacity_ * 3 && !grow()) return Errno{ENOMEM};
        place({&value, hash, key});
        size_++;
        count_[kind_of(key)]++;
        return {};
    }
    // False: the key is not there.
    bool remove(const FlowTuple& tuple) {
        const Key key = key_of(tuple);
        Slot* slot = find_slot(key, hash_of(key));
        if (slot == nullptr) return false;
        count_[kind_of(key)]--;
        size_--;
        close_gap(uint32_t(slot - slots_));
        return true;
    }
    // The value with exactly this key, or null.
    T* find_exact(const FlowTuple& tuple) const {
        const Key key = key_of(tuple);
        const Slot* slot = find_slot(key, hash_of(key));
        return slot ? slot->value : nullptr;
    }
    // The endpoint for a segment that arrived at `local` from `remote`, or null. `accept(T&)` false: look further down the
    // order (a bound endpoint that is connected to somebody else).
    template <class Accept>
    T* lookup(const Endpoint& local, const Endpoint& remote, Accept accept) const {
        if (count_[kConnected] > 0) {
            if (T* t = probe({local, remote}, accept)) return t;
        }
        if (count_[kBound] > 0) {
            if (T* t = probe({local, Endpoint{}}, accept)) return t;
        }
        if (count_[kAny] > 0) {
            if (T* t = probe({any_of(local), Endpoint{}}, accept)) return t;
        }
        return nullptr;
    }
    T* lookup(const Endpoint& local, const Endpoint& remote) const {
        return lookup(local, remote, [](T&) { return true; });
    }

    uint32_t size() const { return size_; }
    // Calls visit(T&) for every entry, in no order. The table must not change meanwhile.
    template <class Visit>
    void for_each(Visit visit) const {
        for (uint32_t i = 0; i < capacity_; i++) {
            if (slots_[i].value != nullptr) visit(*slots_[i].value);
        }
    }

    // The same for a table that may be corrupt: `inside(p, n)` tells whether memory may be read, and visit(const T*) gets
    // pointers that nobody has checked. False: the table itself is nonsense.
    template <class Inside, class Visit>
    bool for_each_checked(Inside inside, Visit visit) const {
        const Slot* slots = slots_;
        const uint32_t capacity = capacity_;
        if (capacity == 0) return true;
        if ((capacity & (capacity - 1)) != 0 || !inside(slots, capacity * sizeof(Slot)))
            return false;
        for (uint32_t i = 0; i < capacity; i++) {
            if (const T* value = slots[i].value) visit(value);
        }
        return true;
    }

  private:
    struct Key {
        Endpoint local, remote;
        bool operator==(const Key&) const = default;
    };
    struct Slot {
        T* value;  // null: free
        uint32_t hash;
        Key key;
    };
    enum Kind { kConnected, kBound, kAny, kKinds };

    static Key key_of(const FlowTuple& t) {
        return {t.local, t.connected() ? t.remote : Endpoint{}};
    }
    static Kind kind_of(const Key& k) {
        return k.remote.port != 0 ? kConnected : k.local.addr.is_any() ? kAny : kBound;
    }
    static Endpoint any_of(const Endpoint& e) {
        return {e.addr.is_v4() ? IpAddr::any_v4() : IpAddr{}, e.port};
    }
    static uint64_t mix(uint64_t a, uint64_t b) {
        const auto product = static_cast<unsigned __int128>(a) * b;
        return uint64_t(product) ^ uint64_t(product >> 64);
    }
    uint32_t hash_of(const Key& k) const {
        uint64_t w[4];
        std::memcpy(w, k.local.addr.bytes.data(), 16);
        std::memcpy(w + 2, k.remote.addr.bytes.data(), 16);
        uint64_t h = mix(w[0] ^ secret_, w[1] ^ 0x9e3779b97f4a7c15ull);
        h = mix(w[2] ^ h, w[3] ^ 0xd6e8feb86659fd93ull);
        const uint64_t ports = uint64_t(k.local.port) << 16 | k.remote.port;
        h = mix(ports ^ h,
                (uint64_t(k.local.addr.scope) << 32 | k.remote.addr.scope) ^ 0xa0761d6478bd642full);
        return uint32_t(h ^ h >> 32);
    }
    Slot* find_slot(const Key& key, uint32_t hash) const {
        if (capacity_ == 0) return nullptr;
        for (uint32_t i = hash & (capacity_ - 1);; i = (i + 1) & (capacity_ - 1)) {
            Slot& s = slots_[i];
            if (s.value == nullptr) return nullptr;
            if (s.hash == hash && s.key == key) return &s;
        }
    }
    template <class Accept>
    T* probe(const Key& key, Accept& accept) const {
        const Slot* slot = find_slot(key, hash_of(key));
        return slot != nullptr && accept(*slot->value) ? slot->value : nullptr;
    }
    void place(const Slot& slot) {
        uint32_t i = slot.hash & (capacity_ - 1);
        while (slots_[i].value != nullptr) i = (i + 1) & (capacity_ - 1);
        slots_[i] = slot;
    }
    bool grow() {
        const uint32_t old_capacity = capacity_;
        const uint32_t capacity = old_capacity ? old_capacity * 2 : 64;
        void* block = memory_.take(memory_.owner, capacity * sizeof(Slot));
        if (block == nullptr) return false;
        Slot* old = slots_;
        slots_ = static_cast<Slot*>(block);
        capacity_ = capacity;
        for (uint32_t i = 0; i < capacity; i++) new (&slots_[i]) Slot{nullptr, 0, {}};
        for (uint32_t i = 0; i < old_capacity; i++) {
            if (old[i].value != nullptr) place(old[i]);
        }
        if (old != nullptr) memory_.give(memory_.owner, old, old_capacity * sizeof(Slot));
        return true;
    }
    // Moves later entries of the run back, so that no tombstone is needed and lookups stay short for ever.
    void close_gap(uint32_t gap) {
        const uint32_t mask = capacity_ - 1;
        for (uint32_t i = (gap + 1) & mask; slots_[i].value != nullptr; i = (i + 1) & mask) {
            const uint32_t home = slots_[i].hash & mask;
            if (((i - home) & mask) < ((i - gap) & mask))
                continue;  // its home lies behind the gap: stays
            slots_[gap] = slots_[i];
            gap = i;
        }
        slots_[gap].value = nullptr;
    }

    DemuxMemory memory_;
    uint64_t secret_;
    Slot* slots_ = nullptr;
    uint32_t capacity_ = 0;  // a power of two, or 0 before the first insert
    uint32_t size_ = 0;
    uint32_t count_[kKinds] = {};  // entries of each kind: lookups skip the kinds that nobody uses
};

}  // namespace vma
