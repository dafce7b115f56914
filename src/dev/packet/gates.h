// Gates: the owner page of a ring that is kept by somebody else (keeper.h), and which flow has which gate of it.
// Thread rules: the ring's; page() is readable by anybody.
#pragma once

#include <map>
#include <vector>

#include "dev/packet/hook.h"
#include "dev/packet/keeper.h"

namespace vma {

class Gates {
  public:
    // `owner_page`: a map of one vma_owner; the descriptor stays the caller's.
    Status map(int owner_page);
    void unmap() {
        map_.reset();
        used_.clear();
        free_.clear();
        never_used_ = 0;
    }
    void forget() { map_.forget(); }
    bool mapped() const { return map_.at() != nullptr; }
    vma_owner& page() const { return *reinterpret_cast<vma_owner*>(map_.at()); }

    // A gate for a flow. EEXIST: it has one. ENOSPC: VMA_GATES flows have one.
    Result<FlowGate> open(const FlowKey& key);
    // From now on the flow is the kernel's. False: it has no gate. *was: what it had.
    bool shut(const FlowKey& key, FlowGate* was);
    void shut_all();

  private:
    void shut(uint32_t number);

    PrivateMapping map_;
    std::map<FlowKey, uint32_t> used_;
    std::vector<uint32_t> free_;
    uint32_t never_used_ = 0;  // this and all above
};

}  // namespace vma
