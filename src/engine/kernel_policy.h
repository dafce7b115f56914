// KernelPolicy: would the kernel have done something to the packets of this flow that our path does not do? Then the
// socket stays with the kernel, under the Reason returned (process-model: who answers for a tuple). Looks at: nft
// rules, legacy iptables, XFRM policies, cgroup BPF programs of this process, qdiscs and tc/TCX programs of the
// interface, and rules that route by firewall mark together with rules that set marks. The evaluation is
// conservative: a rule counts unless it provably cannot match or provably does nothing to the packet. Per decision
// (bind, connect, route change), never per packet. Thread safe (one mutex inside). One per namespace.
// VMA_IGNORE_FIREWALL is the caller's: do not call check() then.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/ip_addr.h"
#include "base/reason.h"
#include "base/result.h"
#include "stack/route.h"

namespace vma {

// Who opens the flow: decides which packets of it are "new" to a stateful firewall.
enum class FlowRole : uint8_t { active, passive, both };

struct FlowQuery {
    uint8_t protocol = 0;  // IPPROTO_TCP or IPPROTO_UDP
    Endpoint local;        // any address / port 0: unknown, may be all
    Endpoint remote;       // any address / port 0: unknown, may be all (listener, unconnected)
    int ifindex = 0;       // interface the flow uses; 0 unknown, may be all
    uint32_t mark = 0;     // SO_MARK
    uint32_t uid = 0;
    FlowRole role = FlowRole::both;
};

class KernelPolicy {
  public:
    // Opens its netlink sockets in the calling thread's namespace and reads everything once. What cannot be read (no
    // capability, no such kernel feature) counts as not there and is named in notes(). Fails only when no socket at
    // all can be opened for lack of descriptors or memory.
    static Result<std::unique_ptr<KernelPolicy>> open();
    ~KernelPolicy();
    KernelPolicy(const KernelPolicy&) = delete;
    KernelPolicy& operator=(const KernelPolicy&) = delete;

    // Descriptors to watch for input, -1 when not open; call process() when one is readable.
    int netfilter_fd() const;
    int xfrm_fd() const;
    void process();
    // Grows when rules or policies changed: sockets already offloaded may be checked again.
    uint64_t generation() const;

    // Reason::none, netfilter, xfrm, cgroup_program, traffic_control or mark_routing. `why`, if given, receives one
    // line that names the culprit ("nft inet filter input: rule handle 7: drop") or is left empty. cgroup, TCX and
    // legacy iptables are read again here when the last reading is older than a second.
    Reason check(const FlowQuery&, const NetworkView&, std::string* why = nullptr);

    // What could not be read and why, for one log line at start; empty when all is visible.
    std::string notes() const;

  private:
    struct State;
    explicit KernelPolicy(std::unique_ptr<State>);
    std::unique_ptr<State> state_;
};

}  // namespace vma
