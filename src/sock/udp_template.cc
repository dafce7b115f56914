// Templates of a UDP socket: a frame that is ready but for its identification, while it goes to where it was made for.
#include "base/clock.h"
#include "sock/udp_socket.h"

namespace vma::sock {

// May what is sent go past all that send() looks at besides its destination?
bool UdpSocket::sends_plainly() const {
    return state() == SocketState::offloaded && remote_.port != 0 && !corked_ &&
           !kernel_send_.load(std::memory_order_relaxed) &&
           !cork_.load(std::memory_order_relaxed) &&
           segment_.load(std::memory_order_relaxed) == 0 &&
           pacing_rate_.load(std::memory_order_relaxed) == 0 &&
           stamping_.load(std::memory_order_acquire) == nullptr &&
           !kernel_news_.load(std::memory_order_acquire);
}

bool UdpSocket::is_current(const SendTemplate& t) const {
    return t.shard != nullptr && refreshed_.load(std::memory_order_relaxed) &&
           t.generation == space_->generation() &&
           t.neighbor_generation == space_->monitor().neighbor_generation() &&
           t.options == options_generation_.load(std::memory_order_acquire) && t.to == remote_;
}

// Makes the frame anew. False: it is for the ordinary way, which knows fragments, groups of this host and the kernel.
bool UdpSocket::prepare(int fd, SendTemplate& t) {
    t.shard = nullptr;
    refreshed_.store(true, std::memory_order_relaxed);
    const Destination d = destination(fd, remote_);
    if (d.shard == nullptr || d.loops || t.size > d.max_payload) return false;
    const bool offload = d.shard->caps().tx_checksum && !d.head.no_checksum();
    if (!t.datagram.prepare(d.head, offload ? UdpChecksum::offload : UdpChecksum::complete))
        return false;
    t.to = d.to;
    t.generation = d.generation;
    t.neighbor_generation = d.neighbor_generation;
    t.options = d.options;
    t.shard = d.shard;
    return true;
}

size_t UdpSocket::fire(int fd, SendTemplate& t) {
    if (rings.follows(SocketRings::kSend)) [[unlikely]]
        follow_user(SocketRings::kSend);
    if (!sends_plainly() || (!is_current(t) && !prepare(fd, t))) return 0;
    LatencyProbe* const probe = latency.probe();
    const Instant called = probe ? monotonic_now() : Instant{};
    Shard& shard = *t.shard;
    {
        LeaseGuard guard(shard.lease());
        Presence* const presence = presence_in(shard, false);
        if (presence == nullptr) return 0;
        const iovec text{t.bytes.get(), t.size};
        const UdpHead& layout = t.datagram.layout();
        TxFrame frame;
        frame.head = t.datagram.head(++presence->endpoint->ip_id);
        frame.payload = &text;
        frame.payload_count = 1;
        frame.payload_len = t.size;
        frame.csum_start = layout.csum_start;
        frame.csum_offset = layout.csum_offset;
        if (shard.send(frame) != 0) return 0;
    }
    SocketCounters::add(counters.tx_packets, 1);
    SocketCounters::add(counters.tx_bytes, t.size);
    if (probe) [[unlikely]]
        probe->sent(called);
    return t.size;
}

}  // namespace vma::sock
