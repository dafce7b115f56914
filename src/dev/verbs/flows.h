// The steering of a verbs ring: one ibv_flow per tuple, on one QP. Rules of connected tuples come before the others.
// Thread rules: the ring's.
#pragma once

#include <array>
#include <map>

#include "base/result.h"
#include "dev/ring.h"
#include "dev/verbs/library.h"

namespace vma {

class VerbsFlows {
  public:
    ~VerbsFlows() { clear(); }
    void open(ibv_qp* qp, uint8_t port, const std::array<uint8_t, 6>& mac);
    void clear();

    // Errors: EINVAL (not a unicast IPv4 tuple of TCP or UDP), EEXIST, those of ibv_create_flow(3).
    Status add(const FlowKey& key);
    void remove(const FlowKey& key);

  private:
    ibv_qp* qp_ = nullptr;
    uint8_t port_ = 1;
    std::array<uint8_t, 6> mac_{};
    std::map<FlowKey, ibv_flow*> flows_;  // control path
};

}  // namespace vma
