// The steering of a verbs ring: an ibv_flow per tuple or per local end, on one QP. Rules of connected tuples come before the others.
// Thread rules: the ring's.
#pragma once

#include <array>
#include <map>
#include <set>

#include "base/result.h"
#include "dev/ring.h"
#include "dev/verbs/library.h"

namespace vma {

class VerbsFlows {
  public:
    ~VerbsFlows() { clear(); }
    // `by_local`: connected TCP, UDP is steered by the local end alone, by one rule for all that have it.
    void open(ibv_qp* qp, uint8_t port, const std::array<uint8_t, 6>& mac, bool tcp_by_local,
              bool udp_by_local);
    void clear();
    // To another QP; none of the flows is without a rule meanwhile.
    Status move(ibv_qp* qp);

    // Errors: EINVAL (not a unicast IPv4 tuple of TCP or UDP), EEXIST, those of ibv_create_flow(3).
    Status add(const FlowKey& key);
    void remove(const FlowKey& key);

    size_t rules() const { return rules_.size(); }

  private:
    struct Rule {
        ibv_flow* flow = nullptr;
        unsigned users = 0;
    };
    Status make(const FlowKey& key, ibv_qp* qp, ibv_flow** flow) const;
    FlowKey rule_of(const FlowKey& key) const;

    ibv_qp* qp_ = nullptr;
    uint8_t port_ = 1;
    std::array<uint8_t, 6> mac_{};
    bool tcp_by_local_ = false, udp_by_local_ = false;
    std::set<FlowKey> flows_;  // control path
    std::map<FlowKey, Rule> rules_;
};

}  // namespace vma
