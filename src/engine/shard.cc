#include "engine/shard.h"

#include <array>
#include <new>

#include "base/clock.h"
#include "engine/internal_thread.h"

namespace vma {

ReadySink* Shard::sink_ = nullptr;

Shard* Shard::make(const Parts& parts) {
    Arena& arena = *parts.arena;
    auto* lease = arena.make<Lease>();
    auto* udp = arena.make<UdpStack>(DemuxMemory{&arena, demux_take, demux_give}, parts.secret);
    auto* ids = arena.make<IpIdCounters>(parts.secret ^ 0x5bd1e995u);
    if (lease == nullptr || udp == nullptr || ids == nullptr) return nullptr;
    auto* shard = new Shard;
    shard->arena_ = parts.arena;
    shard->lease_ = lease;
    shard->pool_ = parts.pool;
    shard->udp_ = udp;
    shard->ip_ids_ = ids;
    shard->ring_ = parts.ring;
    shard->caps_ = parts.ring->caps();
    shard->mac_ = parts.mac;
    shard->ifindex_ = parts.ifindex;
    shard->wake_fd_ = parts.ring->wake_fd();
    shard->ring_kind_ = parts.ring_kind;
    udp->mac = parts.mac;
    return shard;
}

unsigned Shard::poll() {
    if (ring_ == nullptr) return 0;
    if (!InternalThread::is_current())
        polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::array<Packet, kBatch> batch;
    const unsigned n = ring_->recv(batch);
    if (n == 0) return 0;
    const Instant now = monotonic_now();
    const int64_t realtime = realtime_ns();
    for (unsigned i = 0; i < n; i++) udp_input(*udp_, std::move(batch[i]), now, realtime);
    while (UdpEndpoint* endpoint = udp_->fresh.pop_front())
        if (sink_) sink_->udp_ready(*endpoint);
    return n;
}

bool Shard::progress() {
    if (!lease_->try_enter()) return false;
    const bool any = poll() != 0;
    lease_->leave();
    return any;
}

void Shard::progress_all() {
    // Bounded: a flood must not keep the internal thread here for ever, nor a program's thread out of its shard.
    for (unsigned round = 0; round < 64; round++) {
        LeaseGuard guard(*lease_);
        if (poll() == 0) return;
    }
}

UdpEndpoint* Shard::make_udp(const Endpoint& local) { return arena_->make<UdpEndpoint>(local); }
void Shard::free_udp(UdpEndpoint* endpoint) { arena_->destroy(endpoint); }

bool Shard::arm() {
    if (!InternalThread::is_current()) program_sleepers_.fetch_add(1, std::memory_order_relaxed);
    LeaseGuard guard(*lease_);
    armed_++;
    return ring_ == nullptr || ring_->arm();
}

void Shard::disarm() {
    if (!InternalThread::is_current()) {
        program_sleepers_.fetch_sub(1, std::memory_order_relaxed);
        polls_.fetch_add(1, std::memory_order_relaxed);
    }
    LeaseGuard guard(*lease_);
    if (--armed_ == 0 && ring_) ring_->disarm();
}

Shard::Attended Shard::look() {
    const uint64_t polls = polls_.load(std::memory_order_relaxed);
    if (polls != polls_seen_) {
        polls_seen_ = polls;
        return Attended::busy;
    }
    return program_sleepers_.load(std::memory_order_relaxed) ? Attended::by_sleeper
                                                             : Attended::by_nobody;
}

void Shard::close_ring() {
    LeaseGuard guard(*lease_);
    Ring* ring = ring_;
    ring_ = nullptr;
    delete ring;
}

}  // namespace vma
