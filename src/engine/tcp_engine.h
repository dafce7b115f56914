// TcpEngine: TCP of one shard around the sans-io core (stack/tcp): who a segment belongs to, frames out of segment plans,
// deadlines, listeners with their half-open and TIME_WAIT records. Everything lives in the shard arena and is used under the
// shard lease.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/drop.h"
#include "base/list.h"
#include "base/rng.h"
#include "dev/ring.h"
#include "dev/text_lane.h"
#include "stack/demux.h"
#include "stack/isn.h"
#include "stack/path_cache.h"
#include "stack/tcp/snapshot.h"
#include "stack/tcp/tcp.h"
#include "wire/ethernet.h"

namespace vma {

class NetworkMonitor;
class Reassembly4;
class Shard;
struct Tcp4View;

// What a received tuple can lead to.
struct TcpTarget {
    enum class Kind : uint8_t { connection, listener, half_open, time_wait };
    explicit TcpTarget(Kind k) : kind(k) {}
    const Kind kind;
    // Place in the deadline heap, kNotQueued when absent, and the time it is sorted by: never later than the true one.
    static constexpr uint32_t kNotQueued = UINT32_MAX;
    uint32_t heap_index = kNotQueued;
    Instant heap_at = Instant::never();
};

struct TcpListener;

// Where frames of a connection go. Kept per connection: a neighbour that moves is followed by mac_generation.
struct TcpPath {
    MacAddr dst_mac{};
    bool resolved = false;
    uint64_t neighbor_generation = 0;
    int ifindex = 0;
    IpAddr next_hop;
    uint8_t ttl = 64, tos = 0;
};

struct TcpConnection : TcpTarget {
    TcpConnection() : TcpTarget(Kind::connection) {}
    tcp::Tcb tcb;
    TcpPath path;
    FlowTuple tuple;
    void* owner = nullptr;  // of the layer above; null: an orphan, or waiting in an accept queue
    TcpListener* listener = nullptr;  // while waiting to be accepted
    TcpListener* fast_opener =
        nullptr;  // opened by a SYN with text, while the handshake is not over
    ListHook accept_hook;
    ListHook output_hook;  // something may have to be sent
    ListHook young_hook;   // accepted, and without a flow of its own
    uint32_t events = 0;   // not yet told to the owner
    int error = 0;
    uint16_t ip_id = 0;
    bool in_demux = false;
    bool steered = false;      // has a 5-tuple flow of its own
    bool steer_tried = false;  // was to get one once it had lived for a while
    // Sends nothing: the other end is not in the shm ring yet, or this one is about to leave it.
    bool held = false;
    bool leaving = false;   // it takes nothing, either: its state has been read out
    bool pushed = true;     // the last text that came ended a push: the peer had no more just then
    uint64_t neighbor = 0;  // in the shm ring: whose process the other end is in (ShmPeerId)
    uint64_t orphan_token =
        0;  // of the layer above, once it has let go: given back when the connection is over
    ListHook news_hook;  // in TcpEngine::news_
    // In the shm ring, text past the segments (dev/text_lane.h): where it goes, the tag that the other end has for it, and this
    // end's. 0: none.
    uint64_t text_way = 0;
    uint32_t text_to = 0, text_tag = 0;
};

// So many in each second, whenever the second begins.
struct PerSecond {
    uint32_t most = 0, taken = 0;  // most 0: no limit
    Instant begun{};
    bool admits(Instant now) {
        if (most == 0) return true;
        if (now - begun >= Duration::seconds(1)) begun = now, taken = 0;
        return taken < most && ++taken;
    }
};

struct TcpListener : TcpTarget {
    TcpListener() : TcpTarget(Kind::listener) {}
    tcp::ListenState state;
    tcp::TcpConfig config;  // what accepted connections start with
    FlowTuple tuple;
    void* owner = nullptr;
    uint8_t ttl = 64, tos = 0;
    tcp::FastOpenKeys fast_open_keys;
    PerSecond syns;                                          // VMA_TCP_MAX_SYN_RATE
    List<TcpConnection, &TcpConnection::accept_hook> ready;  // established, not accepted
    ListHook news_hook;
    uint64_t overflows = 0;
    bool detached = false;  // its flows are gone: the kernel's listener answers for the port
};

struct TcpHalfOpen : TcpTarget {
    TcpHalfOpen() : TcpTarget(Kind::half_open) {}
    tcp::HalfOpen record;
    TcpListener* listener = nullptr;
    MacAddr peer_mac{};
    bool steered = false;  // has a 5-tuple flow of its own
};

struct TcpRemains : TcpTarget {
    TcpRemains() : TcpTarget(Kind::time_wait) {}
    tcp::TimeWait record;
    MacAddr peer_mac{};
    uint8_t ttl = 64, tos = 0;
    bool steered = false;
};

// What strangers can make us keep (RFC 4987 section 3.1), and what remains of each connection for a minute.
static_assert(sizeof(TcpHalfOpen) <= 128 && sizeof(TcpRemains) <= 128);

// News for the socket layer, told under the lease.
class TcpSink {
  public:
    // Event bits of stack/tcp/actions.h that happened since the last call; `error` is an errno value with kFailed.
    virtual void tcp_events(TcpConnection& connection, uint32_t events, int error) = 0;
    virtual void tcp_acceptable(TcpListener& listener) = 0;
    // What the socket layer attached to an orphan (orphan_token) is free now: the connection is over.
    virtual void tcp_orphan_gone(uint64_t token) = 0;
    // The descriptor of the socket that owns a connection or listener: shown to whoever steers for the ring.
    virtual int tcp_twin(void* owner) = 0;

  protected:
    ~TcpSink() = default;
};

// Takes segments that came in for a connection which has just gone to the kernel: an IPv4 packet each.
class TcpStrays {
  public:
    virtual void stray(ByteView packet) = 0;

  protected:
    ~TcpStrays() = default;
};

struct TcpEngineCounters {
    uint64_t segments_in = 0, segments_out = 0, resets_sent = 0;
    uint64_t frames_refused = 0;  // by the ring: as good as lost
    uint64_t connections = 0, half_open = 0, time_wait = 0, listeners = 0;
};

// Fast Open of an active open: the SYN asks for a cookie, or carries text where there is one.
struct TcpFirstText {
    const iovec* iov = nullptr;
    size_t count = 0;
    bool hold = false;     // the SYN leaves with send_first_text() only
    bool no_wait = false;  // for the layer above: do not wait until it is connected
    size_t taken = 0;      // out: bytes that the SYN carries
};

class TcpEngine {
  public:
    TcpEngine(Arena& arena, Shard& shard, IsnSecret secret);
    TcpEngine(const TcpEngine&) = delete;
    TcpEngine& operator=(const TcpEngine&) = delete;
    static void set_sink(TcpSink* sink) { sink_ = sink; }

    // ---- frames and time

    // An IPv4 frame that carries TCP, or an ICMP error that quotes it.
    void input(Packet frame, Instant now);
    // What puts fragments of segments together; null, as at first: they are dropped.
    void set_reassembly(Reassembly4* reassembly) { reassembly_ = reassembly; }
    // After a batch of frames: sends what they caused, tells the sink.
    void flush(Instant now);
    // Runs what is due; flush() is included.
    void run_deadlines(Instant now);
    Instant next_deadline() const { return heap_size_ ? heap_[0]->heap_at : Instant::never(); }
    // Neighbours were resolved or moved: connections that wait for one go on.
    void neighbors_changed(Instant now);

    // ---- for the socket layer

    // Is the tuple free for connect()?
    bool may_connect(const FlowTuple& tuple, Instant now);
    // Active open. The tuple is free and the flow steered by the engine. EADDRNOTAVAIL: in use (TIME_WAIT included, unless
    // it may be reused); EADDRINUSE: steered by somebody else; ENOMEM; else as Ring::steer: the kernel can still serve it.
    Result<TcpConnection*> connect(const FlowTuple& tuple, const tcp::TcpConfig& config,
                                   const TcpPath& path, NetworkMonitor& monitor, void* owner,
                                   Instant now, TcpFirstText* first = nullptr);
    // Would a SYN to this address carry text?
    bool has_cookie(const IpAddr& remote, Instant now);
    // The SYN of a connection that was opened with `hold`, with as much of the text as it takes.
    void send_first_text(TcpConnection& connection, TcpFirstText& first, Instant now);
    // A listener for tuple.local; flows are steered for each of `addresses`.
    Result<TcpListener*> listen(const Endpoint& local, const tcp::TcpConfig& config,
                                uint32_t backlog, NetworkMonitor& monitor, void* owner);
    // Embryos vanish, connections that wait to be accepted are reset, as Linux does. What still comes for one that was
    // detached is dropped: the peer repeats it, and the kernel's listener answers.
    void close_listener(TcpListener& listener, Instant now);
    // The listener's flows go: connections and half-open ones that live under them get one of their own (half-open ones
    // beyond kMostKept vanish). It is still there for accept(), and a SYN that comes late is still answered.
    void detach_listener(TcpListener& listener);
    static constexpr unsigned kMostKept = 1024;
    // The connection was handed to the kernel: it vanishes here without a segment, and segments of it that are on their way
    // are dropped instead of answered. One that waits to be accepted leaves its listener's queue.
    void forget(TcpConnection& connection, Instant now);
    // Before that: a flow of its own for one that lives under its listener's, where the hook lets the kernel have the segments
    // of a connection as soon as it knows it: a half-restored one would take and acknowledge them. If it cannot be had, all stays as
    // it is.
    void own_flow(TcpConnection& connection);
    // For a process whose connections nobody would rescue: gives `most` of the accepted ones that were here at the last call a flow of
    // their own, in which whoever cleans up after it finds their peers.
    void own_flows(unsigned most);
    // Would that find any, sooner or later? Without the lease.
    bool has_young() const { return has_young_.load(std::memory_order_relaxed); }
    // While set, such segments are given to `strays` instead of dropped.
    void divert_strays(TcpStrays* strays) { strays_ = strays; }
    // A connection comes from the kernel, first half: its frames come here from now on, and what the kernel makes for it is
    // dropped. EADDRINUSE: the tuple is known here; else as Shard::steer. The lease is held until adopt() or release_flow().
    Status take_flow(const FlowTuple& tuple, int twin);
    // It stays with the kernel; segments that were caught are strays as after forget().
    void release_flow(const FlowTuple& tuple, Instant now);
    // Second half, after take_flow(). EINVAL: the snapshot contradicts itself; ENOMEM. The flow is still taken then.
    Result<TcpConnection*> adopt(const FlowTuple& tuple, const tcp::Snapshot& snapshot,
                                 ByteView to_send, ByteView unread, const tcp::TcpConfig& config,
                                 const TcpPath& path, NetworkMonitor& monitor, void* owner,
                                 Instant now);
    // ---- to the ring of another lane, under both leases (tcp_moves.cc)
    // Nothing is under way with it that a snapshot would lose: no text out of order, no recovery, no end of a direction.
    static bool may_move(const TcpConnection& connection);
    // The frames of a connection of `from` come here from now on, where it is not yet: adopt() follows, or return_flow_of().
    // EADDRINUSE: the tuple is known here; EOPNOTSUPP and others: as Ring::take_flow.
    Status take_flow_of(const TcpConnection& connection, const Shard& from);
    void return_flow_of(const TcpConnection& connection, Shard& from, Instant now);
    // After adopt(): what the snapshot leaves out; and the engine that had it forgets it, but for its flow.
    static void moved_in(TcpConnection& connection, const TcpConnection& from);
    void moved_out(TcpConnection& connection, Instant now);
    // The oldest established connection, or null; the caller becomes its owner.
    TcpConnection* accept(TcpListener& listener, void* owner);

    // The process of the other end is gone, and what it sent was received: connections for which `of` holds end as the
    // kernel would have ended them for it, in order or by a reset if something was under way.
    template <class Of>
    void peers_gone(Of&& of, Instant now) {
        List<TcpConnection, &TcpConnection::output_hook> gone;
        demux_.for_each([&](TcpTarget& target) {
            if (target.kind != TcpTarget::Kind::connection) return;
            auto& c = static_cast<TcpConnection&>(target);
            if (!of(c.tuple)) return;
            c.output_hook.unlink();
            gone.push_back(c);
        });
        while (TcpConnection* c = gone.pop_front()) peer_gone(*c, now);
        flush(now);
    }
    // A connection with `held` set goes on.
    void release_hold(TcpConnection& connection, Instant now);
    // It keeps its place here, but nothing reaches it and it sends nothing; and back.
    void leave_ring(TcpConnection& connection);
    void stay_in_ring(TcpConnection& connection, Instant now);
    TcpConnection* find(const FlowTuple& tuple);

    // ---- text past the segments, on a ring that has a TextLane (tcp_text.cc)
    void set_text_lane(TextLane* lane) { lane_ = lane; }
    bool has_text_lane() const { return lane_ != nullptr; }
    // From now on text of `connection` may come so. Its tag for the other end; 0: it comes in segments only.
    uint32_t open_text(TcpConnection& connection);
    // The other end has said its tag; 0: it takes segments only.
    static void set_text_to(TcpConnection& connection, uint32_t tag) { connection.text_to = tag; }
    // As much of the text as may leave so now: bytes taken, 0: the rest takes the usual way. `last`: the program has no more.
    size_t send_text(TcpConnection& connection, const iovec* iov, unsigned count, bool last,
                     Instant now);
    // A packet that the lane brought.
    void text_input(Packet text, Instant now);
    // The same packet as a frame, for who looks at frames: its head; 0: nobody's.
    uint32_t head_of_text(const PacketBuf& text, std::span<uint8_t, 14 + 20 + 60> to) const;
    // What has left so with numbers in [from, until) and the other end has not read, appended to `out`. False: not all of it can
    // be had.
    bool unread_text(const TcpConnection& connection, Seq from, Seq until,
                     std::vector<uint8_t>& out) const;
    // Of a connection that leaves the ring: has text come so since?
    bool has_unread_text(const TcpConnection& connection) const;

    // The socket has let go (after tcp::close or tcp::abort on the Tcb): the connection lives on until it is over.
    // `token`, if not 0, comes back through tcp_orphan_gone.
    void release_owner(TcpConnection& connection, uint64_t token, Instant now);
    // The route of a live connection changed on its interface: another neighbour, or `mtu` smaller than it was.
    void path_changed(TcpConnection& connection, const TcpPath& path, uint32_t mtu, Instant now);
    // After any call into the core that may have made output or moved a deadline.
    void pull(TcpConnection& connection, Instant now);
    // Takes what an entry of the core reported, for calls the socket layer makes itself.
    void absorb(TcpConnection& connection, const tcp::Actions& actions, Instant now);

    static constexpr uint32_t kMaxHead = 14 + 20 + 60;  // Ethernet, IPv4, TCP with options
    // Ethernet, IPv4 and TCP header of the connection's next segment, without options. Returns its length.
    uint32_t header_template(const TcpConnection& connection,
                             std::span<uint8_t, kMaxHead> to) const;
    // Does all that sending `text` in one segment takes, but for the ring: nothing changes. False: it would not leave as one
    // segment now.
    bool rehearse(TcpConnection& connection, const iovec& text) const;

    // Connections without an owner that still have bytes or a FIN on their way: how many, and one for which `want` holds.
    uint64_t unfinished() const;
    template <class Want>
    TcpConnection* find_unfinished(Want&& want) {
        TcpConnection* found = nullptr;
        demux_.for_each([&](TcpTarget& target) {
            if (found || target.kind != TcpTarget::Kind::connection) return;
            auto& c = static_cast<TcpConnection&>(target);
            if (is_unfinished(c) && want(c)) found = &c;
        });
        return found;
    }

    // For salvage.h.
    const Demux<TcpTarget>& table() const { return demux_; }
    tcp::TcpMemory& memory() { return memory_; }
    // VMA_TCP_TIMER_RESOLUTION_MSEC: deadlines are moved on to multiples of it, so that many are one. Zero: none is.
    void set_tick(Duration tick) { tick_ = tick; }
    const TcpEngineCounters& counters() const { return counters_; }
    const DropCounters& drops() const { return drops_; }
    DropCounters& drops() { return drops_; }

  private:
    struct Received;  // a parsed frame

    bool input_unusual(Packet& frame, Tcp4View& view, Instant now);
    void to_connection(TcpConnection& c, Received& r, Instant now);
    void to_listener(TcpListener& l, Received& r, Instant now, Seq iss_above, bool has_iss);
    void to_half_open(TcpHalfOpen& h, Received& r, Instant now);
    void to_time_wait(TcpRemains& w, Received& r, Instant now);
    void icmp(const Packet& frame, Instant now);
    void establish(TcpHalfOpen& h, Received& r, Instant now);
    void open_fast(TcpListener& l, const tcp::ListenVerdict& verdict, Received& r, Instant now);
    TcpConnection* make_accepted(TcpListener& l, const tcp::HalfOpen& record, const MacAddr& mac);
    bool enqueue_accepted(TcpListener& l, TcpConnection& c);
    void note_handshake(TcpConnection& c, Instant now);
    void path_mtu(const IpAddr& remote, uint32_t mtu, Instant now);

    static bool is_unfinished(const TcpConnection& c) {
        // What has been sent by shared memory has arrived, whether this process lives or not.
        if (c.neighbor && c.tcb.snd.fin_sent && tcp::unsent_bytes(c.tcb) == 0) return false;
        return c.owner == nullptr && c.listener == nullptr && c.tcb.state != tcp::State::CLOSED &&
               (c.tcb.out.bytes != 0 || c.tcb.state < tcp::State::FIN_WAIT_2 ||
                c.tcb.state == tcp::State::CLOSING || c.tcb.state == tcp::State::LAST_ACK);
    }
    bool path_ready(TcpConnection& c, Instant now);
    void queue_output(TcpConnection& c);
    void queue_deadline(TcpTarget& target, Instant at);
    void drop_deadline(TcpTarget& target);
    void sift_up(uint32_t i);
    void sift_down(uint32_t i);
    void pull_with_room(TcpConnection& c, Instant now);
    void peer_gone(TcpConnection& c, Instant now);
    // 0, or why the ring did not take it.
    int send_segment(const tcp::SegmentHead& head, const TcpPath& path, const FlowTuple& tuple,
                     uint16_t* ip_id, const tcp::SegmentPlan* plan);
    // The frame with its head in the kMaxHead bytes at `bytes`; one without a head: the options do not fit.
    TxFrame build_segment(const tcp::SegmentHead& head, const TcpPath& path, const FlowTuple& tuple,
                          uint16_t ip_id, const tcp::SegmentPlan* plan, uint8_t* bytes) const;
    void reply(const tcp::SegmentHead& head, const Received& to, uint8_t ttl, uint8_t tos);
    void become_time_wait(TcpConnection& c, Instant now);
    void leave_tuple(TcpConnection& c);
    void close_text(TcpConnection& c);
    void destroy(TcpConnection& c);
    void destroy(TcpHalfOpen& h);
    void destroy(TcpRemains& w);
    void tell(TcpConnection& c);
    Status steer(const FlowTuple& tuple, int twin);
    int twin_of(void* owner) const { return owner && sink_ ? sink_->tcp_twin(owner) : -1; }
    // A flow of its own for a connection that lives under that of `listener`.
    bool steer_accepted(const TcpConnection& c, const TcpListener* listener);
    void unsteer(const FlowTuple& tuple);

    static TcpSink* sink_;
    Arena& arena_;
    Shard& shard_;
    Duration tick_{};
    IsnSecret secret_, timestamp_secret_;
    tcp::TcpMemory memory_;
    Demux<TcpTarget> demux_;
    NetworkMonitor* monitor_ =
        nullptr;  // of the shard's namespace, from the first connect or listen on
    TcpTarget** heap_ = nullptr;
    uint32_t heap_size_ = 0, heap_room_ = 0;
    List<TcpConnection, &TcpConnection::output_hook> output_;
    List<TcpConnection, &TcpConnection::news_hook> news_;
    List<TcpListener, &TcpListener::news_hook> listener_news_;
    List<TcpConnection, &TcpConnection::young_hook> young_, older_;  // since own_flows(), before it
    std::atomic<bool> has_young_{false};
    TcpEngineCounters counters_;
    Reassembly4* reassembly_ = nullptr;
    TextLane* lane_ = nullptr;
    DropCounters drops_;
    PathCache paths_;
    // Tuples, and local ends of listeners (no remote port), that went to the kernel lately: for kForgottenFor, and until what
    // the ring had caught by then is through, however long nobody looks there: a RST would end the kernel's connection.
    static constexpr unsigned kForgotten = 64;
    struct Forgotten {
        FlowTuple tuple;
        Instant until;
        uint64_t empty_polls = UINT64_MAX;  // of the shard then
    };
    Forgotten forgotten_[kForgotten];
    unsigned next_forgotten_ = 0;
    void remember_as_forgotten(const FlowTuple& tuple, Instant now);
    bool counts(const Forgotten& f, Instant now) const;
    TcpStrays* strays_ = nullptr;
    bool was_forgotten(const Received& r, Instant now) const;
    bool listener_was_forgotten(const Received& r, Instant now) const;
    template <class Which>
    void destroy_half_open(TcpListener& listener, Which&& which);
    Rng rng_;
};

}  // namespace vma
