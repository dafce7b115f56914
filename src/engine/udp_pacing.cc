#include "engine/udp_pacing.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "engine/frame_copy.h"
#include "engine/shard.h"

namespace vma {
namespace {

// PacketBuf::scratch of a frame that waits.
struct WaitingFrame {
    uint32_t head_size;
    uint32_t charge;
    uint32_t wire_bytes;
    uint16_t csum_start, csum_offset, gso_size;
    Gso gso;
    TxStampRequest stamps;  // when it leaves
};

bool is_full(int error) { return error == EAGAIN || error == ENOBUFS; }

}  // namespace

Instant PacedFlow::due() const {
    const PacketBuf* const first = const_cast<PacketQueue&>(queue_).front();
    if (first == nullptr) return Instant::never();
    const uint32_t bytes = const_cast<PacketBuf*>(first)->as<WaitingFrame>().wire_bytes;
    return std::max(pacer_.due(bytes), refused_until_);
}

PacedFlow* UdpPacing::open(UdpEndpoint& endpoint) {
    auto* flow = arena_.make<PacedFlow>();
    if (flow) flow->endpoint_ = &endpoint;
    return flow;
}

void UdpPacing::set(PacedFlow& flow, uint64_t rate, uint32_t limit, Instant now) {
    flow.limit_.store(limit, std::memory_order_relaxed);
    if (rate != flow.pacer_.rate())
        flow.pacer_.set_rate(rate, shard_.caps().mtu + uint32_t(kEthernetSize));
    run(now);
}

void UdpPacing::close(PacedFlow& flow) {
    flow.endpoint_ = nullptr;
    if (flow.queue_.empty()) forget(flow);
}

void UdpPacing::forget(PacedFlow& flow) {
    flow.hook_.unlink();
    arena_.destroy(&flow);
}

int UdpPacing::send(PacedFlow& flow, const TxFrame& frame, Instant now,
                    const TxStampRequest& stamps) {
    const uint32_t bytes = frame.wire_bytes();
    if (flow.queue_.empty() && flow.pacer_.due(bytes) <= now) {
        const int error = shard_.send_stamped(frame, flow.endpoint_, stamps);
        if (error == 0) flow.pacer_.sent(bytes, now, false);
        if (!is_full(error)) return error;
        flow.refused_until_ = now + kRetry;
    }
    Packet copy = copy_frame(pool_, frame);
    if (!copy) return ENOBUFS;
    auto* waiting = new (copy->scratch) WaitingFrame{uint32_t(frame.head.size()),
                                                     udp_charge(frame.bytes()),
                                                     bytes,
                                                     frame.csum_start,
                                                     frame.csum_offset,
                                                     frame.gso_size,
                                                     frame.gso,
                                                     stamps};
    waiting->stamps.kinds &= ~kStampScheduled;
    if (stamps.kinds & kStampScheduled)
        shard_.stamp(*flow.endpoint_, stamps, kStampScheduled, frame, realtime_ns());
    flow.charged_.store(flow.charged() + waiting->charge, std::memory_order_relaxed);
    if (flow.queue_.empty()) {
        flow.pacer_.start_waiting(now);
        waiting_.push_back(flow);
    }
    flow.queue_.push_back(*copy.detach());
    if (flow.due() < next_) {
        next_ = flow.due();
        shard_.pacing_moved(next_);
    }
    return 0;
}

int UdpPacing::put(const PacedFlow& flow, PacketBuf& waiting) {
    const auto& w = waiting.as<WaitingFrame>();
    const iovec payload{waiting.data + w.head_size, waiting.len - w.head_size};
    TxFrame frame;
    frame.head = {waiting.data, w.head_size};
    frame.payload = &payload;
    frame.payload_count = 1;
    frame.payload_len = uint32_t(payload.iov_len);
    frame.csum_start = w.csum_start;
    frame.csum_offset = w.csum_offset;
    frame.gso_size = w.gso_size;
    frame.gso = w.gso;
    return shard_.send_stamped(frame, flow.endpoint_, w.stamps);
}

// The first frame leaves; false: the device is full. One that it refuses for another reason is lost, as in a queue of the
// kernel's.
bool UdpPacing::release_first(PacedFlow& flow, Instant now) {
    PacketBuf& first = *flow.queue_.front();
    if (is_full(put(flow, first))) return false;
    flow.pacer_.sent(first.as<WaitingFrame>().wire_bytes, now, true);
    const bool was_writable = flow.is_writable();
    flow.charged_.store(flow.charged() - first.as<WaitingFrame>().charge,
                        std::memory_order_relaxed);
    flow.queue_.pop_front();
    release_packet(&first);
    if (!was_writable && flow.is_writable() && flow.endpoint_)
        shard_.tell_writable(*flow.endpoint_);
    return true;
}

void UdpPacing::release_due(PacedFlow& flow, Instant now) {
    while (flow.due() <= now)
        if (!release_first(flow, now)) flow.refused_until_ = now + kRetry;
}

void UdpPacing::run(Instant now) {
    for (PacedFlow* flow = waiting_.front(); flow;) {
        PacedFlow* const following = waiting_.next(*flow);
        release_due(*flow, now);
        if (flow->queue_.empty()) {
            flow->hook_.unlink();
            if (flow->endpoint_ == nullptr) forget(*flow);
        }
        flow = following;
    }
    update_next();
}

void UdpPacing::update_next() {
    Instant next = Instant::never();
    for (PacedFlow* flow = waiting_.front(); flow; flow = waiting_.next(*flow))
        next = std::min(next, flow->due());
    if (next == next_) return;
    next_ = next;
    shard_.pacing_moved(next_);
}

void UdpPacing::flush(PacedFlow& flow, Instant now) {
    flow.pacer_.set_rate(0, 0);
    run(now);
}

void UdpPacing::flush_all(Instant now) {
    for (PacedFlow* flow = waiting_.front(); flow; flow = waiting_.next(*flow))
        flow->pacer_.set_rate(0, 0);
    run(now);
}

}  // namespace vma
