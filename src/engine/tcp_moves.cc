// A connection goes to the ring of another lane (docs/decisions/0023-rings-of-an-interface.md): the two halves of it that concern the
// engines. Its numbers and queues are carried by the snapshot, as to the kernel and back.
#include "engine/shard.h"
#include "engine/tcp_engine.h"

namespace vma {

bool TcpEngine::may_move(const TcpConnection& c) {
    return c.owner != nullptr && c.listener == nullptr && c.fast_opener == nullptr && !c.held &&
           !c.leaving && c.neighbor == 0 && c.path.resolved && tcp::is_quiet(c.tcb);
}

Status TcpEngine::take_flow_of(const TcpConnection& c, const Shard& from) {
    if (demux_.find_exact(c.tuple)) return Errno{EADDRINUSE};
    const FlowKey key{c.tuple.local, c.tuple.remote, IPPROTO_TCP};
    // One that lives under its listener's flow gets one of its own here, which comes before that.
    if (!c.steered) return shard_.steer(key, twin_of(c.owner));
    return shard_.take_flow(key, from);
}

void TcpEngine::return_flow_of(const TcpConnection& c, Shard& from, Instant now) {
    const FlowKey key{c.tuple.local, c.tuple.remote, IPPROTO_TCP};
    // What this ring has caught meanwhile the peer repeats.
    remember_as_forgotten(c.tuple, now);
    if (!c.steered || !from.take_flow(key, shard_)) shard_.unsteer(key);
}

void TcpEngine::moved_in(TcpConnection& c, const TcpConnection& from) {
    c.ip_id = from.ip_id;
    c.pushed = from.pushed;
    tcp::carry_over(c.tcb, from.tcb);
}

void TcpEngine::moved_out(TcpConnection& c, Instant now) {
    c.steered = false;  // the flow leads elsewhere
    forget(c, now);
}

}  // namespace vma
