#include "dev/verbs/user_memory.h"

#include <errno.h>

#include <algorithm>

namespace vma {

std::vector<UserMemory::Region>::iterator UserMemory::find(const void* at, size_t bytes) {
    return std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
        return region.mr->addr == at && region.mr->length == bytes;
    });
}

Status UserMemory::add(const VerbsLibrary& verbs, ibv_pd* pd, void* at, size_t bytes,
                       uint32_t* key) {
    auto known = find(at, bytes);
    if (known == regions_.end()) {
        ibv_mr* const mr = verbs.reg_mr(pd, at, bytes, IBV_ACCESS_LOCAL_WRITE);
        if (mr == nullptr) return Errno{errno};
        known = regions_.insert(known, {mr, 0});
    }
    known->count++;
    *key = known->mr->lkey;
    return {};
}

Status UserMemory::remove(const VerbsLibrary& verbs, void* at, size_t bytes) {
    const auto known = find(at, bytes);
    if (known == regions_.end()) return Errno{ENOENT};
    if (--known->count != 0) return {};
    ibv_mr* const mr = known->mr;
    regions_.erase(known);
    const int error = verbs.dereg_mr(mr);
    return error != 0 ? Status(Errno{error}) : Status();
}

void UserMemory::clear(const VerbsLibrary& verbs) {
    for (const Region& region : regions_) verbs.dereg_mr(region.mr);
    regions_.clear();
}

}  // namespace vma
