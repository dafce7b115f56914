// Stamps of datagrams that a shard sends.
#include "base/clock.h"
#include "engine/frame_copy.h"
#include "engine/shard.h"

namespace vma {

int Shard::send_stamped(const TxFrame& frame, UdpEndpoint* endpoint, const TxStampRequest& stamps) {
    if (stamps.kinds == 0 || endpoint == nullptr) return send(frame);
    // Before: a peer on this host may have the frame when the call returns.
    const int64_t at = realtime_ns();
    const int error = send(frame);
    if (error) return error;
    for (const TxStampKind kind : {kStampScheduled, kStampSent})
        if (stamps.kinds & kind) stamp(*endpoint, stamps, kind, frame, at);
    return 0;
}

// A stamp for which there is no memory, or no room in the receive buffer, is lost, as on the kernel.
void Shard::stamp(UdpEndpoint& endpoint, const TxStampRequest& stamps, TxStampKind kind,
                  const TxFrame& frame, int64_t at) {
    Packet packet = stamps.with_frame ? copy_frame(*pool_, frame) : pool_->take(1);
    if (!packet) return;
    TxStamp stamp;
    stamp.realtime_ns = at;
    stamp.order = stamps.order;
    stamp.id = stamps.id;
    stamp.kind = kind;
    if (endpoint.queue_stamp(std::move(packet), stamp) && sink_) sink_->udp_stamped(endpoint);
}

}  // namespace vma
