// UdpSocket: a UDP socket of the program over rings and twin together. Received datagrams come from the queues of its
// endpoints (one per shard it is present in) and from the twin (loopback, broadcast, fragments, other
// interfaces); each destination is sent to by ring or by twin.
//
// What the ring does not do in this version goes to the twin, datagram by datagram: broadcast, corking, control messages on send
// but those of send_controls.h. Nothing is refused that the kernel would do.
#pragma once

#include <array>
#include <bit>
#include <vector>

#include "engine/runtime.h"
#include "sock/send_controls.h"
#include "sock/slab.h"
#include "sock/socket.h"
#include "sock/tx_stamping.h"
#include "stats/publisher.h"

namespace vma::sock {

// Which control messages the program has asked for (setsockopt), as bits.
enum UdpControl : uint32_t {
    kWantPktinfo = 1,
    kWantTimestamp = 2,
    kWantTimestampNs = 4,
    kWantTtl = 8,
    kWantTos = 16,
    kWantOrigDst = 32,
    kWantGro = 64,
    kWantStamping = 128,   // SO_TIMESTAMPING: software stamps of what is received
    kNewStamps = 256,      // stamps under the names of the _NEW options
    kUntoldStamps = 512,   // SO_TIMESTAMPING has stamps made that it does not tell
    kErrorsArePri = 1024,  // SO_SELECT_ERR_QUEUE: what waits in the error queue is POLLPRI, too
    kWantHwStamps = 2048,  // SO_TIMESTAMPING: the device's stamps of what is received
    kWantDrops = 4096,     // SO_RXQ_OVFL
};

class UdpSocket final : public Socket {
  public:
    static UdpSocket* create(int fd, int domain, int type, int protocol);  // null: no memory
    static void destroy(UdpSocket* socket);

    // Each performs the call on the twin first and returns what libc would (never Outcome::kernel once it has acted).
    Outcome bind(int fd, const sockaddr* addr, socklen_t len);
    Outcome connect(int fd, const sockaddr* addr, socklen_t len);

    // The first use of an undecided socket decides: `sending` binds it as the kernel would. True: offloaded. A socket that
    // is not bound stays undecided when it only receives.
    bool settle(int fd, bool sending);

    Outcome send(int fd, const msghdr* msg, int flags, SendCall call);
    size_t fire(int fd, SendTemplate& t) override;
    Outcome receive(int fd, msghdr* msg, int flags, Taker* taker = nullptr);
    Outcome set_option(int fd, int level, int name, const void* value, socklen_t len);
    // Bytes of the next datagram, as FIONREAD; kernel outcome when only the twin knows.
    Outcome next_datagram_size(int fd);
    // What waits to leave, in the unit of SO_SNDBUF, as SIOCOUTQ; kernel outcome when nothing does here.
    Outcome unsent(int fd);

    uint32_t poll_events() override;
    uint64_t lanes() const override;
    void teardown() override;
    void kept_returned(Shard& shard, const Kept& kept) override;
    void set_screen(const Screen& screen) override;
    bool unscreened() override;
    Showing show_one(AskProgram ask) override;
    bool complete(Completions& out) override;
    void list_unread(Unread& out) override;
    // From now on everything goes to the twin, what is queued included; what cannot be moved is still read from here first.
    // Idempotent.
    bool hand_back(Reason why) override;
    // The network state changed: endpoints of a socket bound to ANY follow the addresses, caches are checked again.
    void network_changed();
    bool has_lost_its_device();  // is it on a ring whose device is gone?
    // Housekeeping: neighbours that were sent to stay fresh.
    void touch_neighbors();

    void forget_locks_in_child() override;
    void become_twin_in_child() override;

    // After the kernel has given a datagram of the twin: the drops that it tells (SO_RXQ_OVFL) become the socket's.
    void correct_drops(msghdr& msg);

    // The receive stamp that SIOCGSTAMP tells; 0: it is the twin's to tell.
    int64_t last_stamp() const { return last_stamp_.load(std::memory_order_relaxed); }

    void ring_writable() { watch.notify(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND); }
    void ring_ready(
        const UdpEndpoint& endpoint);  // [lease of its shard] something was queued in it
    void ring_stamped(
        const UdpEndpoint& endpoint);  // [lease of its shard] a stamp of what it sent was queued

    unsigned ring_fds(std::span<int> out) override;
    int send_ring_fd(const Endpoint* to) override;
    uint32_t network_header(std::span<uint8_t, kMostHeaders> out) override;
    bool stop_receiving() override;
    Shown show() override;
    void list_memberships(
        stats::Listing<stats::MembershipRow>& out);  // one row for each source asked for
    void publish_all() override;
    void dump(LogLevel at) override;
    const char* ring_kind() const;
    Endpoint local() const { return local_; }
    Endpoint remote() const { return remote_; }

  private:
    static constexpr unsigned kMaxPresence = 8;
    static constexpr unsigned kMaxKeys = 64;
    static constexpr size_t kMostPieces = 64;    // iovecs of what is cut into several frames
    static constexpr size_t kMostSegments = 64;  // of a send, in every kernel with UDP_SEGMENT
    // Destinations that are kept: kWays of each set, by a hash of the address and port.
    static constexpr unsigned kWays = 4, kDestinations = 8 * kWays;
    friend class UdpReceive;

    // The socket in one shard.
    struct Presence {
        Shard* shard = nullptr;
        UdpEndpoint* endpoint = nullptr;
        bool in_demux = false;
    };
    struct Steered {
        Shard* shard = nullptr;
        FlowKey key;
    };
    uint32_t bit_of(const Presence& p) const { return 1u << (&p - presences_.data()); }
    // Where datagrams to one peer go, decided once and kept while nothing it depends on has changed.
    struct Destination {
        Endpoint to;
        uint64_t generation = 0, neighbor_generation = 0, options = 0;
        Shard* shard = nullptr;  // null: by the twin
        Reason why = Reason::none;
        uint32_t max_payload = 0;
        bool df_strict = false;     // IP_PMTUDISC_DO, _PROBE
        bool may_fragment = false;  // what is larger than the MTU
        bool loops = false;         // a group, and this host's members get it, too
        int ifindex = 0;
        IpAddr next_hop;
        UdpTemplate head;
        bool used = false;
    };

    // A membership of the twin, as the kernel has it.
    struct Membership {
        IpAddr group;
        int ifindex = 0;
        bool exclude = true;  // all sources but these; else only these
        std::vector<uint32_t> sources;
        bool member = true;       // false: left, and about to be forgotten
        Shard* shard = nullptr;   // whose ring has it
        Shard* wanted = nullptr;  // whose ring shall have it, while that is arranged
        Endpoint at;              // group and port that it has or shall have it for
    };

    UdpSocket(uint32_t generation_number, int fd, int socket_domain, int socket_type,
              int socket_protocol)
        : Socket(ObjectKind::udp, generation_number, fd, socket_domain, socket_type,
                 socket_protocol) {}

    void note_received(size_t bytes, const UdpRxInfo& info);
    void note_drained(const Presence& presence);  // [lease] perhaps
    void decide_receive(int fd);
    Reason receive_obstacle(int fd, NetSpace& space);
    const Rules& decided_by();
    void drop_steering();
    void follow_fragments();
    void leave_unicast();
    // A socket of this process has bound what may be an address of this one, too.
    void yield_unicast(const Endpoint& other);
    void follow_membership(int fd, const IpAddr& group);
    Shard* shard_of(const Membership& m, int fd);
    unsigned steer_groups(int fd);
    void admit_groups(Presence& presence);
    void leave_groups(Presence& presence);
    int named_interface(int fd, const void* value, socklen_t len);
    uint32_t local_for(const UdpDatagram& datagram) const;
    void leave_shards();
    // Where a flow cannot be steered, *why if it says more than that somebody else has it.
    bool be_present(Shard& shard, const Endpoint& local, const Endpoint& remote,
                    std::span<const IpAddr> addresses, std::span<const Steered> before,
                    Reason* why);
    // Of an endpoint, from SO_RCVBUF as the twin has it.
    static uint32_t queue_limit(int receive_buffer);
    // [lease of `shard`] The socket's endpoint there, made if need be. `receives`: the ring is one that it is to be read from.
    Presence* presence_in(Shard& shard, bool receives = true);
    Presence* present_in(const Shard& shard);  // null: there is none
    Presence* make_presence(Shard& shard);
    void forget_presences();
    void follow_addresses();
    void become_kernel(Reason why);
    void finish_hand_back_if_drained();
    // What the callback said of a datagram that it was shown.
    void answered(Presence& p, Packet packet, const UdpRxInfo& info, ScreenAnswer answer);
    bool is_read_elsewhere(Reason why) const;
    void move_queue_to_twin();
    void read_names(int fd);
    stats::SocketIdentity identity() const;
    void publish_state();
    void show_multicast(int fd);

    // udp_move.cc: the socket follows who uses it.
    void follow_user(SocketRings::Direction d);
    bool may_move(SocketRings::Direction d) const;
    bool move_flows(unsigned lane);
    bool appear_in(Shard& shard);
    bool take_flow(Steered& s, Shard& to);
    void settle_from(uint32_t presences);
    bool is_settling();
    void leave_settled();

    // udp_order.cc. Receive stamps, ns of CLOCK_REALTIME.
    static constexpr int64_t kNothing = INT64_MAX;
    static void stamp_twin(int fd);
    // Of the twin's first datagram; kNothing: it has none.
    int64_t first_of_twin(int fd);
    // [lease] Has the twin one that came before `first`, a ring's? It is looked at when that is due.
    bool twin_is_older(int fd, const UdpRxInfo& first);
    // One look more: is it the one at which the twin is looked at, too?
    bool is_twins_turn();
    // The rings have nothing for a call that does not wait: is the twin looked at?
    bool is_empty_look_due();
    // [lease] The oldest of the ring; polls it when there is none. False: none.
    static bool first_of_ring(Presence& presence, UdpDatagram& out);
    // The presence to read from first; null: there is nothing. A single one is not looked at.
    Presence* oldest_presence() {
        const uint32_t there =
            present_.load(std::memory_order_acquire) | ring_ready_.load(std::memory_order_acquire);
        if ((there & (there - 1)) != 0) return oldest_presence_of(there);
        return there ? &presences_[size_t(std::countr_zero(there))] : nullptr;
    }
    Presence* oldest_presence_of(uint32_t there);

    // udp_drops.cc: SO_RXQ_OVFL.
    void leave_group(Shard& shard, const Endpoint& at);  // [control_, lease]
    uint32_t kept_from_twin();                           // [control_]
    uint32_t ring_drops(const Presence* but);
    // What SO_RXQ_OVFL tells with a datagram of `presence`, besides what that knows itself.
    uint32_t other_drops(const Presence& presence);

    Destination destination(int fd, const Endpoint& to);
    Destination resolve(int fd, const Endpoint& to);
    Outcome send_by_twin(int fd, const msghdr* msg, int flags);
    // `segment`: cut into datagrams of so many bytes; 0: one datagram. `dummy`: all but the sending.
    Outcome send_by_ring(const Destination& to, const msghdr* msg, size_t length, uint16_t segment,
                         const SendControls& controls, bool dummy);
    static bool can_cut(const Destination& to, size_t length, uint16_t segment);
    // How the frames of one call leave.
    struct Leaving {
        explicit Leaving(Shard& of) : shard(of) {}
        Shard& shard;
        UdpEndpoint* endpoint = nullptr;  // gets the stamps
        PacedFlow* flow = nullptr;        // by its rate
        TxStampRequest stamps;            // of the first frame
    };
    static int send_fragments(const Destination& to, std::span<const iovec> payload,
                              uint32_t length, uint16_t id, Leaving& leaving);
    static int send_apart(const Destination& to, std::span<const iovec> payload, uint32_t length,
                          uint16_t segment, uint16_t id, Leaving& leaving);

    // udp_stamps.cc: SO_TIMESTAMPING of what is sent. False: it has to be the kernel's.
    bool follow_stamping(uint32_t flags);
    // Can the ring do what control messages of a datagram say of stamps?
    bool can_stamp(const SendControls& controls) const;
    Outcome send_stamped_by_twin(TxStamping& stamping, int fd, const msghdr& msg, int flags);
    Outcome receive_error(int fd, msghdr& msg, int flags);
    Presence* first_stamped(uint64_t* order);  // whose stamp is to be read first; null: none
    bool read_stamp(Presence& presence, const TxStamping& stamping, msghdr& msg, Outcome* out);
    uint32_t error_events() const {
        return wanted_.load(std::memory_order_relaxed) & kErrorsArePri ? EPOLLERR | EPOLLPRI
                                                                       : EPOLLERR;
    }

    // udp_pacing.cc: SO_MAX_PACING_RATE.
    friend class UdpRoom;
    void follow_pacing(int fd);
    // [lease of its shard] Null: no memory.
    PacedFlow* paced_flow(Presence& presence);
    std::atomic<PacedFlow*>& paced_of(const Presence& presence) {
        return paced_[size_t(&presence - presences_.data())];
    }
    static int send_frame(Leaving& leaving, const TxFrame& frame);
    bool has_room(Shard& shard);
    // Waits, if the call may, until there is room for a datagram. False: *refused is the answer.
    bool wait_for_room(int fd, Shard& shard, size_t length, int flags, Outcome* refused);
    // What a call that may not wait is told when there is none (VMA_TX_NONBLOCKED_EAGAINS). False: it may.
    bool told_no_room(int flags, size_t length, Outcome* answer);
    static Duration send_timeout(int fd);  // SO_SNDTIMEO; 0: none
    bool is_writable() const;
    void flush_paced();
    int take_twin_error(int fd);

    // udp_template.cc
    bool sends_plainly() const;
    bool is_current(const SendTemplate& t) const;
    bool prepare(int fd, SendTemplate& t);

    NetSpace* space_ = nullptr;
    // The rules in force at the first decision: they hold for this socket also when it is decided again.
    std::atomic<const Rules*> decided_by_{nullptr};
    Endpoint local_,
        remote_;  // as getsockname/getpeername of the twin say; remote_.port 0: not connected
    bool reuseport_ = false;
    std::vector<Membership> memberships_;
    std::atomic<int> multicast_if_{0};         // IP_MULTICAST_IF, 0: not set
    std::atomic<uint32_t> multicast_from_{0};  // its address, in network order
    std::atomic<bool> multicast_loop_{true};   // IP_MULTICAST_LOOP
    // Bound and undecided: what it will be kernel for.
    Reason waits_because_ = Reason::reuseport_shared;
    bool is_contested_ = false;  // the flow of its address was somebody else's when it was decided
    bool yields_ = false;        // its unicast is for it or for another one, as the kernel decides
    std::atomic<int64_t> last_stamp_{0};
    // Datagrams that the filters of memberships (and fragments) that are over have kept from the twin.
    std::atomic<uint32_t> kept_before_{0};
    std::atomic<uint32_t> twin_drops_{0};   // of the twin for want of room, when it was last asked
    std::atomic<bool> sends_only_{false};   // SO_VMA_SHUTDOWN_RX
    bool corked_ = false;                   // a datagram waits in the twin for the rest of it
    std::atomic<uint64_t> pacing_rate_{0};  // bytes per second; 0: as fast as may be
    std::atomic<uint32_t> send_buffer_{0};  // SO_SNDBUF as the twin has it, while there is a rate
    std::atomic<bool> cork_{false};         // UDP_CORK: the twin puts datagrams together
    std::atomic<uint16_t> segment_{
        0};  // UDP_SEGMENT: sends are cut into datagrams of so many bytes; 0: they are not
    std::atomic<uint32_t> wanted_{0};              // UdpControl bits
    std::atomic<uint64_t> options_generation_{1};  // bumped by options that change what is sent
    std::atomic<uint32_t> receive_buffer_{0};  // SO_RCVBUF as the twin reports it, 0: not asked yet
    std::atomic<uint32_t> ring_ready_{
        0};  // bit i: presences_[i]'s endpoint is readable; written under its lease
    std::atomic<uint32_t> stamps_ready_{0};  // the same for its stamps
    std::atomic<TxStamping*> stamping_{
        nullptr};  // from the first SO_TIMESTAMPING on, for the life of the socket
    std::atomic<bool> handed_back_{false};  // steering is gone, queue not drained yet
    bool shown_ = false;  // [control_] a datagram is out of its queue, for the callback to look at
    std::atomic<bool> kernel_send_{false};  // every datagram by the twin
    uint64_t steered_generation_ = 0;
    uint32_t looks_ = 0;
    std::atomic<int64_t> twin_first_{0};  // first_of_twin(), 0: to be asked for
    std::atomic<int> untold_error_{0};    // of the twin, that a look at it took

    std::array<Presence, kMaxPresence> presences_;
    // Of each presence what it sends by its rate, from the first such send on.
    std::array<std::atomic<PacedFlow*>, kMaxPresence> paced_{};
    std::atomic<unsigned> presence_count_{0};
    SpinLock presences_lock_;  // new ones
    // Bit i: presences_[i] is one whose ring is looked at when the socket is read. live_: those that flows or groups lead to, or
    // may; the others had some until settled_at_ (udp_move.cc), ns.
    std::atomic<uint32_t> present_{0}, live_{0};
    std::atomic<int64_t> settled_at_{0};
    std::array<Steered, kMaxKeys> steered_;
    unsigned steered_count_ = 0;
    // Where rings get the fragments that come to an address of a flow (VMA_UDP_FRAGS).
    struct Fragments {
        Shard* shard;
        IpAddr addr;
        bool operator==(const Fragments&) const = default;
    };
    std::vector<Fragments> fragments_;

    SpinLock destinations_lock_;
    std::array<Destination, kDestinations> destinations_;
    unsigned next_destination_ = 0;
    // A template has looked its destination up since touch_neighbors(): one that is in use stays known.
    std::atomic<bool> refreshed_{false};

    SpinGovernor governor_;
    stats::RowHandle row_;
};
void udp_forget_in_child();

}  // namespace vma::sock
