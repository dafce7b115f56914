// Shard: one ring, one stack instance, one owner lease, in an arena of their own (design.md section 2). Everything between a
// socket and a device happens here: ring -> stack -> ready news upward; socket -> frame -> ring.
//
// Threads: calls marked [lease] need the lease held (LeaseGuard on lease()); the others take it themselves or need none.
// A shard is made once and stays until the process ends.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/arena.h"
#include "base/drop.h"
#include "base/lease.h"
#include "base/list.h"
#include "base/own_fd.h"
#include "dev/ring.h"
#include "engine/kept.h"
#include "engine/salvage.h"
#include "engine/tcp_engine.h"
#include "engine/udp_pacing.h"
#include "pkt/pool.h"
#include "stack/ip_id.h"
#include "stack/udp_input.h"
#include "stack/udp_output.h"
#include "stats/capture.h"

namespace vma {

class DeviceClock;

// News for the socket layer, told under the lease after a batch of frames.
class ReadySink {
  public:
    virtual void udp_ready(UdpEndpoint& endpoint) = 0;
    virtual void udp_writable(
        UdpEndpoint& endpoint) = 0;                       // what it had queued by its rate has left
    virtual void udp_stamped(UdpEndpoint& endpoint) = 0;  // it has a stamp of what it sent

  protected:
    ~ReadySink() = default;
};

// A thread of the program that sleeps until a ring has something for it. Where many do, one of them attends the ring: the
// others hear from whoever takes what is for them out of it. What is here is the shard's, under its lease, but that `called`
// may be read after disarm().
class RingSleeper {
  public:
    virtual void wake() = 0;  // [lease]

    ListHook hook;
    bool attends = false;  // it sleeps on the ring's descriptor
    bool called = false;   // it was woken to attend the ring

  protected:
    ~RingSleeper() = default;
};

class Shard {
  public:
    struct Parts {
        Arena* arena = nullptr;
        PacketPool* pool = nullptr;
        Ring* ring = nullptr;  // owned from now on
        int ifindex = 0;
        unsigned lane = 0;  // lanes.h
        MacAddr mac{};
        const char* ring_kind = "";
        uint64_t secret = 0, secret2 = 0;  // random; keys of the tables, initial sequence numbers
        bool reassembles_udp = false;  // puts fragments of UDP together, too, that its ring gets
    };
    // Null when the arena is full.
    static Shard* make(const Parts& parts);
    // Once, before anybody polls: what the stamps of its ring go by. Owned from now on.
    void set_clock(DeviceClock* clock) { clock_ = clock; }

    Lease& lease() { return *lease_; }
    PacketPool& pool() { return *pool_; }
    UdpStack& udp() { return *udp_; }
    TcpEngine& tcp() { return *tcp_; }
    UdpPacing& pacing() { return *pacing_; }
    IpIdCounters& ip_ids() { return *ip_ids_; }
    KeptPackets& kept() { return kept_; }  // [lease]
    KeptPackets& lent() {
        return lent_;
    }  // [lease] the same for SocketXtreme: found by their pieces
    const RingCaps& caps() const { return caps_; }
    const MacAddr& mac() const { return mac_; }
    int ifindex() const { return ifindex_; }
    unsigned lane() const { return lane_; }
    static constexpr unsigned kEveryLane = ~0u;  // its ring is for all of them
    uint64_t lane_bit() const { return lane_ == kEveryLane ? 0 : uint64_t(1) << lane_; }
    const char* ring_kind() const { return ring_kind_; }
    static void set_sink(ReadySink* sink) { sink_ = sink; }

    // [lease] Takes one batch from the ring through the stack and tells the sink. Returns frames taken.
    unsigned poll();
    // The same for a thread that waits: false at once when another thread is at it, or nothing came.
    bool progress();
    // [lease] From now on every frame has a stamp of its arrival (PacketMeta::realtime_ns) that tells its order, too.
    void stamp_all() { stamps_all_ = true; }
    // [lease] How often poll() has found nothing, and frames; and the most at once.
    uint64_t empty_polls() const { return empty_polls_; }
    uint64_t full_polls() const { return full_polls_; }
    unsigned drained_max() const { return drained_max_; }
    // [lease] Frames that wait in the ring, in whatever it counts in.
    uint64_t backlog() const {
        if (ring_ == nullptr) return 0;
        const RingBacklog there = ring_->backlog();
        return there.end - there.at;
    }
    // [lease] The same when it was last done so long ago.
    void poll_each(Duration spacing);
    // [lease] What has arrived by now; what comes meanwhile, a flood perhaps, waits for the next.
    void drain();
    // Takes what is there, several batches; for the internal thread.
    void progress_all();

    // [lease] 0, or the errno of the refused frame.
    int send(const TxFrame& frame) {
        int why = 0;
        if (ring_ == nullptr || ring_->send({&frame, 1}, &why) != 1) return why ? why : ENETDOWN;
        if (stats::capturing()) [[unlikely]]
            capture_sent(frame);
        return 0;
    }
    // [lease] The same, and what is asked for is stamped for `endpoint`; null: nobody hears of it (shard_stamps.cc).
    int send_stamped(const TxFrame& frame, UdpEndpoint* endpoint, const TxStampRequest& stamps);
    // [lease] A stamp of one kind, of CLOCK_REALTIME.
    void stamp(UdpEndpoint& endpoint, const TxStampRequest& stamps, TxStampKind kind,
               const TxFrame& frame, int64_t at);
    // [lease] As Ring::has_room.
    bool has_room(const FlowKey& key) const { return ring_ == nullptr || ring_->has_room(key); }
    // [lease]
    Status steer(const FlowKey& key, int twin) {
        return ring_ ? ring_->steer(key, twin) : Status(Errno{ENETDOWN});
    }
    void unsteer(const FlowKey& key) {
        if (ring_) ring_->unsteer(key);
    }
    // [lease, of `from` too] As Ring::take_flow.
    Status take_flow(const FlowKey& key, const Shard& from) {
        return ring_ && from.ring_ ? ring_->take_flow(key, *from.ring_) : Status(Errno{ENETDOWN});
    }
    // [lease] As Ring::queues.
    DeviceQueues* queues() { return ring_ ? ring_->queues() : nullptr; }
    // [lease] As Ring's. join() first takes what waits in the ring, which the twin has too if the ring has the group already.
    Status join(const Endpoint& group, int twin);
    uint32_t kept_from(const Endpoint& group, int twin) const {
        return ring_ ? ring_->kept_from(group, twin) : 0;
    }
    uint32_t leave(const Endpoint& group, int twin) {
        return ring_ ? ring_->leave(group, twin) : 0;
    }
    // [lease] Replaces what the endpoint, which is in place with its addresses, takes of multicast; none: nothing. ENOMEM: it
    // takes nothing.
    Status set_groups(UdpEndpoint& endpoint, std::span<const GroupFilter::Membership> groups);
    // [lease] An endpoint in the arena, and back.
    UdpEndpoint* make_udp(const Endpoint& local);
    void free_udp(UdpEndpoint* endpoint);

    // [lease] A small record in the arena, where forked children see it, and back: it stays a T, as it is, for the children
    // that still look at it, and goes to the next who takes one. One type T for all; T::next is the shard's meanwhile.
    template <class T>
    T* take_record() {
        if (records_ == nullptr) return arena_->make<T>();
        auto* record = static_cast<T*>(records_);
        records_ = record->next;
        return record;
    }
    template <class T>
    void give_record(T* record) {
        record->next = static_cast<T*>(records_);
        records_ = record;
    }

    // Sleep protocol (Ring::arm), counted: several threads may sleep on one shard. False: frames were there and have been
    // handed out, look again before sleeping. `sleeper`, which disarm() gets too, may find that others attend the ring;
    // null: the caller attends it in any case.
    bool arm(RingSleeper* sleeper = nullptr);
    void disarm(RingSleeper* sleeper = nullptr);
    // A thread that attended the ring, or was called to, does something else now: calls one of those who did not, if nobody
    // attends it.
    void pass_on();
    int wake_fd() const { return wake_fd_; }

    // Earliest TCP deadline and when the next paced frame leaves, as the internal thread sees them without the lease. The
    // former may be seen to a little late.
    Instant deadline() const { return {deadline_ns_.load(std::memory_order_acquire)}; }
    Instant pacing_deadline() const { return {pacing_ns_.load(std::memory_order_acquire)}; }
    void run_deadlines();             // takes the lease if something is due
    void age_fragments();             // now and then; takes the lease if fragments wait
    void deadline_moved(Instant at);  // [lease] the earliest deadline is now this one
    void pacing_moved(Instant at);    // [lease] the same for paced frames
    void tell_writable(UdpEndpoint& endpoint) {
        if (sink_) sink_->udp_writable(endpoint);
    }
    void neighbors_changed();  // takes the lease

    // Who looks after the ring, as the internal thread sees it. busy: the program polled within the last kBusyFor.
    enum class Attended : uint8_t { busy, by_sleeper, by_nobody };
    static constexpr Duration kBusyFor = Duration::millis(10);
    Attended look(Instant now);

    // Where the connections of this shard are found by somebody who has only the arena's memfd.
    const Arena& arena() const { return *arena_; }
    const ArenaRoot* root() const { return root_; }
    // [lease]
    RingEstate ring_estate() const { return ring_ ? ring_->estate() : RingEstate{}; }

    // Ring::adapt when it is time; takes the lease then. Only one thread does this, the internal one.
    void adapt(Instant now);

    // Does what the device's news ask for, if there are any; takes the lease then.
    void tend();
    // As Ring::lost.
    bool lost() const { return ring_ && ring_->lost(); }

    // As Ring::lose_privileges; takes the lease.
    Status lose_privileges();
    void close_ring();
    bool open() const { return ring_ != nullptr; }
    RingCounters ring_counters() const { return ring_ ? ring_->counters() : RingCounters{}; }
    const DropCounters& drops() const { return udp_->drops; }

  private:
    Shard() = default;
    void drop_follower(RingSleeper& sleeper);
    bool take_in(Packet frame, Instant now, int64_t& realtime);
    bool take_in_captured(Packet frame, Instant now, int64_t& realtime);
    void capture_sent(const TxFrame& frame) const;
    void stamp_arrivals(std::span<Packet> batch, int64_t before);
    static void* demux_take(void* owner, size_t bytes) {
        return static_cast<Arena*>(owner)->allocate(bytes);
    }
    static void demux_give(void* owner, void* p, size_t bytes) {
        static_cast<Arena*>(owner)->free(p, bytes);
    }

    static ReadySink* sink_;
    static constexpr unsigned kBatch = 16;
    union Batch;

    Arena* arena_ = nullptr;
    Lease* lease_ = nullptr;  // in the arena: a forked child must see whether it is held
    PacketPool* pool_ = nullptr;
    UdpStack* udp_ = nullptr;
    TcpEngine* tcp_ = nullptr;
    UdpPacing* pacing_ = nullptr;
    IpIdCounters* ip_ids_ = nullptr;
    Reassembly4* reassembly_ = nullptr;  // of TCP, and of UDP if that is wanted
    KeptPackets kept_, lent_;
    ArenaRoot* root_ = nullptr;
    void* records_ = nullptr;  // [lease] given back, singly linked
    Ring* ring_ = nullptr;
    Duration adapts_every_{};
    Instant adapted_at_{};
    DeviceClock* clock_ = nullptr;  // null: stamps stay as the ring gives them
    RingCaps caps_;
    MacAddr mac_{};
    int ifindex_ = 0;
    unsigned lane_ = 0;
    int wake_fd_ = -1;
    const char* ring_kind_ = "";
    unsigned armed_ = 0;  // [lease] threads asleep on the ring, the internal one included
    std::atomic<uint32_t> program_sleepers_{0};  // those of the program; written under the lease
    List<RingSleeper, &RingSleeper::hook> followers_;  // [lease] asleep and not on the ring
    std::atomic<uint32_t> follower_count_{0};          // written under the lease
    std::atomic<uint64_t> polls_{0};                   // by threads of the program
    uint64_t polls_seen_ = 0;                          // internal thread only, as the next
    Instant polled_at_{};                              // when it saw that the program had polled
    bool stamps_all_ = false;                          // [lease], as the next two
    bool ring_stamps_ = false;                         // it has brought a stamped frame
    int64_t last_arrival_ = 0;                         // stamp of its last frame
    uint64_t empty_polls_ = 0;                         // [lease], as the next two
    uint64_t full_polls_ = 0;
    unsigned drained_max_ = 0;
    Instant spaced_at_{};  // [lease] when poll_each() last polled
    std::atomic<int64_t> deadline_ns_{Instant::never().ns};
    std::atomic<int64_t> pacing_ns_{Instant::never().ns};
    std::atomic<bool> fragments_wait_{false};
};

}  // namespace vma
