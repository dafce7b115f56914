// ShmRing: frames between processes of one host, through memory that each two of them share (docs/decisions/0012-shm-ring.md).
//
// A ring has any number of pairs, one per neighbour process, up to kMostPairs. Frames leave through the pair that the caller
// has named for their tuple (route) and are taken from a pair only if it may speak for their source, and only if their
// destination was steered here. Anything else is counted and dropped.
//
// A full neighbour is not a lossy one: send() says EAGAIN and nothing is lost (RingCaps::pushes_back). There is no wake-up when
// there is room again: what fills a ring is answered when it is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "dev/ring.h"
#include "dev/shm/flow_table.h"
#include "dev/shm/pair.h"
#include "pkt/pool.h"

namespace vma::shm {

// Names one pair of one ring; never used again for another. 0: none.
using PairId = uint64_t;

struct ShmRingConfig {
    PacketPool* pool = nullptr;
    uint32_t ifindex = 1;              // of received packets
    uint64_t secret = 0, secret2 = 0;  // random, for the tables
};

// Beside RingCounters; what a neighbour does wrong, and how often sleepers were called.
struct ShmCounters {
    uint64_t not_a_flow = 0;      // received: no whole IPv4 datagram with TCP or UDP ports
    uint64_t foreign_source = 0;  // received from a pair that may not speak for the source
    uint64_t not_steered = 0;     // received for a tuple that is not this ring's
    uint64_t broken_pairs = 0;    // ended by nonsense in the shared memory
    uint64_t bells_rung = 0;      // system calls of senders
    uint64_t pushed_back = 0;     // frames refused because the neighbour's ring was full
};

class ShmRing final : public Ring, public TextLane {
  public:
    static constexpr unsigned kMostPairs = 256;  // two own descriptors each, see kMaxOwnFds

    // Errors of epoll_create(2); EMFILE; ENOMEM.
    static Result<ShmRing*> open(const ShmRingConfig& config);
    ~ShmRing() override;

    // ---- pairs and who speaks for what. [lease] like the rest.
    // `parts` are closed on every path. ENOSPC: kMostPairs; else as Pair::open.
    Result<PairId> add_pair(PairParts parts, std::string* why);
    // Unmaps it and forgets its routes.
    void remove_pair(PairId id);
    // The neighbour has died or closed: nothing more is sent to him, what he sent is still received.
    void neighbor_gone(PairId id);
    // A pair that is not there is `broken`.
    PairState pair_state(PairId id) const;
    Fault pair_fault(PairId id) const;

    // Frames to key.remote go to this pair, and frames from there are accepted from this pair only. key.local.port 0: from and
    // to any local endpoint; a route with both ends counts before one without. EINVAL: not a TCP or UDP unicast IPv4 tuple.
    // EEXIST: the tuple has a route. ENOENT: no such pair. ENOMEM.
    Status route(const FlowKey& key, PairId pair);
    void unroute(const FlowKey& key);
    // Do frames of this tuple go to that pair?
    bool routed_to(const FlowKey& key, PairId pair) const;

    // ---- Ring
    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet> out) override;
    // In records taken. With several pairs the end is as far as it takes until the longest queue has had its turns: later
    // frames of others count there, none that had arrived is left out.
    RingBacklog backlog() const override;
    // EHOSTUNREACH: no route; ENETDOWN: its pair has ended; EINVAL: not a whole TCP or UDP datagram.
    unsigned send(std::span<const TxFrame> frames, int* why) override;
    bool has_room(const FlowKey& key) const override;
    Status steer(const FlowKey& key, int twin) override;
    using Ring::steer;
    // Takes the route of exactly this tuple along.
    void unsteer(const FlowKey& key) override;

    // ---- TextLane
    uint32_t open_text(const FlowKey& key, void* owner) override;
    void close_text(uint32_t tag) override;
    void hold_text(uint32_t tag, bool hold) override;
    bool has_text(uint32_t tag) const override;
    void* text_owner(uint32_t tag) const override;
    uint64_t text_way(const FlowKey& key) const override;
    int send_text(uint64_t way, TextHead head, const iovec* text, unsigned count,
                  uint32_t bytes) override;
    bool unread_text(uint64_t way, uint32_t tag, Seq from, Seq until,
                     std::vector<uint8_t>& out) const override;

    int wake_fd() const override { return sleep_set_.fd(); }
    bool arm() override;
    void disarm() override;
    RingCounters counters() const override;
    ShmCounters shm_counters() const;

  private:
    // Written by the ring's thread, read by any.
    class Count {
      public:
        void add(uint64_t n) {
            n_.store(n_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
        }
        uint64_t get() const { return n_.load(std::memory_order_relaxed); }

      private:
        std::atomic<uint64_t> n_{0};
    };
    struct Place {
        std::unique_ptr<Pair> pair;
        uint32_t generation = 0;
        uint32_t quiet = 0;  // looks in a row that found nothing
        uint16_t order = 0;  // where in order_
    };
    // Whom text is for; the tag is the place in texts_, and one.
    struct Text {
        PairId from = 0;  // 0: a free place
        void* owner = nullptr;
        bool held = false;
    };
    static constexpr uint32_t kMostTexts = 1 << 20;
    static constexpr unsigned kColdLooks = 8;    // cold pairs looked at by one recv()
    static constexpr uint32_t kCoolAfter = 256;  // empty looks
    static constexpr unsigned kTurn = 4;  // frames of one pair before the next one has its turn

    explicit ShmRing(const ShmRingConfig& config);
    Place* place_of(PairId id) const;
    unsigned take_from(Place& place, std::span<Packet> out, bool* no_memory);
    bool admitted(const Packet& packet, const Place& place);
    bool admitted_text(Packet& packet, const Place& place);
    bool next_is_held(const Place& place) const;
    PairId id_of(const Place& place) const {
        return uint64_t(place.generation) << 32 | uint32_t(&place - places_.get());
    }
    Text* text_of(uint32_t tag) const {
        return tag - 1 < texts_.size() && texts_[tag - 1].from != 0
                   ? const_cast<Text*>(&texts_[tag - 1])
                   : nullptr;
    }
    void look_at_cold();
    void broke(Place& place);
    void deafen(const Pair& pair);
    void move(uint16_t place, unsigned to);
    void heat(uint16_t place);
    void cool(uint16_t place);
    void unlist(uint16_t place);
    int send_one(const TxFrame& frame, Pair*& to);
    void call(Pair* pair);
    void hush();

    const ShmRingConfig config_;
    RingCaps caps_;
    int pid_ = 0;
    OwnFd sleep_set_;  // epoll set of our bells, edge-triggered
    std::unique_ptr<Place[]> places_;
    // Numbers of places that are in use: [0, hot_) had frames lately, [hot_, listed_) not. Broken pairs are not in it.
    std::unique_ptr<uint16_t[]> order_;
    unsigned listed_ = 0, hot_ = 0;
    unsigned turn_ = 0, cold_turn_ = 0;
    uint64_t taken_ = 0;  // records, with those that were dropped
    FlowTable steered_;   // value: unused
    FlowTable routes_;    // value: place
    std::vector<Text> texts_;
    std::vector<uint32_t> free_texts_;  // tags that were given back
    unsigned held_texts_ = 0;
    Count rx_frames_, rx_bytes_, tx_frames_, tx_bytes_, tx_refused_, wakeups_;
    Count not_a_flow_, foreign_source_, not_steered_, broken_pairs_, bells_rung_, pushed_back_;
};

}  // namespace vma::shm
