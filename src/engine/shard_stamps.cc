// Stamps of datagrams that a shard sends, and of all that it receives where somebody wants the order of that.
#include <algorithm>

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

// The kernel does not stamp everything (over veth no TCP of this host), and some rings stamp nothing. What is known of such a frame: it
// came after the one before it, before the one behind it, and, when the ring is empty now, it counts as of `before`, when the ring
// had not been looked at.
void Shard::stamp_arrivals(std::span<Packet> batch, int64_t before) {
    constexpr int64_t kSecond = 1'000'000'000;
    if (last_arrival_ > before + kSecond) last_arrival_ = 0;  // the clock was set back
    size_t behind_stamped = 0;
    for (size_t i = 0; i < batch.size(); i++)
        if (batch[i]->meta.realtime_ns != 0) behind_stamped = i + 1;
    ring_stamps_ |= behind_stamped != 0;
    for (size_t i = 0; i < batch.size(); i++) {
        int64_t& stamp = batch[i]->meta.realtime_ns;
        const bool is_last = i >= behind_stamped && (batch.size() < kBatch || !ring_stamps_);
        if (stamp == 0) stamp = std::max(last_arrival_ + 1, is_last ? before : 0);
        last_arrival_ = stamp;
    }
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
