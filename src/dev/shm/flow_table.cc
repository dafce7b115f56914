#include "dev/shm/flow_table.h"

#include <cerrno>
#include <new>
#include <utility>

namespace vma::shm {
namespace {

constexpr uint32_t kFirstEntries = 64;

}  // namespace

Status FlowTable::insert(const PackedFlow& key, uint32_t value) {
    if (find(key)) return Errno{EEXIST};
    // At most half full: a look-up that misses, as one for a connection does at a listener, ends soon.
    if ((!entries_ || (size_ + 1) * 2 > mask_ + 1) && !grow()) return Errno{ENOMEM};
    put(key, value);
    ++size_;
    return {};
}

void FlowTable::put(const PackedFlow& key, uint32_t value) {
    uint32_t i = place_of(key);
    while (entries_[i].used) i = (i + 1) & mask_;
    entries_[i] = {key, value, true};
}

bool FlowTable::grow() {
    const uint32_t entries = entries_ ? (mask_ + 1) * 2 : kFirstEntries;
    std::unique_ptr<Entry[]> larger(new (std::nothrow) Entry[entries]);
    if (!larger) return false;
    const uint32_t old = entries_ ? mask_ + 1 : 0;
    std::swap(entries_, larger);
    mask_ = entries - 1;
    for (uint32_t i = 0; i < old; ++i)
        if (larger[i].used) put(larger[i].key, larger[i].value);
    return true;
}

bool FlowTable::erase(const PackedFlow& key) {
    const uint32_t* const found = find(key);
    if (found == nullptr) return false;
    uint32_t gap = place_of(key);
    while (!(entries_[gap].key == key && entries_[gap].used)) gap = (gap + 1) & mask_;
    // Entries behind the gap that a look-up would not reach any more move into it.
    for (uint32_t i = (gap + 1) & mask_; entries_[i].used; i = (i + 1) & mask_) {
        const uint32_t home = place_of(entries_[i].key);
        if (((i - home) & mask_) < ((i - gap) & mask_)) continue;
        entries_[gap] = entries_[i];
        gap = i;
    }
    entries_[gap].used = false;
    --size_;
    return true;
}

void FlowTable::erase_all(uint32_t value) {
    for (uint32_t i = 0; entries_ && i <= mask_;) {
        if (entries_[i].used && entries_[i].value == value)
            erase(PackedFlow(entries_[i].key));  // another entry may have moved here
        else
            ++i;
    }
}

}  // namespace vma::shm
