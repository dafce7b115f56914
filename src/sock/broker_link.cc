#include "sock/broker_link.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/clock.h"
#include "base/high_fd.h"
#include "base/log.h"
#include "broker/client.h"
#include "broker/spawn.h"
#include "dev/packet/packet_ring.h"
#include "engine/credentials.h"
#include "engine/internal_thread.h"
#include "engine/runtime.h"
#include "engine/shm_abroad.h"
#include "sock/api.h"
#include "sock/fd_table.h"
#include "sock/mover.h"
#include "sock/tcp_socket.h"
#include "sock/walk.h"

namespace vma::sock {
namespace {

constexpr unsigned kMostWatched = 256;
std::atomic<Shard*> g_watched[kMostWatched];
std::atomic<bool> g_unwatched{false};  // the broker would not have one of them
// Privileges were given up at least once: the broker no longer takes this process's word for anything. A process can come back
// (seteuid) and give them up again.
std::atomic<bool> g_dropped{false};
std::atomic<uint64_t> g_settled{0};  // shards at the last drop, plus one
constexpr Duration kLookEvery = Duration::seconds(1);
constexpr unsigned kFlowsPerLook = 256;

class BrokerMover final : public Mover {
  public:
    Status restore(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                   RepairOptions& saved) override {
        return broker::restore(fd, s, q, saved);
    }
    void cancel(int fd, const RepairOptions& saved) override { broker::cancel(fd, saved); }
    Status finish(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                  const RepairOptions& saved) override {
        return broker::finish(fd, s, q, saved);
    }
    // Frames are not worth a message each: the peer repeats them.
    Status inject(ByteView) override { return Errno{EPERM}; }
    Status checkpoint(int fd, RepairImage& image, ByteSpan room) override {
        return broker::checkpoint(fd, image, room);
    }
    void resume(int fd, const RepairImage& image) override { broker::resume(fd, image); }
    Status release(int fd, const RepairImage& image) override { return broker::release(fd, image); }
};
BrokerMover g_mover;

// The ring's side of the same: a process without the privileges has its flows written by the broker.
class BrokerKeeper final : public RingKeeper {
  public:
    Status open(int ifindex, uint32_t bytes, LentRing& out) override {
        (void)broker::start();
        broker::OpenRing request;
        request.ifindex = ifindex;
        request.bytes = std::min(bytes, broker::kMostLentBytes);
        broker::OpenedRing opened;
        if (const Status done = broker::open_ring(request, opened); !done) return done;
        out.data = opened.fds[broker::kDataRing];
        out.bell = opened.fds[broker::kDoorbell];
        out.owner = opened.fds[broker::kOwnerPage];
        out.token = opened.fds[broker::kLifeToken];
        out.transmit = opened.fds[broker::kTransmitter];
        out.ingress = opened.fds[broker::kIngressLink];
        out.egress = opened.fds[broker::kEgressLink];
        out.slot = opened.slot;
        out.token_id = opened.token;
        out.bytes = request.bytes;
        return {};
    }
    Status show(int ifindex, uint32_t slot, uint32_t token, int doorbell) override {
        broker::ShowRing ring;
        ring.ifindex = ifindex;
        ring.slot = slot;
        ring.token = token;
        return broker::show_ring(ring, doorbell);
    }
    Status steer(uint32_t slot, const FlowKey& key, FlowGate gate, int twin) override {
        const Status done = broker::steer(flow(slot, key, gate), twin);
        // connect() has a meaning of its own for that.
        return done.error() == EADDRNOTAVAIL ? Status(Errno{EACCES}) : done;
    }
    void unsteer(uint32_t slot, const FlowKey& key, FlowGate gate) override {
        broker::unsteer(flow(slot, key, gate));
    }

  private:
    static broker::Steer flow(uint32_t slot, const FlowKey& key, FlowGate gate) {
        broker::Steer s;
        s.local = broker::to_wire(key.local);
        if (key.connected()) s.remote = broker::to_wire(key.remote);
        s.slot = slot;
        s.gate = gate.number;
        s.gate_value = gate.value;
        s.protocol = key.protocol;
        s.ignore_firewall = Runtime::options().ignore_firewall;
        return s;
    }
};
BrokerKeeper g_keeper;

// And the way to neighbours in other network namespaces. The broker of a privileged program knows nobody but that.
class BrokerIntroducer final : public ShmIntroducer {
  public:
    Result<int> join() override {
        if (broker::has_net_admin_of_host() || !broker::start()) return Errno{EPERM};
        int pair[2];
        const long made =
            sys::raw(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sys::ptr(pair));
        if (made < 0) return Errno{int(-made)};
        const Status shared = broker::share(pair[1]);
        sys::close(pair[1]);
        if (shared) return raised(pair[0]);
        sys::close(pair[0]);
        return Errno{shared.error()};
    }
    Status publish(const Endpoint& local) override { return broker::publish(local); }
};
BrokerIntroducer g_introducer;

// A child that has not touched what it inherited has none, but for its listeners.
bool has_use_for_broker() {
    bool any = !Runtime::shards().empty();
    for_each_socket([&](Socket& socket, int) {
        any = any || !socket.inherited.load(std::memory_order_relaxed) ||
              (socket.kind == ObjectKind::tcp && static_cast<TcpSocket&>(socket).is_listener());
    });
    return any;
}

// If this process is killed, all that is left of a connection is its flow: others find there whom to tell
// (engine/bereaved.h). Whoever has a broker that rescues saves these.
void show_unwatched() {
    for (Shard* shard : Runtime::shards()) {
        if (!shard->tcp().has_young()) continue;
        if (!g_unwatched.load(std::memory_order_relaxed) && broker::is_watched()) return;
        LeaseGuard lease(shard->lease());
        if (shard->ring_estate().slot != 0) shard->tcp().own_flows(kFlowsPerLook);
    }
}

}  // namespace

void broker_configure() {
    const Options& options = Runtime::options();
    broker::ClientConfig config;
    config.enabled = options.broker;
    config.path = options.broker_path.c_str();
    config.layout = layout_identity();
    broker::configure(config);
    set_broker_mover(&g_mover);
    set_ring_keeper(&g_keeper);
    ShmAbroad::set_introducer(&g_introducer);
}

void broker_watch(Shard& shard) {
    for (auto& place : g_watched) {
        Shard* known = place.load(std::memory_order_acquire);
        if (known == &shard) return;
        if (known != nullptr) continue;
        if (!broker::start() || !broker::reachable()) return;
        if (!place.compare_exchange_strong(known, &shard)) {
            if (known == &shard) return;
            continue;
        }
        RingEstate estate;
        {
            LeaseGuard lease(shard.lease());
            estate = shard.ring_estate();
        }
        const Arena& arena = shard.arena();
        if (estate.slot == 0 || arena.memfd() < 0) return;
        broker::Watch w;
        w.arena = reinterpret_cast<uintptr_t>(&arena);
        w.reserve = arena.reserved();
        w.root = reinterpret_cast<uintptr_t>(shard.root());
        w.ring_data = estate.data;
        w.ring_bytes = estate.bytes;
        w.slot = estate.slot;
        w.token = estate.token;
        w.ifindex = shard.ifindex();
        if (const Status done = broker::watch(w, arena.memfd()); !done) {
            g_unwatched.store(true, std::memory_order_relaxed);
            vma_log(info, "broker",
                    "the broker does not watch the connections of interface {} (errno {}): they "
                    "are lost if the process is killed",
                    shard.ifindex(), done.error());
        }
        return;
    }
}

void broker_listener(int fd) {
    // A privileged process is believed; its listeners are shown when it is about to change that.
    if (broker::start() &&
        (g_dropped.load(std::memory_order_relaxed) || !broker::has_net_admin_of_host()))
        broker::prove(fd);
}

void broker_before_drop() {
    if (!Runtime::started() || FdTable::retired()) return;
    const uint64_t now = Runtime::shards().size() + 1;
    if (g_settled.load(std::memory_order_relaxed) == now || !broker::has_net_admin_of_host())
        return;
    if (!has_use_for_broker() || g_settled.exchange(now) == now) return;
    // What runs with another user's rights may be allowed no further thread (haproxy sets RLIMIT_NPROC to 0).
    InternalThread::start();
    (void)broker::start();
    const bool kept = broker::reachable();
    const bool opens_rings = kept && broker::has_sys_admin();
    for_each_socket([&](Socket& socket, int fd) {
        if (socket.kind != ObjectKind::tcp) return;
        auto& tcp = static_cast<TcpSocket&>(socket);
        const bool may_listen = socket.state() == SocketState::undecided;
        if (kept && (tcp.is_listener() || may_listen)) broker::prove(fd);
        // Without such a broker no ring can be opened afterwards; steering to one that is open needs no privilege.
        if (!opens_rings && tcp.is_listener()) tcp.open_rings(fd);
    });
    guard_packet_rings();
    for (Shard* shard : Runtime::shards()) broker_watch(*shard);
    if (!kept) return;
    for (Shard* shard : Runtime::shards())
        if (const Status given = shard->lose_privileges(); !given)
            vma_log(debug, "broker",
                    "the ring of interface {} is not kept by the broker (errno {}): the process "
                    "goes on steering for itself",
                    shard->ifindex(), given.error());
    broker::drop_privileges();
    g_dropped.store(true, std::memory_order_relaxed);
}

void broker_tick() {
    static Instant next{};
    const Instant now = monotonic_now();
    if (now < next) return;
    next = now + kLookEvery;
    show_unwatched();
    if (!broker::bereft()) return;
    std::vector<broker::OwnRing> rings;
    for (Shard* shard : Runtime::shards()) {
        broker::OwnRing ring;
        {
            LeaseGuard lease(shard->lease());
            const RingEstate estate = shard->ring_estate();
            ring.facts.slot = estate.slot;
            ring.facts.token = estate.token;
        }
        ring.facts.ifindex = shard->ifindex();
        ring.doorbell = shard->wake_fd();
        if (ring.facts.slot != 0) rings.push_back(ring);
    }
    std::vector<int> listeners;
    for_each_socket([&](Socket& socket, int fd) {
        if (socket.kind == ObjectKind::tcp && static_cast<TcpSocket&>(socket).is_listener())
            listeners.push_back(fd);
    });
    if (!broker::come_back(rings, listeners)) return;
    vma_log(info, "broker",
            "the broker of this host goes on for this process: {} rings, {} listeners",
            rings.size(), listeners.size());
    for (auto& place : g_watched)
        if (Shard* const shard = place.exchange(nullptr)) broker_watch(*shard);
}

// Afterwards the broker's executable may be out of reach.
void chroot_prepare() {
    if (Runtime::started() && !FdTable::retired() && broker::has_net_admin_of_host() &&
        has_use_for_broker())
        (void)broker::start();
}

bool user_namespace_prepare() { return !FdTable::retired() && suspend_internal_thread(); }
void user_namespace_done(bool left, bool restart) {
    if (left) broker::capabilities_are_of_another_namespace();
    if (restart) InternalThread::start();
}

void thread_changed_privileges() {
    if (!FdTable::retired()) follow_credentials();
}
void thread_keeps_capabilities(bool keep) {
    if (!FdTable::retired()) follow_keep_capabilities(keep);
}

Reason reason_of_steering(int error) {
    switch (error) {
        case ENOLINK:
        case EACCES:
        case EXDEV:
        case EPERM:
            return Reason::broker_gone;
        case EKEYREJECTED:
            return Reason::broker_policy;
        case EDQUOT:
            return Reason::broker_denied;
        case ENETUNREACH:
            return Reason::ring_failed;
        case ENOSPC:
            return Reason::memory;
        default:
            return Reason::none;
    }
}

void broker_forget_in_child(int kept_door) {
    broker::forget_in_child(kept_door);
    for (auto& place : g_watched) place.store(nullptr, std::memory_order_relaxed);
    g_dropped = false;
    g_settled = 0;
}

}  // namespace vma::sock
