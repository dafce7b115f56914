// Socket: the POSIX half of a socket of the program: the kernel twin, who serves it, options that the library must know,
// readiness. Protocol state is in endpoints of shards (udp_socket.h). One Socket per open description.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <span>

#include "base/ip_addr.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/reason.h"
#include "engine/shard.h"
#include "sock/api.h"
#include "sock/latency.h"
#include "sock/pollable.h"
#include "sock/screen.h"
#include "sock/send_template.h"
#include "sock/socket_rings.h"
#include "sock/wait.h"
#include "sock/xtreme.h"
#include "stats/layout.h"

namespace vma::sock {

enum class SocketState : uint8_t {
    undecided,  // nothing offloaded yet; every call goes to the twin
    offloaded,  // at least one endpoint is in a shard
    kernel,     // for good: reason() says why
};

// Counters of one socket, written by the threads that use it (relaxed; a lost increment under contention is accepted).
struct SocketCounters {
    std::atomic<uint64_t> rx_packets{0}, rx_bytes{0}, rx_eagain{0}, rx_errors{0};
    std::atomic<uint64_t> rx_os_packets{0}, rx_os_bytes{0};
    std::atomic<uint64_t> tx_packets{0}, tx_bytes{0}, tx_eagain{0}, tx_errors{0};
    std::atomic<uint64_t> tx_os_packets{0}, tx_os_bytes{0};
    std::atomic<uint64_t> rx_zcopy{0}, rx_kept{0}, rx_callback{0}, tx_dummy{0};
    std::atomic<uint64_t> rx_migrations{0}, tx_migrations{0}, migrations_refused{0};
    static void add(std::atomic<uint64_t>& counter, uint64_t n) {
        counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    stats::SocketNumbers snapshot() const;  // for viewers; the queues are the caller's
};

struct ShareRecord;
class Unread;

class Socket : public Pollable {
  public:
    Socket(ObjectKind object_kind, uint32_t generation_number, int fd, int socket_domain,
           int socket_type, int socket_protocol)
        : Pollable(object_kind),
          domain(socket_domain),
          type(socket_type),
          protocol(socket_protocol),
          generation(generation_number),
          fd_(fd) {
        if (log_enabled(LogLevel::debug)) latency.turn(true);
        if (!Xtreme::on()) return;
        xtreme.socket = this;
        watch.set_turn(xtreme);
    }

    const int domain, type, protocol;
    const uint32_t generation;  // of the record: tells a recycled one from the one an event was for
    SocketCounters counters;
    LatencySwitch latency;

    SocketState state() const { return state_.load(std::memory_order_acquire); }
    Reason reason() const { return reason_.load(std::memory_order_relaxed); }
    bool nonblocking() const { return nonblocking_.load(std::memory_order_relaxed); }
    void set_nonblocking(bool on) { nonblocking_.store(on, std::memory_order_relaxed); }

    // A descriptor of the twin that is open now; the number changes when the program dups and closes.
    int fd() const { return fd_.load(std::memory_order_relaxed); }
    void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }

    // dup and close of a descriptor of this open description.
    void descriptor_added() { descriptors_.fetch_add(1, std::memory_order_relaxed); }
    // True: it was the last one.
    bool descriptor_closed(int fd);
    bool is_open() const { return descriptors_.load(std::memory_order_relaxed) != 0; }

    // The epoll set of twins reported `events` for the record with this generation. True if it was for this socket.
    bool twin_event(uint16_t generation_low, uint32_t events);

    Duration receive_timeout() const {
        return {rcvtimeo_ns_.load(std::memory_order_relaxed)};
    }  // 0: none
    // For viewers: state, counters and queue.
    struct Shown {
        stats::SocketIdentity id;
        stats::SocketNumbers numbers;
        stats::TcpNumbers tcp;
    };
    virtual Shown show() = 0;
    // The same into the statistics page.
    virtual void publish_all() = 0;
    // ---- Packets that the program has (kept.cc)
    // [lease of `shard`] From here on; the id by which it is given back. `packet` is the pool's, its meaning in Kept.
    void* keep(Shard& shard, Packet packet, uint32_t charge, Seq connection = {});
    // False: this socket has given out none of this id.
    bool give_back(const void* id);

    // ---- SocketXtreme (xtreme.h)
    XtremeTurn xtreme;
    // Puts the packets and connections of its rings out. False: there is more, and no room or no memory for it now.
    virtual bool complete(Completions& out) = 0;
    // [lease of `shard`] A packet of it that was lent has come back.
    void piece_returned(Shard& shard, const Kept& kept);

    // ---- Ordered waits (epoll_order.h)
    // From now on what arrives keeps the moment of its arrival until it is read.
    virtual void keep_order() {}
    virtual void list_unread(Unread& out) = 0;

    // ---- SO_VMA_USER_DATA, SO_VMA_FLOW_TAG: kept for the program
    std::atomic<uint64_t> user_data{0};
    std::atomic<bool> has_user_data{false};
    std::atomic<uint32_t> flow_tag{0};
    std::atomic<int> ring_profile{0};  // SO_VMA_RING_ALLOC_LOGIC: the key; 0: not set

    SocketRings rings;

    // ---- Templates (send_template.h): from the first on; given up with the socket
    std::atomic<SendTemplates*> templates{nullptr};
    // Sends the text of `t`, which the caller has entered; how many bytes of it. The rest, perhaps all, is for send().
    virtual size_t fire(int fd, SendTemplate& t) = 0;

    // ---- Receive callback (screen.h)
    Screening screening;
    // A callback, or none: what it has not seen is readable then.
    virtual void set_screen(const Screen& screen) = 0;
    // Shows all that waits for the callback, unless another thread is at it. True: something was shown. No lock is held.
    using AskProgram = ScreenAnswer (*)(const Screen&, const ShownPacket&);
    bool show_waiting(AskProgram ask);

    // ---- For the extra API (udp_rings.cc, tcp_rings.cc)
    // Doorbells of the rings that receive for it into `out` as far as there is room; how many there are.
    virtual unsigned ring_fds(std::span<int> out) = 0;
    // That of the ring by which it sends to `to`, null: its peer; or -1: none.
    virtual int send_ring_fd(const Endpoint* to) = 0;
    // The headers of what it sends to its peer, lengths and checksums left open; 0: there is none, or it goes by the kernel.
    static constexpr uint32_t kMostHeaders = 64;
    virtual uint32_t network_header(std::span<uint8_t, kMostHeaders> out) = 0;
    // SO_VMA_SHUTDOWN_RX: no ring receives for it from now on. False: not possible.
    virtual bool stop_receiving() = 0;
    // State for a human reader into the log: lines that begin with two spaces.
    virtual void dump(LogLevel at) = 0;
    // The process ends with the socket open: see stats_closed(), which has each socket once.
    void tell_what_it_did();
    bool told = false;  // [control_] that was done
    // Called when the last descriptor is closed: everything of it in shards goes.
    virtual void teardown() = 0;
    // From now on the kernel's: mid-stream, nothing lost. False: not possible now, the socket stays here (a log line says why).
    virtual bool hand_back(Reason why) = 0;
    void forget_locks_in_child() override {
        Pollable::forget_locks_in_child();
        new (&control_) std::mutex;
        rings.forget_in_child();
        screening.forget_in_child();
        xtreme.forget_in_child();
        if (SendTemplates* const t = templates.load(std::memory_order_acquire))
            t->forget_in_child();
    }
    // In a forked child: the twin is all there is.
    virtual void become_twin_in_child() = 0;
    // Words that a forked child shares with the owner (fork.h), or null.
    ShareRecord* share() const { return share_.load(std::memory_order_acquire); }
    // In a child: the owner shall hand the socket back; false: that is said already. Has he, or is he through with it?
    bool ask_share() const;
    bool share_answered() const;
    // In the owner: does a child wait for an answer?
    bool share_asked() const;
    // In the owner: children that wait may use the twin. It is the kernel's now, or cannot become that at the moment.
    void answer_share(bool moved);
    // In the owner: the socket is the library's again. Children that use it from here on ask.
    void reopen_share();

  protected:
    ~Socket() = default;
    // [lease of `shard`] Gets such words if it has none and there is memory.
    void take_share(Shard& shard);
    // The owner is through with the socket: whoever waits for an answer has it. No lease is held.
    void give_share();
    // [lease of `shard`] As keep(), for SocketXtreme; `text` lies in the packet. lend_copy(): it fills no buffer of the socket.
    PacketPiece& lend(Shard& shard, Packet packet, const iovec& text, uint32_t charge,
                      Seq connection = {});
    static PacketPiece& lend_copy(Shard& shard, Packet packet, const iovec& text);
    // The program has closed the socket: what it still has is the pool's again, but for what SocketXtreme has lent.
    void reclaim_kept();
    // Is there something to show?
    virtual bool unscreened() = 0;
    // Shows one packet. stuck: there is one, and no memory for it; it waits for the next.
    enum class Showing : uint8_t { nothing, one, stuck };
    virtual Showing show_one(AskProgram ask) = 0;
    // [lease of `shard`] Room in the receive buffer that a packet took.
    virtual void kept_returned(Shard& shard, const Kept& kept) = 0;
    // One line for the log: at info when the user would not expect it, else at debug.
    void tell_served_by_kernel(Reason why) const;
    // Something may be readable or in error on the twin: look before relying on it.
    std::atomic<bool> kernel_news_{false};
    std::atomic<bool> twin_error_{false};  // the twin reported EPOLLERR: SO_ERROR may be set
    std::atomic<SocketState> state_{SocketState::undecided};
    std::atomic<Reason> reason_{Reason::undecided};
    std::atomic<bool> nonblocking_{false};
    std::atomic<int64_t> rcvtimeo_ns_{0};
    std::atomic<ShareRecord*> share_{nullptr};
    uint32_t share_serial_ = 0;  // of *share_ when this socket got it; a child has a copy
    std::atomic<int> fd_;
    std::atomic<uint32_t> descriptors_{1};
    std::mutex
        control_;  // bind, connect, options, hand-back of this socket; before the shard lease
};

}  // namespace vma::sock
