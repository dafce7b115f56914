#include <cstring>

#include "softhca/hca/objects.h"
#include "softhca/raw/fields.h"

namespace softhca {
namespace {

void rules_changed(Context& c) {
    Station& s = c.station();
    uint32_t end = s.flow_end;
    while (end && !s.flows[end - 1].qp) end--;
    s.flow_end.store(end, std::memory_order_release);

    c.wire->directory().slots[c.index].raw.store(end != 0, std::memory_order_release);
    c.wire->directory().flow_generation.fetch_add(1, std::memory_order_release);
}

}  // namespace

ibv_flow* create_flow(ibv_qp* ibv, ibv_flow_attr* attr) {
    Qp& qp = qp_of(ibv);
    Context& c = context_of(ibv->context);
    FlowRule rule{};
    errno = c.station().fatal                 ? EIO
            : shared(qp, c).use == QpUse::raw ? read_rule(*attr, c.device->config.flow_tag, &rule)
                                              : EINVAL;
    if (errno) return nullptr;
    std::lock_guard locked(c.control);
    Station& s = c.station();
    uint32_t i = 0;
    while (i < kMaxFlows && s.flows[i].qp) i++;
    errno = ENOMEM;
    if (i == kMaxFlows) return nullptr;
    FlowRule& to = s.flows[i];
    to.type = rule.type;
    to.tag = rule.tag;
    to.priority = rule.priority;
    to.drop = rule.drop;
    to.dont_trap = rule.dont_trap;
    to.value = rule.value;
    to.mask = rule.mask;
    to.qp.store(qp.index + 1, std::memory_order_release);
    if (i >= s.flow_end) s.flow_end.store(i + 1, std::memory_order_release);
    rules_changed(c);
    auto flow = std::make_unique<Flow>();
    flow->ibv.context = ibv->context;
    flow->ibv.handle = i + 1;
    flow->index = i;
    return &flow.release()->ibv;
}

int destroy_flow(ibv_flow* ibv) {
    Flow* flow = reinterpret_cast<Flow*>(ibv);
    Context& c = context_of(ibv->context);
    {
        std::lock_guard locked(c.control);
        c.station().flows[flow->index].qp.store(0, std::memory_order_release);
        rules_changed(c);
    }
    delete flow;
    return 0;
}

}  // namespace softhca
