// TcpSocket: a TCP socket of the program. A connection lives in exactly one shard; a listener listens in the shards of all
// interfaces that its address covers and, on its twin, for everything else (loopback, other interfaces).
//
// The twin of an active open is bound (it reserves the port) and never connected; the twin of an accepted connection is a
// fresh socket that only gives the descriptor its identity.
#pragma once

#include <array>

#include "base/own_fd.h"
#include "broker/protocol.h"
#include "config/rules.h"
#include "engine/runtime.h"
#include "engine/tcp_engine.h"
#include "sock/handover.h"
#include "sock/moving_shard.h"
#include "sock/slab.h"
#include "sock/socket.h"
#include "stats/publisher.h"

namespace vma {
struct RepairImage;
enum class ShmWord : uint32_t;
struct ShmMessage;
}  // namespace vma
namespace vma::sock {

class Epoll;
struct Crossing;

// Where a connection of the kernel is on its way into the shm ring (tcp_cross.cc).
enum class Cross : uint8_t {
    none,
    wanted,    // this side is about to offer it
    offered,   // and has
    invited,   // the other side has
    settling,  // no call gets to the kernel any more; what is there is taken out
};

class TcpSocket final : public Socket {
  public:
    static TcpSocket* create(int fd, int type, int protocol);  // null: no memory
    static void destroy(TcpSocket* socket);
    void preset_options(int fd);

    Outcome bind(int fd, const sockaddr* addr, socklen_t len);
    Outcome connect(int fd, const sockaddr* addr, socklen_t len) {
        return connect(fd, addr, len, nullptr);
    }
    Outcome listen(int fd, int backlog);
    Outcome accept(int fd, sockaddr* addr, socklen_t* len, int flags);
    Outcome shutdown(int fd, int how);
    Outcome get_name(bool peer, sockaddr* addr, socklen_t* len);
    Outcome set_option(int fd, int level, int name, const void* value, socklen_t len);
    Outcome get_option(int fd, int level, int name, void* value, socklen_t* len);
    Outcome ioctl(int fd, unsigned long request, void* arg);

    Outcome send(int fd, const msghdr* msg, int flags);
    size_t fire(int fd, SendTemplate& t) override;
    void warm_up();  // all of a send but the sending, if it is possible now
    Outcome receive(int fd, msghdr* msg, int flags, Taker* taker = nullptr);
    Outcome sendfile(int fd, int in_fd, off_t* offset, size_t count);

    uint64_t lanes() const override;
    uint32_t poll_events() override {
        return state() == SocketState::kernel
                   ? settling() ? 0 : twin_events()
                   : ready_.load(std::memory_order_acquire) | listener_events();
    }
    void teardown() override;
    void kept_returned(Shard& shard, const Kept& kept) override;
    void set_screen(const Screen& screen) override;
    bool unscreened() override;
    Showing show_one(AskProgram ask) override;
    bool complete(Completions& out) override;
    void keep_order() override;
    // SO_VMA_MESSAGES: one message, one segment (stack/tcp/messages.h).
    static constexpr uint8_t kMessageSend = 1, kMessageReceive = 2;
    void set_messages(uint8_t bits);
    uint8_t messages();
    void list_unread(Unread& out) override;
    // SO_LINGER with a time: before the descriptor goes, waits until everything is acknowledged or the time is over.
    void linger();
    // A listener is served by the kernel until this process shows that it accepts here (process-model.md section 4).
    void activate_listener(int fd);
    void become_kernel(Reason why);
    void become_twin_in_child() override;
    // Mid-stream: the connection moves into the twin (TCP_REPAIR), or a listener back to the kernel. False: it stays here
    // (no capability, or a state that cannot be moved), and a log line says so.
    bool hand_back(Reason why) override;
    // Links, addresses, routes or the kernel's policy changed: a connection whose way leads elsewhere now, or through rules
    // of the kernel, goes back to it; a listener under rules, too.
    void network_changed();
    bool has_lost_its_device();  // is it on a ring whose device is gone?
    // A listener that this process serves, or would from its first accept on, is served by the kernel from now on.
    void listener_to_kernel(Reason why);
    // A listener that could not hand over all connections that wait resets them and is the kernel's altogether.
    void drop_waiting(Reason why);
    // ---- Connections that waited when their listener became the kernel's (handover.h)
    // Those that were half open then and are not any more.
    void hand_over_late();
    Handover* handed_over() const { return handover_.load(std::memory_order_acquire); }
    // The kernel has accepted the stand-in `fd` from the listener of `handover`: the descriptor of the connection it stands
    // for, and its peer's name; -1: nothing was behind it, and it is closed.
    static int settle_accepted(Handover& handover, int fd, Endpoint& peer, int flags);
    // The inherited listener `fd` of the program before exec, whose handover has `reader`.
    static void inherited_by_exec(int fd, int reader);
    // Before fork: the child may need the words to ask for a hand-back; listeners go back to the kernel, unless the child
    // will only exec.
    void prepare_fork(bool only_exec);
    // After prepare_fork(): what the broker must know to give this connection to a child if this process is killed. False:
    // nothing, or it knows.
    bool shared_with_child(broker::Held& out, int& twin);
    bool is_listener() const {
        const Phase phase = phase_.load(std::memory_order_acquire);
        return phase == Phase::kernel_listener || phase == Phase::listening;
    }
    // For a listener of a program that is about to lose the privilege to open rings: opens those of all interfaces with an
    // address. The listener's own may be another process's (SO_REUSEPORT: adoption needs the ring), and a proxy connects
    // by other interfaces than it listens on.
    void open_rings(int fd);
    // ---- From the kernel (tcp_adopt.cc)
    // The kernel's listener `listener`, a descriptor, has made `fd`: a connection that may be adopted later. `flags` are
    // accept4's.
    static void accepted_by_kernel(int listener, int fd, int flags);
    // Now, if it can be: true when the connection is offloaded afterwards. Not under any lock.
    bool adopt(int fd);
    // A connection in the kernel that is adopted once it has been used enough.
    bool may_be_adopted() const { return adopt_after_.load(std::memory_order_relaxed) >= 0; }
    // Adopted by adopt() only, also after a hand-back. For tests of both directions.
    void adopt_on_request() { adopt_after_.store(kOnRequest, std::memory_order_relaxed); }
    // Keeps the socket where it is while a call that was sent to the kernel is there. False: it is not the kernel's (any
    // more). Ended by unpin_in_kernel().
    bool pin_in_kernel();
    void unpin_in_kernel() {
        if (kernel_calls_.fetch_sub(1, std::memory_order_seq_cst) == 1 && crossing())
            Runtime::poke();
    }
    // EPOLL_CTL_* on a socket that may be adopted; false: it is offloaded, ask the set itself.
    bool epoll_control(Epoll& epoll, int op, int fd, epoll_event* event, int* error);

    // ---- Into the shm ring (tcp_cross.cc). While crossing() no call blocks in the kernel, while settling() none is there.
    int crossing_twin() const { return cross_twin_.fd(); }
    // Does all that was sent lie in memory which its other end keeps when this process ends, and does nobody else need the twin?
    bool outlives_the_process();
    bool crossing() const { return cross_.load(std::memory_order_acquire) != Cross::none; }
    bool settling() const { return cross_.load(std::memory_order_acquire) == Cross::settling; }
    bool is_connection(const FlowTuple& tuple);
    void shm_said(uint64_t from, const ShmMessage& message, int memory);
    void shm_gone(uint64_t peer);
    void cross_turn();
    // The program's last descriptor is about to be closed, and a thread may still be at work with the socket: on the way
    // into the shm ring, or in it, the twin is needed for as long.
    void keep_twin();

    // [lease] From the engine.
    void on_events(uint32_t events, int error);
    void on_acceptable(const TcpListener& listener);

    const char* ring_kind() const {
        return shard_             ? shard_->ring_kind()
               : listeners_count_ ? listeners_[0].shard->ring_kind()
                                  : "";
    }
    Endpoint local() const { return local_; }
    Endpoint remote() const { return remote_; }
    const char* state_text() const;
    unsigned ring_fds(std::span<int> out) override;
    int send_ring_fd(const Endpoint* to) override;
    uint32_t network_header(std::span<uint8_t, kMostHeaders> out) override;
    // Without what its peer says a connection cannot go on: it becomes the kernel's.
    bool stop_receiving() override { return hand_back(Reason::unsupported_option); }
    Shown show() override;
    void publish_all() override;
    void dump(LogLevel at) override;

  private:
    friend class TcpTransfer;
    enum class Phase : uint8_t { fresh, kernel_listener, listening, connecting, connected };
    static constexpr unsigned kMaxListeners = 8;
    static constexpr unsigned kMaxKeys = 64;
    struct Listening {
        Shard* shard = nullptr;
        TcpListener* listener = nullptr;
    };

    TcpSocket(uint32_t generation_number, int fd, int socket_type, int socket_protocol)
        : Socket(ObjectKind::tcp, generation_number, fd, AF_INET, socket_type, socket_protocol) {}

    // Where a connection to `to` goes and who carries it.
    struct Way {
        TcpPath path;
        Endpoint local;
        uint32_t mtu = 1500;
        Shard* shard = nullptr;
    };
    // Why the kernel has to serve a connection of this socket to `to`, or none and the way. `role`: whose rules decide.
    Reason obstacle(int fd, const Endpoint& to, Role role, Way& way);
    // The parts of it: the route; what of the kernel would have touched the packets.
    Reason find_way(int fd, const Endpoint& to, Way& way);
    Reason kernel_interferes(int fd, const Endpoint& to, Role role, const Way& way);
    Reason reason_to_leave(Way& way);
    Reason listener_reason_to_leave();
    Outcome connect(int fd, const sockaddr* addr, socklen_t len, TcpFirstText* first);
    Outcome disconnect();
    // ---- Fast Open (tcp_fast_open.cc)
    // A send on a socket whose SYN has not left: with MSG_FASTOPEN, or after TCP_FASTOPEN_CONNECT. False: nothing for it here,
    // go on; `sent`: bytes that the SYN carries.
    bool send_fast(int fd, const msghdr* msg, int flags, size_t* sent, Outcome* out);
    void apply_fast_open(TcpListener& listener) const;
    void take_fast_open_key(const void* value, socklen_t len);
    Outcome wait_connected(int on_timeout);
    Outcome connect_result();
    Outcome rehearse(const msghdr* msg, int flags);
    Packet keep_frame();
    void take_pieces(Completion& done);
    void cut_piece(Completion& done);
    bool accept_all(Completions& out);
    bool accept_one(int fd, sockaddr* addr, socklen_t* len, int flags, Outcome* out);
    void note_received(size_t bytes, bool peeked = false);  // [lease]
    // [lease] Unread text that waits for the callback: all of it or none. While something is readable, what comes joins it.
    bool held_by_screen() const {
        return screening.on() && !passing_ && tcp::unread_bytes(connection_->tcb) > 0;
    }
    bool something_to_show() const {
        return connection_ != nullptr && !connection_->leaving && held_by_screen();
    }
    // [lease] Bytes that a reader may have.
    uint32_t readable_bytes() const {
        return held_by_screen() ? 0 : tcp::unread_bytes(connection_->tcb);
    }
    // [lease] The connection is another one, and may have brought text.
    void screen_connection();
    void
    stamp_connection();  // [lease] its text stays in the frames that brought it, if that is wanted
    bool reads_messages() const { return (options_.messages & kMessageReceive) != 0; }
    // [lease] Some were read.
    void note_read() {
        if (tcp::unread_bytes(connection_->tcb) == 0) passing_ = false;
    }
    Outcome connect_again();
    void drop_failed_connection();
    uint16_t take_port(int fd, const IpAddr& from, const Endpoint& to, Shard& shard);
    void end_connection();  // control_ held
    void close_listeners();
    void options_to_twin(int fd) const;
    void inherited_options_to_twin(int fd);
    void apply_options(tcp::TcpConfig& config) const;
    void config_changed(bool acknowledge_owed = false);
    bool turn_switch(int fd, int level, int name, const void* value, socklen_t len);
    bool apply_option(int fd, int level, int name, const void* value, socklen_t len);
    bool apply_socket_option(int fd, int name, int n, const void* value, socklen_t len);
    void update_ready();  // [lease]
    uint32_t listener_events();
    int take_error();  // so_error, once
    TcpSocket* accept_from_ring(int fd, int flags, int* new_fd, int* error);
    bool kernel_listener_readable(int fd);
    stats::SocketIdentity identity() const;
    void publish_state();

    Reason cross_wanted(Reason why);
    bool cross_begin(Cross how);
    void cross_over();
    void cross_broken();
    void cross_cancel();
    bool freeze();
    bool read_names();
    bool drain_twin(uint64_t written);
    void say(ShmWord word);
    uint32_t text_tag();
    void set_text_to(uint32_t tag);
    void choose_numbers();
    void offered_by(uint64_t from);
    void accept_offer();
    void accepted_by(uint64_t from, const ShmMessage& message);
    void committed_by(uint64_t from, const ShmMessage& message);
    bool enter_ring(const ShmMessage& theirs, bool held);
    bool leaving() const;  // out of the shm ring, just now
    Reason memory_forbidden();
    bool leave_ring(Reason why, const ShmMessage* request, int memory);
    void refused_in_ring();
    bool wait_in_kernel(uint32_t events, Duration timeout, Outcome* out);
    bool receive_while_crossing(msghdr* msg, int flags, Outcome* out);
    bool send_while_crossing(const msghdr* msg, int flags, size_t* sent, Outcome* out);
    bool hand_back_connection(Reason why);
    // tcp_move.cc: the connection follows who uses it.
    enum class Moved : uint8_t { yes, not_now, refused };
    void follow_user(SocketRings::Direction d);
    bool may_move() const;
    Moved move_to(Shard& to);
    TcpConnection* copy_to(Shard& to, TcpConnection& c, Instant now);
    broker::Held in_custody() const;  // what names this connection to the broker
    void end_custody(const broker::Held& held);
    // A data call is about to go to the kernel: is it time?
    bool adoption_due();
    static void publish_port(int accepted);
    Reason adopt_now(int fd);  // control_ held; none: done, undecided: not now
    Reason read_in(int fd, Way& way);
    void take_options(int fd, const RepairImage& image);
    void never_adopt() { adopt_after_.store(-1, std::memory_order_relaxed); }
    // Is this the kernel's? Then *out sends the call there, pinned if need be.
    bool in_kernel(Outcome* out);
    uint32_t twin_events() const;  // readiness of the twin, asked of the kernel
    void unsteer_listener();
    bool room_for_flow();  // another one in steered_
    bool connections_wait();
    void hand_back_listener(Reason why, bool share);
    static TcpConnection* first_waiting(const Listening& at);
    bool hand_over(Reason why);
    bool half_open_left();
    void offer_to_spawned();
    void end_listening(Reason why);

    NetSpace* space_ = nullptr;
    std::atomic<Phase> phase_{Phase::fresh};
    MovingShard shard_;
    TcpConnection* connection_ = nullptr;
    std::atomic<bool> keeps_order_{false};
    bool passing_ = false;  // [lease] the callback let through what is unread
    Packet shown_;          // [lease] what the callback looks at, once the queue has dropped it
    Endpoint local_, remote_;
    std::array<Listening, kMaxListeners> listeners_;
    unsigned listeners_count_ = 0;
    struct Steered {
        Shard* shard = nullptr;
        FlowKey key;
    };
    // kMaxKeys of them, taken with the first and given back with the socket: a connection, of which there are many, does
    // without these 4 KiB.
    Steered* steered_ = nullptr;
    unsigned steered_count_ = 0;
    std::atomic<Handover*> handover_{nullptr};
    bool fading_ =
        false;  // the kernel's already, but half-open connections still end their handshake here
    uint64_t network_generation_ = 0;  // under which the way was last looked at
    int backlog_ = 0;
    std::atomic<bool> syn_held_{false};  // TCP_FASTOPEN_CONNECT: the SYN waits for text
    bool bound_ = false;
    bool in_custody_ = false;  // the broker holds the twin for the children of this process
    bool accepted_ = false;    // the twin holds no port
    // Data calls until the connection is adopted; negative: never. Calls that are in the kernel now hold kernel_calls_, and
    // moving_ keeps new ones out.
    static constexpr int32_t kOnRequest = INT32_MAX;
    std::atomic<int32_t> adopt_after_{-1};
    std::atomic<uint32_t> kernel_calls_{0};
    std::atomic<bool> moving_{false};
    std::atomic<Cross> cross_{Cross::none};
    uint8_t cross_attempts_ = 0;
    Crossing* crossing_ = nullptr;  // while crossing()
    // A duplicate of the twin for the calls of that time: they go on when the program closes its descriptor. Kept after an
    // attempt that failed, because a call may still be using it; and see keep_twin().
    OwnFd cross_twin_;
    bool connect_reported_ = false;  // the first connect() after an asynchronous one has answered

    std::atomic<uint32_t> ready_{EPOLLOUT | EPOLLWRNORM |
                                 EPOLLHUP};  // as Linux reports a fresh socket
    std::atomic<uint32_t> acceptable_{0};    // bit i: connections wait in listeners_[i]
    std::atomic<int> so_error_{0};
    std::atomic<bool> read_shutdown_{false}, write_shutdown_{false};
    std::atomic<bool> shut_while_fresh_{
        false};  // shutdown() for reading before there was a connection
    std::atomic<int64_t> sndtimeo_ns_{0};
    std::atomic<int> receive_low_water_{1};

    // Options, kept for connections that are made later (and inherited by accepted ones).
    struct {
        bool nodelay = false, cork = false, quickack = true, keepalive = false;
        uint8_t messages = 0;                          // SO_VMA_MESSAGES
        bool poll_on_send = false;                     // VMA_RX_POLL_ON_TX_TCP
        int keepidle = 0, keepintvl = 0, keepcnt = 0;  // 0: sysctl
        int user_timeout_ms = 0, max_seg = 0, sndbuf = 0, rcvbuf = 0, syncnt = 0, linger2 = 0,
            window_clamp = 0;
        int linger_on = 0, linger_seconds = 0;
        int congestion = -1;      // CcKind
        int defer_accept = 0;     // as TcpConfig's
        int fast_open_queue = 0;  // TCP_FASTOPEN
        bool fast_open_connect = false, fast_open_no_cookie = false;
        tcp::FastOpenKeys fast_open_keys;  // count 0: sysctl
        uint32_t notsent_lowat = 0;        // 0: sysctl
        int ttl = 0, tos = 0;
        uint64_t pacing = 0;
        bool reuseaddr = false;
        int priority = 0, mark = 0;
    } options_;
    // False: the twin of a connection has not been told yet what it inherited from its listener, or what turn_switch() set; only
    // getsockopt() and a move ask it.
    bool twin_has_options_ = true;

    SpinGovernor read_governor_, write_governor_;
    stats::RowHandle row_;
};

// [lease] The connection into `fd`; it is gone from the engine afterwards. False: nothing has changed. The ring was drained
// just now.
bool move_to_kernel(Shard& shard, TcpConnection& c, int fd, Reason why);
void tcp_hand_over_late();  // all of them
void tcp_handover_forget_in_child();

void tcp_forget_in_child();
// The descriptor that keeps the port of an orphan, or -1; the orphan is over.
int held_port(uint64_t token);
void give_port(uint64_t token);
void tcp_close_forget_in_child();
// Orphans with data or a FIN on the way become the kernel's, as far as they can. For process exit.
void tcp_orphans_to_kernel();
// Orphans with data that is not acknowledged: waits until they are done, at most `bound`. For process exit.
void tcp_drain_orphans(Duration bound);
TcpSink& tcp_sink();

}  // namespace vma::sock
