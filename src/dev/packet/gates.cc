#include "dev/packet/gates.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

namespace vma {

Status Gates::map(int owner_page) {
    return map_.map(owner_page, sizeof(vma_owner), PROT_READ | PROT_WRITE, 0);
}

Result<FlowGate> Gates::open(const FlowKey& key) {
    if (used_.contains(key)) return Errno{EEXIST};
    uint32_t number;
    if (!free_.empty()) {
        number = free_.back();
        free_.pop_back();
    } else if (never_used_ < VMA_GATES) {
        number = never_used_++;
    } else {
        return Errno{ENOSPC};
    }
    used_.emplace(key, number);
    return FlowGate{number, page().gates[number]};
}

// The value never comes back (in 2^32 flows of one gate), so that an entry of the flow table that is still there for the
// old value does not count for the next flow.
void Gates::shut(uint32_t number) {
    std::atomic_ref(page().gates[number]).fetch_add(1);
    free_.push_back(number);
}

bool Gates::shut(const FlowKey& key, FlowGate* was) {
    const auto it = used_.find(key);
    if (it == used_.end()) return false;
    *was = {it->second, page().gates[it->second]};
    shut(it->second);
    used_.erase(it);
    return true;
}

void Gates::shut_all() {
    for (const auto& [key, number] : used_) shut(number);
    used_.clear();
}

}  // namespace vma
