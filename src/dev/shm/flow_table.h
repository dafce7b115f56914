// FlowTable: from a tuple to a number. Open addressing; look-ups allocate nothing. The hash is keyed, so that whoever chooses
// ports and addresses cannot choose collisions. Thread rules: the ring's. Memory is the process's own, not the arena's: a
// forked child has no ring.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "dev/shm/frame_flow.h"

namespace vma::shm {

class FlowTable {
  public:
    // Random, from getrandom(2). Before the first insert().
    void set_secret(uint64_t a, uint64_t b) { secret_[0] = a, secret_[1] = b; }

    // EEXIST: it is there; ENOMEM.
    Status insert(const PackedFlow& key, uint32_t value);
    bool erase(const PackedFlow& key);
    // The number, or null. Valid until the next change.
    const uint32_t* find(const PackedFlow& key) const {
        if (size_ == 0) return nullptr;
        for (uint32_t i = place_of(key);; i = (i + 1) & mask_) {
            const Entry& e = entries_[i];
            if (!e.used) return nullptr;
            if (e.key == key) return &e.value;
        }
    }
    // Every entry with this number.
    void erase_all(uint32_t value);
    uint32_t size() const { return size_; }

  private:
    struct Entry {
        PackedFlow key;
        uint32_t value = 0;
        bool used = false;
    };

    uint32_t place_of(const PackedFlow& key) const {
        const auto product =
            static_cast<unsigned __int128>(key.addresses ^ secret_[0]) * (key.rest ^ secret_[1]);
        return uint32_t(uint64_t(product) ^ uint64_t(product >> 64)) & mask_;
    }
    bool grow();
    void put(const PackedFlow& key, uint32_t value);

    std::unique_ptr<Entry[]> entries_;
    uint32_t mask_ = 0;  // entries less one
    uint32_t size_ = 0;
    uint64_t secret_[2] = {0x9e3779b97f4a7c15ull, 0xd1b54a32d192ed03ull};
};

}  // namespace vma::shm
