// What the broker does with one client's messages: checks who may act on what, and calls Operations, which do it. No system
// call here, so that a fuzzer can drive it with operations of its own.
//
// The rules. A client may have a connection restored only into a socket that it passes, which must be a TCP socket of the
// broker's network namespace that is not connected. If the socket is bound, the tuple's local port must be its own. If it is
// not (the twin of an accepted connection), the client must be trusted, or must have shown a socket of that port before (its
// listener), or the port must be one that an ordinary bind() by anybody could get now.
//
// A client may have a flow steered only into a ring of its own (one that it was given here, or whose doorbell it has), and only
// for a socket that it passes: of the flow's protocol and of the broker's namespace, bound so that the flow's local end
// is its own. A connected one stands for its own tuple only; a TCP flow of all remotes needs a listener. The twin of an accepted
// connection, which is bound to nothing, needs a port that was shown, or trust, and is for one tuple.
//
// A client may publish an address that its namespace has; what a connection to it is, is shown to whoever introduces the two ends.
//
// Trusted: the client had CAP_NET_ADMIN when its session began and has not said that it gives it up.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "broker/channel.h"
#include "broker/protocol.h"
#include "repair/repair.h"

namespace vma::broker {

struct SocketFacts {
    bool tcp = false;        // AF_INET stream of IPPROTO_TCP
    bool connected = false;  // or connecting, or listening where `listening`
    bool listening = false;
    bool udp = false;
    uint64_t netns_cookie = 0;
    Endpoint local;   // port 0: not bound
    Endpoint remote;  // of a connected one that does not listen
};

// What came of open_ring. The descriptors are the caller's.
struct OpenedRing {
    int fds[kRingFds] = {-1, -1, -1, -1, -1, -1, -1};
    uint32_t slot = 0, token = 0;
};

class Operations {
  public:
    virtual SocketFacts inspect(int fd) = 0;
    virtual uint64_t netns_cookie() = 0;
    // Binds by ordinary rules, without privilege over anybody: EADDRINUSE when the port has an owner.
    virtual Status bind(int fd, const Endpoint& local) = 0;
    // Reads the queues out of a memfd. Valid until the next call.
    virtual Result<ByteView> read_queues(int memfd, uint32_t bytes) = 0;
    // As repair.h. checkpoint() puts the bytes into a new memfd; -1 if there are none.
    virtual Status restore(int twin, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                           RepairOptions& saved) = 0;
    virtual void cancel(int twin, const RepairOptions& saved) = 0;
    virtual Status finish(int twin, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                          const RepairOptions& saved) = 0;
    virtual Status checkpoint(int twin, RepairImage& image, int& memfd) = 0;
    virtual void resume(int twin, const RepairImage& image) = 0;
    virtual Status release(int twin, const RepairImage& image) = 0;
    // Each takes the descriptors that it keeps out of `fds`.
    virtual Status watch(const Watch& watch, Fds& fds) = 0;
    virtual Status hold(const HeldList& list, Fds& fds) = 0;
    virtual void drop(const HeldList& list) = 0;
    virtual void leaving(bool leaves) = 0;
    // Errors: as open_packet_ring(), and EDQUOT: a policy denies it. The ring is the client's from now on, also for its end.
    virtual Status open_ring(const OpenRing& request, OpenedRing& out) = 0;
    // EACCES: the doorbell is not that of the ring in the slot.
    virtual Status show_ring(const ShowRing& ring, int doorbell) = 0;
    // Is it one of the host's own addresses?
    virtual bool has_address(const IpAddr& address) = 0;
    // EKEYREJECTED: the kernel's policy has something to do with such packets. EDQUOT: one of ours denies it. Else as Ring::steer.
    virtual Status steer(const Steer& flow) = 0;
    virtual void unsteer(const Steer& flow) = 0;
    // EDQUOT: the policy gives the client no neighbours. Takes the link out of `fds`.
    virtual Status share(Fds& fds) = 0;
    // ENOLINK: there is no link. EDQUOT: a policy denies the port.
    virtual Status publish(const Endpoint& local) = 0;

  protected:
    ~Operations() = default;
};

struct DispatchCounters {
    uint64_t messages = 0;
    uint64_t malformed = 0;  // after one of these the session ends
    uint64_t refused = 0;    // not this client's to ask for
    uint64_t restored = 0;
    uint64_t rings = 0;  // opened or shown
    uint64_t steered = 0;
    uint64_t failed = 0;
};

class Dispatcher {
  public:
    // `layout`: of this build. `trusted`: the client has CAP_NET_ADMIN.
    Dispatcher(Operations& operations, uint32_t layout, bool trusted)
        : operations_(operations), layout_(layout), trusted_(trusted) {}

    struct Answer {
        bool send = false;
        uint32_t serial = 0;
        Reply reply;
        int fds[kRingFds] = {-1, -1, -1, -1, -1, -1, -1};  // go along; the caller closes them
        unsigned fd_count = 0;
    };
    // One packet. False: the session must end.
    bool message(ByteView packet, Fds& fds, Answer& answer);

    bool trusted() const { return trusted_; }
    // May this client act on a tuple with this local end, of which no socket was passed?
    bool owns_port(const Endpoint& local) const;
    std::span<const Endpoint> proven() const { return {proven_, proven_count_}; }
    const DispatchCounters& counters() const { return counters_; }

    static constexpr unsigned kMostProven = 256;
    static constexpr unsigned kMostRings = 64;

  private:
    bool same_namespace(const SocketFacts& facts) {
        return facts.netns_cookie != 0 && facts.netns_cookie == operations_.netns_cookie();
    }
    Status repair(Op op, Repair& body, Fds& fds, Answer& answer);
    Status restore_or_finish(Op op, const Repair& body, Fds& fds, Answer& answer);
    Status may_restore(int twin, const tcp::Snapshot& snapshot);
    Status may_touch(int twin, const Endpoint* local);
    Status prove(int fd);
    bool has_ring(uint32_t slot) const;
    Status open_ring(const OpenRing& request, Answer& answer);
    Status show_ring(const ShowRing& ring, int doorbell);
    Status may_steer(int twin, const Steer& flow);
    Status steer(const Steer& flow, int twin);
    Status publish(const Endpoint& local);

    Operations& operations_;
    const uint32_t layout_;
    bool trusted_;
    bool greeted_ = false;
    Endpoint proven_[kMostProven];
    unsigned proven_count_ = 0, next_proven_ = 0;
    uint32_t rings_[kMostRings] = {};  // slots
    unsigned ring_count_ = 0;
    uint32_t lent_bytes_ = 0;
    DispatchCounters counters_;
};

}  // namespace vma::broker
