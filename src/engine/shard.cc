#include "engine/shard.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"
#include "engine/device_clock.h"
#include "engine/frame_log.h"
#include "engine/internal_thread.h"

namespace vma {
namespace {

// Ethernet with a tag, IPv4 and TCP, each with all its options.
constexpr uint32_t kLoggedHead = 144;

// The IP protocol of an IPv4 frame with or without a tag; 0 for anything else (the UDP path counts why).
uint8_t protocol_of(const PacketBuf& frame) {
    uint32_t at = 12;
    if (frame.len < 34) return 0;
    if (load_be16(frame.data + at) == 0x8100) at += 4;
    return load_be16(frame.data + at) == 0x0800 ? frame.data[at + 2 + 9] : 0;
}

// When a frame that has just been taken from the ring was received.
int64_t receive_stamp(const PacketBuf& frame, int64_t realtime) {
    return frame.meta.realtime_ns ? frame.meta.realtime_ns : realtime;
}

}  // namespace

ReadySink* Shard::sink_ = nullptr;

// Room for what one poll takes. Each of them is moved on, and the rest stays empty: there is nothing to destroy.
union Shard::Batch {
    Batch() { std::memset(static_cast<void*>(this), 0, sizeof *this); }
    ~Batch() {}
    Packet packets[kBatch];
};
static_assert(sizeof(Packet) == sizeof(void*), "a null pointer is an empty one");

Shard* Shard::make(const Parts& parts) {
    Arena& arena = *parts.arena;
    auto* lease = arena.make<Lease>();
    auto* udp = arena.make<UdpStack>(DemuxMemory{&arena, demux_take, demux_give}, parts.secret);
    auto* ids = arena.make<IpIdCounters>(parts.secret ^ 0x5bd1e995u);
    if (lease == nullptr || udp == nullptr || ids == nullptr) return nullptr;
    void* memory = arena.allocate(sizeof(Shard), alignof(Shard));
    if (memory == nullptr) return nullptr;
    auto* shard = new (memory) Shard;
    shard->pacing_ = arena.make<UdpPacing>(*shard, arena, *parts.pool);
    shard->tcp_ = arena.make<TcpEngine>(arena, *shard, IsnSecret{parts.secret, parts.secret2});
    if (shard->tcp_ == nullptr || shard->pacing_ == nullptr)
        return nullptr;  // the caller gives the whole arena up
    shard->reassembly_ = arena.make<Reassembly4>(*parts.pool, parts.secret ^ 0x85ebca6bu);
    if (shard->reassembly_ == nullptr) return nullptr;
    shard->tcp_->set_reassembly(shard->reassembly_);
    if (parts.reassembles_udp) udp->reassembly = shard->reassembly_;
    shard->root_ = arena.make<ArenaRoot>();
    if (shard->root_ == nullptr) return nullptr;
    shard->root_->layout = layout_identity();
    shard->root_->lease = lease;
    shard->root_->tcp = shard->tcp_;
    shard->arena_ = parts.arena;
    shard->lease_ = lease;
    shard->pool_ = parts.pool;
    shard->udp_ = udp;
    shard->ip_ids_ = ids;
    shard->ring_ = parts.ring;
    shard->caps_ = parts.ring->caps();
    shard->adapts_every_ = parts.ring->adapts_every();
    shard->mac_ = parts.mac;
    shard->ifindex_ = parts.ifindex;
    shard->lane_ = parts.lane;
    shard->wake_fd_ = parts.ring->wake_fd();
    shard->ring_kind_ = parts.ring_kind;
    udp->mac = parts.mac;
    udp->pool = parts.pool;
    return shard;
}

// One frame into the stack; true: TCP had it. `realtime`: of the batch, 0 until it is needed.
inline bool Shard::take_in(Packet frame, Instant now, int64_t& realtime) {
    if (frame->meta.flow_tag != 0 && tcp_->has_text_lane()) {
        tcp_->text_input(std::move(frame), now);
        return true;
    }
    switch (protocol_of(*frame)) {
        case IPPROTO_TCP:
        case IPPROTO_ICMP:
            tcp_->input(std::move(frame), now);
            return true;
        default:
            if (realtime == 0) realtime = realtime_ns();
            // Not in the call: arm64 evaluates arguments from the left.
            const int64_t stamp = receive_stamp(*frame, realtime);
            udp_input(*udp_, std::move(frame), now, stamp);
            return false;
    }
}

// The same for a frame that a viewer wants to see, with the reason for which the stack drops it.
bool Shard::take_in_captured(Packet frame, Instant now, int64_t& realtime) {
    if (realtime == 0) realtime = realtime_ns();
    // The stack may change the frame or give it away.
    std::array<uint8_t, kLoggedHead> head;
    uint32_t length = frame->len, logged = 0, from = 0;
    if (frame->meta.flow_tag != 0 && tcp_->has_text_lane()) {
        static_assert(TcpEngine::kMaxHead <= kLoggedHead);
        logged = tcp_->head_of_text(*frame, std::span(head).first<TcpEngine::kMaxHead>());
        from = sizeof(TextHead);
        length += logged - from;
    }
    stats::CaptureSlot slot(uint32_t(ifindex_), stats::Direction::in, length, realtime);
    slot.add(head.data(), logged);
    slot.add(frame->data + from, frame->len - from);
    const uint32_t more = std::min<uint32_t>(length, kLoggedHead) - logged;
    std::memcpy(head.data() + logged, frame->data + from, more);
    logged += more;
    const DropCounters udp_before = udp_->drops, tcp_before = tcp_->drops();
    const bool tcp = take_in(std::move(frame), now, realtime);
    DropReason drop = DropReason::none;
    for (unsigned i = 1; i < unsigned(DropReason::count); i++)
        if (udp_->drops.n[i] != udp_before.n[i] || tcp_->drops().n[i] != tcp_before.n[i])
            drop = DropReason(i);
    slot.finish(drop);
    log_frame_in(ifindex_, {head.data(), logged}, length, drop);
    return tcp;
}

void Shard::capture_sent(const TxFrame& frame) const {
    const auto length = uint32_t(frame.head.size() + frame.payload_len);
    stats::CaptureSlot slot(uint32_t(ifindex_), stats::Direction::out, length, realtime_ns());
    slot.add(frame.head.data(), frame.head.size());
    for (unsigned i = 0; i < frame.payload_count; i++)
        slot.add(frame.payload[i].iov_base, frame.payload[i].iov_len);
    slot.finish();
    log_frame_out(ifindex_, frame.head, length);
}

unsigned Shard::poll() {
    if (ring_ == nullptr) return 0;
    if (!InternalThread::is_current())
        polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    Batch there;
    const std::span<Packet> batch = there.packets;
    const int64_t before = stamps_all_ ? realtime_ns() : 0;
    const unsigned n = ring_->recv(batch);
    if (n == 0) {
        // Deadlines of connections are looked at now and then also while nothing arrives.
        if (++empty_polls_ % 64 == 0 && tcp_->next_deadline() != Instant::never()) {
            const Instant now = monotonic_now();
            if (tcp_->next_deadline() <= now) tcp_->run_deadlines(now);
        }
        return 0;
    }
    full_polls_++;
    if (n > drained_max_) drained_max_ = n;
    const Instant now = monotonic_now();
    if (clock_) clock_->convert(batch.first(n), now, *ring_);
    if (stamps_all_) [[unlikely]]
        stamp_arrivals(batch.first(n), before);
    int64_t realtime = 0;
    bool tcp = false;
    if (!stats::capturing()) [[likely]] {
        for (unsigned i = 0; i < n; i++) tcp |= take_in(std::move(batch[i]), now, realtime);
    } else {
        for (unsigned i = 0; i < n; i++)
            tcp |= take_in_captured(std::move(batch[i]), now, realtime);
    }
    while (UdpEndpoint* endpoint = udp_->fresh.pop_front())
        if (sink_) sink_->udp_ready(*endpoint);
    fragments_wait_.store(reassembly_->datagrams() != 0, std::memory_order_relaxed);
    if (tcp) tcp_->flush(now);
    if (tcp_->next_deadline() <= now) tcp_->run_deadlines(now);
    if (pacing_->next() <= now) pacing_->run(now);
    return n;
}

void Shard::drain() {
    if (ring_ == nullptr) return;
    for (const RingBacklog there = ring_->backlog(); !there.is_through(ring_->backlog());)
        if (poll() == 0) return;
}

void Shard::poll_each(Duration spacing) {
    const Instant now = monotonic_now();
    if (now - spaced_at_ < spacing) return;
    spaced_at_ = now;
    poll();
}

void Shard::run_deadlines() {
    const Instant now = monotonic_now();
    if (deadline() > now && pacing_deadline() > now) return;
    LeaseGuard guard(*lease_);
    if (pacing_->next() <= now) pacing_->run(now);
    if (tcp_->next_deadline() <= now) tcp_->run_deadlines(now);
    deadline_ns_.store(tcp_->next_deadline().ns, std::memory_order_release);
}

void Shard::age_fragments() {
    if (!fragments_wait_.load(std::memory_order_relaxed)) return;
    LeaseGuard guard(*lease_);
    udp_->drops.add(DropReason::reassembly_timeout, reassembly_->deadline_reached(monotonic_now()));
    fragments_wait_.store(reassembly_->datagrams() != 0, std::memory_order_relaxed);
}

void Shard::pacing_moved(Instant at) {
    pacing_ns_.store(at.ns, std::memory_order_release);
    if (!at.is_never()) InternalThread::wake_by(at, {});
}

void Shard::adapt(Instant now) {
    if (adapts_every_.ns == 0) return;
    if (adapted_at_.ns == 0) adapted_at_ = now;  // the first interval begins
    if (now - adapted_at_ < adapts_every_) return;
    const Duration time = now - std::exchange(adapted_at_, now);
    LeaseGuard guard(lease());
    if (ring_) ring_->adapt(time);
}

void Shard::deadline_moved(Instant at) {
    deadline_ns_.store(at.ns, std::memory_order_release);
    InternalThread::wake_by(at, InternalThread::kSlack);
}

void Shard::neighbors_changed() {
    LeaseGuard guard(*lease_);
    tcp_->neighbors_changed(monotonic_now());
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

Status Shard::join(const Endpoint& group, int twin) {
    if (ring_ == nullptr) return Errno{ENETDOWN};
    drain();
    return ring_->join(group, twin);
}

Status Shard::set_groups(UdpEndpoint& endpoint, std::span<const GroupFilter::Membership> groups) {
    UdpGroups::remove(endpoint);
    if (endpoint.groups)
        arena_->free(const_cast<GroupFilter*>(endpoint.groups), endpoint.groups_bytes);
    endpoint.groups = nullptr;
    if (groups.empty()) return {};
    size_t sources = 0;
    for (const GroupFilter::Membership& m : groups) sources += m.sources.size();
    endpoint.groups_bytes = uint32_t(GroupFilter::bytes(groups.size(), sources));
    void* block = arena_->allocate(endpoint.groups_bytes);
    if (block == nullptr) return Errno{ENOMEM};
    endpoint.groups = GroupFilter::make(block, groups);
    udp_->groups.insert(endpoint);
    return {};
}

UdpEndpoint* Shard::make_udp(const Endpoint& local) { return arena_->make<UdpEndpoint>(local); }
void Shard::free_udp(UdpEndpoint* endpoint) {
    (void)set_groups(*endpoint, {});
    arena_->destroy(endpoint);
}

namespace {

// So many are woken by a frame whoever it is for, which is the shortest way to the one that it is for while there is a processor
// for each; of more, one.
unsigned most_woken() {
    static const unsigned n = [] {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        sys::raw(SYS_sched_getaffinity, 0, sizeof cpus, long(&cpus));
        return unsigned(std::clamp(CPU_COUNT(&cpus), 1, 4));
    }();
    return n;
}

}  // namespace

bool Shard::arm(RingSleeper* sleeper) {
    LeaseGuard guard(*lease_);
    const uint32_t attend = program_sleepers_.load(std::memory_order_relaxed);
    if (sleeper) {
        const uint32_t follow = follower_count_.load(std::memory_order_relaxed);
        const unsigned all = attend + follow + 1;
        sleeper->called = false;
        sleeper->attends = attend < (all <= most_woken() ? all : 1);
        if (!sleeper->attends) {
            followers_.push_back(*sleeper);
            follower_count_.store(follow + 1, std::memory_order_release);
            return true;
        }
    }
    if (!InternalThread::is_current())
        program_sleepers_.store(attend + 1, std::memory_order_relaxed);
    armed_++;
    if (ring_ == nullptr || ring_->arm()) return true;
    // Arming again silenced a doorbell on which others may still be asleep, and this caller may go on without a look at the
    // ring. So whoever finds frames here hands them out, and leaves the ring armed for those who sleep.
    for (unsigned round = 0; round < 64; round++)
        if (poll() == 0 && ring_->arm()) break;
    return false;
}

void Shard::disarm(RingSleeper* sleeper) {
    const bool of_program = !InternalThread::is_current();
    if (of_program) polls_.fetch_add(1, std::memory_order_relaxed);
    LeaseGuard guard(*lease_);
    if (sleeper && !sleeper->attends) {
        if (!sleeper->called) drop_follower(*sleeper);
        return;
    }
    if (of_program)
        program_sleepers_.store(program_sleepers_.load(std::memory_order_relaxed) - 1,
                                std::memory_order_relaxed);
    if (--armed_ == 0 && ring_) ring_->disarm();
}

void Shard::drop_follower(RingSleeper& sleeper) {
    sleeper.hook.unlink();
    follower_count_.store(follower_count_.load(std::memory_order_relaxed) - 1,
                          std::memory_order_relaxed);
}

void Shard::pass_on() {
    if (follower_count_.load(std::memory_order_acquire) == 0) return;
    LeaseGuard guard(*lease_);
    RingSleeper* const next = followers_.front();
    if (next == nullptr || program_sleepers_.load(std::memory_order_relaxed) != 0) return;
    drop_follower(*next);
    next->called = true;
    next->wake();
}

Shard::Attended Shard::look(Instant now) {
    const uint64_t polls = polls_.load(std::memory_order_relaxed);
    if (polls != polls_seen_) {
        polls_seen_ = polls;
        polled_at_ = now;
    }
    // Not by the last look alone: two may be closer together than two polls of a program that works on what it got.
    if (polled_at_.ns != 0 && now < polled_at_ + kBusyFor) return Attended::busy;
    return program_sleepers_.load(std::memory_order_relaxed) ? Attended::by_sleeper
                                                             : Attended::by_nobody;
}

void Shard::tend() {
    if (ring_ == nullptr || !ring_->has_news()) return;
    LeaseGuard guard(*lease_);
    if (ring_) ring_->tend();
}

Status Shard::lose_privileges() {
    LeaseGuard guard(*lease_);
    return ring_ ? ring_->lose_privileges() : Status();
}

void Shard::close_ring() {
    LeaseGuard guard(*lease_);
    pacing_->flush_all(monotonic_now());  // nobody is left to send that in its time
    Ring* ring = ring_;
    ring_ = nullptr;
    delete ring;
    delete clock_;
    clock_ = nullptr;
}

}  // namespace vma
